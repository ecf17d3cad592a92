from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from scipy.stats import mannwhitneyu

from recipe.rerule.evaluation.benchmarks.muse import benchmark as muse_books
from recipe.rerule.evaluation.benchmarks.muse import privleak as privleak_texts
from recipe.rerule.evaluation.benchmarks.muse.log import log_metrics, score
from recipe.rerule.evaluation.engine.requests import Answer, Generation, Likelihood, PromptText
from recipe.rerule.evaluation.logs.open_unlearning import Log, LogError
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.statistics.roc import auc, min_k_score, privleak
from recipe.rerule.evaluation.statistics.samples import metrics

STOPS = ("\n\n", "\nQuestion", "Question:")


def probe(index: int, section: str, mode: str, gold: str, **changes: Any) -> Probe:
    fields: dict[str, Any] = {
        "index": index,
        "section": section,
        "mode": mode,
        "family": "knowmem",
        "subject": "Harry Potter",
        "messages": [{"role": "user", "content": f"Question: {index}?\nAnswer: "}],
        "golds": [gold],
        "raw": True,
    }
    return Probe(**(fields | changes))


def made_probes() -> list[Probe]:
    return [
        probe(1, "forget", "qa", "the red lamps"),
        probe(2, "forget", "qa", "Norbert"),
        probe(3, "retain", "qa", "two owls"),
        probe(4, "forget", "completion", "one two three four five six"),
    ]


def three_words(text: str) -> str:
    return " ".join(text.split()[:3])


def answers(*texts: str) -> dict[str, Answer]:
    return {f"{i}/generation": Answer(text=text) for i, text in enumerate(texts, start=1)}


def test_requests_are_raw_with_muses_limits_and_stops():
    first, answer, *_, passage, _ = muse_books.requests(made_probes())
    text = PromptText(({"role": "user", "content": "Question: 1?\nAnswer: "},), raw=True)
    assert first == Generation("1/generation", text, 32, STOPS)
    assert isinstance(passage, Generation)
    assert (passage.max_tokens, passage.stop) == (128, ())
    assert answer == Likelihood("1/answer", text, "the red lamps")


@pytest.mark.parametrize(
    ("mode", "gold", "measured"),
    [
        ("completion", " went  home\n\nand slept", " went  home\n\nand slept"),
        ("completion", "\n\n He went", "He went"),
        ("completion", " ".join(map(str, range(200))), " ".join(map(str, range(128)))),
        ("completion", " \n", ""),
        ("qa", "\nNorbert", "Norbert"),
        ("qa", " ".join(map(str, range(200))), " ".join(map(str, range(200)))),
    ],
)
def test_what_is_measured_of_a_right_answer(mode: str, gold: str, measured: str):
    one = probe(5, "forget", mode, gold)
    found = [request for request in muse_books.requests([one]) if isinstance(request, Likelihood)]
    assert [request.answer for request in found] == ([measured] if measured else [])


def test_memorisation_by_hand():
    """The last rank is that of the end of the turn; of a passage 128 tokens count."""
    given_answers = answers("a", "b", "c", "d") | {
        "1/answer": Answer(ranks=(1, 2, 1, 1, 9)),
        "2/answer": Answer(ranks=(1, 4, 1)),
        "3/answer": Answer(ranks=(1, 1)),
        "4/answer": Answer(ranks=(*[2] * 32, *[1] * 96, 7, 7, 7)),
    }
    records = muse_books.records(made_probes(), given_answers, three_words)
    samples = muse_books.samples(records)
    found = metrics(samples, muse_books.statistics(samples))
    assert found["knowmem_f_extraction_strength"] == (1 / 2 + 1 / 2) / 2
    assert found["knowmem_f_extraction_strength_definition"] == (1 / 2 + 0) / 2
    assert found["knowmem_f_exact_memorization"] == (3 / 4 + 1 / 2) / 2
    assert found["knowmem_r_exact_memorization"] == 1
    assert found["extraction_strength"] == found["exact_memorization"] == 96 / 128
    log = log_metrics(records)
    assert score(Log("a", log)).metrics["extraction_strength"] == 96 / 128
    assert log["exact_memorization"] == {"agg_value": 0.75, "value_by_index": {"0": {"score": 0.75}}}


def test_answers_without_ranks_have_no_memorisation():
    records = muse_books.records(made_probes(), answers("a", "b", "c", "d"), three_words)
    samples = muse_books.samples(records)
    assert set(muse_books.statistics(samples)).isdisjoint(muse_books.MEMORISED)
    assert "extraction_strength" not in log_metrics(records)


