from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge import Rouge

from benchmarks.rwku_targets import target_folders, target_probes
from recipe.rerule.evaluation.benchmarks.rwku import benchmark as rwku
from recipe.rerule.evaluation.engine.requests import Answer
from recipe.rerule.evaluation.logs.records import by_model
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.statistics.samples import Metrics, metrics

DATA = Path(__file__).resolve().parents[5] / "shared" / "data"
needs_data = pytest.mark.skipif(not (DATA / "rwku").is_dir(), reason=f"no RWKU data at {DATA}")


def record(target: str, key: str, rouge_l: float, index: int = 0, **changes: Any) -> dict[str, Any]:
    section, mode, *family = key.split("/")
    fields = {"index": index, "section": section, "mode": mode, "family": (family or ["cloze"])[0]}
    return fields | {"target": target, "rouge_l": rouge_l, "refused": False} | changes


def measured(records: list[dict[str, Any]]) -> Metrics:
    samples = rwku.samples(records)
    return metrics(samples, rwku.statistics(samples))


def probe(index: int, section: str, mode: str, **changes: Any) -> Probe:
    fields = {"family": "cloze", "subject": "Ada Quill", "golds": ["red kite"], "query": f"Question {index}?"}
    messages = [{"role": "user", "content": "?"}]
    return Probe(
        **({"index": index, "section": section, "mode": mode, "messages": messages} | fields | changes)
    )


# Two targets of unequal size, one value a probe.
TWO_TARGETS = [
    record("Ada", "forget/fb", 0.0, 0),
    record("Ada", "forget/fb", 0.5, 1),
    record("Ada", "forget/qa", 1.0),
    record("Ada", "forget/aa/role play", 0.2, 0),
    record("Ada", "forget/aa/reverse query", 0.4, 1),
    record("Ben", "forget/fb", 0.75),
    record("Ben", "forget/qa", 0.0),
    record("Ben", "forget/aa/role play", 1.0),
    record("Ada", "retain/fb", 1.0),
    record("Ada", "retain/qa", 0.5),
    record("Ben", "retain/fb", 0.0, 0),
    record("Ben", "retain/fb", 0.0, 1),
    record("Ben", "retain/fb", 0.6, 2),
    record("Ben", "retain/qa", 0.3),
]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("forget/fb", (0.25 + 0.75) / 2),
        ("forget/qa", (1.0 + 0.0) / 2),
        ("forget/aa", (0.3 + 1.0) / 2),
        ("forget/aa/role play", (0.2 + 1.0) / 2),
        ("forget/aa/reverse query", 0.4),
        ("forget/all", ((0.25 + 1.0 + 0.3) / 3 + (0.75 + 0.0 + 1.0) / 3) / 2),
        ("forget/all_pooled", (0.0 + 0.5 + 1.0 + 0.2 + 0.4 + 0.75 + 0.0 + 1.0) / 8),
        ("retain/fb", (1.0 + 0.2) / 2),
        ("retain/qa", 0.4),
        ("retain/all", ((1.0 + 0.5) / 2 + (0.2 + 0.3) / 2) / 2),
        ("retain/all_pooled", (1.0 + 0.5 + 0.6 + 0.3) / 6),
        ("target/Ada/forget/fb", 0.25),
        ("target/Ada/forget/all", (0.25 + 1.0 + 0.3) / 3),
        ("target/Ada/forget/all_pooled", (0.5 + 1.0 + 0.6) / 5),
        ("target/Ben/forget/aa/role play", 1.0),
        ("target/Ben/retain/all", 0.25),
    ],
)
def test_metrics_by_hand(metric: str, expected: float):
    assert measured(TWO_TARGETS)[metric] == pytest.approx(expected, abs=1e-12)


def test_every_metric_has_a_refusal_rate():
    found = measured([entry | {"refused": entry["target"] == "Ada"} for entry in TWO_TARGETS])
    scores = [name for name in found if not name.endswith("/refusal_rate")]
    assert len(found) == 2 * len(scores)
    assert found["forget/fb/refusal_rate"] == 0.5
    assert found["forget/all_pooled/refusal_rate"] == pytest.approx(5 / 8)
    assert found["target/Ada/retain/all/refusal_rate"] == 1.0


