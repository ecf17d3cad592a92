#!/usr/bin/env bash
# TOFU forget01 at the paper's settings:
#   MODEL=open-unlearning/tofu_Llama-2-7b-chat-hf_full DATA=locuslab/TOFU bash examples/run_tofu.sh
# ARM, ARMS, N_GPUS, OUT, RETAIN_LOG, SMOKE, --dry-run and others: examples/benchmark.py.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python -m examples.benchmark tofu "$@"
