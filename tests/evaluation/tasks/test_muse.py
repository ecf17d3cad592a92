"""MUSE: requests, scores by hand, whole texts, and open-unlearning's logs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from scipy.stats import mannwhitneyu

from recipe.rerule.evaluation.engine.requests import Answer, Generation, Likelihood, PromptText
from recipe.rerule.evaluation.logs import Log
from recipe.rerule.evaluation.metrics import auc, min_k_score, privleak
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.tasks import muse
from recipe.rerule.evaluation.tasks.muse import log_metrics
from tests.evaluation.made_logs import write_json
from tests.evaluation.tasks.measured import measured

MUSE = muse.MuseBooks()
STOPS = ("\n\n", "\nQuestion", "Question:")


def scored(log: dict[str, Any], retain: dict[str, Any] | None = None) -> Any:
    return MUSE.score_log(Log("a", log), None if retain is None else Log("b", retain), None)


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


PROBES = [
    probe(1, "forget", "qa", "the red lamps"),
    probe(2, "forget", "qa", "Norbert"),
    probe(3, "retain", "qa", "two owls"),
    probe(4, "forget", "completion", "one two three four five six"),
]


def answers(*texts: str) -> dict[str, Answer]:
    return {f"{i}/generation": Answer(text=text) for i, text in enumerate(texts, start=1)}


def rows_of(given: dict[str, Answer], benchmark: muse.Muse = MUSE) -> list[dict[str, Any]]:
    """Passages are compared up to their third word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(muse, "_tokenizer", lambda folder: None)
        patch.setattr(muse, "truncated", lambda tokenizer, text: " ".join(text.split()[:3]))
        return benchmark.records(PROBES, given, Path())


def test_requests_are_raw_with_muses_limits_and_stops() -> None:
    first, answer, *_, passage, _ = MUSE.requests(PROBES)
    text = PromptText(({"role": "user", "content": "Question: 1?\nAnswer: "},), raw=True)
    assert first == Generation("1/generation", text, 32, STOPS)
    assert isinstance(passage, Generation)
    assert (passage.max_tokens, passage.stop) == (128, ())
    assert answer == Likelihood("1/answer", text, "the red lamps")


def test_rules_own_way_of_asking_goes_by_its_name() -> None:
    rule = MUSE.evaluator(Namespace(prompts="rule", retain_log=None, texts=None))
    question, *_, passage, _ = rule.requests(PROBES)
    assert (question.stop, passage.stop) == (("\n",), ("\n",))
    content = "Completion: Question: 4?\nAnswer: \nAnswer: "
    assert passage.prompt.messages[0]["content"] == content
    assert [row["response"] for row in rows_of(answers("\nNo", "Norbert\nYes", "a", "b"), rule)][:2] == [
        "",
        "Norbert",
    ]


@pytest.mark.parametrize(
    ("mode", "gold", "measured_text"),
    [
        ("completion", " went  home\n\nand slept", " went  home\n\nand slept"),
        ("completion", "\n\n He went", "He went"),
        ("completion", " ".join(map(str, range(200))), " ".join(map(str, range(128)))),
        ("completion", " \n", ""),
        ("qa", "\nNorbert", "Norbert"),
        ("qa", " ".join(map(str, range(200))), " ".join(map(str, range(200)))),
    ],
)
def test_what_is_measured_of_a_right_answer(mode: str, gold: str, measured_text: str) -> None:
    found = [one for one in MUSE.requests([probe(5, "forget", mode, gold)]) if isinstance(one, Likelihood)]
    assert [request.answer for request in found] == ([measured_text] if measured_text else [])


