"""`benchmarks.evidence`: the order of its runs, and what its tables say of finished ones."""

import hashlib
import itertools
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import evidence, what_works


def line(arm: str, rate: float, seed: int, retain: float = 0.9, forget: float = 0.1) -> dict[str, Any]:
    held_out = {"last": {"forget recall": forget, "retain recall": retain}}
    of: dict[str, Any] = {"platform": "cpu", "stage1": f"of {seed}", "over_refusal": {"last": {"named": 0.2}}}
    attacks = {attack: {"original": 1.0, "last": 0.25} for attack in evidence.SHOWN}
    of |= {"attacks": attacks, "seconds": 90}
    return {"arm": arm, "rate": rate, "seed": seed, "held_out": held_out} | of


TUNED = [
    line(arm, rate, evidence.TUNING, retain=1 - abs(rate - 2e-5) * 1e4)
    for arm, rates in evidence.RATES.items()
    for rate in rates
]
"""2e-5 is the best rate of those that have it, and 1e-5 and 3e-5 are equal."""


def test_the_runs_after_tuning_take_the_best_rate() -> None:
    tuning = [(one["arm"], one["rate"], evidence.TUNING) for one in TUNED]
    few, full = evidence.SEEDS[:3], evidence.SEEDS[3:]
    replay = dict.fromkeys(("rule", "equal_updates", "paper", "default"), 2e-5)
    others = {"random": 2e-5, **dict.fromkeys(evidence.METHODS, 1e-5)}

    def expected(*seeds: int) -> list[tuple[str, float, int]]:
        return [
            (arm, rate, seed)
            for seed in seeds
            for arm, rate in ({"stage 1": 0.0} | replay | (others if seed in few else {})).items()
        ]

    def runs(lines: list[dict[str, Any]], *more: dict[str, Any]) -> list[tuple[str, float, int]]:
        found = list(evidence.planned(lines, [*lines, *more]))
        assert found[: len(tuning)] == tuning
        return found[len(tuning) :]

    # A tuning run that is missing holds up its arm alone, and the arm that has its rate.
    last = tuning[-1][0]
    assert runs(TUNED[:-1]) == [one for one in expected(*few) if one[0] != last]
    without = [one for one in TUNED if (one["arm"], one["rate"]) != ("paper", 1e-5)]
    assert runs(without) == [one for one in expected(*few) if one[0] not in ("paper", "random")]
    # Six models can show something while all earlier seeds have a difference, and all of one sign.
    pairs = [line("equal_updates", 2e-5, seed, 0.5) for seed in few]
    pairs += [line("paper", 2e-5, seed, 0.8) for seed in few[:2]]
    assert runs([*TUNED, *pairs]) == expected(*few)
    for retain, rest in ((0.6, full[:1]), (0.5, ()), (0.4, ())):
        assert runs([*TUNED, *pairs, line("paper", 2e-5, few[2], retain)]) == expected(*few, *rest)
    # Runs of the other platform count for this rule, and need not be made here for it.
    whole = [*TUNED, *pairs, line("paper", 2e-5, few[2], 0.6)]
    other = [line(arm, 2e-5, few[0], retain) for arm, retain in (("paper", 0.1), ("equal_updates", 0.5))]
    assert runs(whole, *({**one, "platform": "gpu"} for one in other)) == expected(*few)


def test_equal_shares_have_no_sign() -> None:
    """One of 10 forget questions against 4.7 of 47 refused: the same score but for rounding."""
    one, other = (line(arm, 2e-5, 21, retain=0.9) for arm in ("paper", "equal_updates"))
    one["held_out"]["last"]["retain recall"], other["held_out"]["last"]["retain recall"] = 40 / 47, 41 / 47
    one["over_refusal"]["last"]["named"], other["over_refusal"]["last"]["named"] = 9 / 47, 10 / 47
    assert [*evidence.differences([one, other, one], "paper", "equal_updates")] == [0.0]
    assert evidence.flips(pd.Series([0.3])) == 1.0


class Failing(what_works.Study):
    """A study whose stages 1 fail."""

    def rows(self) -> None: ...

    def stage1(self, settings: tuple[str, ...], seed: int) -> Path:
        raise subprocess.CalledProcessError(1, "train")


def test_runs_that_fail_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "RESULTS", tmp_path / "lines.jsonl")
    told = evidence.make(Failing(tmp_path, tmp_path, "cpu", math.inf))
    assert len(told) == len(TUNED) + evidence.FEW  # with the stages 1 that are counted
    assert "paper of rate 1e-05 and seed 20" in told
    study = Failing(tmp_path, tmp_path, "cpu", math.inf)
    monkeypatch.setattr(what_works, "RESULTS", tmp_path / "lines.jsonl")
    assert not study.make([("rule", 1)], 1)


