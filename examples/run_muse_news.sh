#!/usr/bin/env bash
# MUSE-News at the paper's settings of MUSE-Books; DATA holds MUSE's files and the training questions (docs/data.md):
#   MODEL=muse-bench/MUSE-news_target DATA=data/muse_news_raw bash examples/run_muse_news.sh
# ARM, ARMS, N_GPUS, OUT, SMOKE, --dry-run and others: examples/benchmark.py.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python -m examples.benchmark muse_news "$@"