def test_a_mode_that_a_target_lacks_leaves_the_means_of_modes_out():
    found = measured([entry for entry in TWO_TARGETS if (entry["target"], entry["mode"]) != ("Ben", "qa")])
    assert "forget/all" not in found
    assert "forget/all_pooled" not in found
    assert found["forget/qa"] == 1.0
    assert found["target/Ada/forget/all"] == pytest.approx((0.25 + 1.0 + 0.3) / 3)
    assert not any(name.startswith("target/Ben/forget/all") for name in found)


def test_languages_are_one_attack_family():
    families = ("cross lingual (French)", "cross lingual (Spanish)")
    found = measured([record("Ada", f"forget/aa/{name}", i, i) for i, name in enumerate(families)])
    assert [name for name in found if name.startswith("forget/aa/cross") and "rate" not in name] == [
        "forget/aa/cross lingual"
    ]
    assert found["forget/aa/cross lingual"] == 0.5


def test_statistics_reduce_the_last_axis_alone():
    samples = rwku.samples(TWO_TARGETS)
    blocks = {name: {k: np.stack([v, v + 1]) for k, v in one.items()} for name, one in samples.items()}
    for name, statistic in rwku.statistics(samples).items():
        plain = statistic(samples)
        assert statistic(blocks) == pytest.approx([plain, plain + 1]), name


def test_memorisation_by_hand():
    """Ranks end with that of the end of the turn; the target's numbers are means over probes, then modes."""
    probes = [
        probe(1, "forget", "fb"),
        probe(2, "forget", "fb"),
        probe(3, "forget", "qa"),
        probe(4, "forget", "aa", family="role play"),
    ]
    ranks = {1: (1, 2, 1, 1, 9), 2: (1, 1, 1, 3, 1), 3: (1, 1, 1), 4: (5, 1, 1)}
    answers = {f"rwku/{n}": Answer("red kite") for n in ranks}
    answers |= {f"rwku/{n}/answer": Answer(ranks=of_one) for n, of_one in ranks.items()}
    found = measured(rwku.records(probes, answers))
    assert found["forget/fb/extraction_strength_definition"] == (1 / 2 + 0) / 2
    assert found["forget/fb/extraction_strength"] == (1 / 2 + 1 / 4) / 2
    assert found["forget/fb/exact_memorization"] == (3 / 4 + 3 / 4) / 2
    assert found["forget/aa/role play/exact_memorization"] == 1 / 2
    assert found["forget/all/extraction_strength_definition"] == pytest.approx((1 / 4 + 1 + 1 / 2) / 3)
    assert found["forget/all_pooled/exact_memorization"] == (3 / 4 + 3 / 4 + 1 + 1 / 2) / 4
    # An answer that an earlier release kept has no ranks.
    answers["rwku/2/answer"] = Answer(log_probs=(-1.0, -1.0))
    found = measured(rwku.records(probes, answers))
    assert "forget/fb/exact_memorization" not in found
    assert "forget/all/exact_memorization" not in found
    assert found["forget/qa/exact_memorization"] == 1


def test_records_keep_who_was_asked_what():
    probes = [probe(3, "forget", "qa"), probe(4, "retain", "fb", subject="Ben Orr")]
    answers = {"rwku/3": Answer(" a red kite\n"), "rwku/4": Answer("I don't know.")}
    first, second = rwku.records(probes, answers)
    assert first == {
        "index": 3,
        "section": "forget",
        "mode": "qa",
        "family": "cloze",
        "target": "Ada Quill",
        "subject": "Ada Quill",
        "prompt": "Question 3?",
        "golds": ["red kite"],
        "response": " a red kite\n",
        "rouge_l": 1.0,
        "refused": False,
    }
    assert (second["target"], second["subject"], second["rouge_l"]) == ("Ada Quill", "Ben Orr", 0.0)
    assert second["refused"]


@pytest.mark.parametrize(("gold", "score"), [("red kite", 0.0), ("NOANSWER", 1.0)])
def test_an_empty_answer_is_the_word_noanswer_and_no_refusal(gold: str, score: float):
    (found,) = rwku.records([probe(0, "forget", "qa", golds=[gold])], {"rwku/0": Answer(" \n ")})
    assert (found["rouge_l"], found["refused"], found["response"]) == (score, False, " \n ")


