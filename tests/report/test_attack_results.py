"""Reading folders of `evaluate attack`: what is found, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recipe.rerule.evaluation.attack_command import checked
from recipe.rerule.evaluation.attacks import registry
from recipe.rerule.reporting.attacks import results as reading
from recipe.rerule.reporting.attacks.results import read_attacks
from recipe.rerule.reporting.attacks.rows import AttackRow
from tests.report.made_attacks import CURVES, RELEARN, curve, read, row, usual, write


def test_the_names_are_those_of_the_command() -> None:
    assert (reading.ORIGINAL, reading.CONTROL) == (checked.ORIGINAL, checked.CONTROL)
    assert reading.BEFORE == registry.BEFORE


def test_a_folder_is_read(tmp_path: Path) -> None:
    found = read(tmp_path / "attacks")
    assert (found.benchmark, found.title) == ("world", "Embedded world")
    assert found.models == ["original", "rerule", "control"]
    assert found.unlearned == ["rerule"]
    assert found.rows[f"{RELEARN}/32"]["rerule"].interval == (0.4, 0.7)
    assert found.rows[f"{RELEARN}/32"]["rerule"].excess == pytest.approx(0.56)
    assert found.curves[1].steps == (0, 8, 32)
    assert found.named("prefill/affirmative") == "prefill: affirmative"
    assert found.named(f"{RELEARN}/8") == "relearn: half: 8 steps"


@pytest.mark.parametrize(
    ("benchmark", "given", "title"),
    [("custom", None, "Your data"), ("custom", "Mine", "Mine"), ("world", "Mine", "Embedded world")],
)
def test_data_of_one_s_own_has_the_name_that_is_given(
    benchmark: str, given: str | None, title: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "attacks", meta={"benchmark": benchmark})
    assert read_attacks([folder], given)[0].title == title


def test_of_steps_and_samples_the_last_is_shown(tmp_path: Path) -> None:
    rows = usual()
    for name in ("samples/max_4", "samples/max_16", "samples/max_1", "samples/leak_16", "quantise_4"):
        rows[name] = {model: row(0.1) for model in ("original", "rerule", "control")}
    shown = read(tmp_path / "attacks", rows).shown
    assert shown == [
        *("none", "prefill/affirmative", f"{RELEARN}/32", "samples/max_16", "samples/leak_16", "quantise_4")
    ]


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
def test_the_step_that_is_shown_is_chosen_without_unlearned_models(names, retain, step, tmp_path) -> None:
    """0.8 of the retain recall of 0.9 is 0.72."""
    rows = {attack: {name: one[name] for name in names} for attack, one in usual().items()}
    for name, (early, late) in retain.items():
        rows[f"{RELEARN}/8"][name]["retain"], rows[f"{RELEARN}/32"][name]["retain"] = early, late
    found = read(tmp_path / "attacks", rows, tuple(one for one in CURVES if one["model"] in names))
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
    found = AttackRow(0.5, 40, interval=interval, p_value=0.001, p_holm=p_holm)
    assert found.verdict(higher_is_leak) == alone
    assert found.verdict_of_many(higher_is_leak) == of_many


def changed(place: str, name: str, value: object) -> dict:
    rows = usual()
    rows[place]["rerule"][name] = value
    return rows


OF_RERULE = "of rerule under prefill/affirmative is"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (changed("prefill/affirmative", "after", 57), f"after {OF_RERULE} 57, outside 0 to 1; evaluate"),
        (changed("prefill/affirmative", "after", None), f"after {OF_RERULE} None, which is no number"),
        (changed("prefill/affirmative", "after", "0.5"), f"after {OF_RERULE} 0.5, which is no number"),
        (changed("prefill/affirmative", "refusal", -0.1), f"refusal {OF_RERULE} -0.1, outside 0 to 1"),
        (changed("prefill/affirmative", "p_holm", 3), f"p_holm {OF_RERULE} 3, outside 0 to 1"),
        (changed("prefill/affirmative", "facts", 2.5), f"facts {OF_RERULE} 2.5, which is no number of facts"),
        (changed("prefill/affirmative", "interval", [0.2, 0.1]), "which is no interval [low, high]"),
        (changed("prefill/affirmative", "interval", [0.2]), "which is no interval [low, high]"),
        (changed("prefill/affirmative", "excess", 0.5), f"excess {OF_RERULE} 0.5, but after less that of"),
        (changed("prefill/affirmative", "excess", None), f"excess {OF_RERULE} None, but after less that of"),
        ({"prefill/affirmative": usual()["none"]}, "has no scores without an attack (none)"),
        ({**usual(), "quantise_4": {"rerule": row(0.5)}}, "the model control is not under every attack"),
        ({**usual(), "unknown": usual()["none"]}, "does not say what the attack unknown of attacks.json is"),
    ],
)
def test_damaged_numbers_are_refused(rows, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(told)) as raised:
        read(tmp_path / "attacks", rows)
    assert f"{tmp_path / 'attacks'}" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "attacks.json"),
        ("{", "attacks.json"),
        ('{"none": {"m": {"after": NaN, "facts": 1}}}', "attacks.json"),
        ('{"none": {}, "none": {}}', "attacks.json"),
        ("[]", "attacks.json is not {attack: {model: numbers}} as evaluate attack writes it"),
        ('{"none": {}}', "attacks.json is not {attack: {model: numbers}} as evaluate attack writes it"),
        ('{"none": {"m": 0.5}}', "attacks.json: the row of m under none is no object of numbers"),
    ],
)
def test_a_torn_file_is_refused(text: str, told: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "attacks")
    (folder / "attacks.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(told)) as raised:
        read_attacks([folder])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "curves",
    [
        (*CURVES[:1], curve("nobody", 0.1, 0.2, 0.3), *CURVES[2:]),
        (*CURVES[:1], curve("rerule", 0.1, 0.2), *CURVES[2:]),
        (*CURVES[:1], {**CURVES[1], "steps": [8, 0, 32]}, *CURVES[2:]),
        (*CURVES[:1], {**CURVES[1], "steps": [0, 8, 16]}, *CURVES[2:]),
        (*CURVES[:1], {**CURVES[1], "half_recovery": "soon"}, *CURVES[2:]),
        (*CURVES[:1], {**CURVES[1], "attack": ["prefill"]}, *CURVES[2:]),
        CURVES[:2],
    ],
)
def test_damaged_curves_are_refused(curves, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"curves\.jsonl.* (is|has) no curve"):
        read(tmp_path / "attacks", curves=curves)


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ({"benchmark": "../up"}, "names no benchmark"),
        ({"benchmark": None}, "names no benchmark"),
        ({"attacks": []}, "has no attacks"),
        ({"attacks": {"none": {"title": 3}}}, "the attack none has no title"),
    ],
)
def test_a_damaged_meta_is_refused(meta, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"meta\.json.*{told}"):
        read(tmp_path / "attacks", meta=meta)


def test_a_folder_given_twice_and_one_of_an_evaluation_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "attacks")
    with pytest.raises(ValueError, match=r"--attacks .* is given twice"):
        read_attacks([folder, folder / "attacks.json"])
    (folder / "attacks.json").rename(folder / "results.json")
    with pytest.raises(ValueError, match="is a folder of evaluate model; give it as --results"):
        read_attacks([folder])
