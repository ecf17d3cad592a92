from __future__ import annotations

import pytest

from data_prep.prompts import PromptForm, mode_of
from tests.data_prep.made_prompts import NAME, benchmark, forget_prompt, retain_prompt

FORM = PromptForm(
    raw=True,
    templates={"qa": "Question: {query}\nAnswer: "},
    prefixes={("forget", "qa"): "F\n\n", ("retain", "qa"): "R\n\n"},
)


def test_a_form_puts_prefix_and_template_around_the_query() -> None:
    assert FORM.render(forget_prompt(1, "Who?")) == "F\n\nQuestion: Who?\nAnswer: "
    assert FORM.render(retain_prompt(1, "Who?")) == "R\n\nQuestion: Who?\nAnswer: "


def test_a_mode_without_template_is_sent_as_it_is() -> None:
    assert FORM.render(forget_prompt(1, "She is ___.", mode="fb")) == "She is ___."
    assert PromptForm().render(retain_prompt(1, " a\n")) == " a\n"


@pytest.mark.parametrize("query", ["{query}", "{0} and {name!r}", "{", "}}", r"\1 \g<0>"])
def test_what_a_query_holds_is_not_read_as_a_template(query: str) -> None:
    assert FORM.render(forget_prompt(1, query)) == f"F\n\nQuestion: {query}\nAnswer: "


def test_a_template_may_have_braces_of_its_own() -> None:
    form = PromptForm(templates={"qa": "{json} {query}"})
    assert form.render(retain_prompt(1, "Who?")) == "{json} Who?"


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


def test_the_bare_question_stays_beside_the_prompt() -> None:
    (row,) = benchmark(form=FORM).rl_rows("train", [retain_prompt(1, "Who?")])
    assert row["prompt"][0]["content"] == "R\n\nQuestion: Who?\nAnswer: "
    assert row["extra_info"]["query"] == "Who?"


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


def test_without_a_probe_form_probes_take_the_usual_one() -> None:
    (row,) = benchmark(form=FORM).rl_rows("probe", [retain_prompt(1, "Who?")])
    assert row["prompt"][0]["content"] == "R\n\nQuestion: Who?\nAnswer: "


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
