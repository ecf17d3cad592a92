"""The sentences that are made from an attack evaluation, for every case that its numbers can be in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recipe.rerule.reporting.attacks.section import WITHOUT_CONTROL, WITHOUT_UNLEARNED, paragraphs
from recipe.rerule.reporting.attacks.sentences import READING, percent, sentences
from tests.report.made_attacks import CURVES, RELEARN, changed, curve, of, only, results, row, usual

LAST = f"{RELEARN}/32"
STATE = (
    "Asked about the facts to forget, rerule refuses 95 % of the questions and gives 5 % of the answers. The "
    "original model gives 98 %, and a model that never knew the facts gives 3 %."
)


def test_a_model_that_refuses_and_still_knows() -> None:
    told, others = sentences(results())
    assert told == (
        f"{STATE} After 32 training steps on the answers to other facts, it gives 60 % of the answers, which "
        "is more than before (5 %). After the same training the original model gives 98 %, and a model that "
        "never knew the facts gives 4 %. The 56 points that it gives above the model that never knew (95 % "
        "interval 40 to 70) were still in it. It reaches half of the original model's lead over the model "
        "that never knew between step 0 and step 8."
    )
    assert others == (
        "1 other number, compared with the model that never knew the facts: the difference can be chance, "
        "given the number of tests, in 1 (prefill: affirmative)."
    )


def test_without_a_never_knew_model_nothing_is_said_to_have_survived() -> None:
    found = results(only(usual(), "original", "rerule"), of("original", "rerule"))
    (told,) = sentences(found)
    assert "The original model gives 98 %. After 32 training steps" in told
    assert told.endswith(
        "After the same training the original model gives 98 %. Without a model that never knew the facts, "
        "this cannot be told from teaching."
    )
    assert "still in it" not in told
    assert paragraphs(found) == [told, READING, WITHOUT_CONTROL]


def test_without_an_original_model() -> None:
    told = sentences(results(only(usual(), "rerule", "control"), of("rerule", "control")))[0]
    assert "A model that never knew the facts gives 3 %. After" in told
    assert "The original model gives" not in told


@pytest.mark.parametrize(
    ("changes", "half", "told"),
    [
        (
            {"after": 0.09, "interval": (-0.03, 0.13)},
            None,
            "gives 9 % of the answers, which is more than before (5 %). After the same training the original "
            "model gives 98 %, and a model that never knew the facts gives 4 %. Its difference from "
            "the model "
            "that never knew can be chance (95 % interval \N{MINUS SIGN}3 to 13 points).",
        ),
        (
            {"after": 0.01, "interval": (-0.05, -0.01)},
            None,
            "gives 1 % of the answers, which is less than before (5 %). After the same training the original "
            "model gives 98 %, and a model that never knew the facts gives 4 %. That is 3 points less than "
            "the model that never knew (95 % interval 1 to 5).",
        ),
        (
            {"after": 0.053, "interval": None},
            None,
            "gives 5 % of the answers, as before. After the same training the original model gives 98 %, and "
            "a model that never knew the facts gives 4 %. 40 facts are too few to say whether that differs "
            "from the model that never knew.",
        ),
        (
            {"after": 0.6, "before": None},
            None,
            "it gives 60 % of the answers. After the same training",
        ),
        (
            {"retain": 0.5},
            5.9,
            "between step 0 and step 8. The training has damaged the model: of the answers to be kept it "
            "then gives 50 %.",
        ),
        ({}, 0.0, "It has half of the original model's lead over the model that never knew before any"),
        ({}, 8.0, "lead over the model that never knew between step 0 and step 8."),
        ({}, 8.1, "lead over the model that never knew between step 8 and step 32."),
        ({}, None, "(95 % interval 40 to 70) were still in it."),
    ],
)
def test_what_relearning_says(changes, half: float | None, told: str) -> None:
    curves = (CURVES[0], curve("rerule", 0.05, 0.4, 0.6, half=half), CURVES[2])
    found = sentences(results(changed(usual(), LAST, "rerule", **changes), curves))[0]
    assert told in found
    assert found.endswith(told) or not told.endswith(".")


def test_a_broken_model_is_said_to_be_one() -> None:
    found = sentences(results(changed(usual(), "none", "rerule", retain=0.71)))[0]
    assert (
        "Of the answers that it should have kept it gives 71 %, where the original model gives 90 %: it "
        "refuses them too or is damaged, so a low score alone does not show that it has forgotten."
    ) in found
    kept = changed(usual(), "none", "rerule", retain=0.73)  # 0.8 of 0.9 is 0.72
    assert "damaged" not in sentences(results(kept))[0]


def test_a_model_without_refusals_and_retain_recall() -> None:
    rows = usual()
    for key in rows:
        rows = changed(rows, key, "rerule", refusal=None, retain=None)
    found = sentences(results(rows))[0]
    assert found.startswith("Asked about the facts to forget, rerule gives 5 % of the answers. The original")


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
        rows[key] = {
            "original": row(0.9, None),
            "rerule": row(after, None, **tested),
            "control": row(floors[key], None),
        }
    assert sentences(results(rows))[1] == (
        "6 other numbers, compared with the model that never knew the facts: rerule leaks more in 2 "
        "(samples: leak 16, depth (UDS)); the difference can be chance, given the number of tests, in 2 "
        "(prefill: affirmative, samples: max 16); rerule leaks less in 1 (4 bits); there are too few "
        "facts for a test in 1 (my attack)."
    )


def test_an_attack_of_another_package_has_its_title_in_the_sentence() -> None:
    rows = {key.replace(RELEARN, "mine"): of_attack for key, of_attack in usual().items()}
    curves = [replace(one, attack="mine") for one in CURVES]
    assert (
        'After 32 training steps of the attack "my attack", it gives 60 %'
        in (sentences(results(rows, curves))[0])
    )


def test_no_unlearned_model_and_no_relearning() -> None:
    two = results(only(usual(), "original", "control"), of("original", "control"))
    assert paragraphs(two)[0] == WITHOUT_UNLEARNED
    rows = {"none": usual()["none"]}
    assert sentences(results(rows, ())) == [STATE]


@pytest.mark.parametrize(
    ("fraction", "told"),
    [(0, "0 %"), (0.004, "under 1 %"), (0.5, "50 %"), (0.996, "over 99 %"), (1, "100 %"), (0.949, "95 %")],
)
def test_percent(fraction: float, told: str) -> None:
    assert percent(fraction) == told
