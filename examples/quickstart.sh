#!/usr/bin/env bash
# Forget two people and keep everyone else, on a laptop; OUT and --dry-run: examples/quickstart.py.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python -m examples.quickstart "$@"
