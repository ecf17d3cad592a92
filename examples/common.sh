# What the scripts of this folder share; sourced by them, from the repository's root.

say() { printf '\n[%3d s] %s\n' "$SECONDS" "$*"; }

fail() {
  echo "error: $*" >&2
  exit 2
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

# fresh DIR MARKER: succeeds when DIR must be built; a half-built one is removed.
fresh() {
  if [ -e "$2" ]; then
    echo "reusing $1"
    return 1
  fi
  if [ -e "$1" ]; then
    echo "removing $1, which an interrupted run left unfinished"
    rm -rf "$1"
  fi
}

# stage1 OUT EXPERIMENT MODEL SFT_FILE [override ...]: makes OUT/model.
stage1() {
  local out="$1" experiment="$2" model="$3" rows="$4"
  shift 4
  if fresh "$out" "$out/model/config.json"; then
    run "$out.log" '(Epoch [0-9/]+: +[0-9]+%|stage 1 finished.*|error: .*)' \
      python -m recipe.rerule.sft experiment="$experiment" model.path="$model" \
      data.train_files="$rows" trainer.default_local_dir="$out" "$@"
  fi
}

# stage2 OUT EXPERIMENT MODEL DATA_FOLDER [override ...]
stage2() {
  local out="$1" experiment="$2" model="$3" data="$4"
  shift 4
  echo "starting Ray, the trainer and vLLM takes about a minute; the whole log is $out.log"
  run "$out.log" '(step [0-9]+/[0-9]+ .*|stage 2 finished.*|.*already holds the run.*|error: .*)' \
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
  if fresh "$out" "$out/results.json"; then
    python -m recipe.rerule.evaluate model --platform "$platform" --probes "$probes" "${arguments[@]}" "$@" \
      --out "$out"
  fi
}
