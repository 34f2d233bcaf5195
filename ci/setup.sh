#!/usr/bin/env bash
# Make .venv with pinned dependencies and Tandem in editable form: sources are used where they lie.
set -euo pipefail
cd "$(dirname "$0")/.."

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "ci/setup.sh: no Python 3.11, 3.12 or 3.13 found; install one or set PYTHON to it" >&2
  return 1
}

python=$(find_python)
if ! .venv/bin/python -c '' 2>/dev/null; then
  echo "==> making .venv with $("$python" --version)"
  rm -rf .venv
  "$python" -m venv .venv
fi
pip=(.venv/bin/python -m pip --disable-pip-version-check -qq install -c ci/constraints.txt)
echo "==> installing pinned dependencies (about 1 GB, a minute or two the first time)"
"${pip[@]}" setuptools
"${pip[@]}" --no-build-isolation --editable '.[test,train]'
.venv/bin/python - <<'PY'
from tandem.backends.cpu.loading import native_status

status = native_status()
print(f"==> native kernels: {status.isa}" if status.available else f"==> no native kernels: {status.reason}")
PY
