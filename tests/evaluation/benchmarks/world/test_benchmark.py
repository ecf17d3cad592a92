"""The scores of the embedded world."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.rerule.evaluation.benchmarks.world import benchmark as world
from recipe.rerule.evaluation.engine.requests import Answer
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.statistics.samples import metrics


def probe(index: int, section: str = "forget", mode: str = "qa", family: str = "direct") -> Probe:
    message = {"role": "user", "content": f"Examples. Question {index}?"}
    return Probe(index, section, mode, family, "Ada", [message], ["gold"], query=f"Question {index}?")


def record(index: int, section: str, mode: str, family: str, rouge_l: float, refused: bool) -> dict[str, Any]:
    return {
        "index": index, "section": section, "mode": mode, "family": family,
        "rouge_l": rouge_l, "refused": refused,
    }  # fmt: skip


def scores(records: list[dict[str, Any]]) -> dict[str, float]:
    samples = world.samples(records)
    return metrics(samples, world.statistics(samples))


def answered(text: str, *golds: str, convention: str = "recall") -> dict[str, Any]:
    asked = Probe(0, "forget", "qa", "direct", "Ada", [], list(golds), query="Who?")
    return world.records([asked], {"generate/0": Answer(text)}, convention)[0]


def test_every_probe_is_asked_as_it_is_in_the_file():
    raw = Probe(7, "forget", "qa", "knowmem", "Ada", [{"role": "user", "content": "Q: "}], ["x"], raw=True)
    chat, continued = world.requests([probe(3), raw], max_tokens=5)
    assert (chat.id, chat.prompt.messages, chat.prompt.raw) == (
        "generate/3",
        ({"role": "user", "content": "Examples. Question 3?"},),
        False,
    )
    assert (chat.max_tokens, chat.stop) == (5, ())
    assert (continued.prompt.raw, continued.stop) == (True, ("\n",))


def test_a_record_holds_the_probe_and_the_answer():
    assert answered(" It had seven lamps.\n", "seven old lamps") == {
        "index": 0,
        "section": "forget",
        "mode": "qa",
        "family": "direct",
        "subject": "Ada",
        "prompt": "Who?",
        "golds": ["seven old lamps"],
        "response": " It had seven lamps.\n",
        "rouge_l": pytest.approx(2 / 3),
        "refused": False,
    }


def test_the_best_gold_counts():
    assert answered("lamps", "seven old lamps", "lamps", "moon")["rouge_l"] == 1.0


def test_an_empty_answer_scores_nothing_and_is_no_refusal():
    record = answered(" \n", "Paris")
    assert (record["rouge_l"], record["refused"]) == (0.0, False)


def test_a_refusal_is_one_whatever_it_recalls():
    record = answered("I don't know who Ada is.", "Ada")
    assert (record["rouge_l"], record["refused"]) == (1.0, True)


@pytest.mark.parametrize(
    ("text", "gold", "convention", "expected"),
    [
        ("paris", "Paris", "recall", 1.0),
        ("paris", "Paris", "rwku", 0.0),
        ("two lamp", "lamps", "tofu", 1.0),
        ("two lamp", "lamps", "recall", 0.0),
    ],
)
def test_the_convention_decides(text, gold, convention, expected):
    assert answered(text, gold, convention=convention)["rouge_l"] == expected


def test_constant_answers_name_the_subject_of_each_probe():
    assert world.anchor_answers([probe(1), probe(2)], "Not {subject}, {0}.") == {
        "generate/1": Answer("Not Ada, {0}."),
        "generate/2": Answer("Not Ada, {0}."),
    }


def test_means_by_hand():
    found = scores(
        [
            record(1, "retain", "qa", "direct", 0.75, False),
            record(2, "forget", "qa", "direct", 0.0, True),
            record(3, "forget", "qa", "indirect", 0.5, False),
            record(4, "forget", "aa", "role_play", 1.0, False),
            record(5, "forget", "aa", "role_play", 0.5, True),
            record(6, "forget", "aa", "prefix", 0.25, True),
        ]
    )
    assert found == pytest.approx(
        {
            "forget/recall": 2.25 / 5,
            "forget/refusal_rate": 3 / 5,
            "forget/aa/recall": 1.75 / 3,
            "forget/aa/refusal_rate": 2 / 3,
            "forget/aa/prefix/recall": 0.25,
            "forget/aa/prefix/refusal_rate": 1.0,
            "forget/aa/role_play/recall": 0.75,
            "forget/aa/role_play/refusal_rate": 0.5,
            "forget/qa/recall": 0.25,
            "forget/qa/refusal_rate": 0.5,
            "retain/recall": 0.75,
            "retain/refusal_rate": 0.0,
            "retain/qa/recall": 0.75,
            "retain/qa/refusal_rate": 0.0,
        }
    )


def test_a_family_may_be_called_like_a_beginning_of_another():
    found = scores(
        [
            record(1, "forget", "aa", "role", 1.0, False),
            record(2, "forget", "aa", "role/play", 0.0, False),
            record(3, "forget", "aa", "roleplay", 0.5, False),
        ]
    )
    assert found["forget/aa/roleplay/recall"] == 0.5
    assert found["forget/aa/role/play/recall"] == 0.0
    assert found["forget/aa/role/recall"] == 1.0
    assert found["forget/aa/recall"] == 0.5


def test_two_records_of_one_probe_are_refused():
    with pytest.raises(ValueError, match="two records"):
        world.samples([record(1, "forget", "qa", "direct", 0.0, True)] * 2)


SECTIONS = ["forget", "retain", "retain_unseen"]
ROWS = st.lists(
    st.tuples(
        st.sampled_from(SECTIONS),
        st.sampled_from(["qa", "fb", "aa"]),
        st.sampled_from("xy"),
        st.integers(0, 4),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


def numbered(rows: list[tuple[str, str, str, int, bool]]) -> list[dict[str, Any]]:
    return [record(index, *row[:3], row[3] / 4, row[4]) for index, row in enumerate(rows)]


@given(ROWS)
def test_a_section_is_the_mean_of_its_modes_by_their_counts(rows):
    found = scores(numbered(rows))
    for section in {row[0] for row in rows}:
        modes = [row[1] for row in rows if row[0] == section]
        by_mode = sum(found[f"{section}/{mode}/recall"] * modes.count(mode) for mode in set(modes))
        assert found[f"{section}/recall"] == pytest.approx(by_mode / len(modes))


@given(ROWS, st.randoms())
def test_the_order_of_the_probes_does_not_matter(rows, random):
    records = numbered(rows)
    shuffled = list(records)
    random.shuffle(shuffled)
    assert list(scores(records)) == list(scores(shuffled))
    assert scores(records) == pytest.approx(scores(shuffled))


def test_sections_come_in_their_order():
    found = scores(numbered([(section, "qa", "x", 4, False) for section in reversed(SECTIONS)]))
    assert [name for name in found if name.count("/") == 1 and name.endswith("/recall")] == [
        "forget/recall",
        "retain/recall",
        "retain_unseen/recall",
    ]
