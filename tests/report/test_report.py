"""`recipe.rerule.report`: what it writes, prints, warns of, replaces and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe.rerule.report import main
from tests.report import made_attacks


def tree(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def run_folder(write_run) -> Path:
    metrics = [
        {"step": step, "data": {"reward/forget/mean": 0.5, "replay/updates": step > 1}} for step in (1, 2)
    ]
    group = {"index": 4, "type": "retain", "mode": "fb", "subject": "Ben", "rewards": [0.0, 1.0]}
    return write_run("rerule", metrics, [{"step": 1, "prompts": [group]}])


def test_only_an_earlier_report_is_replaced_and_only_when_asked(results_folder, tmp_path, capsys):
    """--out names the page; what stands next to it is kept."""
    folder = tmp_path / "quickstart"
    folder.mkdir()
    (folder / "other.txt").write_text("kept")
    arguments = ["--results", f"{results_folder / 'results.json'}", "--out", f"{folder / 'mine.html'}"]
    assert main(arguments) == 0
    assert {"other.txt", "mine.html", "mine.md", "mine/results_world.csv"} <= set(tree(folder))
    before = tree(tmp_path)
    assert main([*arguments, "--title", "Another"]) == 2
    assert "mine.html exists already" in capsys.readouterr().err
    assert tree(tmp_path) == before
    assert main([*arguments, "--title", "Another", "--overwrite"]) == 0
    assert "Another" in (folder / "mine.html").read_text()
    for link in ("mine.html", "mine.md", "mine"):
        (folder / link).rename(tmp_path / "elsewhere")
        (folder / link).symlink_to(tmp_path / "elsewhere")
        before = tree(tmp_path)
        assert main([*arguments, "--overwrite"]) == 2
        assert f"{link} was not written by a report" in capsys.readouterr().err
        assert tree(tmp_path) == before
        (folder / link).unlink()
        (tmp_path / "elsewhere").rename(folder / link)


def test_data_of_one_s_own_and_what_shows_nothing(write_evaluation, results_folder, tmp_path, capsys):
    numbers = {"forget/recall": 0.5, "retain/recall": 1.0}
    results = {"base": numbers, "rule": numbers, "rerule": numbers | {"forget/recall": 0.0}}
    facts = {"forget": 2, "forget/qa": 2, "retain": 9, "retain/qa": 9}
    meta = {"benchmark": "custom", "probes": {"sha256": "1", "facts": facts}}
    own = ["--results", f"{write_evaluation('own', results=results, meta=meta)}"]
    titled = [*own, "--results", f"{results_folder}", "--title", "Mine", "--out", f"{tmp_path / 'out'}"]
    assert main(titled) == 0
    told = capsys.readouterr()
    assert told.out.startswith("Mine\n")
    assert "\n\nEmbedded world\n" in told.out  # the world keeps its own name
    page = (tmp_path / "out" / "report.md").read_text()
    assert page.startswith("# Mine\n")
    assert "## Mine\n" in page
    assert [line for line in told.err.splitlines() if not line.startswith("report: ")] == [  # its progress
        "warning: Mine: too few facts for intervals and tests, which need 6: forget (2)",
        "warning: Mine: no number of rule differs from base: nothing was forgotten",
    ]
    assert main([*own, "--base", "rerule", "--out", f"{tmp_path / 'other'}"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("Your data\n")
    assert "differs from" not in told.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "no-folder"], "--run 'no-folder' is not NAME=FOLDER"),
        (["--run", "a={run}", "--run", "a={run}"], "--run a is given twice"),
        ([f"--run={name}={{run}}" for name in "abcdefg"], "7 runs given"),
        (["--run", "a={run}", "--data", "missing"], "missing/train.parquet: no such file"),
        (["--out", "{run}/records/metrics.jsonl/out"], "error: "),
        (["--results", "{attacks}"], "is a folder of evaluate attack; give it as --attacks"),
        (["--attacks", "{results}"], "is a folder of evaluate model; give it as --results"),
        (["--attacks", "missing"], "missing/meta.json does not exist"),
        (["--attacks", "{attacks}", "--out", "{attacks}", "--overwrite"], "which lies in what --attacks"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    arguments, message, results_folder, run_folder, tmp_path, capsys
):
    attacks = made_attacks.write(tmp_path / "attacks")
    before = tree(tmp_path)
    filled = [one.format(run=run_folder, attacks=attacks, results=results_folder) for one in arguments]
    assert main(["--results", f"{results_folder}", "--out", f"{tmp_path / 'out'}", *filled]) == 2
    *progress, error = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert all(line.startswith(("report: ", "attacks: ")) for line in progress)  # of slow work
    assert message in error
    assert tree(tmp_path) == before
