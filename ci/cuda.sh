#!/usr/bin/env bash
# Build the CUDA library where its optional tools are installed; elsewhere say what is missing. Arguments go to the tool.
set -euo pipefail
cd "$(dirname "$0")/.."
exec nice -n 5 .venv/bin/python -m tools.build_cuda "$@"
