#!/usr/bin/env bash
# RWKU at the paper's settings, one target after the other; DATA holds RULE's target folders (docs/data.md):
#   MODEL=meta-llama/Meta-Llama-3-8B-Instruct DATA=RULE/data/RWKU/Target bash examples/run_rwku.sh
# TARGETS: names, one a line (default: all in DATA). Targets that are finished are skipped.
# ARM, N_GPUS, NNODES, OUT, SMOKE: examples/benchmark.sh. What is already done in OUT is reused.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/common.sh
source examples/benchmark.sh
OUT="${OUT:-outputs/rwku}"

say "RWKU as rows, a folder per target"
targets=() evaluations=()
while IFS= read -r name; do [ -z "$name" ] || targets+=(--target "$name"); done <<< "${TARGETS:-}"
[ -e "$OUT/data/manifest.json" ] || python -m data_prep rwku --source "$DATA" --rouge rwku --out "$OUT/data" "${targets[@]}" "${PREPARE[@]}"
for manifest in "$OUT"/data/*/manifest.json; do
  data="$(dirname "$manifest")" target="$(basename "$(dirname "$manifest")")"
  say "== $target"
  run_benchmark rwku "$data" "$OUT/$target"
  evaluations+=(--results "$OUT/$target/evaluation_$ARM")
done
say "all targets together"
[ "$OUT/report_$ARM.html" -nt "$OUT/$target/report_$ARM.html" ] ||
  python -m recipe.rerule.report "${evaluations[@]}" --out "$OUT/report_$ARM.html" --overwrite
say "done; open $OUT/report_$ARM.html, and $OUT/*/report_$ARM.html for each target"