def test_memorisation_by_hand() -> None:
    """The last rank is that of the end of the turn; of a passage 128 tokens count."""
    given = answers("a", "b", "c", "d") | {
        "1/answer": Answer(ranks=(1, 2, 1, 1, 9)),
        "2/answer": Answer(ranks=(1, 4, 1)),
        "3/answer": Answer(ranks=(1, 1)),
        "4/answer": Answer(ranks=(*[2] * 32, *[1] * 96, 7, 7, 7)),
    }
    rows = rows_of(given)
    found = measured(MUSE, rows)
    assert found["knowmem_f_extraction_strength"] == (1 / 2 + 1 / 2) / 2
    assert found["knowmem_f_extraction_strength_definition"] == (1 / 2 + 0) / 2
    assert found["knowmem_f_exact_memorization"] == (3 / 4 + 1 / 2) / 2
    assert found["knowmem_r_exact_memorization"] == 1
    assert found["extraction_strength"] == found["exact_memorization"] == 96 / 128
    log = log_metrics(rows)
    assert scored(log).metrics["extraction_strength"] == 96 / 128
    assert log["exact_memorization"] == {"agg_value": 0.75, "value_by_index": {"0": {"score": 0.75}}}
    without = rows_of(answers("a", "b", "c", "d"))
    assert not [name for name in measured(MUSE, without) if "extraction" in name or "exact" in name]
    assert "extraction_strength" not in log_metrics(without)


def test_verbmem_reference_counts_the_special_tokens() -> None:
    class Words:
        """Token ids are words, with a BOS in front."""

        def __call__(self, text: str) -> Any:
            return type("Encoded", (), {"input_ids": ["<s>", *text.split()]})

        def decode(self, ids: list[str], skip_special_tokens: bool) -> str:
            return " ".join(ids[1:] if skip_special_tokens else ids)

    text = " ".join(map(str, range(200)))
    assert muse.truncated(Words(), text).split() == [str(i) for i in range(127)]


def test_probes_and_prompts_that_are_not_muses_are_refused() -> None:
    with pytest.raises(ValueError, match="probe 9: MUSE has no retain probes of mode 'completion'"):
        MUSE.requests([probe(9, "retain", "completion", "x")])
    with pytest.raises(ValueError, match="--prompts is own; muse_books has muse, rule"):
        MUSE.evaluator(Namespace(prompts="own", retain_log=None, texts=None))


SCORES = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=30)


@given(SCORES, SCORES)
def test_auc_is_the_mann_whitney_statistic(low: list[float], high: list[float]) -> None:
    expected = mannwhitneyu(high, low).statistic / (len(low) * len(high))
    assert auc(np.array(low), np.array(high)) == pytest.approx(expected, abs=1e-12)


def test_privleak_of_texts_by_hand(tmp_path: Path) -> None:
    # 40 % of 5 tokens: the two lowest.
    assert [min_k_score(one) for one in ([-1, -5, -3, -2, -4], [-2.0], [])] == [4.5, 2.0, 0.0]
    # MUSE's AUCs are the complements: (0.2 - 0.5) / 0.5
    assert privleak(0.8, 0.5) == pytest.approx(-60)
    write_json(tmp_path / "forget.json", ["a", "b"])
    write_json(tmp_path / "holdout.json", [{"text": "c"}])
    texts = muse.PrivLeakTexts(tmp_path, 0.5)
    asked = [request.id for request in texts.requests()]
    assert asked == ["privleak/forget/0", "privleak/forget/1", "privleak/holdout/0"]
    # The last token of each is end-of-sequence, which does not count.
    given = dict(zip(asked, (Answer(log_probs=(-x, -9.0)) for x in (1.0, 3.0, 2.0)), strict=True))
    assert [(one["set"], one["index"], one["min_40"]) for one in texts.records(given)] == [
        ("forget", 0, 1.0),
        ("forget", 1, 3.0),
        ("holdout", 0, 2.0),
    ]
    assert texts.metrics(given)["privleak"] == pytest.approx(0, abs=1e-6)


# Logs.


def mia(forget: list[float], holdout: list[float]) -> dict[str, Any]:
    parts = {"forget": forget, "holdout": holdout}
    return {
        part: {"value_by_index": {str(i): {"score": score} for i, score in enumerate(values)}}
        for part, values in parts.items()
    } | {"agg_value": 0.99}


