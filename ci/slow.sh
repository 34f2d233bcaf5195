#!/usr/bin/env bash
# The tests marked slow: minutes each, or much memory. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
# The models of the tests are so small that a second thread only waits; tests that need threads set them.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
echo "==> pytest, slow tests only"
exec .venv/bin/python -m pytest -m slow "$@"
