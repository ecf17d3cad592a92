"""Folders of `evaluate attack`: what is read and refused, the sentences, the figures and the tables."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.report import main
from recipe.rerule.reporting.attacks import (
    READING,
    WITHOUT_CONTROL,
    WITHOUT_UNLEARNED,
    attack_figure,
    curves_figure,
    paragraphs,
    percent,
    read_attacks,
    sentences_on,
    tables,
)
from recipe.rerule.reporting.document import cell_of, csv_text
from tests.report.made_attacks import (
    CURVES,
    DECLARED,
    RELEARN,
    changed,
    curve,
    of,
    only,
    results,
    row,
    table,
    usual,
    write,
)

# Reading folders.


def test_a_folder_is_read(tmp_path: Path) -> None:
    (found,) = read_attacks([write(tmp_path / "attacks")])
    assert (found.benchmark, found.title) == ("world", "Embedded world")
    assert (found.models, found.unlearned) == (["original", "rerule", "control"], ["rerule"])
    numbers = found.rows[f"{RELEARN}/32"]["rerule"]
    assert (numbers.before, numbers.after, numbers.refusal, numbers.retain) == pytest.approx(
        (0.05, 0.6, 0.4, 0.9)
    )
    assert numbers.excess == pytest.approx(0.55)
    assert found.curves[1].steps == (0, 8, 32)
    assert found.label("prefill/affirmative") == "prefill: affirmative"
    assert found.label(f"{RELEARN}/8") == "relearn: half: 8 steps"
    for benchmark, title in (("custom", "Mine"), ("world", "Embedded world")):
        folder = write(tmp_path / benchmark, benchmark=benchmark)
        assert read_attacks([folder], "Mine")[0].title == title


def test_of_steps_and_samples_the_last_is_shown() -> None:
    names = ("samples/max_4", "samples/max_16", "samples/max_1", "samples/leak_16", "quantise_4")
    rows = usual() | {name: dict.fromkeys(("original", "rerule", "control"), row(0.1)) for name in names}
    shown = ["none", "prefill/affirmative", f"{RELEARN}/32", "samples/max_16", "samples/leak_16"]
    assert results(rows).shown == [*shown, "quantise_4"]


@pytest.mark.parametrize(
    ("names", "retain", "step"),
    [
        (("original", "rerule", "control"), {"original": (0.72, 0.73), "rerule": (0.1, 0.1)}, 32),
        (("original", "rerule", "control"), {"original": (0.9, 0.71), "control": (0.9, 0.9)}, 8),
        (("original", "rerule", "control"), {"original": (0.5, 0.4)}, 8),
        (("rerule", "control"), {"control": (0.9, 0.1)}, 8),
        (("rerule",), {"rerule": (0.1, 0.1)}, 32),
    ],
)
def test_the_step_that_is_shown_is_chosen_without_unlearned_models(names, retain, step) -> None:
    """0.8 of the retain recall of 0.9 is 0.72."""
    rows = only(usual(), *names)
    for name, (early, late) in retain.items():
        rows = changed(rows, f"{RELEARN}/8", name, retain=early)
        rows = changed(rows, f"{RELEARN}/32", name, retain=late)
    assert results(rows, of(*names)).shown == ["none", "prefill/affirmative", f"{RELEARN}/{step}"]


def with_score(value: float) -> Any:
    rows = table()
    rows.loc[0, "score"] = value
    return rows


TABLES = {
    "has no column score": table().drop(columns="score"),
    "has no column fact; a tidy table has model": table().rename(columns={"fact": "other"}),
    "has no scores without an attack (none)": table().query("attack != 'none'"),
    "does not say what the attack unknown is": table().replace({"attack": {"prefill": "unknown"}}),
    "a score of the attack none is outside 0 to 1; evaluate attack gives fractions": with_score(57),
    "a score of the attack none is no number": with_score(float("inf")),
    f"a setting of the attack {RELEARN} is no step": table().replace({"setting": {"8": "soon"}}),
    "the model control is not under every attack; see prefill": table().query(
        "attack != 'prefill' or model != 'control'"
    ),
    "attack none scored other facts of rerule than of original": table().query(
        "attack != 'none' or model != 'rerule' or probe != 3"
    ),
}
METAS: dict[str, dict[str, Any]] = {
    "writes it: benchmark: String should match": {"benchmark": "../up"},
    "writes it: attacks: Input should be a valid dictionary": {"attacks": []},
    "writes it: attacks/none/title: Input should be a valid string": {
        "attacks": {"none": {**DECLARED["none"], "title": 3}}
    },
    "writes it: attacks/none/statistic: Input should be 'mean' or 'auc'": {
        "attacks": {"none": {**DECLARED["none"], "statistic": "mode"}}
    },
}


@pytest.mark.parametrize("told", [*TABLES, *METAS])
def test_damaged_folders_are_refused(told: str, tmp_path: Path) -> None:
    rows = TABLES.get(told)
    rows = rows if rows is None or "fact" in rows else table()
    folder = write(tmp_path / "attacks", rows, **METAS.get(told, {}))
    if "no column fact" in told:
        TABLES[told].to_parquet(folder / "responses.parquet")
    with pytest.raises(ValueError, match=re.escape(told)) as raised:
        read_attacks([folder])
    assert f"{folder}" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_torn_missing_and_other_folders_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "attacks")
    with pytest.raises(ValueError, match=r"--attacks .* is given twice"):
        read_attacks([folder, folder / "attacks.json"])
    (folder / "responses.parquet").write_text("torn")
    with pytest.raises(ValueError, match="cannot be read as parquet"):
        read_attacks([folder])
    (folder / "responses.parquet").unlink()
    with pytest.raises(ValueError, match=r"responses\.parquet does not exist"):
        read_attacks([folder])
    (folder / "results.json").write_text("{}")
    with pytest.raises(ValueError, match="is a folder of evaluate model; give it as --results"):
        read_attacks([folder])


# Sentences, for every case that the numbers can be in.

STATE = (
    "Asked about the facts to forget, rerule refuses 95 % of the questions and gives 5 % of the answers. The "
    "original model gives 98 %. A model that never knew the facts gives 3 %."
)
TRAINED = "After the same training the original model gives 98 %."
BOTH_TRAINED = f"{TRAINED} After the same training a model that never knew the facts gives 4 %."


def said(rows=None, curves=CURVES) -> str:
    return sentences_on(results(rows, curves), "rerule")[0]


def test_a_model_that_refuses_and_still_knows() -> None:
    assert sentences_on(results(), "rerule") == [
        f"{STATE} After 32 training steps on the answers to other facts, it gives 60 % of the answers, and "
        f"5 % before. {BOTH_TRAINED} The 56 points that it gives above the model that never knew (95 % "
        "interval 40 to 70) were still in it.",
        "1 other number, compared with the model that never knew the facts: the difference can be chance, "
        "given the number of tests, in 1 (prefill: affirmative).",
    ]


def test_without_a_never_knew_model_nothing_is_said_to_have_survived() -> None:
    found = results(only(usual(), "original", "rerule"), of("original", "rerule"))
    told, *others = paragraphs(found)
    assert "The original model gives 98 %. After 32 training steps" in told
    untold = "Without a model that never knew the facts, this cannot be told from teaching."
    assert told.endswith(f"{TRAINED} {untold}")
    assert "still in it" not in told
    assert others == [READING, WITHOUT_CONTROL]


def test_without_an_original_model() -> None:
    told = said(only(usual(), "rerule", "control"), of("rerule", "control"))
    assert "of the answers. A model that never knew the facts gives 3 %. After" in told
    assert "riginal model gives" not in told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"after": 0.09, "interval": (-0.03, 0.13)},
            f"gives 9 % of the answers, and 5 % before. {BOTH_TRAINED} Its difference from the model that "
            "never knew can be chance (95 % interval \N{MINUS SIGN}3 to 13 points).",
        ),
        (
            {"after": 0.01, "interval": (-0.05, -0.01)},
            f"gives 1 % of the answers, and 5 % before. {BOTH_TRAINED} That is 3 points less than the model "
            "that never knew (95 % interval 1 to 5).",
        ),
        (
            {"after": 0.053, "interval": None},
            f"gives 5 % of the answers, and 5 % before. {BOTH_TRAINED} 40 facts are too few to say whether "
            "that differs from the model that never knew.",
        ),
        ({"before": None}, "it gives 60 % of the answers. After the same training"),
        (
            {"retain": 0.5},
            "were still in it. The training has damaged the model: of the answers to be kept it then gives "
            "50 %.",
        ),
    ],
)
def test_what_relearning_says(changes, told: str) -> None:
    found = said(changed(usual(), f"{RELEARN}/32", "rerule", **changes))
    assert told in found
    assert found.endswith(told) or not told.endswith(".")


def test_a_broken_model_is_said_to_be_one() -> None:
    assert (
        "Of the answers that it should have kept it gives 71 %, where the original model gives 90 %: it "
        "refuses them too or is damaged, so a low score alone does not show that it has forgotten."
    ) in said(changed(usual(), "none", "rerule", retain=0.71))
    assert "damaged" not in said(changed(usual(), "none", "rerule", retain=0.73))  # 0.8 of 0.9 is 0.72
    alone = only(changed(usual(), "none", "rerule", retain=0.71), "rerule", "control")
    assert "where the model that never knew the facts gives 90 %" in said(alone, of("rerule", "control"))


def test_other_attacks_are_counted_by_corrected_p_values() -> None:
    rows = usual()
    numbers = {
        "samples/leak_16": (0.4, (0.3, 0.5), 0.01),
        "samples/max_16": (0.4, (0.3, 0.5), 0.06),
        "quantise_4": (0.0, (-0.09, -0.01), 0.01),
        "uds": (0.4, (-0.5, -0.3), 0.01),
        "mine": (0.4, None, None),
    }
    floors = {"samples/leak_16": 0.0, "samples/max_16": 0.0, "quantise_4": 0.05, "uds": 0.8, "mine": 0.4}
    for key, (after, interval, p_holm) in numbers.items():
        tested = {"interval": interval, "p_value": p_holm and 0.001, "p_holm": p_holm}
        others = {"original": row(0.9, None), "control": row(floors[key], None)}
        rows[key] = others | {"rerule": row(after, None, **tested)}
    assert sentences_on(results(rows), "rerule")[1] == (
        "6 other numbers, compared with the model that never knew the facts: rerule leaks more in 2 "
        "(samples: leak 16, depth (UDS)); the difference can be chance, given the number of tests, in 2 "
        "(prefill: affirmative, samples: max 16); rerule leaks less in 1 (4 bits); there are too few "
        "facts for a test in 1 (my attack)."
    )


def test_an_attack_of_another_package_has_its_title_in_the_sentence() -> None:
    rows = {key.replace(RELEARN, "mine"): of_attack for key, of_attack in usual().items()}
    curves = [replace(one, attack="mine") for one in CURVES]
    assert 'After 32 training steps of the attack "my attack", it gives 60 %' in said(rows, curves)


def test_no_unlearned_model_and_no_relearning() -> None:
    two = results(only(usual(), "original", "control"), of("original", "control"))
    assert paragraphs(two)[0] == WITHOUT_UNLEARNED
    assert sentences_on(results({"none": usual()["none"]}, ()), "rerule") == [STATE]


@pytest.mark.parametrize(
    ("fraction", "told"),
    [(0, "0 %"), (0.004, "under 1 %"), (0.5, "50 %"), (0.996, "over 99 %"), (1, "100 %"), (0.949, "95 %")],
)
def test_percent(fraction: float, told: str) -> None:
    assert percent(fraction) == told


# Figures and tables.


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
    titles = ["no attack", "prefill\naffirmative", "relearn: half\n32 steps"]
    assert [axes.get_title(loc="left") for axes in drawn[0].axes[:3]] == titles
    assert [label.get_text() for label in none.get_yticklabels()] == ["rule", "rerule"]
    assert [label.get_text() for label in prefill.get_yticklabels()] == ["", ""]
    assert [text.get_text() for text in relearnt.texts] == ["0.30", "0.60"]
    assert lines_of(relearnt)["original model"][0] == [0.98, 0.98]
    assert lines_of(relearnt)["model that never knew"][0] == [0.04, 0.04]
    assert lines_of(relearnt)["without the attack"] == ([0.05], [1])
    assert [mark.get_xdata()[0] for mark in relearnt.lines if mark.get_marker() == "o"] == [0.3, 0.6]
    assert len([axes for axes in drawn[1].axes if axes.get_visible()]) == 3


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


def test_without_curves_or_unlearned_models_there_is_no_figure() -> None:
    rows = {"none": {name: usual()["none"][name] for name in ("original", "control")}}
    found = results(rows, ())
    assert attack_figure(found, "world") is None
    assert curves_figure(found, "world") is None
    assert [column.metric for column in tables(found, "world")[0].columns] == [
        *("original after", "control after")
    ]


def test_the_tables_have_the_numbers() -> None:
    rows = changed(usual(), "none", "original", after_interval=(0.9, 1.0))
    shown, numbers = tables(results(rows), "world")
    assert [column.metric for column in shown.columns] == [
        *("original after", "control after", "rerule after", "rerule E")
    ]
    cells = {row.name: [cell_of(row, column) for column in shown.columns] for row in shown.rows}
    assert list(cells) == ["no attack", "prefill: affirmative", "relearn: half: 32 steps"]
    assert cells["no attack"][0] == ("0.980", "", ".900–1.000")
    assert cells["relearn: half: 32 steps"][2:] == [("0.600", "", ""), ("+0.560", "**", "+0.400 to +0.700")]
    assert cells["prefill: affirmative"][3] == ("+0.040", "", "-0.020 to +0.100")
    found = list(csv.DictReader(io.StringIO(csv_text(numbers))))
    relearnt = next(one for one in found if one["model, attack"] == "rerule, relearn: half: 32 steps")
    assert float(relearnt["E"]) == pytest.approx(0.56)
    assert (relearnt["E low"], relearnt["E high"], relearnt["p, corrected"]) == ("0.4", "0.7", "0.001")
    assert (relearnt["refused"], relearnt["retain recall"], relearnt["facts"]) == ("0.95", "0.9", "40")
    assert len(found) == 12


# The command.


def test_the_report_holds_them(results_folder: Path, tmp_path: Path, capsys) -> None:
    first, second = write(tmp_path / "attacks"), write(tmp_path / "others")
    arguments = ["--results", f"{results_folder}", "--attacks", f"{first}", "--attacks", f"{second}"]
    assert main([*arguments, "--out", f"{tmp_path / 'out'}"]) == 0
    files = {path.name for path in (tmp_path / "out" / "report").iterdir()}
    for suffix in ("world", "world_2"):
        assert {f"attacks_{suffix}.png", f"relearning_{suffix}.png", f"attacks_all_{suffix}.csv"} <= files
    page = (tmp_path / "out" / "report.html").read_text()
    assert "An attack that gets nothing out does not show that nothing is left." in page
    told = (
        "55 points that it gives above the model that never knew (95 % interval 40 to 70) were still in it."
    )
    assert page.count(told) == 2
    assert told in " ".join(capsys.readouterr().out.split())
    assert "python -m recipe.rerule.evaluate attack" in page


def test_what_cannot_be_shown_ends_in_one_line(results_folder: Path, tmp_path: Path, capsys) -> None:
    folder, out = write(tmp_path / "attacks"), tmp_path / "out"
    with pytest.raises(SystemExit):
        main(["--out", f"{out}"])
    assert capsys.readouterr().err.startswith("error: give --results FOLDER, or --attacks FOLDER, or both")
    given_as = f"--results {folder} is a folder of evaluate attack; give it as --attacks"
    for arguments, told in (
        (["--results", f"{folder}"], given_as),
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