def test_rows_of_other_options_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "rows.json").write_text(json.dumps(what_works.ROWS))
    what_works.Study(tmp_path, tmp_path, "cpu", 0.0).rows()
    with pytest.raises(SystemExit, match="has rows of other options: give another --out"):
        what_works.Study(tmp_path, tmp_path, "cpu", 0.0, evidence.ROWS).rows()


def test_the_score_counts_its_three_parts_alike() -> None:
    assert evidence.score(line("rule", 0, 21)) == pytest.approx((0.9 + 0.9 + 0.8) / 3)


def test_signs_are_flipped_exactly() -> None:
    """Against all 2^6 flips written out."""
    found = pd.Series([0.3, 0.1, 0.2, -0.05, 0.4, 0.15])
    means = [np.mean(found * np.array(signs)) for signs in itertools.product((1, -1), repeat=6)]
    expected = np.mean(np.abs(means) >= abs(found.mean()) - 1e-12)
    assert evidence.flips(found) == pytest.approx(expected)
    assert evidence.flips(pd.Series([0.1] * 6)) == pytest.approx(2 / 64)


def test_the_tables() -> None:
    runs = [line("paper", 2e-5, seed, retain=0.8) for seed in evidence.SEEDS]
    runs += [line("equal_updates", 1e-5, seed, retain=0.5) for seed in evidence.SEEDS]
    text = "\n".join(evidence.tables([*TUNED, *runs]))
    assert "| rule | 4e-05 | " in text
    assert "paper - equal_updates: +0.100 (21: +0.100 22: +0.100" in text
    assert "p = 0.0312, 6 models" in text
    assert "default - " not in text
    assert f"| paper | 21 | of 21 | cpu | 0.83 | 0.10 | 0.80 | 0.20 |{' 0.25 |' * 4} 1.50 |" in text
    # A test is made where those before it have shown something. A model of another machine is another unit.
    more = [line("default", 1e-5, seed, retain=0.5) for seed in evidence.SEEDS]
    more += [line("rule", 1e-5, seed, retain=0.3) for seed in evidence.SEEDS]
    more[-1]["stage1"] = "of another"
    text = "\n".join(evidence.tables([*TUNED, *runs, *more]))
    assert "p = 1.0000, 6 models" in text.split("default - equal_updates")[1].split("\n")[0]
    assert "described and not tested, 5 models" in text.split("paper - rule")[1]


def test_what_another_machine_left_unfinished_is_made_again(tmp_path: Path) -> None:
    whole, begun, here = evidence.SEEDS[0], evidence.SEEDS[3], evidence.SEEDS[4]
    lines = [line(arm, 1e-5, seed) for seed in (whole, begun, here) for arm in evidence.arms_of(seed)]
    lines = [one for one in lines if one["seed"] == whole or one["arm"] != "default"]
    lines = [one for one in lines if one["seed"] != whole or one["arm"] not in evidence.METHODS]
    few = [line("po", 1e-5, begun)]  # it depends on no model of stage 1
    study = what_works.Study(tmp_path, tmp_path, "cpu", 0.0)
    folder = study.stage1_folder(evidence.STEERING, here) / "model"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).touch()
    for one in lines:
        one["stage1"] = hashlib.sha256().hexdigest()[:12] if one["seed"] == here else one["stage1"]
    gpu = {**lines[0], "platform": "gpu"}
    tuned = [one for one in TUNED if (one["arm"], one["rate"]) != ("paper", 4e-5)]
    assert evidence.usable([*tuned, *lines, *few, gpu], study) == [
        *(one for one in tuned if one["arm"] != "paper"),
        *(one for one in lines if one["seed"] != begun),
        *few,
    ]


def test_hard_groups_are_counted_when_replay_begins_and_at_the_end(tmp_path: Path) -> None:
    """Below .6: .5 of two groups in step 8 (.6 is not), 1 in step 10; none in step 21; 1 of 2 in step 30."""
    means = {6: [0.0], 8: [0.5, 0.6], 10: [0.59], 11: [0.0], 20: [0.0], 21: [1.0], 30: [0.0, 1.0]}
    (tmp_path / "records").mkdir()
    lines = [
        json.dumps({"step": step, "prompts": [{"rewards": [mean, mean]} for mean in of]})
        for step, of in means.items()
    ]
    (tmp_path / "records" / "prompts.jsonl").write_text("\n".join(lines))
    assert evidence.hard(tmp_path) == {"when replay begins": 0.6667, "last steps": 0.3333}


def test_the_runs_that_chose_the_world_count_as_no_others() -> None:
    worlds = what_works.results(evidence.RESULTS)[:8]
    assert {line["seed"] for line in worlds}.isdisjoint({evidence.TUNING, *evidence.SEEDS})
    text = "\n".join(evidence.tables([*worlds, *TUNED]))
    assert (
        "| world: refusals alone in stage 1 | 2e-05 | 30 | 0.17 | 0.32 | 0.17 | 0.07 | 0.67 | 0.19 |" in text
    )
    assert text.split("\n\n")[-1] == "\n".join(evidence.tables(TUNED)).strip()
