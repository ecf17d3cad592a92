"""One process: what vLLM says with an adapter on its base model.

python vllm_adapter.py JOB.json: the job is {model, adapter, prompts: token ids, out}; writes the greedy
tokens after each prompt and their log-probs, with the adapter and without it. (Log-probs of prompts fail in
vLLM 0.31 on CPU where adapters are on.)
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from recipe.rerule import platform

platform.select("cpu")
# As recipe.rerule.evaluate starts vLLM on CPU.
os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}

NEW_TOKENS = 8


def main() -> None:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    job = json.loads(Path(sys.argv[1]).read_text())
    llm = LLM(
        job["model"],
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        enable_lora=True,
        max_lora_rank=8,
        enable_prefix_caching=False,
    )
    prompts: list[Any] = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    parameters = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, logprobs=0, ignore_eos=True)
    found = {}
    for name, adapter in (("with", LoRARequest("trained", 1, job["adapter"])), ("without", None)):
        answers = [one.outputs[0] for one in llm.generate(prompts, parameters, lora_request=adapter)]
        found[name] = [
            {
                "tokens": list(answer.token_ids),
                "log_probs": [
                    row[token].logprob for row, token in zip(answer.logprobs, answer.token_ids, strict=True)
                ],
            }
            for answer in answers
        ]
    Path(job["out"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
