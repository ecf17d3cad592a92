"""The stand-in for vLLM computes what transformers computes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.golden.golden import FOLDER
from tests.golden.inputs import people_tokenizer, put_people_models

PROGRAM = """
import json, sys
from vllm import LLM, SamplingParams
engine = LLM(sys.argv[1])
asked = [{"prompt_token_ids": ids} for ids in json.loads(sys.argv[2])]
measured = engine.generate(asked, SamplingParams(temperature=0, max_tokens=8, prompt_logprobs=0))
found = []
for prompt, one in zip(asked, measured):
    rows = zip(prompt["prompt_token_ids"][1:], one.prompt_logprobs[1:])
    found.append([one.outputs[0].text, [row[token].logprob for token, row in rows]])
print(json.dumps(found))
"""


def test_it_answers_and_measures_as_transformers_does(tmp_path: Path) -> None:
    put_people_models(tmp_path)
    tokenizer = people_tokenizer()
    asked = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in ("Where is Ada?", "___ has Pip")
    ]
    for name in ("original", "refusing"):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        for ids, (text, log_probs) in zip(asked, _answered(tmp_path / name, asked), strict=True):
            whole = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0].tolist()
            assert tokenizer.decode(whole[len(ids) :], skip_special_tokens=True) == text
            logits = model(torch.tensor([ids])).logits[0, :-1].detach().double().log_softmax(-1)
            expected = logits[range(len(ids) - 1), ids[1:]].tolist()
            assert log_probs == pytest.approx(expected, abs=1e-4)


def _answered(model: Path, asked: list[list[int]]) -> list[tuple[str, list[float]]]:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model), json.dumps(asked)],
        env={"PYTHONPATH": str(FOLDER / "engine")},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)
