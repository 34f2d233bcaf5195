#!/usr/bin/env bash
# The tests marked slow: minutes each, or much memory. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
# Sleep, not spin, at the end of parallel loops: beside another busy process spinning threads wait for each other.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
echo "==> pytest, slow tests only"
exec .venv/bin/python -m pytest -m slow "$@"
