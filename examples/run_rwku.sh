#!/usr/bin/env bash
# RWKU at the paper's settings, one target after the other; DATA holds RULE's target folders (docs/data.md):
#   MODEL=meta-llama/Meta-Llama-3-8B-Instruct DATA=RULE/data/RWKU/Target bash examples/run_rwku.sh
# TARGETS: names, one a line (default: all in DATA). Targets that are finished are skipped.
# ARM, ARMS, N_GPUS, NNODES, OUT, SMOKE: examples/benchmark.sh. What is already done in OUT is reused.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/common.sh
source examples/benchmark.sh
OUT="${OUT:-outputs/rwku}"

say "RWKU as rows, a folder per target"
targets=() evaluations=()
while IFS= read -r name; do [ -z "$name" ] || targets+=(--target "$name"); done <<< "${TARGETS:-}"
[ -e "$OUT/data/manifest.json" ] || python -m data_prep rwku --source "$DATA" --rouge rwku --out "$OUT/data" "${targets[@]}" "${PREPARE[@]}"
check_methods "$OUT"/data/*/
for manifest in "$OUT"/data/*/manifest.json; do
  data="$(dirname "$manifest")" target="$(basename "$(dirname "$manifest")")"
  say "== $target"
  run_benchmark rwku "$data" "$OUT/$target"
  evaluations+=(--results "$OUT/$target/evaluation_$NAME")
done
say "all targets together"
[ "$OUT/report_$NAME.html" -nt "$OUT/$target/report_$NAME.html" ] ||
  python -m recipe.rerule.report "${evaluations[@]}" --out "$OUT/report_$NAME.html" --overwrite
say "done; open $OUT/report_$NAME.html, and $OUT/*/report_$NAME.html for each target"
