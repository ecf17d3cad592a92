from __future__ import annotations

from pathlib import Path

import pytest

from recipe.rerule.report import main
from tests.unread import nobody_reads


def tree(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def run_folder(write_run) -> Path:
    metrics = [
        {"step": step, "data": {"reward/forget/mean": 0.5, "replay/updates": step > 1}} for step in (1, 2)
    ]
    group = {"index": 4, "type": "retain", "mode": "fb", "subject": "Ben", "rewards": [0.0, 1.0]}
    return write_run("rerule", metrics, [{"step": 1, "prompts": [group]}])


def test_report_writes_page_markdown_and_figures(results_folder, run_folder, tmp_path, capsys):
    out = tmp_path / "shown"
    assert main(["--results", f"{results_folder}", "--run", f"rerule={run_folder}", "--out", f"{out}"]) == 0
    assert set(tree(out)) == {
        "report.html",
        "report.md",
        "report/contents.json",
        "report/results_world.csv",
        "report/all_metrics_world.csv",
        "report/hard_share.csv",
        "report/cost.csv",
        "report/forget_retain_world.png",
        "report/reward_by_type.png",
        "report/replay.png",
        "report/hardest_prompts.png",
    }
    printed = capsys.readouterr().out
    assert f"report: {out / 'report.html'}" in printed
    assert "always refuses" in printed
    page = (out / "report.html").read_text()
    assert "ROUGE-L convention: recall." in page
    assert "python -m recipe.rerule.evaluate model --out evaluation" in page
    assert f"python -m recipe.rerule.report --results {results_folder}" in page
    assert page.count("data:image/png;base64,") == 8  # four figures, wide and narrow


def test_out_can_name_the_page(results_folder, tmp_path):
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "quickstart" / "other.txt").write_text("kept")
    page = tmp_path / "quickstart" / "mine.html"
    assert main(["--results", f"{results_folder / 'results.json'}", "--out", f"{page}"]) == 0
    assert {"other.txt", "mine.html", "mine.md", "mine/results_world.csv"} <= set(
        tree(tmp_path / "quickstart")
    )
    assert "always refuses" in page.read_text()


def test_the_page_is_written_where_nobody_reads_the_table(results_folder, tmp_path):
    with nobody_reads(), pytest.raises(SystemExit) as ended:
        main(["--results", f"{results_folder}", "--out", f"{tmp_path / 'out'}"])
    assert ended.value.code == 141
    assert (tmp_path / "out" / "report.html").is_file()


def test_an_earlier_report_is_replaced_only_when_asked(results_folder, tmp_path, capsys):
    arguments = ["--results", f"{results_folder}", "--out", f"{tmp_path / 'out'}"]
    assert main(arguments) == 0
    before = tree(tmp_path)
    assert main([*arguments, "--title", "Another"]) == 2
    assert "report.html exists already" in capsys.readouterr().err
    assert tree(tmp_path) == before
    assert main([*arguments, "--title", "Another", "--overwrite"]) == 0
    assert "Another" in (tmp_path / "out" / "report.html").read_text()
    (tmp_path / "out" / "report" / "contents.json").write_text("")  # no longer known as a report's
    assert main([*arguments, "--overwrite"]) == 2
    assert "Another" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("link", ["report.html", "report.md", "report"])
def test_a_link_in_a_reports_place_is_kept(link, results_folder, tmp_path, capsys):
    arguments = ["--results", f"{results_folder}", "--out", f"{tmp_path / 'out'}", "--overwrite"]
    assert main(arguments) == 0
    (tmp_path / "out" / link).rename(tmp_path / "elsewhere")
    (tmp_path / "out" / link).symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path)
    assert main(arguments) == 2
    assert f"{link} was not written by a report" in capsys.readouterr().err
    assert tree(tmp_path) == before


@pytest.fixture
def own_folder(write_evaluation) -> Path:
    """An evaluation on data of one's own, with two facts to forget."""
    numbers = {"forget/recall": 0.5, "retain/recall": 1.0}
    return write_evaluation(
        "own",
        results={"base": numbers, "rule": numbers, "rerule": numbers | {"forget/recall": 0.0}},
        meta={
            "benchmark": "custom",
            "probes": {"sha256": "1", "facts": {"forget": 2, "forget/qa": 2, "retain": 9, "retain/qa": 9}},
        },
    )


@pytest.mark.parametrize(
    ("title", "page_title", "section"),
    [([], "Unlearning report", "Your data"), (["--title", "My data"], "My data", "My data")],
)
def test_data_of_one_s_own_has_the_name_that_is_given(
    title, page_title, section, own_folder, results_folder, tmp_path, capsys
):
    results = ["--results", f"{own_folder}", "--results", f"{results_folder}"]
    assert main([*results, *title, "--out", f"{tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{section}\n")
    assert "\n\nEmbedded world\n" in printed  # the world keeps its own name
    page = (tmp_path / "out" / "report.md").read_text()
    assert page.startswith(f"# {page_title}\n")
    assert f"## {section}\n" in page


def test_what_shows_nothing_is_warned_of(own_folder, tmp_path, capsys):
    assert main(["--results", f"{own_folder}", "--title", "Mine", "--out", f"{tmp_path / 'out'}"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if not line.startswith("report: ")] == [  # progress of slow work
        "warning: Mine: too few facts for intervals and tests, which need 6: forget (2)",
        "warning: Mine: no number of rule differs from base: nothing was forgotten",
    ]
    assert main(["--results", f"{own_folder}", "--base", "rerule", "--out", f"{tmp_path / 'other'}"]) == 0
    assert "differs from" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "no-folder"], "--run 'no-folder' is not NAME=FOLDER"),
        (["--run", "a={run}", "--run", "a={run}"], "--run a is given twice"),
        ([f"--run={name}={{run}}" for name in "abcdefg"], "7 runs given"),
        (["--run", "a={run}", "--data", "missing"], "missing/train.parquet: no such file"),
        (["--results", "{run}/records/metrics.jsonl"], "is not JSON"),
        (["--out", "{run}/records/metrics.jsonl/out"], "error: "),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    arguments, message, results_folder, run_folder, tmp_path, capsys
):
    before = tree(tmp_path)
    filled = [argument.format(run=run_folder) for argument in arguments]
    assert main(["--results", f"{results_folder}", "--out", f"{tmp_path / 'out'}", *filled]) == 2
    lines = capsys.readouterr().err.splitlines()
    (error,) = (line for line in lines if not line.startswith("report: "))  # progress of slow work
    assert error.startswith("error: ")
    assert message in error
    assert tree(tmp_path) == before
