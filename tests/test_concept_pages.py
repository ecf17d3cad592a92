"""Tables of replay.md, quickstart.md, files.md and extending.md against the code and numbers they repeat."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_prep import classical
from recipe.rerule import io
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.attacks import runner, summary
from recipe.rerule.evaluation.output import EVALUATION, UTILITY
from recipe.rerule.export import KIND as EXPORT
from recipe.rerule.replay import state
from recipe.rerule.reporting.output import FILES
from recipe.rerule.runs import run_folder
from recipe.rerule.schema import STAGE2
from recipe.rerule.unlearning.task_vectors import KIND as TASK_VECTOR

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "recipe" / "rerule" / "config"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def rows(text: str, begin: str, end: str) -> list[list[str]]:
    """The cells of the table between two comments, without its head."""
    lines = text.split(f"<!-- {begin} -->\n")[1].split(f"<!-- {end} -->")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{dotted key: value} of nested settings."""
    found = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def settings(*files: str) -> dict[str, Any]:
    """The replay settings of these files, of which later ones win."""
    found: dict[str, Any] = {}
    for file in files:
        found |= flat(yaml.safe_load((CONFIG / file).read_text()).get("replay", {}))
    return found


OPTIONS = {
    cells[0].strip("`"): cells[2:]
    for cells in rows(page("replay.md"), "table: replay options", "end of table")
}


def test_the_table_of_replay_has_every_option_and_no_other() -> None:
    declared = {key.removeprefix("replay.") for key in STAGE2 if key.startswith("replay.")}
    assert len(declared) > 20
    assert set(OPTIONS) == declared


@pytest.mark.parametrize("key", OPTIONS)
def test_the_defaults_and_the_papers_values_are_those_of_the_settings(key: str) -> None:
    default = settings("rerule_trainer.yaml")
    paper = settings("rerule_trainer.yaml", "common/paper/replay_common.yaml", "experiment/paper/rwku.yaml")
    told = [re.sub(r" \(not used\)$", "", cell).strip("`") for cell in OPTIONS[key]]
    assert told == [shown(default[key]), shown(paper[key])]


def shown(value: object) -> str:
    """A setting as the table shows it; ${data.seed} as data.seed."""
    return re.sub(r"^\$\{(.*)\}$", r"\1", yaml.safe_dump(value).removesuffix("...\n").strip())


def test_the_quickstarts_steps_are_those_of_the_script() -> None:
    script = (ROOT / "examples" / "quickstart.sh").read_text()
    steps = re.findall(r'^say "(\d/\d .*)"$', script, re.MULTILINE)
    assert len(steps) == 7
    assert re.findall(r"^\| `(\d/\d .*?)` \|", page("quickstart.md"), re.MULTILINE) == steps


def test_the_quickstart_and_the_readme_show_one_table() -> None:
    row = r"^\| (?:base|stage 1|RULE|ReRULE|\*always.*?) \|(?:[^|]*\|){6}$"
    texts = (page("quickstart.md"), (ROOT / "README.md").read_text())
    tables = [re.findall(row, text, re.MULTILINE) for text in texts]
    assert len(tables[0]) == 6
    assert tables[0] == tables[1]


def test_the_change_that_adds_a_metric_fits_its_file() -> None:
    (diff,) = re.findall(r"```diff\n(.*?)```", page("extending.md"), re.DOTALL)
    code = (ROOT / "recipe/rerule/evaluation/tasks/world.py").read_text()
    before = [line[1:] for line in diff.splitlines() if line[0] in "- "]
    after = [line[1:] for line in diff.splitlines() if line[0] == "+"]
    assert len(before) > 5
    assert [line for line in before if code.count(f"\n{line}\n") != 1] == []
    assert [line for line in after if f"\n{line}\n" in code] == []


WRITTEN = {
    "A data folder": [
        *(f"{name}.parquet" for name in (*classical.FILES, "sft", "train", "val", "probes")),
        io.DATA.marker,
    ],
    "A run folder of stage 2": [
        run_folder.MARKER,
        run_folder.LOCK,
        *(f"records/{name}.jsonl" for name in ("metrics", "metrics_at_save", "prompts", "replay")),
        f"global_step_N/replay/{state.STATE_FILE}",
        "global_step_N/complete.json",
    ],
    "An evaluation folder": [
        EVALUATION.marker,
        *(f"{name}.json" for name in ("results", "intervals", "comparisons", "anchors")),
        *("responses.parquet", "texts.jsonl"),
    ],
    "An attack folder": [summary.RESULTS, summary.CURVES, tidy.FILE, runner.PIECES, summary.ATTACKED.marker],
    "A report": [f"report/{FILES.marker}"],
    "Other folders": [EXPORT.marker, UTILITY.marker, TASK_VECTOR.marker],
}


@pytest.mark.parametrize("heading", WRITTEN)
def test_the_page_of_files_names_what_the_code_writes(heading: str) -> None:
    section = page("files.md").split(f"## {heading}\n")[1].split("\n## ")[0]
    assert [name for name in WRITTEN[heading] if f"`{name}`" not in section] == []
