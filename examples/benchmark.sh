# What the run_*.sh share: their settings from the environment, and one benchmark from data to report.
# Sourced after common.sh.
#   ARM        rule | rerule (default) | random | recommended: plain RULE, the paper's replay of hard groups,
#              random storage, replay as docs/results.md recommends
#   MODEL      the model that is to forget: a Hugging Face folder or name
#   DATA       the benchmark's files: a folder, or a name on the Hugging Face Hub
#   OUT        where everything goes
#   N_GPUS     per node (default 4); NNODES: nodes of a Ray cluster that is already running (default 1);
#              together 1, 2, 4, 8, 16 or 32 devices
#   EVALUATE_OPTIONS  of recipe.rerule.evaluate model, such as "--prompts llama-2"
#   SMOKE=1    the same on a laptop: a small untrained model, few rows, three steps; needs DATA alone

ARM="${ARM:-rerule}" N_GPUS="${N_GPUS:-4}" NNODES="${NNODES:-1}" SMOKE="${SMOKE:-0}"

# fit_devices: refuses numbers of devices that cannot share a step, and sets STAGE1_GPUS: stage 1 runs on the first
# node, and has batches of 8 rows. Micro-batches follow from the devices (recipe/rerule/training/sizes.py).
fit_devices() {
  local name
  for name in N_GPUS NNODES; do
    [[ "${!name}" =~ ^[1-9][0-9]{0,2}$ ]] || fail "$name is ${!name}; give a whole number above 0"
  done
  case $((N_GPUS * NNODES)) in
    1 | 2 | 4 | 8 | 16 | 32) ;;
    *) fail "N_GPUS x NNODES is $((N_GPUS * NNODES)); give 1, 2, 4, 8, 16 or 32 devices: others cannot share" \
      "the 256 responses and 32 replayed groups of a step evenly" ;;
  esac
  STAGE1_GPUS=$((N_GPUS < 8 ? N_GPUS : 8))
}
STAGE1_GPUS=1
[ "$SMOKE" = 1 ] || fit_devices

# shellcheck disable=SC2206  # the options are words
PLATFORM=gpu PREPARE=() EVALUATE=(${EVALUATE_OPTIONS:-}) STAGE1=("trainer.n_gpus_per_node=$STAGE1_GPUS")
STAGE2=("trainer.n_gpus_per_node=$N_GPUS" "trainer.nnodes=$NNODES" trainer.resume_mode=auto)

RULES=paper/  # where stage 2's experiment is: the paper's, or ours
case "$ARM" in
  rule) STAGE2+=(replay.enable=false) ;;
  rerule) ;;
  random) STAGE2+=(replay.admission=random) ;;
  recommended) RULES= ;;
  *) fail "ARM is $ARM; choose rule, rerule, random or recommended" ;;
esac
[ "$NNODES" = 1 ] || STAGE2+=(+ray_kwargs.ray_init.address=auto)

if [ "$SMOKE" = 1 ]; then
  PLATFORM=cpu PREPARE=(--limit 16 --val-rows 8)
  STAGE1=(platform=cpu optim.lr=1e-3 trainer.total_epochs=1 trainer.n_gpus_per_node=1)
  STAGE2=("${STAGE2[@]:2}" platform=cpu trainer.n_gpus_per_node=1 trainer.total_training_steps=3
    data.train_batch_size=4 data.max_prompt_length=480 data.max_response_length=16 actor_rollout_ref.rollout.n=4
    actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
    actor_rollout_ref.actor.optim.lr=1e-4 actor_rollout_ref.rollout.max_model_len=512
    actor_rollout_ref.rollout.max_num_seqs=16
    replay.min_groups=2 replay.warmup_steps=1 replay.groups_per_update=2)
else
  [ -n "${MODEL:-}" ] || fail "MODEL is not set: give the model that is to forget, or SMOKE=1"
fi
[ -n "${DATA:-}" ] || fail "DATA is not set: give the folder of the benchmark's files, or its name on the Hub"

# run_benchmark EXPERIMENT DATA_FOLDER OUT: stage 1, stage 2 and evaluation of prepared data.
run_benchmark() {
  local experiment="$1" data="$2" out="$3" model="${MODEL:-}"
  if [ -e "$out/report_$ARM.html" ]; then
    echo "$out/report_$ARM.html is there: nothing to do"
    return
  fi
  mkdir -p "$out"
  if [ "$SMOKE" = 1 ]; then
    model="$out/model"
    [ -e "$model" ] || python examples/small_model.py --data "$data" --out "$model"
  fi
  say "stage 1, rejection steering: fine-tuning on refusals"
  stage1 "$out/stage1" "$experiment" "$model" "$data/sft.parquet" "${STAGE1[@]}"
  say "stage 2, $ARM: refusal boundary optimisation"
  stage2 "$out/$ARM" "$RULES$experiment" "$out/stage1/model" "$data" "${STAGE2[@]}"
  say "evaluation"
  evaluate "$out/evaluation_$ARM" "$PLATFORM" "$data/probes.parquet" \
    base="$model" stage1="$out/stage1/model" "$ARM=$out/$ARM" "${EVALUATE[@]}"
  python -m recipe.rerule.report --results "$out/evaluation_$ARM" --run "$ARM=$out/$ARM" \
    --data "$data" --out "$out/report_$ARM.html"
}
