"""vLLM's answers against transformers in float32, on the embedded world's model.

Samples have no such reference: what is asked of them is that they can be repeated, whatever is asked beside
them.

The tokens that transformers gets are written out here, as the world's chat template writes them.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from data_prep.contract import read_rows
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Answers, Generation, Likelihood, PromptText, Request
from recipe.rerule.evaluation.engine.run import Decoding, run
from recipe.rerule.evaluation.engine.worker import LONGEST_PREFILL, TOKENS_A_STEP

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TOLERANCE = 1e-3  # nats a token
DRAWN, FEWER = 6, 4
"""Samples of a question."""
SUFFIX = "Answer:"


class Reference:
    """transformers in float32, one sequence at a time."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def rows(self, prompt: list[int], answer: list[int]) -> Any:
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


def prompt_text(text: str, **changes: Any) -> PromptText:
    return PromptText(({"role": "user", "content": text},), **changes)


def written(text: str) -> str:
    """What the world's chat template writes before an answer."""
    return f"<|bos|><|user|>{text}<|assistant|>"


def prompts(question: str) -> dict[str, tuple[PromptText, str]]:
    """A chat, a raw and a suffixed prompt, each with what the model reads of it."""
    return {
        "chat": (prompt_text(question), written(question)),
        "raw": (prompt_text(question, raw=True), question),
        "suffix": (prompt_text(question, suffix=SUFFIX), written(question) + SUFFIX),
    }


def ask(folder: Path, requests: list[Request]) -> list[Answers]:
    """The answers of one model and of its copy, asked by one engine."""
    copied = Path(shutil.copytree(folder, folder.with_name("copied")))
    models = [Model("once", folder), Model("again", copied)]
    return list(run(models, requests, Decoding("cpu"), folder.with_name("kept")).values())


def likelihoods(asked: list[tuple[str, str]], reference: Reference) -> tuple[list[Request], dict]:
    """Requests for chat, raw and suffixed prompts; and, by id, tokens of prompt and answer."""
    requests: list[Request] = []
    tokens = {}
    eos = [reference.tokenizer.eos_token_id]
    for number, (question, gold) in enumerate(asked):
        for kind, (prompt, text) in prompts(question).items():
            answer = f" {gold}" if kind == "suffix" else gold
            requests.append(Likelihood(f"{kind} {number}", prompt, answer))
            tokens[f"{kind} {number}"] = reference.ids(text), reference.ids(answer) + eos
    return requests, tokens


def assert_log_probs(answers: Answers, tokens: dict, reference: Reference) -> None:
    for name, (prompt, answer) in tokens.items():
        rows = reference.rows(prompt, answer)
        expected = [row[token].item() for row, token in zip(rows, answer, strict=True)]
        assert answers[name].log_probs == pytest.approx(expected, rel=0, abs=TOLERANCE), name
        assert answers[name].avg_loss == pytest.approx(-sum(expected) / len(answer), abs=TOLERANCE)
        assert_ranks(answers[name].ranks, rows, expected)


def assert_ranks(ranks: tuple[int, ...], rows: Any, expected: list[float]) -> None:
    """The number of tokens at least as likely; tokens within the tolerance may count or not."""
    for rank, row, value in zip(ranks, rows, expected, strict=True):
        assert (row > value + TOLERANCE).sum() < rank <= (row >= value - TOLERANCE).sum()


def samplings(asked: list[tuple[str, str]]) -> list[Request]:
    """Of each question more samples, and fewer."""
    return [
        Generation(f"{samples} {number}", prompt_text(question), 16, samples=samples)
        for number, (question, _) in enumerate(asked)
        for samples in (DRAWN, FEWER)
    ]


def assert_samples(answers: Answers, count: int) -> None:
    """They differ, also between questions, and fewer are the first of more."""
    for number in range(count):
        drawn, fewer = (answers[f"{samples} {number}"].samples for samples in (DRAWN, FEWER))
        assert len(drawn) == DRAWN
        assert len(set(drawn)) > 2
        assert fewer == drawn[:FEWER]
    assert answers[f"{DRAWN} 0"].samples != answers[f"{DRAWN} 1"].samples


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


def test_likelihoods_and_responses_are_those_of_transformers(micro_world: Path, tmp_path: Path) -> None:
    """Chat, raw and suffixed prompts, one of them longer than a step of the engine takes, in one engine."""
    folder = shutil.copytree(micro_world / "model", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    reference, asked = Reference(folder), questions(micro_world, 8)
    long = " ".join(question for question, _ in questions(micro_world, 100))
    measured, tokens = likelihoods([*asked, (long, "Nobody.")], reference)
    assert LONGEST_PREFILL < len(tokens["chat 8"][0]) < 2000
    generated, texts = generations(asked, reference)
    answers, again = ask(folder, [*measured, *generated, *samplings(asked[:3])])
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
def test_more_sampled_prompts_than_a_step_takes(micro_world: Path, tmp_path: Path) -> None:
    """vLLM would read the last prompt of a full step in two parts, which ends it where samples are seeded."""
    folder = shutil.copytree(micro_world / "model", tmp_path / "model")
    asked = [(" ".join([question] * 4), answer) for question, answer in questions(micro_world, 100)]
    requests = samplings(asked)
    reference = Reference(folder)
    assert sum(len(reference.ids(written(question))) for question, _ in asked) > TOKENS_A_STEP
    answers, again = ask(folder, requests)
    assert again == answers
    assert_samples(answers, len(asked))
