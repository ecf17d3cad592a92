#!/usr/bin/env bash
# MUSE-Books at the paper's settings; DATA holds MUSE's files and the training questions (docs/data.md):
#   MODEL=muse-bench/MUSE-books_target DATA=data/muse_raw bash examples/run_muse_books.sh
# ARM, ARMS, N_GPUS, NNODES, OUT, SMOKE: examples/benchmark.sh. What is already done in OUT is reused.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/common.sh
source examples/benchmark.sh
source examples/muse.sh
run_muse muse_books MUSE-Books
