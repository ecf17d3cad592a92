"""Reading folders of `evaluate attack`: what is found, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.reporting.attacks.results import read_attacks
from tests.report.made_attacks import DECLARED, RELEARN, changed, of, only, results, row, table, usual, write


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
    shown = (
        "none",
        "prefill/affirmative",
        f"{RELEARN}/32",
        "samples/max_16",
        "samples/leak_16",
        "quantise_4",
    )
    assert results(rows).shown == list(shown)


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
    found = results(rows, of(*names))
    assert found.shown_step(RELEARN) == step
    assert found.shown == ["none", "prefill/affirmative", f"{RELEARN}/{step}"]


@pytest.mark.parametrize(
    ("higher_is_leak", "interval", "p_holm", "alone", "of_many"),
    [
        (True, (0.1, 0.2), 0.01, "above", "above"),
        (True, (0.1, 0.2), 0.2, "above", "open"),
        (True, (-0.1, 0.2), 0.01, "open", "open"),
        (True, (0.0, 0.2), 0.01, "open", "open"),
        (True, (-0.2, -0.1), 0.01, "below", "below"),
        (False, (-0.2, -0.1), 0.01, "above", "above"),
        (False, (0.1, 0.2), 0.01, "below", "below"),
        (True, None, None, None, None),
    ],
)
def test_what_an_interval_says(higher_is_leak, interval, p_holm, alone, of_many) -> None:
    found = row(0.5, interval=interval, p_value=0.001, p_holm=p_holm)
    assert found.verdict(higher_is_leak) == alone
    assert found.verdict_of_many(higher_is_leak) == of_many


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
    "names no benchmark": {"benchmark": "../up"},
    "has no attacks": {"attacks": []},
    "title of the attack none is missing or no str": {"attacks": {"none": {"title": 3}}},
    "statistic of the attack none is neither mean nor auc": {
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
