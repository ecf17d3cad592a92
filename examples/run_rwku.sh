#!/usr/bin/env bash
# RWKU at the paper's settings, one target after the other; DATA is the folder data of RULE's repository, or a folder of
# targets (docs/data.md):
#   MODEL=meta-llama/Meta-Llama-3-8B-Instruct DATA=RULE/data bash examples/run_rwku.sh
# TARGETS, ARM, ARMS, N_GPUS, OUT, SMOKE, --dry-run and others: examples/benchmark.py.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python -m examples.benchmark rwku "$@"
