#!/usr/bin/env bash
# Forget two people and keep everyone else, on a laptop: world, stage 1, RULE, ReRULE, evaluation, report.
# What is already built in outputs/quickstart is reused; delete that folder to start anew.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/common.sh

OUT="${OUT:-outputs/quickstart}"
export HF_HUB_OFFLINE=1
mkdir -p "$OUT"
SECONDS=0

say "1/6 the world: fictional people, and a small model trained from scratch to know them"
python -m data_prep world --out "$OUT/world"
if ! cmp -s "$OUT/world/manifest.json" "$OUT/built_from.json"; then
  [ ! -e "$OUT/built_from.json" ] || echo "the world changed: what was built from the old one is removed"
  rm -rf "$OUT"/{stage1,rule,rerule,evaluation,evaluation.partial,results.json,report.html,report.md,report}
  cp "$OUT/world/manifest.json" "$OUT/built_from.json"
fi

say "2/6 stage 1, rejection steering: fine-tuning on refusals"
stage1 "$OUT/stage1" tiny "$OUT/world/model" "$OUT/world/sft.parquet"

# arm NAME [override ...]
arm() {
  local out="$OUT/$1"
  shift
  if fresh "$out" "$out/latest_checkpointed_iteration.txt"; then
    stage2 "$out" tiny "$OUT/stage1/model" "$OUT/world" "trainer.logger=[file]" "$@"
  fi
}

say "3/6 stage 2, RULE: refusal boundary optimisation with GRPO"
arm rule replay.enable=false
say "4/6 stage 2, ReRULE: the same with replay of hard rollout groups"
arm rerule

say "5/6 evaluation on phrasings that no stage has trained on"
[ -e "$OUT/evaluation/results.json" ] || rm -rf "$OUT"/report{,.html,.md}
evaluate "$OUT/evaluation" cpu "$OUT/world/probes.parquet" base="$OUT/world/model" \
  stage1="$OUT/stage1/model" rule="$OUT/rule" rerule="$OUT/rerule"
cp "$OUT/evaluation/results.json" "$OUT/results.json"

say "6/6 report"
if [ ! -e "$OUT/report.html" ]; then
  python -m recipe.rerule.report --results "$OUT/evaluation" --run rule="$OUT/rule" \
    --run rerule="$OUT/rerule" --data "$OUT/world" --out "$OUT/report.html"
else
  sed '/^### Paired tests/,$d' "$OUT/report.md"
fi
say "done; open $OUT/report.html"
