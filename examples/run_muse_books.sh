#!/usr/bin/env bash
# MUSE-Books at the paper's settings; DATA holds MUSE's files and the training questions (docs/data.md):
#   MODEL=muse-bench/MUSE-books_target DATA=data/muse_raw bash examples/run_muse_books.sh
# ARM, N_GPUS, NNODES, OUT, SMOKE: examples/benchmark.sh. What is already done in OUT is reused.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/common.sh
source examples/benchmark.sh
OUT="${OUT:-outputs/muse_books}"

say "MUSE-Books as rows"
[ -e "$OUT/data/manifest.json" ] || python -m data_prep muse-books --source "$DATA" --rouge rwku --out "$OUT/data" "${PREPARE[@]}"
run_benchmark muse_books "$OUT/data" "$OUT"
say "done; open $OUT/report_$ARM.html"