def muse_log(knowmem: str = "owls") -> dict[str, Any]:
    """Two samples a metric, with their right answers."""
    texts = {"forget_knowmem": "red lamps", "retain_knowmem": knowmem, "forget_verbmem": "a b c"}
    shapes = ((0.5, 0.75, "red lamp"), (0.25, 0.25, "x\na"))
    return {
        f"{name}_ROUGE": {
            "agg_value": 0.99,
            "value_by_index": {
                str(n): {"rougeL_f1": f1, "rougeL_recall": recall, "generation": said, "ground_truth": text}
                for n, (f1, recall, said) in enumerate(shapes)
            },
        }
        for name, text in texts.items()
    } | {"mia_min_k": mia([1, 2], [3, 2])}


def test_logs_give_both_conventions_and_never_their_aggregates() -> None:
    found = scored(muse_log()).metrics
    assert found["forget_knowmem_ROUGE"] == 0.375
    # "red lamp" without stemming: one word of two both ways.
    assert found["knowmem_f"] == 0.25
    unstemmed = RougeScorer(["rougeL"]).score("a b c", "x\na")["rougeL"].fmeasure
    assert found["verbmem_f"] == pytest.approx((0 + unstemmed) / 2)
    # Of four pairs, the holdout text is above in 3 and equal in one.
    assert found["mia_min_k"] == 3.5 / 4
    assert found["privleak"] == pytest.approx((0.125 - 0.5) / 0.5 * 100)


def test_privleak_against_a_retained_models_log_and_of_the_first_version() -> None:
    found = scored(muse_log() | {"mia_min_k": mia([1, 3], [2, 2])}, {"mia_min_k": mia([1, 2], [1, 2])})
    assert found.metrics["privleak"] == 0.0
    assert not any("against an AUC" in note for note in found.notes)
    made = muse_log()
    parts = made.pop("mia_min_k")
    old = {f"{part}_minKpc_neg_logprob": parts[part] for part in ("forget", "holdout")}
    assert scored(made | old).metrics["mia_min_k"] == 3.5 / 4


def test_logs_without_texts_lack_muses_numbers() -> None:
    made = muse_log()
    for entry in made["forget_knowmem_ROUGE"]["value_by_index"].values():
        del entry["generation"]
    found = scored(made)
    assert (found.metrics["knowmem_f"], found.metrics["forget_knowmem_ROUGE"]) == (None, 0.375)
    assert "null: knowmem_f (forget_knowmem_ROUGE keeps no texts to score again)" in found.notes


def test_logs_of_other_questions_and_benchmarks_are_refused() -> None:
    with pytest.raises(
        ValueError, match="retain_knowmem_ROUGE the right answer is 'owls' in a and 'cats' in b"
    ):
        scored(muse_log(), muse_log("cats"))
    with pytest.raises(ValueError, match="a log of another benchmark"):
        scored({"mia_min_k": mia([1], [2]), "forget_Q_A_ROUGE": {"value_by_index": {}}})


def test_our_rows_survive_the_log() -> None:
    rows = rows_of(answers("red lamp", "Norbert", "owls", "two one"))
    ours = measured(MUSE, rows)
    scores = {"forget": [1.0, 2.0], "holdout": [2.0, 3.0]}
    made = log_metrics(rows, [{"set": part, "min_40": one} for part in scores for one in scores[part]])
    found = scored(made).metrics
    for name in (*muse.SETS, *muse.OPEN_UNLEARNING_NAMES.values()):
        assert found[name] == pytest.approx(ours[name], abs=1e-12)
        if name in made:
            assert made[name]["agg_value"] == pytest.approx(ours[name], abs=1e-12)
    assert found["mia_min_k"] == made["mia_min_k"]["agg_value"] == 3.5 / 4
    assert found["privleak"] == made["privleak"]["agg_value"]
