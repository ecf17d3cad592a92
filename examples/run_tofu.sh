#!/usr/bin/env bash
# TOFU forget01 at the paper's settings:
#   MODEL=open-unlearning/tofu_Llama-2-7b-chat-hf_full DATA=locuslab/TOFU bash examples/run_tofu.sh
# RETAIN_LOG: TOFU_EVAL.json of a model retained for forget01, for forget quality (docs/evaluation.md).
# ARM, ARMS, N_GPUS, NNODES, OUT, SMOKE, --dry-run: examples/benchmark.sh. What is already done in OUT is reused.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/common.sh
source examples/benchmark.sh
[ -z "${RETAIN_LOG:-}" ] || EVALUATE+=(--retain-log "$RETAIN_LOG")
run_alone tofu TOFU
