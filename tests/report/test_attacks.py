"""Folders of `evaluate attack`: what is read, the sentences, the figures and the tables."""

import math

import pytest

from recipe.rerule.reporting.attacks import (
    READING,
    WITHOUT_CONTROL,
    WITHOUT_UNLEARNED,
    attack_figure,
    attack_sections,
    curves_figure,
    paragraphs,
    percent,
    read_attacks,
    sentences_on,
    tables,
)
from recipe.rerule.reporting.document import cell_of
from tests.refused.playground import plant
from tests.report.made_attacks import (
    DECLARED,
    RELEARN,
    files,
    only,
    results,
    row,
    usual,
    with_excess,
    with_numbers,
)

ALL = ("original", "rerule", "control")
PARTS = ("attacks", "relearning", "attacks", "attacks_all")
"""Two figures and two tables."""


def test_folders_are_read(tmp_path):
    plant(tmp_path, files("attacks") | files("own", benchmark="custom"))
    found, own = read_attacks([tmp_path / "attacks", tmp_path / "own"], "Mine")
    assert (found.title, own.title, found.rows) == ("Embedded world", "Mine", with_excess(usual()))
    parts = [part for section in attack_sections([found, found]) for part in section.parts]
    names = [f"{part}_{name}" for name in ("world", "world_2") for part in PARTS]
    assert [part.name for part in parts if not isinstance(part, str)] == names


@pytest.mark.parametrize(
    ("names", "retain", "step"),
    [
        (ALL, {"original": (0.72, 0.73), "rerule": (0.1, 0.1)}, 32),
        (ALL, {"original": (0.9, 0.71), "control": (0.9, 0.9)}, 8),
        (ALL, {"original": (0.5, 0.4)}, 8),
        (("rerule", "control"), {"control": (0.9, 0.1)}, 8),
        (("rerule",), {"rerule": (0.1, 0.1)}, 32),
    ],
)
def test_the_step_that_is_shown_is_chosen_without_unlearned_models(names, retain, step):
    """0.8 of the retain recall of 0.9 is 0.72."""
    rows = only(usual(), names)
    for name, (early, late) in retain.items():
        rows = with_numbers(rows, f"{RELEARN}/8", name, retain=early)
        rows = with_numbers(rows, f"{RELEARN}/32", name, retain=late)
    assert results(rows).shown == ["none", "prefill/affirmative", f"{RELEARN}/{step}"]


# Sentences, for every case that the numbers can be in.

STATE = (
    "Asked about the facts to forget, rerule refuses 95 % of the questions and gives 5 % of the answers. The "
    "original model gives 98 %. A model that never knew the facts gives 3 %."
)
TRAINED = "After the same training the original model gives 98 %."
BOTH_TRAINED = f"{TRAINED} After the same training a model that never knew the facts gives 4 %."


def test_a_model_that_refuses_and_still_knows():
    assert sentences_on(results(), "rerule") == [
        f"{STATE} After 32 training steps on the answers to other facts, it gives 60 % of the answers, and "
        f"5 % before. {BOTH_TRAINED} The 56 points that it gives above the model that never knew (95 % "
        "interval 40 to 70) were still in it.",
        "1 other number, compared with the model that never knew the facts: the difference can be chance, "
        "given the number of tests, in 1 (prefill: affirmative).",
    ]
    assert sentences_on(results({"none": usual()["none"]}), "rerule") == [STATE]
    # An attack of another package has its title in the sentence.
    rows = {key.replace(RELEARN, "mine"): of_attack for key, of_attack in usual().items()}
    told = sentences_on(results(rows, mine=DECLARED["mine"] | {"curve": True}), "rerule")[0]
    assert 'After 32 training steps of the attack "my attack", it gives 60 %' in told


def test_what_is_said_without_some_of_the_models():
    """Without a model that never knew, nothing is said to have survived."""
    told, *others = paragraphs(results(only(usual(), ("original", "rerule"))))
    assert "The original model gives 98 %. After 32 training steps" in told
    untold = "Without a model that never knew the facts, this cannot be told from teaching."
    assert told.endswith(f"{TRAINED} {untold}")
    assert others == [READING, WITHOUT_CONTROL]
    without_original = sentences_on(results(only(usual(), ("rerule", "control"))), "rerule")[0]
    assert "of the answers. A model that never knew the facts gives 3 %. After" in without_original
    assert paragraphs(results(only(usual(), ("original", "control"))))[0] == WITHOUT_UNLEARNED


STEP = f"{RELEARN}/32"
CHANCE = (
    f"gives 9 % of the answers, and 5 % before. {BOTH_TRAINED} Its difference from the model that never knew "
    "can be chance (95 % interval \N{MINUS SIGN}3 to 13 points)."
)
LESS = (
    f"gives 1 % of the answers, and 5 % before. {BOTH_TRAINED} That is 3 points less than the model that "
    "never knew (95 % interval 1 to 5)."
)
FEW = (
    f"gives 5 % of the answers, and 5 % before. {BOTH_TRAINED} 40 facts are too few to say whether that "
    "differs from the model that never knew."
)
HARMED = "were still in it. The training has damaged the model: of the answers to be kept it then gives 50 %."
BROKEN = (
    "Of the answers that it should have kept it gives 71 %, where the original model gives 90 %: it refuses "
    "them too or is damaged, so a low score alone does not show that it has forgotten. After"
)


