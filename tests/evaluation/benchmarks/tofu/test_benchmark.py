from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rouge_score.rouge_scorer import RougeScorer
from scipy.stats import hmean, ks_2samp

from data_prep.tofu import author_names
from recipe.rerule.evaluation.benchmarks.tofu import benchmark as tofu
from recipe.rerule.evaluation.benchmarks.tofu import metrics as definitions
from recipe.rerule.evaluation.engine.requests import Answer, Generation, Likelihood, PromptText
from recipe.rerule.evaluation.probes import Reference
from recipe.rerule.evaluation.statistics.samples import metrics
from tests.data_prep.real_data import DATA, needs_data
from tests.evaluation.made_tofu import answered, made_probes, probe

HALF, QUARTER, EIGHTH = np.log(2), np.log(4), np.log(8)


def test_truth_ratio_is_the_geometric_mean_over_the_paraphrased_answer():
    # sqrt(1/2 * 1/8) = 1/4 over 1/2
    ratio = definitions.truth_ratio(np.array([HALF]), np.array([[HALF, EIGHTH]]))
    assert ratio == pytest.approx([0.5], rel=1e-9)


def test_arithmetic_truth_ratio_is_another_number():
    # (1/2 + 1/8) / 2 = 5/16 over 1/2
    ratio = definitions.arithmetic_truth_ratio(np.array([HALF]), np.array([[HALF, EIGHTH]]))
    assert ratio == pytest.approx([0.625], rel=1e-9)


def test_true_share_weighs_right_against_geometric_mean_of_wrong():
    # 1/2 / (1/2 + 1/4)
    assert definitions.true_share(np.array([HALF]), np.array([[HALF, EIGHTH]])) == pytest.approx([2 / 3])


def test_probability_among_options_and_to_the_letter_of_equation_25():
    right, wrong = np.array([0.5]), np.array([[0.25, 0.125, 0.125]])
    assert definitions.option_probability(right, wrong) == pytest.approx([0.5])
    assert definitions.eq25_probability(right, wrong) == pytest.approx([1.0])


def test_epsilon_keeps_an_impossible_right_answer_finite():
    # exp(-800) is 0: 1/2 over the 1e-10 that is added
    assert definitions.truth_ratio(np.array([800.0]), np.array([[HALF]])) == pytest.approx([5e9])


def test_aggregates_of_truth_ratios():
    ratios = np.array([0.25, 4.0, 1.0])
    assert definitions.closeness(ratios) == pytest.approx((0.25 + 0.25 + 1) / 3)
    assert definitions.distance(ratios) == pytest.approx(0.5)
    assert definitions.truthfulness(ratios) == pytest.approx(0.25)


@given(arrays(float, (9, 3), elements=st.floats(0, 1, width=32)))
def test_harmonic_mean_is_scipys(values: np.ndarray):
    np.testing.assert_allclose(definitions.harmonic_mean(list(values)), hmean(values, axis=0), rtol=1e-12)


def test_harmonic_mean_with_a_zero_is_zero():
    assert definitions.harmonic_mean([np.array(0.0)] + [np.array(1.0)] * 8) == 0.0


def test_forget_quality_is_a_two_sided_kolmogorov_smirnov_test():
    ours, theirs = np.arange(40.0), np.arange(40.0) + 10.5
    # Exact for 40 against 40: D = 11/40.
    assert definitions.forget_quality(ours, theirs) == ks_2samp(ours, theirs, method="exact").pvalue
    assert definitions.forget_quality(ours, ours) == 1.0


def test_requests_generate_and_measure_each_answer():
    first, *_ = made_probes()
    asked = tofu.requests([first])
    text = PromptText(({"role": "user", "content": "Question 7?"},))
    assert asked == [
        Generation("7/generation", text, 200),
        Likelihood("7/answer", text, "Answer 7."),
        Likelihood("7/paraphrased", text, "In other words."),
        Likelihood("7/perturbed/0", text, "Wrong."),
        Likelihood("7/perturbed/1", text, "Also wrong."),
    ]


def test_short_answers_are_not_paraphrased():
    asked = [request.id for request in tofu.requests([made_probes()[3]])]
    assert asked == ["20/generation", "20/answer", "20/perturbed/0", "20/perturbed/1"]


def test_official_prompt_of_llama_2_is_raw_and_ends_without_a_space():
    asked = tofu.requests([probe(1, "forget", "forget", query="Who is {query}?")], prompt="llama-2")
    assert asked[0].prompt == PromptText(
        ({"role": "user", "content": "[INST] Who is {query}? [/INST]"},), raw=True
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": None}, "probe 1 has no wrong answers"),
        ({"reference": Reference(("Wrong.",))}, "probe 1 has no paraphrased answer"),
        ({"section": "retain", "family": "poems"}, "family 'poems' is none of TOFU's sets"),
    ],
)
def test_probes_that_tofu_cannot_score_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        tofu.requests(
            [probe(1, "forget", "forget", **changes) if "section" not in changes else probe(1, **changes)]
        )


