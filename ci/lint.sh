#!/usr/bin/env bash
# Style checks: ruff over Python, clang-format over C and C++.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "==> ruff"
.venv/bin/ruff check --output-format concise .
echo "==> clang-format"
find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | sort | xargs .venv/bin/clang-format --dry-run -Werror
