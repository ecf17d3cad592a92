"""vLLM's answers against transformers in float32, on a micro world's model; and a kill in between.

Samples have no such reference: what is asked of them is that they can be repeated, whatever is asked beside
them, and that they become the greedy answer as top_p goes to 0.

The tokens that transformers gets are written out here, as the world's chat template writes them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from data_prep.contract import read_rows
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import (
    Answers,
    Generation,
    Likelihood,
    PromptText,
    Request,
    Sampling,
)
from recipe.rerule.evaluation.engine.run import Decoding, run
from recipe.rerule.evaluation.engine.worker import LONGEST_PREFILL, TOKENS_A_STEP
from tests.e2e.stack import Command

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ASK = Path(__file__).parents[1] / "evaluation" / "engine" / "ask.py"
TOLERANCE = 1e-3  # nats a token
NARROW, DRAWN = Sampling(2, top_p=1e-6), Sampling(6, seed=3)
KINDS = {
    "greedy": None,
    "narrow": NARROW,
    "drawn": DRAWN,
    "fewer": replace(DRAWN, samples=4),
    "other": replace(DRAWN, seed=4),
}
SUFFIX = "Answer:"
Tokens = dict[str, tuple[list[int], list[int]]]


class Reference:
    """transformers in float32, one sequence at a time."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def rows(self, prompt: list[int], answer: list[int]) -> torch.Tensor:
        """Log-probs of shape (tokens of the answer, vocabulary)."""
        with torch.no_grad():
            logits = self.model(torch.tensor([prompt + answer])).logits[0]
        return logits.log_softmax(-1)[len(prompt) - 1 : -1]

    def text(self, prompt: list[int], max_tokens: int) -> str:
        given = torch.tensor([prompt])
        output = self.model.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=max_tokens
        )
        return self.tokenizer.decode(output[0, len(prompt) :], skip_special_tokens=True)


@pytest.fixture(autouse=True)
def _cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


def questions(world_folder: Path, count: int) -> list[tuple[str, str]]:
    """Prompt and gold answer of the first probes."""
    rows = read_rows(world_folder / "probes.parquet")[:count]
    return [(row["prompt"][0]["content"], row["reward_model"]["ground_truth"]["golds"][0]) for row in rows]


def prompts(question: str, end: str = "") -> dict[str, tuple[PromptText, str]]:
    """A chat, a raw and a suffixed prompt, each with the text that it is to the model."""

    def prompt(text: str, **changes: Any) -> PromptText:
        return PromptText(({"role": "user", "content": text},), **changes)

    chat = f"<|bos|><|user|>{question}<|assistant|>"
    return {
        "chat": (prompt(question), chat),
        "raw": (prompt(question + end, raw=True), question + end),
        "suffix": (prompt(question, suffix=SUFFIX), chat + SUFFIX),
    }


def likelihoods(asked: list[tuple[str, str]], reference: Reference) -> tuple[list[Request], Tokens]:
    """Requests for every kind of prompt; and, by id, tokens of prompt and answer."""
    requests: list[Request] = []
    tokens: Tokens = {}
    for number, (question, gold) in enumerate(asked):
        for kind, (prompt, text) in prompts(question, "\n").items():
            answer = f" {gold}" if kind == "suffix" else gold
            requests.append(Likelihood(f"{kind} {number}", prompt, answer))
            end = [reference.tokenizer.eos_token_id]
            tokens[f"{kind} {number}"] = reference.ids(text), reference.ids(answer) + end
    return requests, tokens


def assert_log_probs(answers: Answers, tokens: Tokens, reference: Reference) -> None:
    for name, (prompt, answer) in tokens.items():
        rows = reference.rows(prompt, answer)
        expected = [row[token].item() for row, token in zip(rows, answer, strict=True)]
        assert answers[name].log_probs == pytest.approx(expected, rel=0, abs=TOLERANCE), name
        assert answers[name].avg_loss == pytest.approx(-sum(expected) / len(answer), abs=TOLERANCE)
        for rank, row, value in zip(answers[name].ranks, rows, expected, strict=True):
            # The number of tokens at least as likely; tokens within the tolerance may count or not.
            assert (row > value + TOLERANCE).sum() < rank <= (row >= value - TOLERANCE).sum()


