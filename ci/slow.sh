#!/usr/bin/env bash
# The tests marked slow: minutes each, or much memory. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "==> pytest, slow tests only"
exec .venv/bin/python -m pytest -m slow "$@"
