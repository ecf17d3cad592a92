"""MUSE: requests, scores by hand, whole texts, and open-unlearning's logs."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from transformers import AutoTokenizer

from recipe.rerule.evaluation.engine.requests import Answer, Generation, Likelihood, PromptText
from recipe.rerule.evaluation.metrics import memorised
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.tasks import muse
from tests.evaluation.conftest import make_probe
from tests.evaluation.tasks.measured import measured, scored
from tests.golden.evaluation_inputs import metric

MUSE = muse.MuseBooks()


def probe(index: int, section: str, mode: str, gold: str) -> Probe:
    messages = [{"role": "user", "content": f"Question: {index}?\nAnswer: "}]
    return make_probe(index, section, mode, [gold], messages=messages, raw=True)


PROBES = [
    probe(1, "forget", "qa", "the red lamps"),
    probe(2, "forget", "qa", "Norbert"),
    probe(3, "retain", "qa", "two owls"),
    probe(4, "forget", "completion", " ".join(map(str, range(200)))),
]


class Words:
    """A tokenizer whose ids are words, with a BOS in front."""

    def __call__(self, text: str) -> Any:
        return Namespace(input_ids=["<s>", *text.split()])

    def decode(self, ids: list[str], skip_special_tokens: bool) -> str:
        return " ".join(ids[1:] if skip_special_tokens else ids)


def rows_of(*texts: str, benchmark: muse.Muse = MUSE, **measured: Answer) -> list[dict[str, Any]]:
    """Rows of four responses, and of what is measured of the answer to probe 1 as `answer_1`."""
    given = {f"{i}/generation": Answer(text=text) for i, text in enumerate(texts, start=1)}
    given |= {f"{name[-1]}/answer": answer for name, answer in measured.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AutoTokenizer, "from_pretrained", lambda folder: Words())
        return benchmark.records(PROBES, given, Path())


def test_requests_are_raw_with_muses_limits_and_stops_or_rules() -> None:
    first, answer, *_, passage, _ = MUSE.requests(PROBES)
    text = PromptText(({"role": "user", "content": "Question: 1?\nAnswer: "},), raw=True)
    assert first == Generation("1/generation", text, 32, ("\n\n", "\nQuestion", "Question:"))
    assert (passage.max_tokens, passage.stop) == (128, ())
    assert answer == Likelihood("1/answer", text, "the red lamps")
    rule = MUSE.evaluator(Namespace(prompts="rule", retain_log=None, texts=None))
    question, *_, passage, _ = rule.requests(PROBES)
    assert (question.stop, passage.stop) == (("\n",), ("\n",))
    assert passage.prompt.messages[0]["content"] == "Completion: Question: 4?\nAnswer: \nAnswer: "
    rows = rows_of("\nNo", "Norbert\nYes", "a", "b", benchmark=rule)
    assert [row["response"] for row in rows][:2] == ["", "Norbert"]
    with pytest.raises(ValueError, match="probe 9: MUSE has no retain probes of mode 'completion'"):
        MUSE.requests([probe(9, "retain", "completion", "x")])


@pytest.mark.parametrize(
    ("mode", "gold", "measured_text"),
    [
        ("completion", "\n\n He went  home\n\nand", "He went  home\n\nand"),
        ("completion", " ".join(map(str, range(200))), " ".join(map(str, range(128)))),
        ("completion", " \n", ""),
        ("qa", "\nNorbert", "Norbert"),
    ],
)
def test_what_is_measured_of_a_right_answer(mode: str, gold: str, measured_text: str) -> None:
    found = [one for one in MUSE.requests([probe(5, "forget", mode, gold)]) if isinstance(one, Likelihood)]
    assert [request.answer for request in found] == ([measured_text] if measured_text else [])


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=30))
def test_extraction_strength_is_one_minus_the_shortest_prefix(ranks: list[int]) -> None:
    """open-unlearning looks for the prefix among those that leave a token. The last rank is the end's."""
    length = len(ranks)
    right = [k for k in range(length + 1) if all(rank == 1 for rank in ranks[k:])]
    assert memorised(Answer(ranks=(*ranks, 9))) == pytest.approx(
        {
            "extraction_strength": 1 - min(right[0], length - 1) / length,
            "extraction_strength_definition": 1 - right[0] / length,
            "exact_memorization": ranks.count(1) / length,
        },
        abs=1e-15,
    )


def test_of_a_passage_128_tokens_count_and_of_its_reference_the_special_ones_too() -> None:
    passage = Answer(ranks=(*[2] * 32, *[1] * 96, 7, 7))
    asked = {"answer_1": Answer(ranks=(1, 4, 9)), "answer_2": Answer(ranks=(1, 1, 9)), "answer_4": passage}
    rows = rows_of(*"abcd", **asked)
    found = measured(MUSE, rows)
    assert found["knowmem_f_exact_memorization"] == (1 / 2 + 1) / 2
    assert found["extraction_strength"] == found["exact_memorization"] == 96 / 128
    assert scored(MUSE, MUSE.log_metrics(rows)).metrics["extraction_strength"] == 96 / 128
    assert rows[3]["golds"] == [" ".join(map(str, range(127)))]


def mia(forget: list[float], holdout: list[float]) -> dict[str, Any]:
    parts = {"forget": forget, "holdout": holdout}
    return {part: metric({"score": score} for score in values) for part, values in parts.items()}


def muse_log(knowmem: str = "owls") -> dict[str, Any]:
    """Two samples a metric, with their right answers."""
    texts = {"forget_knowmem": "red lamps", "retain_knowmem": knowmem, "forget_verbmem": "a b c"}
    shapes = ((0.5, "red lamp"), (0.25, "x\na"))
    return {
        f"{name}_ROUGE": metric(
            {"rougeL_f1": f1, "generation": said, "ground_truth": text} for f1, said in shapes
        )
        for name, text in texts.items()
    } | {"mia_min_k": mia([1, 2], [3, 2])}


def test_logs_give_both_conventions_and_never_their_aggregates() -> None:
    made = muse_log()
    found = scored(MUSE, made).metrics
    assert found["forget_knowmem_ROUGE"] == 0.375
    # "red lamp" without stemming: one word of two both ways.
    assert found["knowmem_f"] == 0.25
    unstemmed = RougeScorer(["rougeL"]).score("a b c", "x\na")["rougeL"].fmeasure
    assert found["verbmem_f"] == pytest.approx((0 + unstemmed) / 2)
    # Of four pairs, the holdout text is above in 3 and equal in one.
    assert found["mia_min_k"] == 3.5 / 4
    assert found["privleak"] == pytest.approx((0.125 - 0.5) / 0.5 * 100)
    with pytest.raises(ValueError, match="the right answer is 'owls' in a and 'cats' in b"):
        scored(MUSE, made, muse_log("cats"))
    retained = scored(MUSE, made | {"mia_min_k": mia([1, 3], [2, 2])}, {"mia_min_k": mia([1, 2], [1, 2])})
    assert retained.metrics["privleak"] == 0.0
    assert not any("against an AUC" in note for note in retained.notes)
    for entry in made["forget_knowmem_ROUGE"]["value_by_index"].values():
        del entry["generation"]
    without = scored(MUSE, made)
    assert (without.metrics["knowmem_f"], without.metrics["forget_knowmem_ROUGE"]) == (None, 0.375)
    assert "null: knowmem_f (forget_knowmem_ROUGE keeps no texts to score again)" in without.notes
