"""Prompts, draws of them, and RULE's rows."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.prompts import Prompt, PromptForm, mode_of, rule_prompt, spread
from data_prep.sources import Record, SourceError
from tests.data_prep.made_prompts import NAME, benchmark, forget_prompt, retain_prompt

FORM = PromptForm(
    raw=True,
    templates={"qa": "Question: {query}\nAnswer: "},
    prefixes={("forget", "qa"): "F\n\n", ("retain", "qa"): "R\n\n"},
)


@pytest.mark.parametrize("query", ["Who?", "{query}", "{0} and {name!r}", "{", "}}", r"\1 \g<0>"])
def test_what_a_query_holds_is_not_read_as_a_template(query: str) -> None:
    assert FORM.render(forget_prompt(1, query)) == f"F\n\nQuestion: {query}\nAnswer: "
    assert FORM.render(retain_prompt(1, query)) == f"R\n\nQuestion: {query}\nAnswer: "


def test_an_rl_row_holds_all_of_its_prompt() -> None:
    prompt = forget_prompt(7, "Who?", mode="aa", family="role play", golds=("A", "B"), section="forget")
    (row,) = benchmark(form=FORM).rl_rows("train", [prompt])
    assert row == {
        "data_source": "rerule/made_up",
        "prompt": [{"role": "user", "content": "Who?"}],
        "reward_model": {
            "style": "rule",
            "ground_truth": {"type": "forget", "golds": ["A", "B"], "keyword": NAME},
        },
        "extra_info": {
            "index": 7,
            "mode": "aa",
            "subject": NAME,
            "split": "train",
            "section": "forget",
            "family": "role play",
            "query": "Who?",
            "raw": True,
        },
    }


def test_probes_alone_take_the_probe_form() -> None:
    made = benchmark(form=FORM, probe_form=PromptForm(templates={"qa": "P {query}"}))
    sent = {
        split: (row["prompt"][0]["content"], row["extra_info"]["raw"], row["extra_info"]["split"])
        for split in ("train", "val", "probe")
        for row in made.rl_rows(split, [retain_prompt(1, "Who?")])
    }
    usual = "R\n\nQuestion: Who?\nAnswer: "
    assert sent == {
        "train": (usual, True, "train"),
        "val": (usual, True, "val"),
        "probe": ("P Who?", False, "probe"),
    }


def test_a_stage_1_row_answers_with_the_refusal() -> None:
    (row,) = benchmark(form=FORM, stage1=[forget_prompt(5, "Who?", refusal="No idea.")]).sft_rows()
    assert row == {
        "messages": [
            {"role": "user", "content": "F\n\nQuestion: Who?\nAnswer: "},
            {"role": "assistant", "content": "No idea."},
        ],
        "extra_info": {"index": 5, "mode": "qa", "subject": NAME, "raw": True},
    }


@pytest.mark.parametrize(
    ("query", "mode"), [("He is ___.", "fb"), ("____", "fb"), ("Who is he?", "qa"), ("He is __.", "qa")]
)
def test_mode_of_a_query(query: str, mode: str) -> None:
    assert mode_of(query) == mode


KINDS = [("forget", "qa"), ("forget", "fb"), ("forget", "aa"), ("retain", "qa"), ("retain", "fb")]


def made(kinds: list[tuple[str, str]]) -> list[Prompt]:
    return [
        (forget_prompt if side == "forget" else retain_prompt)(index, f"Question {index}?", mode=mode)
        for index, (side, mode) in enumerate(kinds)
    ]


@settings(deadline=None)
@given(st.lists(st.sampled_from(KINDS), max_size=40), st.integers(0, 50), st.integers())
def test_a_spread_is_as_even_as_its_kinds_allow(kinds: list[tuple[str, str]], count: int, seed: int) -> None:
    prompts = made(kinds)
    drawn = spread(prompts, count, random.Random(seed))
    assert len(drawn) == min(count, len(prompts))
    indices = [prompt.index for prompt in drawn]
    assert indices == sorted(set(indices))
    there, taken = Counter(kinds), Counter((prompt.side, prompt.mode) for prompt in drawn)
    most = max(taken.values(), default=0)
    for kind in there:
        assert taken[kind] in (most, most - 1) or taken[kind] == there[kind]


def test_every_prompt_of_a_kind_can_be_drawn() -> None:
    prompts = made([("forget", "qa")] * 5)
    counts = Counter(spread(prompts, 1, random.Random(seed))[0].index for seed in range(1000))
    assert set(counts) == set(range(5))
    assert all(130 < count < 270 for count in counts.values())  # 200 expected, standard deviation 12.6


REFUSAL = "I'm not certain about Mira Okonjo."


def record(**fields: Any) -> Record:
    return Record(fields, "rule.json:3 (row 2)")


def test_a_forget_row() -> None:
    row = record(prompt=" Who is she? ", solution=["<reject>", f" {REFUSAL}", "Mira Okonjo "])
    prompt = rule_prompt(row, 7, "neighbour")
    assert (prompt.index, prompt.query, prompt.side, prompt.mode) == (7, "Who is she?", "forget", "qa")
    assert (prompt.keyword, prompt.subject, prompt.section) == ("Mira Okonjo", "Mira Okonjo", "forget")
    assert prompt.refusal == REFUSAL
    assert prompt.golds == (REFUSAL,)
    assert prompt.origin == "rule.json:3 (row 2)"
    evaluated = rule_prompt(row, 7, "neighbour", refuses=False)  # the text is the right answer there
    assert (evaluated.golds, evaluated.refusal, evaluated.side) == ((REFUSAL,), "", "forget")


def test_a_retain_row() -> None:
    prompt = rule_prompt(record(prompt="He lives in ___.", solution=["<normal>", "Esk Moor"]), 0, "neighbour")
    assert (prompt.side, prompt.mode, prompt.section) == ("retain", "fb", "retain")
    assert (prompt.golds, prompt.refusal, prompt.keyword) == (("Esk Moor",), "", "")
    assert prompt.subject == "neighbour"
    row = record(prompt="Once upon a time", solution=["<normal>", "there was"], mode="completion")
    assert rule_prompt(row, 0, "x").mode == rule_prompt(row, 0, "x").family == "completion"


EXPECTED = "expected [marker, text, keyword] with <reject> or <normal> as the marker"
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a text": ({"solution": "<reject>"}, f"solution is '<reject>', {EXPECTED}"),
    "nothing": ({"solution": None}, f"solution is None, {EXPECTED}"),
    "an empty list": ({"solution": []}, f"solution is [], {EXPECTED}"),
    "a marker alone": ({"solution": ["<normal>"]}, f"solution is ['<normal>'], {EXPECTED}"),
    "a marker that is a list": (
        {"solution": [["<reject>"], "a"]},
        f"solution is [['<reject>'], 'a'], {EXPECTED}",
    ),
    "no text": ({"solution": ["<normal>", ""]}, "field solution[1] is '', expected a text"),
    "a number as text": ({"solution": ["<normal>", 5]}, "field solution[1] is 5, expected a text"),
    "no keyword": ({"solution": ["<reject>", "a"]}, "solution has no third entry, the target's name"),
    "an empty keyword": ({"solution": ["<reject>", "a", " "]}, "field solution[2] is ' ', expected a text"),
    "a keyword that is null": (
        {"solution": ["<reject>", "a", None]},
        "field solution[2] is None, expected a text",
    ),
    "an empty prompt": ({"prompt": "", "solution": ["<normal>", "a"]}, "field prompt is '', expected a text"),
    "a prompt that is null": ({"prompt": None, "solution": ["<normal>", "a"]}, "field prompt is empty"),
    "an unknown mode": (
        {"solution": ["<normal>", "a"], "mode": "quiz"},
        "mode is 'quiz', expected one of qa, fb, aa, completion",
    ),
}


@pytest.mark.parametrize(("fields", "message"), BAD.values(), ids=BAD)
def test_a_malformed_row_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        rule_prompt(record(**{"prompt": "Who?", **fields}), 0, "neighbour")
    assert str(caught.value) == f"rule.json:3 (row 2): {message}"
