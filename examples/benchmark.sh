# What the run_*.sh share: their settings from the environment, and one benchmark from data to report.
# Sourced after common.sh. An option --dry-run, or DRY_RUN=1, prints the commands and what they take, as far as known, and
# runs nothing.
#   ARM        rule | rerule (default) | random | recommended: plain RULE, the paper's replay of hard groups,
#              random storage, the recommended replay (docs/method.md); tau_X, warmup_N: the paper's replay with the
#              threshold X, such as tau_0.6, or with replay from step N + 1; rule_ppo | rule_reinforce_plus_plus: plain
#              RULE with another estimator of advantages; or a method of `python -m recipe.rerule.unlearn --list`, such
#              as npo_gdr
#   ARMS       several of them, such as "rule rerule npo_gdr", and one report with paired tests
#   MODEL      the model that is to forget: a Hugging Face folder or name
#   DATA       the benchmark's files: a folder, or a name on the Hugging Face Hub
#   OUT        where everything goes
#   N_GPUS     per node (default 4); NNODES: nodes of a Ray cluster that is already running (default 1);
#              together 1, 2, 4, 8, 16 or 32 devices
#   PREPARE_OPTIONS   of data_prep, such as "--gold FILE"; they count when OUT/data is made
#   STAGE1_OPTIONS, STAGE2_OPTIONS, UNLEARN_OPTIONS   Hydra overrides of stage 1, of every stage 2 and of every method of
#              `unlearn`, such as "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true"
#   METHOD_ROWS       what methods of `unlearn` train on: answers (default), or texts, the whole texts of the benchmark
#   BASE_URL          of a server with OpenAI's protocol: with GENERATOR_MODEL, a model there writes the rows that the benchmark
#                     lacks (PREPARE_OPTIONS="--prompt boundary=paper" chooses prompts); with JUDGE_MODEL, one scores answers
#   EVALUATE_OPTIONS  of recipe.rerule.evaluate model, such as "--prompts llama-2"
#   SMOKE=1    the same on a laptop: few rows, three steps, and without MODEL a small untrained one; needs DATA alone

dry_run "$@"
[ -z "${ARM:-}" ] || [ -z "${ARMS:-}" ] || fail "ARM is $ARM and ARMS is $ARMS; give one of them"
ARM_NAMES=("${ARM:-rerule}")
[ -z "${ARMS:-}" ] || read -r -d '' -a ARM_NAMES <<< "$ARMS" || true
REINFORCED=() METHODS=()  # arms of stage 2, and methods of recipe.rerule.unlearn
declare -A OVERRIDES      # of each arm of stage 2, as words

# sort_arms: fills REINFORCED, METHODS and OVERRIDES; refuses names that are no arm or given twice.
sort_arms() {
  local arm seen=" " says="ARM is"
  [ -z "${ARMS:-}" ] || says="ARMS names"
  [ ${#ARM_NAMES[@]} != 0 ] || fail "ARMS names no arm; give names such as \"rule rerule npo_gdr\""
  for arm in "${ARM_NAMES[@]}"; do
    [[ "$seen" != *" $arm "* ]] || fail "ARMS names $arm twice; name each arm once"
    seen+="$arm "
    case "$arm" in
      rule) OVERRIDES[$arm]="replay.enable=false" ;;
      rule_ppo) OVERRIDES[$arm]="replay.enable=false algorithm.adv_estimator=gae" ;;
      rule_reinforce_plus_plus) OVERRIDES[$arm]="replay.enable=false algorithm.adv_estimator=reinforce_plus_plus" ;;
      rerule | recommended) OVERRIDES[$arm]="" ;;
      random) OVERRIDES[$arm]="replay.admission=random" ;;
      tau_*)
        [[ "$arm" =~ ^tau_(0?\.[0-9]+|1(\.0*)?)$ ]] || fail "$says $arm; give tau_X with X from 0 to 1, such as tau_0.6"
        OVERRIDES[$arm]="replay.threshold=${arm#tau_}"
        ;;
      warmup_*)
        [[ "$arm" =~ ^warmup_(0|[1-9][0-9]*)$ ]] || fail "$says $arm; give warmup_N with a step N, such as warmup_10"
        OVERRIDES[$arm]="replay.warmup_steps=${arm#warmup_}"
        ;;
      *)
        [[ "$arm" =~ ^[a-z0-9_]+$ && -e "recipe/rerule/config/unlearn/method/$arm.yaml" ]] ||
          fail "$says $arm; choose rule, rerule, random, recommended, tau_X, warmup_N, rule_ppo or rule_reinforce_plus_plus," \
            "or a method of python -m recipe.rerule.unlearn --list"
        METHODS+=("$arm")
        continue
        ;;
    esac
    REINFORCED+=("$arm")
  done
}
N_GPUS="${N_GPUS:-4}" NNODES="${NNODES:-1}" SMOKE="${SMOKE:-0}" METHOD_ROWS="${METHOD_ROWS:-answers}"

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
sort_arms
NAME="${ARM_NAMES[*]}"
NAME="${NAME// /-}"  # in names of files: the arms, joined

