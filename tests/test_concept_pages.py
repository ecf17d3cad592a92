"""Tables of the concept pages and examples of rewards against the code that they describe."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipe.rerule.schema import STAGE1, STAGE2
from reward.score import benchmark_reward, compute_score
from tests.test_experiments import leaves

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "recipe" / "rerule" / "config"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def rows(text: str, begin: str, end: str) -> list[list[str]]:
    """The cells of the table between two comments, without its head."""
    lines = text.split(f"<!-- {begin} -->\n")[1].split(f"<!-- {end} -->")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def settings(*files: str) -> dict[str, Any]:
    """{dotted key: value} of these files, of which later ones win."""
    found: dict[str, Any] = {}
    for file in files:
        found |= leaves(yaml.safe_load((CONFIG / file).read_text()))
    return found


def options(table: str) -> dict[str, list[str]]:
    """Of each key of a table of configuration.md, the other cells of its row."""
    found = rows(page("configuration.md"), f"table: {table}", "end of table")
    return {cells[0].strip("`"): cells[1:] for cells in found}


REPLAY = {f"replay.{key}": cells for key, cells in options("replay options").items()}
SAVING = options("own settings, saving")
STAGE_2 = {key: cells for key, cells in options("own settings, prompts").items() if cells[0] != "1"}
STAGE_1 = options("own settings, stage 1")


def test_the_tables_have_every_setting_that_only_rerule_has_and_no_other_of_replay() -> None:
    assert set(REPLAY) == {key for key in STAGE2 if key.startswith("replay.")}
    assert len(REPLAY) > 20
    ours = ("save.", "sides.", "health.", "records.")
    assert {key for key in STAGE2 if key.startswith(ours)} <= {*SAVING, *STAGE_2}
    assert {key for key in STAGE1 if key.startswith(("signal.", "stop"))} <= set(STAGE_1)


def test_the_defaults_and_the_papers_values_are_those_of_the_settings() -> None:
    default, stage1 = settings("rerule_trainer.yaml"), settings("stage1/sft_trainer.yaml")
    paper = settings("rerule_trainer.yaml", "common/paper/replay_common.yaml", "experiment/paper/rwku.yaml")
    for key, cells in REPLAY.items():
        told = [re.sub(r" \(not used\)$", "", cell).strip("`") for cell in cells[:2]]
        assert told == [shown(default[key]), shown(paper[key])], key
    for key, cells in (SAVING | STAGE_2).items():
        if key != "rollout.agent.default_agent_loop":
            assert cells[1].split(" (")[0] == shown(default[key]), key
    for key, cells in STAGE_1.items():
        if key != "signal.reward_kwargs":
            assert cells[0] == shown(stage1[key]), key


def shown(value: object) -> str:
    """A setting as a table shows it; ${data.seed} as data.seed."""
    return re.sub(r"^\$\{(.*)\}$", r"\1", yaml.safe_dump(value).removesuffix("...\n").strip())


def test_the_readme_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text()))
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= linked


def test_the_change_that_adds_a_metric_fits_its_file() -> None:
    (diff,) = re.findall(r"```diff\n(.*?)```", page("architecture.md"), re.DOTALL)
    code = (ROOT / "recipe/rerule/evaluation/tasks/world.py").read_text()
    before = [line[1:] for line in diff.splitlines() if line[0] in "- "]
    after = [line[1:] for line in diff.splitlines() if line[0] == "+"]
    assert len(before) > 5
    assert [line for line in before if code.count(f"\n{line}\n") != 1] == []
    assert [line for line in after if f"\n{line}\n" in code] == []


# The rewards of the examples.

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


def examples(name: str) -> list[list[str]]:
    return rows(page("rewards.md"), f"examples: {name}", "end of examples")


def answered(side: str, response: str, form: str) -> dict[str, float]:
    """What a response to the side's question is given; a question is the response to itself."""
    question = {"query": response if response.endswith("?") else QUESTIONS[side]}
    return compute_score("rerule/world", response, GROUND_TRUTH[side], question, form=form)


@pytest.mark.parametrize("cells", examples("rewards"), ids=lambda cells: cells[1])
def test_the_reward_of_each_example_is_what_the_code_gives(cells: list[str]) -> None:
    side, response, *told = cells
    scores = [answered(side, response, form) for form in FORMS]
    found = [*(scores[0][part] for part in ("refused", "keyword", "rouge")), *(s["score"] for s in scores)]
    assert found == [float(number) for number in told]


@pytest.mark.parametrize("cells", examples("policies"), ids=lambda cells: cells[0])
def test_the_rewards_of_each_policy_are_what_the_code_gives(cells: list[str]) -> None:
    _, *responses, additive, nested, guarded = cells
    texts = [UNWRITTEN.get(response, response) for response in responses]
    said = dict(zip(QUESTIONS, texts, strict=True))
    found = [[answered(*one, form)["score"] for one in said.items()] for form in FORMS]
    assert found == [[float(part) for part in told.split(" + ")] for told in (additive, nested, guarded)]


def test_guarded_pays_no_policy_more_than_the_honest_constant_refusal() -> None:
    table = examples("policies")
    paid = {cells[0]: [sum(map(float, told.split(" + "))) for told in cells[3:]] for cells in table}
    assert paid.pop("the behaviour wanted") == [2.0, 2.0, 2.0]
    honest = paid.pop("refuse, with the name")
    assert len(paid) >= 13
    assert [name for name, rewards in paid.items() if rewards[2] > honest[2]] == []
    assert sum(rewards[0] > honest[0] for rewards in paid.values()) == 5  # as the page says


@pytest.mark.parametrize("cells", examples("benchmarks"), ids=lambda cells: cells[0])
def test_the_settings_of_the_benchmarks_are_those_of_the_code(cells: list[str]) -> None:
    source, form, *numbers, rouge = (cell.strip("`") for cell in cells)
    config = benchmark_reward("rerule/world" if source == "all others" else source)
    assert (config.form, config.rouge) == (form, rouge)
    assert [config.lambda_forget, config.lambda_retain, config.gamma] == [float(n) for n in numbers]
