# What the scripts of this folder share; sourced by them, from the repository's root. They remove nothing but what
# examples/remove_unfinished.py knows to be ours.

say() { printf '\n[%3d s] %s\n' "$SECONDS" "$*"; }

fail() {
  echo "error: $*" >&2
  exit 2
}

# there PATH: succeeds where something is at PATH, a link that leads nowhere included.
there() { [ -e "$1" ] || [ -L "$1" ]; }

# new_log NAME: NAME.log, or NAME.1.log and so on where that is taken: no log is overwritten.
new_log() {
  local log="$1.log" number=0
  while there "$log"; do
    number=$((number + 1))
    log="$1.$number.log"
  done
  echo "$log"
}

# run LOG PATTERN COMMAND...: the whole output goes to LOG; lines that match PATTERN are shown.
run() {
  local log="$1" pattern="$2"
  shift 2
  if ! "$@" 2>&1 | tee "$log" | { grep --line-buffered -oE "$pattern" || true; }; then
    echo "--- the last lines of $log:"
    tail -n 20 "$log"
    exit 1
  fi
}

# built DIR FILE: succeeds, and says so, where DIR is finished, which FILE tells.
built() {
  if [ -e "$2" ]; then
    echo "reusing $1"
  else
    return 1
  fi
}

# cleared DIR: removes what an interrupted run left unfinished; ends the script where that is not certain.
cleared() {
  if there "$1"; then
    python examples/remove_unfinished.py "$1" || exit 2
  fi
}

# stage1 OUT EXPERIMENT MODEL SFT_FILE [override ...]: makes OUT/model.
stage1() {
  local out="$1" experiment="$2" model="$3" rows="$4"
  shift 4
  if ! built "$out" "$out/model/config.json"; then
    cleared "$out"
    run "$(new_log "$out")" '(Epoch [0-9/]+: +[0-9]+%|stage 1 finished.*|warning: .*|error: .*)' \
      python -m recipe.rerule.sft experiment="$experiment" model.path="$model" \
      data.train_files="$rows" trainer.default_local_dir="$out" "$@"
  fi
}

# stage2 OUT EXPERIMENT MODEL DATA_FOLDER [override ...]
stage2() {
  local out="$1" experiment="$2" model="$3" data="$4" log
  shift 4
  log="$(new_log "$out")"
  echo "starting Ray, the trainer and vLLM takes about a minute; the whole log is $log"
  run "$log" '(step [0-9]+/[0-9]+ .*|stage 2 finished.*|.*already holds the run.*|warning: .*|error: .*)' \
    python -m recipe.rerule.main experiment="$experiment" actor_rollout_ref.model.path="$model" \
    data.train_files="$data/train.parquet" data.val_files="$data/val.parquet" \
    trainer.default_local_dir="$out" "$@"
}

# evaluate OUT PLATFORM PROBES NAME=MODEL... [--option ...]: what was answered before a kill is not asked again.
evaluate() {
  local out="$1" platform="$2" probes="$3" arguments=()
  shift 3
  while [ $# -gt 0 ] && [ "${1#--}" = "$1" ]; do
    arguments+=(--model "$1")
    shift
  done
  if ! built "$out" "$out/results.json"; then
    python -m recipe.rerule.evaluate model --platform "$platform" --probes "$probes" "${arguments[@]}" "$@" \
      --out "$out"
  fi
}
