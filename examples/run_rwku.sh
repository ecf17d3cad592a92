#!/usr/bin/env bash
# RWKU at the paper's settings, one target after the other; DATA is the folder data of RULE's repository, or a folder of
# targets (docs/data.md):
#   MODEL=meta-llama/Meta-Llama-3-8B-Instruct DATA=RULE/data bash examples/run_rwku.sh
# TARGETS: names, one a line (default: the paper's ten, and its first two with SMOKE=1), or all, those with training rows.
# They count when OUT/data is made. Targets that are finished are skipped.
# ARM, ARMS, N_GPUS, NNODES, OUT, SMOKE, --dry-run: examples/benchmark.sh. What is already done in OUT is reused.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/common.sh
source examples/benchmark.sh
OUT="${OUT:-outputs/rwku}"

PAPER="1_Stephen_King
2_Confucius
3_Bruce_Lee
4_Warren_Buffett
5_Christina_Aguilera
6_Cindy_Crawford
7_Marie_Osmond
8_Paris_Hilton
9_Justin_Bieber
10_Prince_Harry,_Duke_of_Sussex"
[ "$SMOKE" != 1 ] || PAPER="$(head -n 2 <<< "$PAPER")"

say "RWKU as rows, a folder per target"
options=() names=() all=()
same "$OUT/rows.txt" "${OF_ROWS[@]}"
if [ -e "$OUT/data/manifest.json" ]; then
  for manifest in "$OUT"/data/*/manifest.json; do names+=("$(basename "$(dirname "$manifest")")"); done
else
  if [ "${TARGETS:-}" != all ]; then
    while IFS= read -r name; do [ -z "$name" ] || options+=(--target "$name"); done <<< "${TARGETS:-$PAPER}"
  fi
  prepare=(python -m data_prep rwku --source "$DATA" --rouge rwku --out "$OUT/data" "${options[@]}")
  listed="$("${prepare[@]}" --list "${PREPARE[@]}")" || exit 2
  mapfile -t names <<< "$listed"
  check_source rwku "${names[@]}"
  step "${prepare[@]}" "${PREPARE[@]}"
  keep "$OUT/rows.txt" "${OF_ROWS[@]}"
fi
check_methods "${names[@]/#/"$OUT/data/"}"
for target in "${names[@]}"; do
  say "== $target"
  run_benchmark rwku "$OUT/data/$target" "$OUT/$target"
  all+=(--results "$OUT/$target/evaluation_$NAME")
  for arm in "${REINFORCED[@]}"; do all+=(--run "$arm=$OUT/$target/$arm"); done
  [ -z "${JUDGE_MODEL:-}" ] || all+=(--naturalness "$OUT/$target/naturalness_$NAME")
done
say "all targets together"
newer=1
for target in "${names[@]}"; do [ "$OUT/report_$NAME.html" -nt "$OUT/$target/report_$NAME.html" ] || newer=0; done
[ "$newer" = 1 ] ||
  step python -m recipe.rerule.report "${all[@]}" --data "$OUT/data" --out "$OUT/report_$NAME.html" --overwrite
say_sizes rwku
say "done; open $OUT/report_$NAME.html, and $OUT/*/report_$NAME.html for each target"
