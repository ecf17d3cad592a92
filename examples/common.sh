# What the scripts of this folder share; sourced by them, from the repository's root. They remove nothing but what
# examples/remove_unfinished.py knows to be ours.

say() {
  if [ "$DRY" = 1 ]; then printf '\n# %s\n' "$*"; else printf '\n[%3d s] %s\n' "$SECONDS" "$*"; fi
}

# note TEXT: a line for the reader, which is a comment among printed commands.
note() {
  if [ "$DRY" = 1 ]; then echo "# $*"; else echo "$*"; fi
}

fail() {
  echo "error: $*" >&2
  exit 2
}

# dry_run ARGUMENT...: where a script is given --dry-run, or DRY_RUN=1, its commands are printed so that they can be
# pasted into bash, and nothing is run or written.
DRY=0
dry_run() {
  case "$*" in
    "") [ "${DRY_RUN:-0}" = 0 ] || DRY=1 ;;
    --dry-run) DRY=1 ;;
    *) fail "the one option is --dry-run, not $*; settings are environment variables" ;;
  esac
  [ "$DRY" = 0 ] || step cd "$PWD"
}

# step COMMAND...: runs it, or prints it in a dry run.
step() {
  if [ "$DRY" = 1 ]; then echo "$(quoted "$@")"; else "$@"; fi
}

# step_to FILE COMMAND...: the same with the output in FILE.
step_to() {
  local file="$1"
  shift
  if [ "$DRY" = 1 ]; then echo "$(quoted "$@") > $(quoted "$file")"; else "$@" > "$file"; fi
}

# quoted WORD...: as bash reads them again.
quoted() {
  printf '%q' "$1"
  shift
  [ $# = 0 ] || printf ' %q' "$@"
}

# there PATH: succeeds where something is at PATH, a link that leads nowhere included.
there() { [ -e "$1" ] || [ -L "$1" ]; }

# log_of NAME NUMBER: NAME.log, NAME.1.log and so on.
log_of() { [ "$2" = 0 ] && echo "$1.log" || echo "$1.$2.log"; }

# logs_of NAME: how many logs there are.
logs_of() {
  local number=0
  while there "$(log_of "$1" "$number")"; do
    number=$((number + 1))
  done
  echo "$number"
}

# new_log NAME: the first log that is not there: no log is overwritten.
new_log() { log_of "$1" "$(logs_of "$1")"; }

# run LOG PATTERN COMMAND...: the whole output goes to LOG; lines that match PATTERN are shown. A dry run notes the
# command in PLANNED, with ";" after it.
PLANNED=()
run() {
  local log="$1" pattern="$2"
  shift 2
  if [ "$DRY" = 1 ]; then
    echo "$(quoted "$@") 2>&1 | tee $(quoted "$log")"
    PLANNED+=("$@" ";")
  elif ! "$@" 2>&1 | tee "$log" | { grep --line-buffered -oE "$pattern" || true; }; then
    echo "--- the last lines of $log:"
    tail -n 20 "$log"
    exit 1
  fi
}

# built DIR FILE: succeeds, and says so, where DIR is finished, which FILE tells.
built() {
  if [ -e "$2" ]; then
    note "reusing $1"
  else
    return 1
  fi
}

# cleared DIR: removes what an interrupted run left unfinished; ends the script where that is not certain.
cleared() {
  if there "$1"; then
    step python examples/remove_unfinished.py "$1" || exit 2
  fi
}

# setting KEY VALUE: KEY='VALUE', since without quotes Hydra takes a comma, as in a target's name, for a list.
setting() { echo "$1='${2//\'/\\\'}'"; }

# fine_tune OUT COMMAND...: makes OUT/model by a command on verl's SFT trainer.
fine_tune() {
  local out="$1"
  shift
  if ! built "$out" "$out/model/config.json"; then
    cleared "$out"
    run "$(new_log "$out")" '(Epoch [0-9/]+: +[0-9]+%|(stage 1|unlearning) finished.*|warning: .*|error: .*)' \
      "$@" "$(setting trainer.default_local_dir "$out")"
  fi
}

# stage1 OUT EXPERIMENT MODEL SFT_FILE [override ...]: makes OUT/model.
stage1() {
  local out="$1" experiment="$2" model="$3" rows="$4"
  shift 4
  fine_tune "$out" python -m recipe.rerule.sft experiment="$experiment" "$(setting model.path "$model")" \
    "$(setting data.train_files "$rows")" "$@"
}

# unlearn OUT METHOD EXPERIMENT MODEL [override ...]: makes OUT/model by a method that is not reinforcement.
unlearn() {
  local out="$1" method="$2" experiment="$3" model="$4"
  shift 4
  fine_tune "$out" python -m recipe.rerule.unlearn method="$method" experiment="$experiment" \
    "$(setting model.path "$model")" "$@"
}

# finished OUT: succeeds where the newest log of a stage 2 says that its last step is saved.
finished() {
  local logs
  logs="$(logs_of "$1")"
  [ "$logs" != 0 ] && grep -q 'stage 2 finished: ' "$(log_of "$1" $((logs - 1)))"
}

# stage2 OUT EXPERIMENT MODEL DATA_FOLDER [override ...]
stage2() {
  local out="$1" experiment="$2" model="$3" data="$4" log
  shift 4
  if finished "$out" && built "$out" "$out/latest_checkpointed_iteration.txt"; then return; fi
  log="$(new_log "$out")"
  note "starting Ray, the trainer and vLLM takes about a minute; the whole log is $log"
  run "$log" '(step [0-9]+/[0-9]+ .*|stage 2 finished.*|.*already holds the run.*|warning: .*|error: .*)' \
    python -m recipe.rerule.main experiment="$experiment" "$(setting actor_rollout_ref.model.path "$model")" \
    "$(setting data.train_files "$data/train.parquet")" "$(setting data.val_files "$data/val.parquet")" \
    "$(setting trainer.default_local_dir "$out")" "$@"
}

# evaluate OUT PLATFORM DATA_FOLDER --option ...: what was answered before a kill is not asked again.
evaluate() {
  local out="$1" platform="$2" probes="$3/probes.parquet"
  shift 3
  built "$out" "$out/results.json" ||
    step python -m recipe.rerule.evaluate model "$@" --platform "$platform" --probes "$probes" --out "$out"
}

# attack OUT PLATFORM DATA_FOLDER --option ...: attacks that a kill left finished are not made again.
attack() {
  local out="$1" platform="$2" data="$3"
  shift 3
  built "$out" "$out/attacks.json" ||
    step python -m recipe.rerule.evaluate attack "$@" --platform "$platform" --probes "$data/probes.parquet" \
      --train "$data/train.parquet" --out "$out"
}
