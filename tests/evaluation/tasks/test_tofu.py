"""TOFU: requests, and definitions by hand. Golden files have the numbers of logs and of our own."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.tofu import author_names
from recipe.rerule.evaluation.engine.requests import Answer, Generation, Likelihood, PromptText
from recipe.rerule.evaluation.probes import Probe, Reference
from recipe.rerule.evaluation.tasks import tofu
from tests.data_prep.real_data import DATA, needs_data
from tests.evaluation.conftest import make_probe
from tests.evaluation.tasks.measured import measured

TOFU = tofu.Tofu()
LONG, SHORT = Reference(("Wrong.", "Also wrong."), "In other words."), Reference(("Wrong.", "Also wrong."))


def probe(index: int, section: str, family: str, reference: Reference | None = LONG, **more: Any) -> Probe:
    golds = more.pop("golds", [f"Answer {index}."])
    return make_probe(index, section, "qa", golds, family=family, reference=reference, **more)


PROBES = [
    probe(7, "forget", "forget"),
    probe(3, "forget", "forget"),
    probe(10, "retain", "retain"),
    probe(20, "retain_unseen", "real_authors", SHORT),
    probe(30, "retain_unseen", "world_facts", SHORT),
]


def rows_of(answers: dict[str, Answer], probes: list[Probe] = PROBES) -> list[dict[str, Any]]:
    return TOFU.records(probes, answers, Path())


def test_requests_generate_and_measure_each_answer() -> None:
    text = PromptText(({"role": "user", "content": "Question 7?"},))
    assert TOFU.requests(PROBES[:1]) == [
        Generation("7/generation", text, 200),
        Likelihood("7/answer", text, "Answer 7."),
        Likelihood("7/paraphrased", text, "In other words."),
        Likelihood("7/perturbed/0", text, "Wrong."),
        Likelihood("7/perturbed/1", text, "Also wrong."),
    ]
    short = [request.id for request in TOFU.requests([PROBES[3]])]
    assert short == ["20/generation", "20/answer", "20/perturbed/0", "20/perturbed/1"]
    llama = TOFU.evaluator(Namespace(prompts="llama-2", retain_log=None))
    asked, *_ = llama.requests([probe(1, "forget", "forget", query="Who is {query}?")])
    content = "[INST] Who is {query}? [/INST]"  # raw, and without a space at the end
    assert asked.prompt == PromptText(({"role": "user", "content": content},), raw=True)


def test_rows_hold_scores_and_losses() -> None:
    log_probs = [(-1.0, -2.0, -3.0), (-1.0,), (-4.0, -2.0), (-5.0,)]
    names = ("7/answer", "7/paraphrased", "7/perturbed/0", "7/perturbed/1")
    answers = {name: Answer(log_probs=one) for name, one in zip(names, log_probs, strict=True)}
    (row,) = rows_of(answers | {"7/generation": Answer(text=" The answers: 7\n")}, PROBES[:1])
    assert (row["response"], row["refused"]) == ("The answers: 7", False)
    assert row["rouge_l"] == 1.0  # the stemmer takes "answers" for "answer"
    assert (row["avg_loss"], row["paraphrased_loss"], row["perturbed_losses"]) == (2.0, 1.0, [3.0, 5.0])
    assert row["prob"] == pytest.approx(np.exp(-2.0))
    assert row["truth_ratio"] == pytest.approx(np.exp(-3.0), rel=1e-6)


def test_a_refusal_in_the_thought_alone_is_none() -> None:
    """As for the reward, and for the other benchmarks."""
    said = {"<think>I don't know.</think>Answer 7.": False, "<think>Answer 7.</think>I don't know.": True}
    for text, refused in said.items():
        assert rows_of({"7/generation": Answer(text)}, PROBES[:1])[0]["refused"] is refused


@needs_data
def test_named_refusal_scores_1322_on_forget01() -> None:
    """The number that the paper prints for RULE and for ReRULE."""
    lines = (DATA / "tofu" / "forget01_perturbed.json").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    names = author_names([f"{row['question']} {row['answer']}" for row in rows], "forget01")
    probes = [
        probe(i, "forget", "forget", golds=[row["answer"]], subject=name)
        for i, (row, name) in enumerate(zip(rows, names, strict=True))
    ]
    answers = TOFU.anchor_answers(probes, "I'm not certain about {subject}.")
    assert round(measured(TOFU, rows_of(answers, probes))["forget_Q_A_ROUGE"], 4) == 0.1322
