#!/usr/bin/env bash
# A language model of 135 million parameters forgets France and keeps the rest, on two processor cores: model, rows,
# stage 1, RULE, ReRULE, preference optimisation (PO), evaluation, attacks, report. docs/real_model.md
# What is already built in OUT is reused; delete that folder to start anew.
#   OUT      where everything goes (default: outputs/real)
#   MODEL    a folder of the model, where it is not to be fetched
#   SMOKE=1  a try: few rows, two steps a stage, one attack
#   --dry-run, or DRY_RUN=1: the commands are printed, and nothing is run or written
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/common.sh
dry_run "$@"

OUT="${OUT:-outputs/real}" MODEL="${MODEL:-}" SMOKE="${SMOKE:-0}"
ROWS=examples/france.csv
DATA="$OUT/data"

# What shapes the runs, in addition to experiment=custom and, for stage 2, experiment=forget. RULE and ReRULE are validated
# here, and the best checkpoints are compared.
CPU=(platform=cpu platform.bf16=auto)
PREPARE=(--probe-share 0.25 --val-share 0.2)
STAGE1=("${CPU[@]}")
STAGE2=("${CPU[@]}" "trainer.logger=[file]" trainer.total_training_steps=30 trainer.test_freq=5 trainer.val_before_train=true
  save.best=true save.minutes=null)
RULE=(replay.enable=false)
RERULE=()
PO=("${CPU[@]}" optim.lr=3e-5 data.train_batch_size=8 trainer.total_epochs=20
  "checkpoint.save_contents=[hf_model]")
ATTACKS=(prefill samples relearn_forget_half)

if [ "$SMOKE" = 1 ]; then
  PREPARE+=(--limit 12 --val-rows 4)
  STAGE1+=(trainer.total_training_steps=2)
  STAGE2+=(data.train_batch_size=4 trainer.total_training_steps=2 trainer.test_freq=1)
  RERULE+=(replay.admission=all replay.require_signal=false replay.min_groups=2 replay.warmup_steps=1 replay.groups_per_update=2)
  PO+=(trainer.total_training_steps=2)
  ATTACKS=(prefill)
fi

# What is in OUT was made here with these settings and rows, or the script ends.
settings="$(declare -p MODEL PREPARE STAGE1 STAGE2 RULE RERULE PO ATTACKS; sha256sum "$ROWS")"
if there "$OUT" && [ "$(cat "$OUT/settings.txt" 2> /dev/null)" != "$settings" ]; then
  fail "$OUT was not made by this script with these settings: give another OUT, or delete $OUT"
fi
step mkdir -p "$OUT"
step_to "$OUT/settings.txt" echo "$settings"
SECONDS=0

say "1/8 the model"
if [ -z "$MODEL" ]; then
  MODEL="$OUT/model"
  step python examples/real_model.py --out "$MODEL"
fi
step export HF_HUB_OFFLINE=1

say "2/8 the rows: questions about France, which is to be forgotten, and about everything else"
built "$DATA" "$DATA/manifest.json" ||
  step_to "$(new_log "$DATA")" python -m data_prep custom --source "$ROWS" --out "$DATA" "${PREPARE[@]}"

say "3/8 stage 1: fine-tuning on refusals"
stage1 "$OUT/stage1" custom "$MODEL" "$DATA/sft.parquet" "${STAGE1[@]}"

say "4/8 stage 2, RULE: GRPO with a reward for refusals about France and for right answers elsewhere"
stage2 "$OUT/rule" forget "$OUT/stage1/model" "$DATA" "${STAGE2[@]}" "${RULE[@]}"
say "5/8 stage 2, ReRULE: the same with replay of hard rollout groups"
stage2 "$OUT/rerule" forget "$OUT/stage1/model" "$DATA" "${STAGE2[@]}" "${RERULE[@]}"

say "6/8 PO, to compare with: fine-tuning on refusals and on the model's own right answers, without reinforcement"
unlearn "$OUT/po" po custom "$MODEL" "$(setting data.alternate "$DATA/alternate.parquet")" \
  "$(setting data.retain "$OUT/stage1/records/own_answers.parquet")" "${PO[@]}"

say "7/8 evaluation on phrasings that no stage has trained on, and attacks on what refusals hide"
UNLEARNED=(--model rule="$OUT/rule" --model rerule="$OUT/rerule" --model po="$OUT/po/model")
evaluate "$OUT/evaluation" cpu "$DATA" --model base="$MODEL" --model stage1="$OUT/stage1/model" "${UNLEARNED[@]}"
attack "$OUT/attacks" cpu "$DATA" --model original="$MODEL" "${UNLEARNED[@]}" --attacks "${ATTACKS[@]}"

say "8/8 report"
[ -e "$OUT/report.html" ] ||
  step_to "$(new_log "$OUT/report")" python -m recipe.rerule.report --title France --results "$OUT/evaluation" \
    --attacks "$OUT/attacks" --run rule="$OUT/rule" --run rerule="$OUT/rerule" --data "$DATA" --out "$OUT/report.html"
step sed '/^### Paired tests/,$d' "$OUT/report.md"
step python examples/before_after.py "$OUT/evaluation" base rule rerule
say "done; open $OUT/report.html"