def generations(asked: list[tuple[str, str]], reference: Reference) -> tuple[list[Request], dict[str, str]]:
    """Requests of each kind, some with a stop string; and, by id, what transformers generates."""
    requests: list[Request] = []
    texts = {}
    for number, (question, _) in enumerate(asked):
        limit = 4 + number
        for kind, (prompt, text) in prompts(question).items():
            whole = reference.text(reference.ids(text), limit)
            stop = whole[1:3]
            requests.append(Generation(f"{kind} text {number}", prompt, limit))
            texts[f"{kind} text {number}"] = whole
            if len(stop) == 2 and "\N{REPLACEMENT CHARACTER}" not in whole:
                requests.append(Generation(f"{kind} stopped {number}", prompt, limit, (stop,)))
                texts[f"{kind} stopped {number}"] = whole[: whole.index(stop)]
    return requests, texts


def assert_samples(answers: Answers, count: int) -> None:
    """Those of the likeliest token alone are greedy; others differ; fewer are the first of more; another
    seed gives others."""
    for number in range(count):
        narrow, drawn, fewer, other = (
            answers[f"{kind} {number}"].samples for kind in ("narrow", "drawn", "fewer", "other")
        )
        assert narrow == (answers[f"greedy {number}"].text,) * NARROW.samples
        assert len(drawn) == DRAWN.samples
        assert len(set(drawn)) > 2
        assert fewer == drawn[:4]
        assert other != drawn
    assert answers["drawn 0"].samples != answers["drawn 1"].samples


def test_likelihoods_and_responses_are_those_of_transformers(micro_world: Path, tmp_path: Path) -> None:
    """Chat, raw and suffixed prompts, one of them longer than a step of the engine takes, in one engine.

    Sampled prompts are more than a step takes: vLLM would read the last prompt of a full step in two parts,
    which ends it where samples are seeded.
    """
    folder = shutil.copytree(micro_world / "model", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    reference, asked, many = Reference(folder), questions(micro_world, 8), questions(micro_world, 100)
    measured, tokens = likelihoods([*asked, (" ".join(text for text, _ in many), "Nobody.")], reference)
    assert LONGEST_PREFILL < len(tokens["chat 8"][0]) < 2000
    generated, texts = generations(asked, reference)
    sampled: list[Request] = [
        Generation(f"{kind} {number}", prompts(question)["chat"][0], 16, sampling=sampling)
        for number, (question, _) in enumerate(asked[:3])
        for kind, sampling in KINDS.items()
    ]
    crowd = [(prompts(" ".join([text] * 4))["chat"], number) for number, (text, _) in enumerate(many)]
    assert sum(len(reference.ids(text)) for (_, text), _ in crowd) > TOKENS_A_STEP
    sampled += [Generation(f"crowd {n}", prompt, 2, sampling=NARROW) for (prompt, _), n in crowd]
    models = [Model("once", folder), Model("again", folder)]
    answers, again = run(models, [*measured, *generated, *sampled], Decoding("cpu")).values()
    assert again == answers
    assert_log_probs(answers, tokens, reference)
    assert {request.id: answers[request.id].text for request in generated} == texts
    assert_samples(answers, 3)
    assert any(rank > 1 for name in tokens for rank in answers[name].ranks)
    # The comparison says something only where prompts differ in their answers, and kinds in their tokens.
    assert len(set(texts.values())) > 12
    assert sum("stopped" in name for name in texts) >= 8
    assert len({answers[f"{kind} 0"].log_probs for kind in ("chat", "raw", "suffix")}) == 3


@pytest.mark.full
def test_killed_and_started_again_it_asks_only_what_is_missing(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    """The whole process dies by SIGKILL while vLLM generates, and vLLM with it."""
    store, requests = tmp_path / "out.partial" / "base.jsonl", tmp_path / "requests.json"
    asked = [text for text, _ in questions(micro_world, 40)]
    rows = [[f"{question} {number}", None, 64] for question in asked for number in range(25)]
    requests.write_text(json.dumps(rows))
    arguments = (ASK, micro_world / "model", requests, store.parent, tmp_path / "out.json")
    first = command(*arguments)
    first.wait_until(lambda: store.exists() and store.read_bytes().count(b"\n") > 50)
    started = first.descendants()
    first.process.kill()
    first.process.wait()
    assert started
    assert psutil.wait_procs(started, timeout=20)[1] == []
    kept = store.read_bytes().count(b"\n") - 1
    assert kept < len(rows)
    output = command(*arguments).finish()
    assert f"/{len(rows) - kept} [" in output  # the progress bar counts what was asked
    assert len(json.loads((tmp_path / "out.json").read_text())) == len(rows)
