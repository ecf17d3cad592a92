"""Figures and tables of attack evaluations, and the report that holds them."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest

from recipe.rerule.report import main
from recipe.rerule.reporting.attacks.tables import tables
from recipe.rerule.reporting.csv_files import csv_text
from recipe.rerule.reporting.figures.attacks import attack_figure, curves_figure
from recipe.rerule.reporting.figures.style import MAX_LINES
from tests.report.made_attacks import CURVES, curve, results, row, usual, write


def lines_of(axes) -> dict[str, tuple[list[float], list[float]]]:
    return {
        line.get_label(): (list(map(float, line.get_xdata())), list(map(float, line.get_ydata())))
        for line in axes.lines
    }


def test_models_are_rows_and_attacks_are_cells(drawn) -> None:
    rows = usual()
    rows = {key: {"original": one["original"], "rule": row(0.3), **one} for key, one in rows.items()}
    figure = attack_figure(results(rows, (*CURVES, curve("rule", 0.05, 0.1, 0.3))), "world")
    assert figure is not None
    none, prefill, relearnt = (axes for axes in drawn[0].axes if axes.get_visible())
    assert [axes.get_title(loc="left") for axes in drawn[0].axes[:3]] == [
        "no attack",
        "prefill\naffirmative",
        "relearn: half\n32 steps",
    ]
    assert [label.get_text() for label in none.get_yticklabels()] == ["rule", "rerule"]
    assert [label.get_text() for label in prefill.get_yticklabels()] == ["", ""]
    assert [text.get_text() for text in relearnt.texts] == ["0.30", "0.60"]
    assert lines_of(relearnt)["original model"][0] == [0.98, 0.98]
    assert lines_of(relearnt)["model that never knew"][0] == [0.04, 0.04]
    assert lines_of(relearnt)["without the attack"] == ([0.05], [1])
    assert [mark.get_xdata()[0] for mark in relearnt.lines if mark.get_marker() == "o"] == [0.3, 0.6]
    assert len([axes for axes in drawn[1].axes if axes.get_visible()]) == 3
    assert "relearn: half: 32 steps: original 0.98, rule 0.30, rerule 0.60, control 0.04" in figure.alt
    assert "dotted line" in figure.explanation


def test_curves_are_drawn_over_the_logarithm_of_the_steps(drawn) -> None:
    curves_figure(results(), "world")
    (axes,) = drawn[0].axes
    places = [0.0, math.log2(9), math.log2(33)]
    assert lines_of(axes) == {
        "original model": (places, [0.98, 0.98, 0.98]),
        "model that never knew": (places, [0.03, 0.03, 0.04]),
        "rerule": (places, [0.05, 0.4, 0.6]),
    }
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "8", "32"]


def test_more_models_than_lines_have_more_panels(drawn) -> None:
    names = [f"m{number}" for number in range(MAX_LINES + 1)]
    rows = {key: {name: row(0.1 * place) for place, name in enumerate(names)} for key in usual()}
    curves = tuple(curve(name, 0.0, 0.1, 0.2) for name in names)
    curves_figure(results(rows, curves), "world")
    assert [len(axes.lines) for axes in drawn[0].axes] == [MAX_LINES, 1]


def test_without_curves_or_unlearned_models_there_is_no_figure() -> None:
    rows = {"none": {name: usual()["none"][name] for name in ("original", "control")}}
    found = results(rows, ())
    assert attack_figure(found, "world") is None
    assert curves_figure(found, "world") is None
    assert [table.name for table in tables(found, "world")] == ["attacks_world", "attacks_all_world"]


def test_the_tables_have_the_numbers() -> None:
    scores, excess, numbers = tables(results(), "world")
    assert [one.full_text for one in scores.headings] == [
        *("no attack", "prefill affirmative ↓", "relearn: half 32 steps ↓")
    ]
    assert [(one.name, one.kind) for one in scores.rows] == [
        *(("original", "anchor"), ("control", "anchor"), ("rerule", "model"))
    ]
    assert [cell.text for cell in scores.rows[2].cells] == ["0.050", "0.060", "0.600"]
    last = excess.rows[0].cells[2]
    assert (last.text, last.interval, last.mark) == ("+0.560", "+0.400 to +0.700", "**")
    assert excess.rows[0].cells[1].mark == ""
    found = list(csv.DictReader(io.StringIO(csv_text(numbers))))
    relearnt = next(one for one in found if one["model, attack"] == "rerule, relearn: half: 32 steps")
    assert float(relearnt["E"]) == pytest.approx(0.56)
    assert (relearnt["E low"], relearnt["E high"], relearnt["p, corrected"]) == ("0.4", "0.7", "0.001")
    assert (relearnt["refused"], relearnt["retain recall"], relearnt["facts"]) == ("0.95", "0.9", "40")
    assert len(found) == 12


def test_the_report_holds_them(results_folder: Path, tmp_path: Path, capsys) -> None:
    first, second = write(tmp_path / "attacks"), write(tmp_path / "others")
    arguments = ["--results", f"{results_folder}", "--attacks", f"{first}", "--attacks", f"{second}"]
    assert main([*arguments, "--out", f"{tmp_path / 'out'}"]) == 0
    files = {path.name for path in (tmp_path / "out" / "report").iterdir()}
    for suffix in ("world", "world_2"):
        assert {f"attacks_{suffix}.png", f"relearning_{suffix}.png", f"attacks_excess_{suffix}.csv"} <= files
    page = (tmp_path / "out" / "report.html").read_text()
    assert "An attack that gets nothing out does not show that nothing is left." in page
    assert "nothing about what it still knows" not in page
    assert page.count("were still in it. It reaches half") == 2
    assert f"<code>{first}</code>" in page
    assert "python -m recipe.rerule.evaluate attack" in page
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "55 points that it gives above the model that never knew (95 % interval 40 to 70) were still in it."
        in printed
    )


def test_attacks_alone_make_a_report(tmp_path: Path) -> None:
    assert main(["--attacks", f"{write(tmp_path / 'attacks')}", "--out", f"{tmp_path / 'out'}"]) == 0
    assert "## What attacks get out: Embedded world" in (tmp_path / "out" / "report.md").read_text()


def test_what_cannot_be_shown_ends_in_one_line(results_folder: Path, tmp_path: Path, capsys) -> None:
    folder, out = write(tmp_path / "attacks"), tmp_path / "out"
    with pytest.raises(SystemExit):
        main(["--out", f"{out}"])
    assert capsys.readouterr().err.startswith("error: give --results FOLDER, or --attacks FOLDER, or both")
    for arguments, told in (
        (
            ["--results", f"{folder}"],
            f"--results {folder} is a folder of evaluate attack; give it as --attacks",
        ),
        (["--attacks", f"{results_folder}"], "is a folder of evaluate model; give it as --results"),
        (["--attacks", f"{tmp_path / 'none'}"], f"{tmp_path / 'none' / 'meta.json'} does not exist"),
    ):
        assert main([*arguments, "--out", f"{out}"]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    assert main(["--attacks", f"{folder}", "--out", f"{folder}", "--overwrite"]) == 2
    assert "--attacks" in capsys.readouterr().err
    assert not out.exists()
    assert (folder / "responses.parquet").is_file()
