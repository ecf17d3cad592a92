"""The table of the ablation, from made lines; the runs need an earlier commit (the module's docstring)."""

from typing import Any

from benchmarks.replay_ablation import BASES, tables


def line(base: int, arm: str, retain: float, model: str = "") -> dict[str, Any]:
    final = {"forget/recall": 0.1, "retain/recall": retain, "retain_unseen/recall": 0.9}
    return {"base": base, "model": model or f"of {base}", "arm": arm, "final": final}


def test_a_change_explains_the_part_of_the_gap_that_it_closes_with_every_model() -> None:
    recall = {"equal_updates": 0.9, "default": 0.6, "half_rate": 0.75, "once": 0.9}
    lines = [line(base, arm, value) for base in BASES for arm, value in recall.items()]
    other = [line(base, "kl", 0.6 if base == BASES[0] else 0.9) for base in BASES]
    said = {row.split(" |")[0]: row for row in tables([*lines, *other])}
    # (1 - .1 + .75 + .9) / 3 = .85 and .8 for the default: a difference of .05, of a gap of .1
    assert said["| half_rate"] == (
        "| half_rate | 0.850 | 0.100 | 0.750 | 0.900 | +0.050 +0.050 +0.050 +0.050 | 0.50 |"
    )
    assert said["| once"].endswith("| 1.00 |")
    assert said["| kl"].endswith("| +0.000 +0.100 +0.100 +0.100 |  |")
    assert said["replay is worse than equal updates with every model: yes"]


def test_without_a_gap_nothing_is_explained() -> None:
    recall = {"equal_updates": 0.6, "default": 0.6, "once": 0.9}
    lines = [line(base, arm, value) for base in BASES for arm, value in recall.items()]
    said = tables(lines)
    assert said[-1] == "replay is worse than equal updates with every model: no"
    assert said[4].endswith("| +0.100 +0.100 +0.100 +0.100 |  |")


def test_an_unfinished_study_answers_nothing_and_the_model_with_more_runs_counts() -> None:
    lines = [line(BASES[0], "default", 0.3, "begun elsewhere"), line(BASES[0], "equal_updates", 0.9)]
    said = tables([*lines, line(BASES[0], "default", 0.6)])
    assert said[3] == "| default | 0.800 | 0.100 | 0.600 | 0.900 | +0.000 |  |"
    assert said[-1].endswith(": 1 of 4 models")
    assert tables([]) == ["no run has ended"]
