#!/usr/bin/env bash
# A language model of 135 million parameters forgets France and keeps the rest, on two processor cores; OUT, MODEL, SMOKE
# and --dry-run: examples/real.py.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python -m examples.real "$@"
