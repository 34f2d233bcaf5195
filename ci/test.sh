#!/usr/bin/env bash
# All tests that are not marked slow. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
# Sleep, not spin, at the end of parallel loops: beside another busy process spinning threads wait for each other.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
echo "==> pytest, without the slow tests"
exec .venv/bin/python -m pytest -m "not slow" "$@"
