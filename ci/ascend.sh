#!/usr/bin/env bash
# Build the Ascend library: with --emulated for this host, else for a device where bisheng is installed. Arguments go to the tool.
set -euo pipefail
cd "$(dirname "$0")/.."
exec nice -n 5 .venv/bin/python -m tools.build_ascend "$@"
