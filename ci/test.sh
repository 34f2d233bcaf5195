#!/usr/bin/env bash
# All tests that are not marked slow. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
# The models of the tests are so small that a second thread only waits; tests that need threads set them.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# A file's tests share models that take longer to make than most tests, so a file stays in one process.
echo "==> pytest, without the slow tests, in two processes"
exec .venv/bin/python -m pytest -m "not slow" -n 2 --dist loadfile "$@"