# shellcheck disable=SC2206  # the options are words
PLATFORM=gpu PREPARE=() EVALUATE=(${EVALUATE_OPTIONS:-}) STAGE1=("trainer.n_gpus_per_node=$STAGE1_GPUS")
STAGE2=("trainer.n_gpus_per_node=$N_GPUS" "trainer.nnodes=$NNODES" trainer.resume_mode=auto)
# No optimiser is saved: a method that was killed starts again.
UNLEARN=("trainer.n_gpus_per_node=$STAGE1_GPUS" "checkpoint.save_contents=[hf_model]")
[ "$NNODES" = 1 ] || STAGE2+=(+ray_kwargs.ray_init.address=auto)

if [ "$SMOKE" = 1 ]; then
  PLATFORM=cpu PREPARE=(--limit 16 --val-rows 8)
  LENGTH=512  # tokens of a prompt and its response, at most; the small model has no more
  [ -z "${MODEL:-}" ] || LENGTH=1024
  STAGE1=(platform=cpu optim.lr=1e-3 trainer.total_epochs=1 trainer.n_gpus_per_node=1)
  STAGE2=("${STAGE2[@]:2}" platform=cpu trainer.n_gpus_per_node=1 trainer.total_training_steps=3
    data.train_batch_size=4 "data.max_prompt_length=$((LENGTH - 32))" data.max_response_length=16 actor_rollout_ref.rollout.n=4
    actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
    actor_rollout_ref.actor.optim.lr=1e-4 "actor_rollout_ref.rollout.max_model_len=$LENGTH"
    actor_rollout_ref.rollout.max_num_seqs=16
    replay.min_groups=2 replay.warmup_steps=1 replay.groups_per_update=2)
  UNLEARN=("${UNLEARN[@]:1}" platform=cpu trainer.n_gpus_per_node=1 trainer.total_training_steps=3
    data.train_batch_size=4 optim.lr=1e-4 optim.lr_warmup_steps=0)
else
  [ -n "${MODEL:-}" ] || fail "MODEL is not set: give the model that is to forget, or SMOKE=1"
fi
# shellcheck disable=SC2206
PREPARE+=(${PREPARE_OPTIONS:-}) STAGE1+=(${STAGE1_OPTIONS:-})
# shellcheck disable=SC2206
STAGE2+=(${STAGE2_OPTIONS:-}) UNLEARN+=(${UNLEARN_OPTIONS:-})
[ -z "${GENERATOR_MODEL:-}${JUDGE_MODEL:-}" ] || [ -n "${BASE_URL:-}" ] || fail "BASE_URL is not set: GENERATOR_MODEL and" \
  "JUDGE_MODEL are models of that server"
[ -z "${GENERATOR_MODEL:-}" ] || PREPARE+=(--base-url "$BASE_URL" --model "$GENERATOR_MODEL")
[ -n "${DATA:-}" ] || fail "DATA is not set: give the folder of the benchmark's files, or its name on the Hub"

# What is in OUT is reused, so OUT/rows.txt and OUT/model.txt (of RWKU one for each target) hold what it was made with.
OF_ROWS=(DATA SMOKE PREPARE_OPTIONS GENERATOR_MODEL) OF_MODEL=(MODEL METHOD_ROWS)

# values NAME...: these variables, a line each. same FILE NAME...: ends the script where FILE holds other values. keep
# FILE NAME...: writes them there, once.
values() {
  local name
  for name in "$@"; do echo "$name: ${!name:-}"; done
}
same() {
  [ ! -e "$1" ] || [ "$(cat "$1")" = "$(values "${@:2}")" ] ||
    fail "$1 says that what is there was made with other values of ${*:2}: give another OUT, or delete $OUT"
}
KEPT=" "
keep() {
  [[ ! -e "$1" && "$KEPT" != *" $1 "* ]] || return 0
  KEPT+="$1 "
  step mkdir -p "$(dirname "$1")"
  step_to "$1" echo "$(values "${@:2}")"
}

# check_methods DATA_FOLDER...: ends the script where a method of METHODS lacks a file in one of them.
check_methods() {
  local method
  for method in "${METHODS[@]}"; do
    method_files "$method" "$@" > /dev/null || exit 2
  done
}

# method_files METHOD DATA_FOLDER...: its settings; in a dry run also of folders that are not made yet.
method_files() {
  local planned=()
  [ "$DRY" = 0 ] || [ -e "$2/manifest.json" ] || planned=(--planned)
  python examples/method_files.py "$METHOD_ROWS" "${planned[@]}" "$@"
}

