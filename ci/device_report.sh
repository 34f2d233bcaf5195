#!/usr/bin/env bash
# Everything that needs a device, on a device: writes docs/reports/<device>.md and .json. Arguments: BACKEND [--quick].
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python -m tools.device_report "$@"
