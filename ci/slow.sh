#!/usr/bin/env bash
# The tests marked slow: minutes each, or much memory. Arguments go to the first of two pytest runs, and then there is no
# second.
set -euo pipefail
cd "$(dirname "$0")/.."
# The models of the tests are so small that a second thread only waits; tests that need threads set them.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
echo "==> pytest, slow tests only"
.venv/bin/python -m pytest -m slow "$@"
[ $# -eq 0 ] || exit 0
echo "==> pytest in emulation, slow tests only, in two processes"
CUDA_VISIBLE_DEVICES=-1 ASCEND_RT_VISIBLE_DEVICES= TANDEM_EMULATE=1 .venv/bin/python -m pytest -m slow -n 2 tests/emulated