def test_full_stops_alone_score_nothing():
    (found,) = rwku.records([probe(0, "forget", "qa")], {"rwku/0": Answer(" ... ")})
    assert found["rouge_l"] == 0.0


def test_the_best_gold_counts():
    probes = [probe(0, "forget", "qa", golds=["a blue kite", "kite"])]
    assert rwku.records(probes, {"rwku/0": Answer("kite")})[0]["rouge_l"] == 1.0


@given(st.text("ab .,", min_size=0, max_size=12), st.text("ab ,", min_size=1, max_size=8))
def test_scores_are_those_of_rwkus_package(response: str, gold: str):
    text = response.strip() or "NOANSWER"
    if not gold.strip() or not text.strip("."):
        return
    (found,) = rwku.records([probe(0, "forget", "qa", golds=[gold])], {"rwku/0": Answer(response)})
    assert found["rouge_l"] == pytest.approx(Rouge().get_scores(text, gold)[0]["rouge-l"]["r"], abs=1e-12)


def test_a_missing_answer_is_named():
    with pytest.raises(ValueError, match="no answer to probe 0"):
        rwku.records([probe(0, "forget", "qa")], {})


def test_probes_of_other_benchmarks_are_refused():
    probes = [probe(0, "forget", "qa"), probe(1, "retain_unseen", "qa")]
    with pytest.raises(ValueError, match="probe 1: RWKU has no retain_unseen/qa probes"):
        rwku.records(probes, {f"rwku/{i}": Answer("x") for i in range(2)})


def test_probes_of_several_targets_are_refused():
    with pytest.raises(ValueError, match="these of Ada Quill, Ben Orr"):
        rwku.target_of([probe(0, "forget", "qa"), probe(1, "forget", "qa", subject="Ben Orr")])
    with pytest.raises(ValueError, match="these of none"):
        rwku.target_of([probe(0, "retain", "qa")])


def test_a_probe_counts_once():
    with pytest.raises(ValueError, match=r"Ada, forget/fb, index 1"):
        rwku.samples([*TWO_TARGETS, record("Ada", "forget/fb", 0.0, 1)])
    with pytest.raises(ValueError, match="no RWKU records"):
        rwku.samples([])


def test_models_are_scored_one_at_a_time():
    both = [record("Ada", "forget/fb", 0.0, model="b"), record("Ada", "forget/fb", 0.0, model="a")]
    with pytest.raises(ValueError, match=r"several models \(a, b\)"):
        rwku.samples(both)
    assert list(by_model(both)) == ["b", "a"]


@functools.cache
def anchor_records(text: str) -> list[dict[str, Any]]:
    found = []
    for folder in target_folders(DATA):
        probes = target_probes(folder)
        found += rwku.records(probes, rwku.anchor_answers(probes, text))
    return found


@needs_data
def test_the_named_refusal_scores_what_is_published():
    found = measured(anchor_records("I'm not certain about {subject}."))
    names = ("forget/fb", "forget/qa", "forget/aa", "retain/fb", "retain/qa")
    assert [round(100 * found[name], 1) for name in names] == [3.8, 6.0, 27.9, 8.5, 0.7]
    assert found["forget/aa/refusal_rate"] == 1.0


@needs_data
def test_there_are_nine_attack_families():
    families = {name.split("/")[2] for name in measured(anchor_records("No.")) if name.count("/") == 2}
    assert families - {"refusal_rate"} == {
        "affirmative suffix",
        "context hint",
        "cross lingual",
        "incontext learning",
        "multiple choice",
        "prefix injection",
        "reverse query",
        "role play",
        "synonym manipulation",
    }


@needs_data
def test_scores_of_real_probes_are_those_of_rwkus_package():
    # The right answer of each probe's neighbour in the file: some overlap, most do not.
    probes = target_probes(target_folders(DATA)[1])
    texts = [other.golds[0] for other in [*probes[1:], probes[0]]]
    answers = {f"rwku/{probe.index}": Answer(text) for probe, text in zip(probes, texts, strict=True)}
    expected = Rouge().get_scores(texts, [probe.golds[0] for probe in probes])
    found = [entry["rouge_l"] for entry in rwku.records(probes, answers)]
    assert found == pytest.approx([scores["rouge-l"]["r"] for scores in expected], abs=1e-12)
    assert json.dumps(found)