# check_source BENCHMARK [TARGET...]: before rows are made, ends the script where DATA lacks texts that a method of METHODS
# reads. A dry run does not ask the Hub.
check_source() {
  [ ${#METHODS[@]} != 0 ] || return 0
  [ "$DRY" = 0 ] || [ -d "$DATA" ] || return 0
  python examples/method_files.py "$METHOD_ROWS" --source "$1" "$DATA" "${METHODS[*]}" "${@:2}" || exit 2
}

# say_sizes BENCHMARK: in a dry run, what the stages take, as far as known.
say_sizes() {
  [ ${#PLANNED[@]} != 0 ] || return 0
  say "what the stages take"
  HF_HUB_OFFLINE=1 python examples/stage_sizes.py "$1" "${MODEL:-}" "${PLANNED[@]}" || exit 2
}

# run_alone BENCHMARK TITLE: a benchmark of one target from its files to the report.
run_alone() {
  local benchmark="$1"
  OUT="${OUT:-outputs/$benchmark}"
  say "$2 as rows"
  same "$OUT/rows.txt" "${OF_ROWS[@]}"
  if ! [ -e "$OUT/data/manifest.json" ]; then
    check_source "$benchmark"
    step python -m data_prep "${benchmark/_/-}" --source "$DATA" --rouge rwku --out "$OUT/data" "${PREPARE[@]}"
    keep "$OUT/rows.txt" "${OF_ROWS[@]}"
  fi
  check_methods "$OUT/data"
  run_benchmark "$benchmark" "$OUT/data" "$OUT"
  say_sizes "$benchmark"
  say "done; open $OUT/report_$NAME.html"
}

# run_benchmark EXPERIMENT DATA_FOLDER OUT: each arm, and one evaluation and report of all of them.
run_benchmark() {
  local experiment="$1" data="$2" out="$3" model="${MODEL:-}" arm models runs=()
  same "$out/model.txt" "${OF_MODEL[@]}"
  if [ -e "$out/report_$NAME.html" ]; then
    note "$out/report_$NAME.html is there: nothing to do"
    return
  fi
  step mkdir -p "$out"
  if [ -z "$model" ]; then
    model="$out/model"
    [ -e "$model" ] || step python examples/small_model.py --data "$data" --out "$model"
  fi
  models=(--model base="$model")
  if [ ${#REINFORCED[@]} != 0 ]; then
    say "stage 1, rejection steering: fine-tuning on refusals"
    stage1 "$out/stage1" "$experiment" "$model" "$data/sft.parquet" "${STAGE1[@]}"
    keep "$out/model.txt" "${OF_MODEL[@]}"
    models+=(--model stage1="$out/stage1/model")
  fi
  for arm in "${ARM_NAMES[@]}"; do
    if [ -v "OVERRIDES[$arm]" ]; then
      reinforced "$arm" "$experiment" "$data" "$out"
      models+=(--model "$arm=$out/$arm") runs+=(--run "$arm=$out/$arm")
    else
      by_method "$arm" "$experiment" "$data" "$out" "$model"
      models+=(--model "$arm=$out/$arm/model")
    fi
  done
  say "evaluation"
  evaluate "$out/evaluation_$NAME" "$PLATFORM" "$data" "${models[@]}" --most-compared $((${#models[@]} / 2)) "${EVALUATE[@]}"
  if [ -n "${JUDGE_MODEL:-}" ]; then
    [ -e "$out/naturalness_$NAME" ] ||
      step python -m recipe.rerule.evaluate judge --results "$out/evaluation_$NAME" --base-url "$BASE_URL" \
        --judge-model "$JUDGE_MODEL" --out "$out/naturalness_$NAME"
    runs+=(--naturalness "$out/naturalness_$NAME")
  fi
  step python -m recipe.rerule.report --results "$out/evaluation_$NAME" "${runs[@]}" \
    --data "$data" --out "$out/report_$NAME.html"
}

# reinforced ARM EXPERIMENT DATA_FOLDER OUT: stage 2 of an arm, from OUT/stage1 to OUT/ARM.
reinforced() {
  local arm="$1" experiment="paper/$2" data="$3" out="$4"
  [ "$arm" != recommended ] || experiment="$2"
  say "stage 2, $arm: refusal boundary optimisation"
  # shellcheck disable=SC2086  # the overrides are words
  stage2 "$out/$arm" "$experiment" "$out/stage1/model" "$data" "${STAGE2[@]}" ${OVERRIDES[$arm]}
}

# by_method METHOD EXPERIMENT DATA_FOLDER OUT MODEL: OUT/METHOD, by a method that is not reinforcement.
by_method() {
  local method="$1" experiment="$2" data="$3" out="$4" model="$5" files file settings=() long=()
  say "$method: unlearning without reinforcement"
  files="$(method_files "$method" "$data")" || exit 2
  while IFS= read -r file; do settings+=("$(setting "${file%%=*}" "${file#*=}")"); done <<< "$files"
  if [ "$method" = whp ]; then
    say "$method: the reinforced model, trained further on what is to be forgotten"
    # whp reads one file. Rows of whole texts have up to 700 words.
    [ "$METHOD_ROWS" = answers ] || long=(data.max_length=2048)
    stage1 "$out/reinforced" "$experiment" "$model" "${files#data.forget=}" "${long[@]}" "${STAGE1[@]}"
    settings+=("$(setting reinforced.path "$out/reinforced/model")")
  fi
  unlearn "$out/$method" "$method" "$experiment" "$model" "${settings[@]}" "${UNLEARN[@]}"
  keep "$out/model.txt" "${OF_MODEL[@]}"
}
