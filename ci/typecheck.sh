#!/usr/bin/env bash
# Strict type checking of the packages as they are imported.
#
# core/ is `tandem` and backends/ is `tandem.backends` only after installation, and mypy does not see
# editable installs of that kind. So the mapping is laid out as a tree of links for it.
#
# Usage: ci/typecheck.sh [SOURCE_ROOT] [MYPY_TARGET...]
#   SOURCE_ROOT  folder with core/, backends/ and pyproject.toml; default: this repository
#   MYPY_TARGET  what to check; default: -p tandem
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
root=$(cd "${1:-$here}" && pwd)
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- -p tandem
tree=$root/build/typecheck
rm -rf "$tree"
mkdir -p "$tree/tandem"
ln -s "$root"/core/* "$tree/tandem/"
ln -s "$root/backends" "$tree/tandem/backends"
echo "==> mypy $*"
cd "$root"
MYPYPATH=$tree exec "${TANDEM_PYTHON:-$here/.venv/bin/python}" -m mypy --config-file pyproject.toml "$@"
