"""The study's policy leaves out work on padding, and gives what whole padded batches give."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList

from benchmarks.study import policy as study_policy
from benchmarks.study import policy_speed
from benchmarks.study.policy import GumbelNoise, Policy, different_prompts
from benchmarks.study.trial import Data
from recipe.rerule import minimal

LIMIT = 12


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several stages and several parts on few responses."""
    monkeypatch.setattr(study_policy, "STAGE", 3)
    monkeypatch.setattr(study_policy, "TOGETHER", 5)


@pytest.fixture
def ending(made: SimpleNamespace) -> SimpleNamespace:
    """A model that likes to end after some tokens at some places; untrained ones hardly ever end."""
    model, end = copy.deepcopy(made.model), made.tokenizer.eos_token_id

    def end_here(module: Any, args: Any, given: dict[str, Any], output: Any) -> Any:
        seen = (given["input_ids"] + given["position_ids"])[:, -output.logits.shape[1] :]
        output.logits[..., end] = output.logits[..., end] + 9.0 * (seen % 11 == 0)
        return output

    model.register_forward_hook(end_here, with_kwargs=True)
    return SimpleNamespace(world=made.world, tokenizer=made.tokenizer, model=model)


def whole(made: SimpleNamespace, temperature: float = 1.3) -> minimal.Policy:
    """The policy without shortcuts, with the same noise."""
    found = minimal.Policy(copy.deepcopy(made.model), made.tokenizer, LIMIT, temperature)
    found.sampling = {
        "do_sample": False,
        "logits_processor": LogitsProcessorList([GumbelNoise(temperature)]),
    }
    return found


@pytest.mark.parametrize("greedy", [False, True])
def test_responses_and_the_chance_used_are_those_of_whole_batches(
    ending: SimpleNamespace, greedy: bool
) -> None:
    rows = [*ending.world.train[:4], *ending.world.train[-4:]]
    plain, found = whole(ending), Policy(ending.model, ending.tokenizer, LIMIT, 1.3)
    torch.manual_seed(5)
    expected, after = plain.respond(rows, 3, greedy), torch.rand(3)
    torch.manual_seed(5)
    batch, after_too = found.respond(rows, 3, greedy), torch.rand(3)
    assert expected.keys() == batch.keys()
    for name, plane in expected.items():
        assert torch.equal(plane, batch[name]), name
    assert torch.equal(after, after_too)
    lengths = batch["response_mask"].sum(1)
    assert lengths.min() < 6 < lengths.max()  # some end in an early stage, some in a late one


def test_log_probs_and_their_gradient_are_those_of_whole_batches(ending: SimpleNamespace) -> None:
    plain = whole(ending)
    found = Policy(copy.deepcopy(ending.model), ending.tokenizer, LIMIT, 1.3)
    batch = plain.respond([*ending.world.train[:3], ending.world.train[-1]], 3)
    mixed = torch.randperm(12)  # rows of a prompt need not be neighbours
    batch = {name: plane[mixed] for name, plane in batch.items()}
    batch["weight"] = torch.randn(batch["response_mask"].shape) * batch["response_mask"]
    planes = []
    for policy in (plain, found):
        log_probs = policy.log_probs(batch)
        (log_probs * batch["weight"]).sum().backward()
        planes.append((log_probs.detach() * batch["response_mask"], policy.model))
    torch.testing.assert_close(planes[1][0], planes[0][0], atol=2e-5, rtol=0)
    for mine, expected in zip(*(model.parameters() for _, model in planes), strict=True):
        torch.testing.assert_close(mine.grad, expected.grad, atol=2e-5, rtol=1e-4)


def test_after_a_response_log_probs_are_0(ending: SimpleNamespace) -> None:
    policy = Policy(ending.model, ending.tokenizer, LIMIT, 1.3)
    batch = policy.respond(ending.world.train[:6], 2)
    after = policy.log_probs(batch)[batch["response_mask"] == 0]
    assert len(after)
    assert bool((after == 0).all())


def test_a_prompt_is_read_once_whatever_its_rows() -> None:
    batch = {
        "prompts": torch.tensor([[0, 7, 8], [1, 2, 3], [0, 7, 8], [1, 7, 8]]),
        "responses": torch.tensor([[11], [12], [13], [14]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]]),
        "response_mask": torch.ones(4, 1),
    }
    prompts, mask, prompt_of = different_prompts(batch)
    assert len(prompts) == 3
    assert torch.equal(prompts[prompt_of], batch["prompts"])
    assert torch.equal(mask[prompt_of], batch["attention_mask"][:, :3])


def test_what_the_policy_saves_is_measured(
    made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    made.model.save_pretrained(tmp_path / "model")
    made.tokenizer.save_pretrained(tmp_path / "model")
    data = Data(made.world.train, [], tmp_path / "model", "")
    monkeypatch.setattr(policy_speed, "prepare", lambda *_: ())
    monkeypatch.setattr(policy_speed.Data, "read", lambda *_: data)
    policy_speed.main(["--world", "micro", "--out", f"{tmp_path}", "--batches", "3"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found.keys() == {"respond", "log_probs"}
    assert min(found.values()) > 0


def test_both_policies_are_asked_the_same(made: SimpleNamespace) -> None:
    policy = Policy(made.model, made.tokenizer, LIMIT, 1.3)
    torch.manual_seed(3)
    expected = policy.respond(made.world.train[:3], 4)
    torch.manual_seed(3)
    found = policy_speed.whole_batches(policy).respond(made.world.train[:3], 4)
    assert torch.equal(found["responses"], expected["responses"])