def test_rules_own_way_of_asking_goes_by_its_name():
    question, *_, passage, _ = muse_books.requests(made_probes(), "rule")
    assert isinstance(passage, Generation)
    assert passage.prompt.messages[0]["content"] == "Completion: Question: 4?\nAnswer: \nAnswer: "
    assert passage.stop == question.stop == ("\n",)  # type: ignore[union-attr]


def test_records_and_metrics_follow_rouge_score():
    probes = made_probes()
    given_answers = answers("The red lamp.\n\nQuestion: and?", "", " two owls", "one two three nine")
    records = muse_books.records(probes, given_answers, three_words)
    assert [record["response"] for record in records] == [
        "The red lamp.",
        "",
        " two owls",
        "one two three nine",
    ]
    samples = muse_books.samples(records)
    found = metrics(samples, muse_books.statistics(samples))
    # Without the stemmer 2 of 3 words match both ways, with it all; the second question is not answered.
    assert found["knowmem_f"] == pytest.approx((2 / 3 + 0) / 2)
    assert found["forget_knowmem_ROUGE"] == pytest.approx((1 + 0) / 2)
    assert found["knowmem_r"] == found["retain_knowmem_ROUGE"] == 1.0
    # Three words of the gold, all of them found, among four: F1 = 2 * 1 * 3/4 / (7/4).
    assert found["verbmem_f"] == pytest.approx(6 / 7)
    assert found["knowmem_f_refusal_rate"] == 0.0


def test_without_passages_there_is_no_verbmem():
    probes = made_probes()[:3]
    samples = muse_books.samples(muse_books.records(probes, answers("a", "b", "c"), three_words))
    assert "verbmem_f" not in muse_books.statistics(samples)
    assert "forget_verbmem_ROUGE" not in muse_books.statistics(samples)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\n\nb", "a"), ("a\nQuestion: b", "a"), ("a Question: b", "a "), ("a\nb", "a\nb"), ("", "")],
)
def test_answers_are_cut_at_the_first_stop_string(text: str, expected: str):
    assert muse_books.cut(text, STOPS) == expected


def test_verbmem_reference_counts_the_special_tokens():
    class Words:
        """Token ids are words, with a BOS in front."""

        def __call__(self, text: str) -> Any:
            return type("Encoded", (), {"input_ids": ["<s>", *text.split()]})

        def decode(self, ids: list[str], skip_special_tokens: bool) -> str:
            return " ".join(ids[1:] if skip_special_tokens else ids)

    text = " ".join(map(str, range(200)))
    assert muse_books.truncated_by(Words)(text).split() == [str(i) for i in range(127)]


def test_probes_of_no_set_are_refused():
    with pytest.raises(ValueError, match="probe 9: MUSE has no retain probes of mode 'completion'"):
        muse_books.requests([probe(9, "retain", "completion", "x")])


def test_unknown_conventions_are_refused():
    with pytest.raises(ValueError, match="unknown MUSE convention 'own'"):
        muse_books.requests(made_probes(), "own")


scores = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=30)


@given(scores, scores)
def test_auc_is_the_mann_whitney_statistic(low: list[float], high: list[float]):
    expected = mannwhitneyu(high, low).statistic / (len(low) * len(high))
    assert auc(np.array(low), np.array(high)) == pytest.approx(expected, abs=1e-12)


def test_min_k_averages_the_least_likely_tokens():
    # 40 % of 5 tokens: the two lowest.
    assert min_k_score([-1, -5, -3, -2, -4]) == 4.5
    assert min_k_score([-2.0]) == 2.0
    assert min_k_score([]) == 0.0


def test_privleak_is_relative_to_the_retained_models_auc():
    # MUSE's AUCs are the complements: (0.2 - 0.5) / 0.5
    assert privleak(0.8, 0.5) == pytest.approx(-60)
    assert privleak(0.4592, 0.5) == pytest.approx(8.16)


def test_privleak_of_texts():
    forget, holdout = ["a", "b"], ["c"]
    asked = privleak_texts.requests(forget, holdout)
    assert [request.id for request in asked] == [
        "privleak/forget/0",
        "privleak/forget/1",
        "privleak/holdout/0",
    ]
    # The last token of each is end-of-sequence, which does not count.
    given_answers = dict(
        zip((r.id for r in asked), (Answer(log_probs=(-x, -9.0)) for x in (1.0, 3.0, 2.0)), strict=True)
    )
    found = privleak_texts.scores(given_answers)
    assert {part: values.tolist() for part, values in found.items()} == {"forget": [1, 3], "holdout": [2]}


