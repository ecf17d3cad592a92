#!/usr/bin/env bash
# Forget two people and keep everyone else, on a laptop: world, stage 1, RULE, ReRULE, evaluation, attacks, report.
# What is already built in outputs/quickstart is reused; delete that folder to start anew.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/common.sh

OUT="${OUT:-outputs/quickstart}"
export HF_HUB_OFFLINE=1
mkdir -p "$OUT"
SECONDS=0

say "1/7 the world: fictional people, a small model trained from scratch to know them, and one that never knew two"
# built_from.json says that what is in OUT was built here, and from which world.
if ! there "$OUT/built_from.json"; then
  for name in stage1 rule rerule evaluation attacks results.json report.html report.md report; do
    ! there "$OUT/$name" || fail "$OUT/$name is there, and no quickstart made it: give another OUT"
  done
fi
python -m data_prep world --out "$OUT/world" --retain-model
there "$OUT/built_from.json" || cp "$OUT/world/manifest.json" "$OUT/built_from.json"
cmp -s "$OUT/world/manifest.json" "$OUT/built_from.json" ||
  fail "what is in $OUT was built from another world than $OUT/world: give another OUT, or delete $OUT"

say "2/7 stage 1, rejection steering: fine-tuning on refusals"
stage1 "$OUT/stage1" tiny "$OUT/world/model" "$OUT/world/sft.parquet"

STAGE2=(tiny "$OUT/stage1/model" "$OUT/world" "trainer.logger=[file]" trainer.resume_mode=auto)
say "3/7 stage 2, RULE: refusal boundary optimisation with GRPO"
stage2 "$OUT/rule" "${STAGE2[@]}" replay.enable=false
say "4/7 stage 2, ReRULE: the same with replay of hard rollout groups"
stage2 "$OUT/rerule" "${STAGE2[@]}"

say "5/7 evaluation on phrasings that no stage has trained on"
UNLEARNED=(--model rule="$OUT/rule" --model rerule="$OUT/rerule")
evaluate "$OUT/evaluation" cpu "$OUT/world" --model base="$OUT/world/model" --model stage1="$OUT/stage1/model" \
  "${UNLEARNED[@]}"
if ! cmp -s "$OUT/evaluation/results.json" "$OUT/results.json"; then
  ! there "$OUT/results.json" || fail "$OUT/results.json is not of $OUT/evaluation: move it away"
  cp "$OUT/evaluation/results.json" "$OUT/results.json"
fi

say "6/7 attacks: what the models that refuse still know"
attack "$OUT/attacks" cpu "$OUT/world" --model original="$OUT/world/model" "${UNLEARNED[@]}" \
  --control "$OUT/world/retain_model" --attacks prefill samples quantise_4 relearn_forget_half

say "7/7 report"
if [ "$OUT/report.html" -nt "$OUT/evaluation/results.json" ] && [ ! "$OUT/attacks" -nt "$OUT/report.html" ]; then
  sed '/^### Paired tests/,$d' "$OUT/report.md"
  sed -n '/^## What attacks get out/,/^###/{/^###/!p}' "$OUT/report.md"
else
  python -m recipe.rerule.report --results "$OUT/evaluation" --attacks "$OUT/attacks" --run rule="$OUT/rule" \
    --run rerule="$OUT/rerule" --data "$OUT/world" --out "$OUT/report.html" --overwrite
fi
say "done; open $OUT/report.html"