def test_an_unknown_prompt_is_refused():
    with pytest.raises(ValueError, match="unknown TOFU prompt 'gpt'"):
        tofu.requests(made_probes(), prompt="gpt")


def test_records_hold_scores_and_losses():
    probes = made_probes()[:1]
    answers = {
        "7/generation": Answer(text=" The answers: 7\n"),
        "7/answer": Answer(log_probs=(-1.0, -2.0, -3.0)),
        "7/paraphrased": Answer(log_probs=(-1.0,)),
        "7/perturbed/0": Answer(log_probs=(-4.0, -2.0)),
        "7/perturbed/1": Answer(log_probs=(-5.0,)),
    }
    (record,) = tofu.records(probes, answers)
    assert record["response"] == "The answers: 7"
    assert record["rouge_l"] == 1.0  # the stemmer takes "answers" for "answer"
    assert record["avg_loss"] == 2.0
    assert record["prob"] == pytest.approx(np.exp(-2.0))
    assert record["paraphrased_loss"] == 1.0
    assert record["perturbed_losses"] == [3.0, 5.0]
    assert record["refused"] is False


def test_metrics_of_records_are_those_of_a_straight_computation():
    probes = made_probes()
    records = tofu.records(probes, answered(probes))
    samples = tofu.samples(records)
    found = metrics(samples, tofu.statistics(samples))
    parts = []
    for family, options in (("retain", False), ("real_authors", True), ("world_facts", True)):
        (record,) = [r for r in records if r["section"] != "forget" and r["family"] == family]
        right, wrong = np.exp(-record["avg_loss"]), np.exp(-np.array(record["perturbed_losses"]))
        base = record["avg_loss"] if options else record["paraphrased_loss"]
        ratio = np.exp(base - np.mean(record["perturbed_losses"]))
        parts += [right / (right + wrong.sum()) if options else right, record["rouge_l"], max(0, 1 - ratio)]
    assert found["model_utility"] == pytest.approx(hmean(parts), rel=1e-6)
    forget = [r for r in records if r["section"] == "forget"]
    assert found["forget_Q_A_ROUGE"] == pytest.approx(np.mean([r["rouge_l"] for r in forget]))
    assert found["forget_Q_A_Prob"] == pytest.approx(np.mean([np.exp(-r["avg_loss"]) for r in forget]))
    ratios = [np.exp(r["paraphrased_loss"] - np.mean(r["perturbed_losses"])) for r in forget]
    assert found["forget_truth_ratio"] == pytest.approx(np.mean([min(r, 1 / r) for r in ratios]), rel=1e-6)


def test_statistics_reduce_the_last_axis_alone():
    probes = made_probes()
    samples = tofu.samples(tofu.records(probes, answered(probes)))
    twice = {name: {q: np.stack([v, v]) for q, v in values.items()} for name, values in samples.items()}
    for name, statistic in tofu.STATISTICS.items():
        assert statistic(twice) == pytest.approx([float(statistic(samples))] * 2), name
    for name, statistic in definitions.VARIANTS.items():
        assert statistic(twice) == pytest.approx([float(statistic(samples))] * 2), name


def test_constant_answers_have_rouge_and_refusals_only():
    probes = made_probes()
    records = tofu.records(probes, tofu.anchor_answers(probes, ["I don't know."] * len(probes)))
    samples = tofu.samples(records)
    found = metrics(samples, tofu.statistics(samples))
    assert set(found) == {
        "forget_Q_A_ROUGE", "retain_Q_A_ROUGE", "ra_Q_A_ROUGE", "wf_Q_A_ROUGE",
        "forget_refusal_rate", "utility_refusal_rate",
    }  # fmt: skip
    assert found["forget_refusal_rate"] == 1.0


def test_unequal_numbers_of_wrong_answers_are_refused():
    probes = made_probes()[:2]
    records = tofu.records(probes, answered(probes))
    records[1]["perturbed_losses"] = [1.0]
    with pytest.raises(ValueError, match="probe 3 has 1 wrong answers, where others have 2"):
        tofu.samples(records)


@needs_data
def test_named_refusal_scores_1322_on_forget01():
    lines = (DATA / "tofu" / "forget01_perturbed.json").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    names = author_names([f"{row['question']} {row['answer']}" for row in rows], "forget01")
    probes = [
        probe(i, "forget", "forget", golds=[row["answer"]], subject=name)
        for i, (row, name) in enumerate(zip(rows, names, strict=True))
    ]
    texts = [f"I'm not certain about {name}." for name in names]
    samples = tofu.samples(tofu.records(probes, tofu.anchor_answers(probes, texts)))
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    by_hand = [scorer.score(r["answer"], t)["rougeL"].recall for r, t in zip(rows, texts, strict=True)]
    found = metrics(samples, tofu.statistics(samples))["forget_Q_A_ROUGE"]
    assert found == pytest.approx(np.mean(by_hand), abs=1e-12)
    assert round(found, 4) == 0.1322
