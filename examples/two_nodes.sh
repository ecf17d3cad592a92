#!/usr/bin/env bash
# Starts Ray on two nodes or more, runs COMMAND on the first one, and ends Ray on these nodes. With Slurm:
#   sbatch --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=32 examples/two_nodes.sh COMMAND...
# Without Slurm, in any order (HEAD: an address of the first machine that the others reach, and a free port there):
#   HEAD=10.0.0.1:6379 bash examples/two_nodes.sh COMMAND...    # on the first machine
#   HEAD=10.0.0.1:6379 bash examples/two_nodes.sh               # on each of the others, until the first one has ended
# COMMAND is a stage 2 or a benchmark, such as
#   python -m recipe.rerule.main trainer.nnodes=2 trainer.n_gpus_per_node=8 ...
#   env NNODES=2 N_GPUS=8 OUT=/shared/rwku MODEL=... DATA=... bash examples/run_rwku.sh
# The nodes share: the folder of the run, on a disk that all mount; model, rows, HF_HOME, this project and its activated
# environment, at the same paths; the token in RAY_AUTH_TOKEN_PATH, which the first node makes where there is none.
#   NODES         how many there are (default: Slurm's, or 2)
#   RAY_OPTIONS   more options of `ray start` on this machine (Slurm: on all of them), such as "--num-cpus=32"
#   WAIT_SECONDS  how long the script waits for the other nodes (default: 600)
#   DRY_RUN=1     prints the commands and runs nothing
set -euo pipefail
WAIT_SECONDS="${WAIT_SECONDS:-600}"
DRY="${DRY_RUN:-0}" NODES="${NODES:-${SLURM_JOB_NUM_NODES:-2}}" SLURM="${SLURM_JOB_ID:-}"
export RAY_AUTH_MODE="${RAY_AUTH_MODE:-token}" RAY_AUTH_TOKEN_PATH="${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}"
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0  # COMMAND has ended when Ray is told to end

fail() {
  echo "error: $*" >&2
  exit 2
}

[[ "$DRY" = [01] ]] || fail "DRY_RUN is $DRY; give 1, or 0"

# step COMMAND...: runs it, or prints it in a dry run.
step() { if [ "$DRY" = 1 ]; then printf '%q ' "$@" && echo; else "$@"; fi; }

# start COMMAND...: runs it beside the script in a process group of its own; `end` ends it, then what it has left there.
started=()
start() { if [ "$DRY" = 1 ]; then printf '%q ' "$@" && echo '&'; else setsid "$@" & started+=($!); fi; }
end() {
  [ ${#started[@]} = 0 ] || kill "${started[@]}" 2> /dev/null || true
  wait
  # Ray's agents on a node would wait a minute for a head that ended first.
  for pid in ${started[@]+"${started[@]}"}; do kill -KILL -- "-$pid" 2> /dev/null || true; done
}
trap end EXIT

# running: succeeds while all that was started runs; answers: while Ray's head is there; complete: with all nodes.
running() { [ "$(jobs -pr | wc -l)" = ${#started[@]} ]; }
answers() { timeout 5 bash -c ": < /dev/tcp/${HEAD%:*}/${HEAD#*:}" 2> /dev/null; }
complete() { [ "$(ray status --address "$HEAD" 2> /dev/null | grep -c '^ 1 node_')" -ge "$NODES" ]; }

lacks_token() { [ "$RAY_AUTH_MODE" = token ] && [ -z "${RAY_AUTH_TOKEN:-}" ] && ! [ -e "$RAY_AUTH_TOKEN_PATH" ]; }

# await WHAT COMMAND...: waits until COMMAND succeeds.
await() {
  local what="$1" deadline=$((SECONDS + WAIT_SECONDS))
  shift
  echo "# waiting for $what"
  until [ "$DRY" = 1 ] || "$@"; do
    running || fail "Ray has ended on a node; its lines above say why"
    [ $SECONDS -lt $deadline ] || fail "waited $WAIT_SECONDS s in vain for $what"
    sleep 2
  done
}

if [ -n "$SLURM" ]; then
  [ $# != 0 ] || fail "no command is given; with Slurm the script starts Ray on the other nodes by itself"
  HEAD="${HEAD:-$(hostname -I | cut -d ' ' -f 1):$((20000 + SLURM % 10000))}"
fi
[[ "${HEAD:-}" =~ ^[0-9.]+:[0-9]+$ ]] ||
  fail "HEAD is ${HEAD:-not set}; give an address of the first machine and a port, such as 10.0.0.1:6379"
[[ "$NODES" =~ ^[1-9][0-9]*$ && "$NODES" != 1 ]] || fail "NODES is $NODES; give a whole number above 1"
[[ "$WAIT_SECONDS" =~ ^[1-9][0-9]*$ ]] || fail "WAIT_SECONDS is $WAIT_SECONDS; give a whole number of seconds"
# shellcheck disable=SC2206  # the options are words
join=(ray start --block "--address=$HEAD" ${RAY_OPTIONS:-})

if [ $# = 0 ]; then
  await "the first machine at $HEAD" answers
  [ "$DRY" = 1 ] || ! lacks_token ||
    fail "RAY_AUTH_TOKEN_PATH is $RAY_AUTH_TOKEN_PATH, which does not exist; give the first machine's file, shared or copied"
  start "${join[@]}"
  while [ "$DRY" = 0 ] && running && answers; do sleep 5; done
  running || fail "Ray has ended on this node; its lines above say why"
  exit
fi
[ "$DRY" = 1 ] || ! answers || fail "something answers at $HEAD already; give another port in HEAD"
if lacks_token; then
  (
    umask 077
    step mkdir -p "$(dirname "$RAY_AUTH_TOKEN_PATH")"
    step python -c 'import secrets, sys; open(sys.argv[1], "x").write(secrets.token_hex(32))' "$RAY_AUTH_TOKEN_PATH"
  )
fi
# shellcheck disable=SC2086
start ray start --block --head "--node-ip-address=${HEAD%:*}" "--port=${HEAD#*:}" --include-dashboard=false ${RAY_OPTIONS:-}
await "Ray on this machine" answers
[ -z "$SLURM" ] || start srun --relative=1 --nodes=$((NODES - 1)) --ntasks=$((NODES - 1)) --cpu-bind=none "${join[@]}"
await "$NODES nodes at $HEAD" complete
if [ "$DRY" = 1 ]; then
  step env RAY_ADDRESS="$HEAD" "$@"
  exit
fi
# In a process group of its own, which gets the signals that the script gets, and is waited for.
set -m
env RAY_ADDRESS="$HEAD" "$@" < /dev/null &
command=$!
set +m
trap 'kill -TERM -- "-$command" 2> /dev/null || true' TERM
trap 'kill -INT -- "-$command" 2> /dev/null || true' INT
code=0
wait "$command" || code=$?
while kill -0 "$command" 2> /dev/null; do
  code=0
  wait "$command" || code=$?
done
exit "$code"