def mia(forget: list[float], holdout: list[float]) -> dict[str, Any]:
    parts = {"forget": forget, "holdout": holdout}
    return {
        part: {"value_by_index": {str(i): {"score": score} for i, score in enumerate(values)}}
        for part, values in parts.items()
    } | {"agg_value": 0.99}


def muse_log() -> dict[str, Any]:
    texts = {
        "forget_knowmem_ROUGE": "red lamps",
        "retain_knowmem_ROUGE": "owls",
        "forget_verbmem_ROUGE": "a b c",
    }
    return {
        name: {
            "agg_value": 0.99,
            "value_by_index": {
                "0": {
                    "rougeL_f1": 0.5,
                    "rougeL_recall": 0.75,
                    "generation": "red lamp",
                    "ground_truth": text,
                },
                "1": {"rougeL_f1": 0.25, "rougeL_recall": 0.25, "generation": "x\na", "ground_truth": text},
            },
        }
        for name, text in texts.items()
    } | {"mia_min_k": mia([1, 2], [3, 2])}


def test_logs_give_both_conventions_and_never_their_aggregates():
    found = score(Log("l", muse_log()), variants=True).metrics
    assert found["forget_knowmem_ROUGE"] == 0.375
    assert found["forget_knowmem_ROUGE_recall"] == 0.5
    # "red lamp" without stemming: one word of two both ways.
    assert found["knowmem_f"] == 0.25
    unstemmed = RougeScorer(["rougeL"]).score("a b c", "x\na")["rougeL"].fmeasure
    assert found["verbmem_f"] == pytest.approx((0 + unstemmed) / 2)
    assert found["verbmem_f_first_line"] == 0.0
    # Of four pairs, the holdout text is above in 3 and equal in one.
    assert found["mia_min_k"] == 3.5 / 4
    assert found["privleak"] == pytest.approx((0.125 - 0.5) / 0.5 * 100)


def test_privleak_against_a_retained_models_log():
    retain = Log("r", {"mia_min_k": mia([1, 2], [1, 2])})
    found = score(Log("l", muse_log() | {"mia_min_k": mia([1, 3], [2, 2])}), retain)
    assert found.metrics["privleak"] == 0.0
    assert not any("against an AUC" in note for note in found.notes)


def test_min_k_of_open_unlearnings_first_version():
    made = muse_log()
    parts = made.pop("mia_min_k")
    old = {f"{part}_minKpc_neg_logprob": parts[part] for part in ("forget", "holdout")}
    assert score(Log("l", made | old)).metrics["mia_min_k"] == 3.5 / 4


def test_logs_without_texts_lack_muses_numbers():
    made = muse_log()
    for entry in made["forget_knowmem_ROUGE"]["value_by_index"].values():
        del entry["generation"]
    found = score(Log("l", made))
    assert found.metrics["knowmem_f"] is None
    assert found.metrics["forget_knowmem_ROUGE"] == 0.375
    missing = "null: knowmem_f (forget_knowmem_ROUGE keeps no texts to score again)"
    assert missing in found.notes


def test_a_log_of_another_benchmark_is_refused():
    with pytest.raises(LogError, match="a log of another benchmark"):
        score(Log("l", {"mia_min_k": mia([1], [2]), "forget_Q_A_ROUGE": {"value_by_index": {}}}))


def test_our_records_survive_the_log():
    records = muse_books.records(
        made_probes(), answers("red lamp", "Norbert", "owls", "two one"), three_words
    )
    samples = muse_books.samples(records)
    ours = metrics(samples, muse_books.statistics(samples))
    min_k = {"forget": np.array([1.0, 2.0]), "holdout": np.array([2.0, 3.0])}
    made = log_metrics(records, min_k)
    found = score(Log("l", made)).metrics
    for name in (*muse_books.SETS, *muse_books.OPEN_UNLEARNING_NAMES.values()):
        assert found[name] == pytest.approx(ours[name], abs=1e-12)
        if name in made:
            assert made[name]["agg_value"] == pytest.approx(ours[name], abs=1e-12)
    assert found["mia_min_k"] == made["mia_min_k"]["agg_value"] == 3.5 / 4
    assert found["privleak"] == made["privleak"]["agg_value"]
