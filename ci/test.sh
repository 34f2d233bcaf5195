#!/usr/bin/env bash
# All tests that are not marked slow. Arguments go to the first of two pytest runs, and then there is no second.
set -euo pipefail
cd "$(dirname "$0")/.."
# The models of the tests are so small that a second thread only waits; tests that need threads set them.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# A file's tests share models that take longer to make than most tests, so a file stays in one process.
echo "==> pytest, without the slow tests, in two processes"
.venv/bin/python -m pytest -m "not slow" -n 2 --dist loadfile "$@"
[ $# -eq 0 ] || exit 0
# Emulation is chosen before a process starts, and is refused beside a device that it sees.
echo "==> pytest in emulation, without the slow tests, in two processes"
CUDA_VISIBLE_DEVICES=-1 ASCEND_RT_VISIBLE_DEVICES= TANDEM_EMULATE=1 .venv/bin/python -m pytest -m "not slow" -n 2 tests/emulated
