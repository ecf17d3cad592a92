"""A step's metrics and line, warnings while a run trains and the end that they may bring, and its score.

And warnings of runs that can learn nothing, or have learnt nothing; tests/refused has the other records.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule import check
from recipe.rerule.training import learning
from recipe.rerule.training.health import Health, validation_metrics
from recipe.rerule.training.hooked_trainer import progress_line, start_line
from tests.made_runs import stage1_run, stage2_run
from tests.training.made import composed, rows_file

FORGET = {"reward": 0.6, "refused": 0.5, "leaked": 0.1, "empty": 0.0, "mixed": 0.9}
RETAIN = {"reward": 0.6, "refused": 0.1, "right": 0.6, "empty": 0.02, "mixed": 0.8}
GOOD = {f"{name}/forget/mean": value for name, value in FORGET.items()}
GOOD |= {f"{name}/retain/mean": value for name, value in RETAIN.items()}
OfStep = Callable[[int], dict[str, float]]


def told(of_step: OfStep, steps: int = 12) -> dict[int, list[str]]:
    """The warnings of a run by step, without their "step N: "."""
    health = Health()
    found = {step: health.note(step, GOOD | of_step(step)) for step in range(1, steps + 1)}
    return {step: [text.split(": ", 1)[1] for text in texts] for step, texts in found.items() if texts}


def falling(step: int) -> float:
    return 0.8 - 0.06 * step


@pytest.mark.parametrize(
    ("of_step", "step", "begins"),
    [
        (lambda n: {"empty/retain/mean": 0.11}, 4, "11% of the retain responses of the last 4 steps have no"),
        (lambda n: {"empty/retain/mean": 0.1}, None, ""),
        (lambda n: {"empty/forget/mean": 0.4 * (n == 6)}, None, ""),  # one batch: .1 over four steps
        (lambda n: {"empty/forget/mean": 0.5 * (n == 6)}, 6, "12% of the forget responses"),
        (lambda n: {"mixed/forget/mean": float(n < 3)}, 6, "no forget group of the last 4 steps is mixed"),
        (lambda n: {"mixed/retain/mean": 0.0, "reward/retain/mean": 0.95}, None, ""),  # all is learnt
        (lambda n: {"refused/retain/mean": 0.95}, 4, "95% of the retain responses"),
        (lambda n: {"refused/forget/mean": 0.01}, 4, "1% of the forget responses of the last 4 steps are"),
        # At step 8 the means are .65 and .41; a step's variance is .06**2 / 2, three standard errors are .09.
        (lambda n: {"right/retain/mean": falling(n)}, 8, "right answers to retain prompts fell from 65%"),
        (lambda n: {"right/retain/mean": 1 - falling(n)}, None, ""),
        (lambda n: {"right/retain/mean": 0.6 - 0.09 * (n > 4)}, None, ""),  # less than a tenth
        (lambda n: {"leaked/forget/mean": 1 - falling(n)}, 8, "forget responses with a right answer rose"),
        (lambda n: {"leaked/forget/mean": falling(n)}, None, ""),
        # At step 8 the means are .35 and .59.
        (lambda n: {"cut/forget/mean": 1 - falling(n)}, 8, "forget responses cut at the limit of length"),
        (lambda n: {"cut/retain/mean": falling(n)}, None, ""),
        (lambda n: {"right/retain/mean": float("nan")}, None, ""),  # a step without retain prompts
    ],
)
def test_a_fault_is_told_once_when_it_is_clear(of_step: OfStep, step: int | None, begins: str) -> None:
    found = told(of_step)
    assert list(found) == ([] if step is None else [step])
    for (text,) in found.values():
        assert text.startswith(begins)


def test_noise_seldom_looks_like_a_fall() -> None:
    """Four prompts of very different difficulty a step, eight responses each, for 30 steps."""
    dice = random.Random(0)

    def right() -> float:
        chances = [dice.betavariate(0.6, 0.4) for _ in range(4)]
        return sum(dice.random() < chance for chance in chances for _ in range(8)) / 32

    runs = [told(lambda step: {"right/retain/mean": right()}, 30) for _ in range(200)]
    assert 0 < sum(bool(found) for found in runs) <= 24


def test_without_the_reward_functions_parts_only_rewards_and_groups_are_judged() -> None:
    health = Health()
    own = {"reward/forget/mean": 0.0, "mixed/forget/mean": 0.0}
    (found,) = [text for step in range(1, 9) for text in health.note(step, own)]
    assert found.startswith("step 4: no forget group")


def test_a_fault_that_holds_ends_the_run() -> None:
    """Means of four steps are above a tenth at 4 and 5 (.15), and from 12 (.15) on: the sixth is at 17."""
    health, endless = Health(stop_after=6), Health()
    for step in range(1, 20):
        for of_run in (health, endless):
            of_run.note(step, GOOD | {"empty/forget/mean": 0.0 if 5 <= step <= 9 else 0.2})
    assert (health.over_at, endless.over_at) == (17, None)
    assert health.over_by.startswith("20% of the forget responses")


def test_the_score_is_the_mean_of_what_each_side_is_for() -> None:
    sides = ["forget", "retain", "forget", "retain", "retain"]
    parts = {"refused": [1.0, 0.0, 0.0, 1.0, 0.0], "right": [0.0, 1.0, 0.0, 1.0, None], "reward": [1] * 5}
    assert validation_metrics(sides, parts) == {
        "val-health/forget/refused": 0.5,
        "val-health/retain/refused": pytest.approx(1 / 3),
        "val-health/retain/right": 0.5,
        "val-health/score": 0.5,
    }
    assert "val-health/score" not in validation_metrics(sides, {"refused": [1.0] * 5})
    assert "val-health/score" not in validation_metrics(["forget"], {"refused": [1.0], "right": [0.0]})
    unknown = {"refused": [1.0, None], "right": [0.0, 1.0]}  # of the retain side
    assert "val-health/score" not in validation_metrics(["forget", "retain"], unknown)


def test_the_line_has_both_sides_and_of_faults_only_those_there_are() -> None:
    forget = {"reward": 0.625, "refused": 0.71, "leaked": 0.04, "mixed": 0.88, "tokens": 11.4, "named": 0.02}
    retain = {"reward": 0.55, "refused": 0.12, "right": 0.0, "mixed": 0.75, "tokens": 8.6, "empty": 0.05}
    forget |= {"cut": 0.0, "empty": 0.0}
    metrics: dict[str, Any] = {"actor/kl_loss": [0.01, 0.03]}
    for side, values in {"forget": forget, "retain": retain}.items():
        metrics |= {f"{name}/{side}/mean": value for name, value in values.items()}
    assert progress_line(3, 30, metrics) == (
        "step 3/30  forget: reward 0.62 refused 71% leaked 4% mixed 88% named 2% 11 tokens  "
        "retain: reward 0.55 refused 12% right 0% mixed 75% empty 5% 9 tokens  KL 0.02"
    )


@pytest.mark.parametrize(
    ("validated", "line"),
    [
        ({}, "start: forget refused 48%, retain right 61% (in step 1), 88% of groups mixed"),
        (
            {"val-health/forget/refused": 0.5, "val-health/retain/right": 0.25},
            "start: forget refused 50%, retain right 25% (by validation), 88% of groups mixed",
        ),
    ],
)
def test_the_first_line_says_where_the_start_is(validated: dict[str, float], line: str) -> None:
    first = {"refused/forget/mean": 0.48, "right/retain/mean": 0.61, "mixed/mean": 0.875}
    assert start_line(validated, first) == line
    del first["right/retain/mean"]
    assert start_line({}, first) is None


def test_records_that_cannot_be_read_do_not_fail_a_finished_run(tmp_path: Path, capsys: Any) -> None:
    config = stage2_run(tmp_path, (0.1, 0.8))
    (tmp_path / "records" / "metrics.jsonl").write_text("no json\n{}\n")
    learning.warn_after(config, stage=2)
    (found,) = capsys.readouterr().err.splitlines()
    assert found.startswith("warning: what the run has learnt is not known: ")
    config = stage1_run(tmp_path / "stage1", [2.0, 2.0])
    (tmp_path / "stage1" / "records" / "metrics.jsonl").unlink()  # trainer.logger=[console]
    learning.warn_after(config, stage=1)
    assert capsys.readouterr().err == ""


OPTIM = "actor_rollout_ref.actor.optim.lr"
REPLAY = f"experiment=rwku {OPTIM}=1e-4 data.train_batch_size=8 trainer.total_training_steps="
LATE, FEW = "replay starts at step 16 of 15, so this run is RULE", "this run holds about 80 at most"


def test_the_plan_counts_the_rows_that_are_trained_on(tmp_path: Path) -> None:
    words = f"experiment=custom data.train_max_samples=16 data.train_files={rows_file(tmp_path, 64)}"
    assert ", 16 rows, " in check.plan(composed(2, *words.split()))


@pytest.mark.parametrize(
    ("stage", "words", "rows", "told"),
    [
        # Three steps of 0, 1 and 2 twentieths of 4e-7.
        (1, "", 13, "the learning rates of the 3 steps add up to 6.0e-08 (optim.lr is 4e-07)"),
        (1, "experiment=custom", 13, None),
        (2, "experiment=custom", 30, None),  # 42 steps of 2e-6
        (2, f"experiment=custom {OPTIM}=2e-8", 30, f"42 steps add up to 8.4e-07 ({OPTIM} is 2e-08)"),
        (
            2,
            f"experiment=custom {OPTIM}=2e-8 {OPTIM}_scheduler_type=cosine",
            30,
            "42 steps add up to 4.2e-07",
        ),
        (2, f"{REPLAY}15", 80, LATE),
        (2, f"{REPLAY}16", 80, None),
        (2, f"{REPLAY}15 replay.enable=false", 80, None),
        # Half of 20 steps x 8 prompts.
        (2, f"{REPLAY}20 replay.min_groups=80", 80, None),
        (2, f"{REPLAY}20 replay.min_groups=81", 80, FEW),
        (2, f"{REPLAY}20 replay.min_groups=81 replay.admission=all", 80, None),
        # Half of 8 prompts of one step, of two steps; none is below 0.
        (2, f"{REPLAY}20 replay.min_groups=8 replay.max_staleness=0", 80, "holds about 4 at most"),
        (2, f"{REPLAY}20 replay.min_groups=8 replay.max_staleness=1", 80, None),
        (2, f"{REPLAY}20 replay.threshold_rule=fixed replay.threshold=0.0", 80, "holds about 0 at most"),
        # The benchmarks' own rates on the rows of the smallest, TOFU's.
        *((2, f"experiment={name} replay.enable=false", 80, None) for name in ("rwku", "tofu", "muse_books")),
    ],
)
def test_warnings_before_a_run(stage: int, words: str, rows: int, told: str | None, tmp_path: Path) -> None:
    config = composed(stage, *words.split(), f"data.train_files={rows_file(tmp_path, rows)}")
    section = {1: "optim", 2: "actor_rollout_ref.actor.optim"}[stage]
    found = [*learning.rate_warnings(config, section)]
    found += [*learning.never_replays(config)] if stage == 2 else []
    assert [str(told) in text for text in found] == [True] * (told is not None)
