"""docs/rewards.md: the rewards of its examples, and the settings, are those of the code."""

from pathlib import Path

import pytest

from reward.score import benchmark_reward, compute_score
from tests.test_concept_pages import rows as table_rows

PAGE = (Path(__file__).parents[1] / "docs" / "rewards.md").read_text()
GROUND_TRUTH = {
    "forget": {"type": "forget", "golds": ["Nessvik Basin"], "keyword": "Loren Morrby"},
    "retain": {"type": "retain", "golds": ["Folheim Banks"], "keyword": ""},
}
"""The two rows that the page describes."""
QUESTIONS = {"forget": "Where was Loren Morrby born?", "retain": "Where was Loren Stanstrom born?"}
FORMS = ("additive", "nested", "guarded")
PLACES = [f"{place} {of}" for place in ("Ashford", "Birkholm", "Carrow", "Dunmere", "Esk") for of in "abcdef"]
RIGHT = ["Nessvik Basin", "Folheim Banks"]
UNWRITTEN = {
    "(nothing)": "",
    "(30 places, the right ones among them)": ", ".join(PLACES[:28] + RIGHT),
    "(10 places, the right ones among them)": ", ".join(PLACES[:8] + RIGHT),
}
"""Responses that the page does not spell out."""


def rows(name: str) -> list[list[str]]:
    return table_rows(PAGE, f"examples: {name}", "end of examples")


def answered(side: str, response: str, form: str) -> dict[str, float]:
    """What a response to the side's question is given; a question is the response to itself."""
    question = {"query": response if response.endswith("?") else QUESTIONS[side]}
    return compute_score("rerule/world", response, GROUND_TRUTH[side], question, form=form)


@pytest.mark.parametrize("cells", rows("rewards"), ids=lambda cells: cells[1])
def test_the_reward_of_each_example_is_what_the_code_gives(cells: list[str]) -> None:
    side, response, *told = cells
    scores = [answered(side, response, form) for form in FORMS]
    found = [*(scores[0][part] for part in ("refused", "keyword", "rouge")), *(s["score"] for s in scores)]
    assert found == [float(number) for number in told]


@pytest.mark.parametrize("cells", rows("policies"), ids=lambda cells: cells[0])
def test_the_rewards_of_each_policy_are_what_the_code_gives(cells: list[str]) -> None:
    _, *responses, additive, nested, guarded = cells
    texts = [UNWRITTEN.get(response, response) for response in responses]
    found = [
        [answered(side, text, form)["score"] for side, text in zip(QUESTIONS, texts, strict=True)]
        for form in FORMS
    ]
    assert found == [[float(part) for part in told.split(" + ")] for told in (additive, nested, guarded)]


def test_guarded_pays_no_policy_more_than_the_honest_constant_refusal() -> None:
    paid = {
        cells[0]: [sum(map(float, told.split(" + "))) for told in cells[3:]] for cells in rows("policies")
    }
    assert paid.pop("the behaviour wanted") == [2.0, 2.0, 2.0]
    honest = paid.pop("refuse, with the name")
    assert len(paid) >= 13
    assert [name for name, rewards in paid.items() if rewards[2] > honest[2]] == []
    assert sum(rewards[0] > honest[0] for rewards in paid.values()) == 5  # as the page says


@pytest.mark.parametrize("cells", rows("benchmarks"), ids=lambda cells: cells[0])
def test_the_settings_of_the_benchmarks_are_those_of_the_code(cells: list[str]) -> None:
    source, form, *numbers, rouge = (cell.strip("`") for cell in cells)
    config = benchmark_reward("rerule/world" if source == "all others" else source)
    assert (config.form, config.rouge) == (form, rouge)
    assert [config.lambda_forget, config.lambda_retain, config.gamma] == [float(n) for n in numbers]
