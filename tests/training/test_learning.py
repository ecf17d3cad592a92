"""Warnings of runs that can learn nothing, or have learnt nothing; tests/refused has the other records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe.rerule.training import learning
from tests.made_runs import stage1_run, stage2_run
from tests.training.made import composed, rows_file


def warnings(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(line.startswith("warning: ") for line in captured.err.splitlines())
    return [line.removeprefix("warning: ") for line in captured.err.splitlines()]


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        ([0.6, 0.55, 0.5], "(forget refused + retain right) / 2 was 0.60 there and 0.55 at best, at step 5;"),
        ([0.6, 0.6], "at step 5;"),
        ([0.6, 0.5, 0.7], ""),
        ([0.6], ""),
        ([None, 0.5], ""),
    ],
)
def test_a_run_that_validates_no_better_than_its_start(
    scores: list[float | None], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = stage2_run(tmp_path, (0.1, 0.8))
    with (tmp_path / "records" / "metrics.jsonl").open("a") as file:
        for place, score in enumerate(scores):
            if score is not None:
                file.write(json.dumps({"step": 5 * place, "data": {"val-health/score": score}}) + "\n")
    learning.after_stage2(config)
    found = warnings(capsys)
    assert [told in text for text in found] == [True] * bool(told)
    assert all(text.startswith("no validation was better than the one before") for text in found)


def test_records_that_cannot_be_read_do_not_fail_a_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = stage2_run(tmp_path, (0.1, 0.8))
    (tmp_path / "records" / "metrics.jsonl").write_text("no json\n{}\n")
    learning.after_stage2(config)
    (found,) = warnings(capsys)
    assert found.startswith("what the run has learnt is not known: ")
    config = stage1_run(tmp_path / "stage1", [2.0, 2.0])
    (tmp_path / "stage1" / "records" / "metrics.jsonl").unlink()  # trainer.logger=[console]
    learning.after_stage1(config)
    assert warnings(capsys) == []


OPTIM = "actor_rollout_ref.actor.optim.lr"
REPLAY = f"experiment=rwku {OPTIM}=1e-4 data.train_batch_size=8 trainer.total_training_steps="
LATE, FEW = (
    "replay starts at step 16 of 15, so this run is RULE without",
    "and this run stores about 80 at most",
)


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
        # The benchmarks' own rates on the rows of the smallest, TOFU's.
        *((1, f"experiment={name}", 80, None) for name in ("rwku", "tofu", "muse_books", "tiny")),
        *((2, f"experiment={name} replay.enable=false", 80, None) for name in ("tofu", "muse_books", "tiny")),
    ],
)
def test_what_is_said_before_a_run(
    stage: int,
    words: str,
    rows: int,
    told: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = composed(stage, *words.split(), f"data.train_files={rows_file(tmp_path, rows)}")
    (learning.before_stage1 if stage == 1 else learning.before_stage2)(config)
    found = [*warnings(capsys), *([learning.never_replays(config)] if stage == 2 else [])]
    found = [text for text in found if text]
    assert [str(told) in text for text in found] == [True] * (told is not None)
