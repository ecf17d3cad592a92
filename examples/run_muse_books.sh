#!/usr/bin/env bash
# MUSE-Books at the paper's settings; DATA is the folder data of RULE's repository (docs/data.md):
#   MODEL=muse-bench/MUSE-books_target DATA=RULE/data bash examples/run_muse_books.sh
# ARM, ARMS, N_GPUS, NNODES, OUT, SMOKE, --dry-run: examples/benchmark.sh. What is already done in OUT is reused.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/common.sh
source examples/benchmark.sh
run_alone muse_books MUSE-Books
