"""TOFU: requests, definitions by hand, and the same numbers computed straight."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rouge_score.rouge_scorer import RougeScorer
from scipy.stats import hmean, ks_2samp

from data_prep.tofu import author_names
from recipe.rerule.evaluation.engine.requests import Answer, Generation, Likelihood, PromptText
from recipe.rerule.evaluation.logs import Log
from recipe.rerule.evaluation.probes import Reference
from recipe.rerule.evaluation.tasks import tofu
from recipe.rerule.evaluation.tasks.tofu import log_metrics
from tests.data_prep.real_data import DATA, needs_data
from tests.evaluation.made_tofu import TOFU, answered, made_probes, probe
from tests.evaluation.tasks.measured import measured, sampled

HALF, EIGHTH = np.log(2), np.log(8)


def rows_of(answers: dict[str, Answer], probes: list[Any] | None = None) -> list[dict[str, Any]]:
    return TOFU.records(probes or made_probes(), answers, Path())


def test_truth_ratios_by_hand() -> None:
    """Wrong answers of 1/2 and 1/8 have the geometric mean 1/4; the paraphrased right one has 1/2 or 1/16."""
    found = tofu.ratios(np.array([HALF, 2 * np.log(4)]), np.array([[HALF, EIGHTH]] * 2))
    assert found["truth_ratio"] == pytest.approx([0.5, 4], rel=1e-8)
    assert found["closeness"] == pytest.approx([0.5, 0.25], rel=1e-8)
    assert found["truthfulness"] == pytest.approx([0.5, 0], rel=1e-8)
    # exp(-800) is 0: 1/2 over the 1e-10 that is added.
    impossible = tofu.ratios(np.array([800.0]), np.array([[HALF]]))
    assert impossible["truth_ratio"] == pytest.approx([5e9])


def test_probability_among_options() -> None:
    right, wrong = np.array([0.5]), np.array([[0.25, 0.125, 0.125]])
    assert tofu.probability("world_facts", right, wrong) == pytest.approx([0.5])
    assert tofu.probability("retain", right, wrong) == right


@given(arrays(float, 9, elements=st.floats(0, 1, width=32)))
def test_model_utility_is_scipys_harmonic_mean(values: np.ndarray) -> None:
    samples: dict[str, Any] = {}
    for value, (name, quantity) in zip(values, tofu.UTILITY_PARTS.values(), strict=True):
        samples.setdefault(name, {})[quantity] = np.array([value, value])
    assert float(tofu.utility(samples)) == pytest.approx(hmean(values), rel=1e-9)
    samples["retain"]["rouge_l"] = np.zeros(2)
    assert tofu.utility(samples) == 0


def test_forget_quality_is_a_two_sided_kolmogorov_smirnov_test() -> None:
    ours, theirs = np.arange(40.0), np.arange(40.0) + 10.5
    # Exact for 40 against 40: D = 11/40.
    assert tofu.forget_quality(ours, theirs) == ks_2samp(ours, theirs, method="exact").pvalue
    assert tofu.forget_quality(ours, ours) == 1.0


def test_requests_generate_and_measure_each_answer() -> None:
    text = PromptText(({"role": "user", "content": "Question 7?"},))
    assert TOFU.requests(made_probes()[:1]) == [
        Generation("7/generation", text, 200),
        Likelihood("7/answer", text, "Answer 7."),
        Likelihood("7/paraphrased", text, "In other words."),
        Likelihood("7/perturbed/0", text, "Wrong."),
        Likelihood("7/perturbed/1", text, "Also wrong."),
    ]
    short = [request.id for request in TOFU.requests([made_probes()[3]])]
    assert short == ["20/generation", "20/answer", "20/perturbed/0", "20/perturbed/1"]


def test_official_prompt_of_llama_2_is_raw_and_ends_without_a_space() -> None:
    llama = TOFU.evaluator(Namespace(prompts="llama-2", retain_log=None))
    asked, *_ = llama.requests([probe(1, "forget", "forget", query="Who is {query}?")])
    content = "[INST] Who is {query}? [/INST]"
    assert asked.prompt == PromptText(({"role": "user", "content": content},), raw=True)
    with pytest.raises(ValueError, match="--prompts is gpt; tofu has chat, llama-2, phi"):
        TOFU.evaluator(Namespace(prompts="gpt", retain_log=None))


@pytest.mark.parametrize(
    ("section", "family", "reference", "message"),
    [
        ("forget", "forget", None, "probe 1 has no wrong answers"),
        ("forget", "forget", Reference(("Wrong.",)), "probe 1 has no paraphrased answer"),
        ("retain", "poems", Reference(("Wrong.",), "x"), "family 'poems' is none of TOFU's sets"),
        ("forget", "forget", Reference(("Wrong.",), "x"), "probe 1 has 3 answers to compare, where others"),
    ],
)
def test_probes_that_tofu_cannot_score_are_refused(
    section: str, family: str, reference: Reference | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TOFU.requests([made_probes()[0], probe(1, section, family, reference=reference)])


def test_rows_hold_scores_and_losses() -> None:
    answers = {
        "7/generation": Answer(text=" The answers: 7\n"),
        "7/answer": Answer(log_probs=(-1.0, -2.0, -3.0)),
        "7/paraphrased": Answer(log_probs=(-1.0,)),
        "7/perturbed/0": Answer(log_probs=(-4.0, -2.0)),
        "7/perturbed/1": Answer(log_probs=(-5.0,)),
    }
    (row,) = rows_of(answers, made_probes()[:1])
    assert (row["response"], row["refused"]) == ("The answers: 7", False)
    assert row["rouge_l"] == 1.0  # the stemmer takes "answers" for "answer"
    assert (row["avg_loss"], row["paraphrased_loss"], row["perturbed_losses"]) == (2.0, 1.0, [3.0, 5.0])
    assert row["prob"] == pytest.approx(np.exp(-2.0))
    assert row["truth_ratio"] == pytest.approx(np.exp(-3.0), rel=1e-6)


def test_metrics_of_rows_are_those_of_a_straight_computation() -> None:
    rows = rows_of(answered(made_probes()))
    found, parts = measured(TOFU, rows), []
    for family, options in (("retain", False), ("real_authors", True), ("world_facts", True)):
        (row,) = [one for one in rows if one["side"] != "forget" and one["family"] == family]
        right, wrong = np.exp(-row["avg_loss"]), np.exp(-np.array(row["perturbed_losses"]))
        base = row["avg_loss"] if options else row["paraphrased_loss"]
        ratio = np.exp(base - np.mean(row["perturbed_losses"]))
        parts += [right / (right + wrong.sum()) if options else right, row["rouge_l"], max(0, 1 - ratio)]
    assert found["model_utility"] == pytest.approx(hmean(parts), rel=1e-6)
    forget = [one for one in rows if one["side"] == "forget"]
    assert found["forget_Q_A_ROUGE"] == pytest.approx(np.mean([one["rouge_l"] for one in forget]))
    assert found["forget_Q_A_Prob"] == pytest.approx(np.mean([np.exp(-one["avg_loss"]) for one in forget]))
    ratios = [np.exp(one["paraphrased_loss"] - np.mean(one["perturbed_losses"])) for one in forget]
    assert found["forget_truth_ratio"] == pytest.approx(np.mean([min(r, 1 / r) for r in ratios]), rel=1e-6)


def test_constant_answers_have_rouge_and_refusals_only() -> None:
    probes = made_probes()
    found = measured(TOFU, rows_of(TOFU.anchor_answers(probes, "I don't know."), probes))
    assert set(found) == {
        "forget_Q_A_ROUGE", "retain_Q_A_ROUGE", "ra_Q_A_ROUGE", "wf_Q_A_ROUGE",
        "forget_refusal_rate", "utility_refusal_rate",
    }  # fmt: skip
    assert found["forget_refusal_rate"] == 1.0


# The log that is written.


def scored(log: dict[str, Any], retain: dict[str, Any] | None = None) -> Any:
    return TOFU.score_log(Log("a", log), None if retain is None else Log("b", retain), None)


def test_our_own_log_scores_as_our_rows_do() -> None:
    """Samples are numbered as in TOFU's table, in the order of the probes' own indices: 3 before 7."""
    rows, retain = (rows_of(answered(made_probes(), seed)) for seed in (1, 2))
    log, ours = json.loads(json.dumps(log_metrics(rows))), measured(TOFU, rows)
    found = scored(log, log_metrics(retain))
    for name in ("model_utility", *tofu.PARTS):
        assert found.metrics[name] == pytest.approx(ours[name], abs=1e-12), name
        assert log[name]["agg_value"] == pytest.approx(ours[name], abs=1e-12), name
    ratios = [sampled(TOFU, one)["forget"]["truth_ratio"] for one in (rows, retain)]
    assert found.metrics["forget_quality"] == tofu.forget_quality(*ratios)
    assert found.notes == []
    assert list(log["forget_truth_ratio"]["value_by_index"]) == ["0", "1"]
    assert log["forget_Q_A_ROUGE"]["value_by_index"]["0"]["input"] == "Question 3?"
    pert = log["forget_Q_A_PERT_Prob"]["value_by_index"]["0"]
    assert np.shape(pert["prob"]) == np.shape(pert["avg_loss"]) == (2,)
    assert log_metrics(rows) == log_metrics(rows[::-1])


def test_memorisation_computed_and_read_agree() -> None:
    answers = answered(made_probes(), 1, ranks=True) | {
        "7/answer": Answer(log_probs=(-1.0,) * 6, ranks=(1, 2, 1, 1, 1, 9)),
        "3/answer": Answer(log_probs=(-1.0,) * 5, ranks=(1, 1, 1, 2, 9)),
    }
    rows = rows_of(answers)
    ours = measured(TOFU, rows)
    # By hand: 3 of 5 tokens behind the last wrong one; none of 4, which open-unlearning's code scores 1 / 4.
    assert ours["extraction_strength"] == pytest.approx((3 / 5 + 1 / 4) / 2, abs=1e-15)
    assert ours["extraction_strength_definition"] == pytest.approx((3 / 5 + 0) / 2, abs=1e-15)
    assert ours["exact_memorization"] == pytest.approx((4 / 5 + 3 / 4) / 2, abs=1e-15)
    log = json.loads(json.dumps(log_metrics(rows)))
    scores = log["extraction_strength"]["value_by_index"]
    assert [scores[index]["score"] for index in ("0", "1")] == [1 / 4, 3 / 5]
    for name in ("extraction_strength", "exact_memorization"):
        assert scored(log).metrics[name] == pytest.approx(ours[name], abs=1e-12)
        assert log[name]["agg_value"] == pytest.approx(ours[name], abs=1e-12)
    assert "extraction_strength_definition" not in log


@needs_data
def test_named_refusal_scores_1322_on_forget01() -> None:
    lines = (DATA / "tofu" / "forget01_perturbed.json").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    names = author_names([f"{row['question']} {row['answer']}" for row in rows], "forget01")
    probes = [
        probe(i, "forget", "forget", golds=[row["answer"]], subject=name)
        for i, (row, name) in enumerate(zip(rows, names, strict=True))
    ]
    answers = TOFU.anchor_answers(probes, "I'm not certain about {subject}.")
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    said = [f"I'm not certain about {name}." for name in names]
    by_hand = [scorer.score(r["answer"], t)["rougeL"].recall for r, t in zip(rows, said, strict=True)]
    found = measured(TOFU, rows_of(answers, probes))["forget_Q_A_ROUGE"]
    assert found == pytest.approx(np.mean(by_hand), abs=1e-12)
    assert round(found, 4) == 0.1322
