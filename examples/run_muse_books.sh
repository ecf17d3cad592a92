#!/usr/bin/env bash
# MUSE-Books at the paper's settings; DATA is the folder data of RULE's repository (docs/data.md):
#   MODEL=muse-bench/MUSE-books_target DATA=RULE/data bash examples/run_muse_books.sh
# ARM, ARMS, N_GPUS, OUT, SMOKE, --dry-run and others: examples/benchmark.py.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python -m examples.benchmark muse_books "$@"
