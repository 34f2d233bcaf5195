#!/usr/bin/env bash
# All tests that are not marked slow. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "==> pytest, without the slow tests"
exec .venv/bin/python -m pytest -m "not slow" "$@"