@pytest.mark.parametrize(
    ("key", "changes", "told"),
    [
        (STEP, {"after": 0.09, "interval": (-0.03, 0.13)}, CHANCE),
        (STEP, {"after": 0.01, "interval": (-0.05, -0.01)}, LESS),
        (STEP, {"after": 0.053, "interval": None}, FEW),
        (STEP, {"before": None}, "it gives 60 % of the answers. After the same training"),
        (STEP, {"retain": 0.5}, HARMED),
        ("none", {"retain": 0.71}, BROKEN),
        ("none", {"retain": 0.73}, f"{STATE} After"),  # 0.8 of 0.9 is 0.72
    ],
)
def test_what_is_said_of_a_model(key, changes, told):
    found = sentences_on(results(with_numbers(usual(), key, "rerule", **changes)), "rerule")[0]
    assert told in found
    assert found.endswith(told) or not told.endswith(".")


def test_other_attacks_are_counted_by_corrected_p_values():
    """Of UDS a low score is a leak; of samples the last number of each kind is shown."""
    rows = usual() | {f"samples/max_{count}": dict.fromkeys(ALL, row(0.1)) for count in (4, 1)}
    for key, after, floor, interval, p_holm in (
        ("samples/leak_16", 0.4, 0.0, (0.3, 0.5), 0.01),
        ("samples/max_16", 0.4, 0.0, (0.3, 0.5), 0.06),
        ("quantise_4", 0.0, 0.05, (-0.09, -0.01), 0.01),
        ("uds", 0.4, 0.8, (-0.5, -0.3), 0.01),
        ("mine", 0.4, 0.4, None, None),
    ):
        tested = row(after, None, interval=interval, p_value=p_holm and 0.001, p_holm=p_holm)
        rows[key] = {"original": row(0.9, None), "rerule": tested, "control": row(floor, None)}
    shown = ["none", "prefill/affirmative", f"{RELEARN}/32", *list(rows)[-5:]]
    assert results(rows).shown == shown
    assert sentences_on(results(rows), "rerule")[1] == (
        "6 other numbers, compared with the model that never knew the facts: rerule leaks more in 2 "
        "(samples: leak 16, depth (UDS)); the difference can be chance, given the number of tests, in 2 "
        "(prefill: affirmative, samples: max 16); rerule leaks less in 1 (4 bits); there are too few "
        "facts for a test in 1 (my attack)."
    )


def test_percent_is_never_0_or_100_of_what_is_neither():
    told = {0: "0 %", 0.004: "under 1 %", 0.5: "50 %", 0.949: "95 %", 0.996: "over 99 %", 1: "100 %"}
    assert {fraction: percent(fraction) for fraction in told} == told


def lines_of(axes) -> dict[str, tuple[list[float], list[float]]]:
    return {
        line.get_label(): (list(map(float, line.get_xdata())), list(map(float, line.get_ydata())))
        for line in axes.lines
    }


def test_models_are_rows_and_attacks_are_cells(drawn):
    rows = {key: {"original": one["original"], "rule": row(0.3), **one} for key, one in usual().items()}
    assert attack_figure(results(rows), "world") is not None
    none, prefill, relearnt = (axes for axes in drawn[0].axes if axes.get_visible())
    titles = ["no attack", "prefill\naffirmative", "relearn: half\n32 steps"]
    assert [axes.get_title(loc="left") for axes in (none, prefill, relearnt)] == titles
    assert [label.get_text() for label in none.get_yticklabels()] == ["rule", "rerule"]
    assert [label.get_text() for label in prefill.get_yticklabels()] == ["", ""]
    assert [text.get_text() for text in relearnt.texts] == ["0.30", "0.60"]
    assert lines_of(relearnt)["original model"][0] == [0.98, 0.98]
    assert lines_of(relearnt)["model that never knew"][0] == [0.04, 0.04]
    assert lines_of(relearnt)["without the attack"] == ([0.05], [1])
    assert [mark.get_xdata()[0] for mark in relearnt.lines if mark.get_marker() == "o"] == [0.3, 0.6]


def test_curves_are_drawn_over_the_logarithm_of_the_steps(drawn):
    curves_figure(results(), "world")
    (axes,) = drawn[0].axes
    places = [0.0, math.log2(9), math.log2(33)]
    assert lines_of(axes) == {
        "original model": (places, [0.98, 0.98, 0.98]),
        "model that never knew": (places, [0.03, 0.03, 0.04]),
        "rerule": (places, [0.05, 0.4, 0.6]),
    }
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "8", "32"]
    found = results(only({"none": usual()["none"]}, ("original", "control")))
    assert (attack_figure(found, "world"), curves_figure(found, "world")) == (None, None)


def test_the_tables_have_marks_and_intervals():
    shown, _ = tables(results(), "world")
    cells = [[cell_of(row, column) for column in shown.columns[2:]] for row in shown.rows]
    assert cells[2] == [("0.600", "", ""), ("+0.560", "**", "+0.400 to +0.700")]
