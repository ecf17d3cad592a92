#!/usr/bin/env bash
# MUSE-News at the paper's settings of MUSE-Books; DATA holds MUSE's files and the training questions (docs/data.md):
#   MODEL=muse-bench/MUSE-news_target DATA=data/muse_news_raw bash examples/run_muse_news.sh
# ARM, ARMS, N_GPUS, NNODES, OUT, SMOKE, --dry-run: examples/benchmark.sh. What is already done in OUT is reused.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/common.sh
source examples/benchmark.sh
run_alone muse_news MUSE-News
