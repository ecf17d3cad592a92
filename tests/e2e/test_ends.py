"""How commands end on the real stack: killed, terminated, interrupted, without room, beside another run."""

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recipe.rerule.runs import checkpoints
from recipe.rerule.runs.history import read_metrics
from tests.e2e.run_checks import assert_prompts_are_in_order, assert_the_buffer_follows_its_records
from tests.e2e.stack import Command, stage2_arguments
from tests.small_disk import mounted

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1800)]

SHUTDOWN_SECONDS = 40
DEATH_SECONDS = 90
LEFT_BY_RUNS = re.compile(
    r"rerule-.*|ckpt_.*\.lock|vllm_dist_.*|rl-colocate-.*|torchelastic_.*"
    r"|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|verl_weights_.*"
)
"""Names that verl, vLLM, torch and this project give to temporary files."""


def temporary_files() -> set[Path]:
    folders = (Path("/tmp"), Path("/dev/shm"))
    return {path for folder in folders for path in folder.iterdir() if LEFT_BY_RUNS.fullmatch(path.name)}


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No temporary file is there after the test that was not there before it."""
    before = temporary_files()
    yield
    assert temporary_files() - before == set()


def stage2(world: Path, run_folder: Path, *overrides: str) -> list[str]:
    return ["-m", "recipe.rerule.main", *stage2_arguments(world, run_folder, *overrides)]


def test_a_second_run_a_kill_and_a_termination_lose_nothing(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nothing_left: None
) -> None:
    """Runner and driver are killed right after a checkpoint, and then SIGTERM comes twice.

    Each time the run goes on from the last checkpoint, with its buffer and the order of prompts.
    """
    run_folder, steps = tmp_path / "run", 5
    more = (f"trainer.total_training_steps={steps}", "trainer.save_freq=1", "trainer.resume_mode=auto")
    arguments = stage2(micro_world, run_folder, *more)

    first = command(*arguments)
    first.wait_until(lambda: (run_folder / "run.lock").exists())
    second = command(*arguments)
    assert second.wait(120) == 2
    assert f"{run_folder} is in use by another run (process {first.process.pid} on " in second.error()

    first.wait_until(lambda: f"step 1/{steps}" in first.output)
    (runner,) = first.named("ReRULETaskRunner")
    first.wait_until((run_folder / "global_step_1" / "complete.json").exists)
    runner.kill()
    first.process.kill()
    first.process.wait()
    # Ray's own agents try for a minute to tell the dead driver of it, and end then.
    first.assert_all_have_ended(seconds=120)
    killed = checkpoints.newest_complete(run_folder)
    assert killed is not None
    assert read_metrics(run_folder)[killed]["training/global_step"] == killed

    third = command(*arguments)
    third.wait_until(lambda: f"step {killed + 1}/{steps}" in third.output)
    third.descendants()
    third.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    third.process.send_signal(signal.SIGTERM)
    assert third.wait(SHUTDOWN_SECONDS) == 143
    third.assert_all_have_ended()
    newest = f"{run_folder}/global_step_{checkpoints.newest_complete(run_folder)}"
    assert third.error() == f"stopped by SIGTERM; trainer.resume_mode=auto goes on from {newest}"

    fourth = command(*arguments)
    fourth.finish()
    fourth.assert_all_have_ended()
    assert sorted(read_metrics(run_folder)) == list(range(1, steps + 1))
    assert_prompts_are_in_order(run_folder, micro_world / "train.parquet", steps)
    assert_the_buffer_follows_its_records(run_folder, steps)
    assert not (run_folder / "run.lock").exists()


DEATHS = (
    ("update", "WorkerDict", "actor worker 0 (WorkerDict, process "),
    ("weights", "vLLMHttpServer", "rollout server 0 (vLLMHttpServer, process "),
    ("generation", "gcs_server", "Ray's gcs_server ("),
    ("generation", "raylet", f"node {socket.gethostname()} ("),
)
"""Phase in which the run waits, process that is killed there, and how the line begins."""


def test_whatever_is_killed_the_run_ends_in_time_and_goes_on(
    command: Callable[..., Command],
    micro_world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nothing_left: None,
) -> None:
    """Checkpoints are written by time; the last run leaves its last step alone."""
    pauses, run_folder = tmp_path / "pauses", tmp_path / "run"
    pauses.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
    monkeypatch.setenv("RERULE_PAUSES", str(pauses))
    more = "actor_rollout_ref.model.external_lib=[recipe.rerule.training.agent_loop,pauses]"
    arguments = stage2(micro_world, run_folder, "save.minutes=0.001", "trainer.resume_mode=auto", more)
    newest = 0
    for phase, killed, named in DEATHS:
        run = command(*arguments, "trainer.total_training_steps=200")
        run.wait_until(lambda more=newest + 2: (checkpoints.newest_complete(run_folder) or 0) >= more)
        assert f"step {newest}/" not in run.output
        (pauses / phase).touch()
        run.wait_until((pauses / f"{phase}.there").exists)
        next(one for one in run.descendants() if killed in one.name()).kill()
        for file in pauses.iterdir():
            file.unlink()
        assert run.wait(DEATH_SECONDS) == 1
        assert run.error().startswith(named)
        assert run.error().endswith("; trainer.resume_mode=auto goes on from the last checkpoint")
        run.assert_all_have_ended(seconds=10)
        saved = checkpoints.newest_complete(run_folder)
        assert saved is not None
        assert saved > newest
        assert json.loads((run_folder / f"global_step_{saved}" / "complete.json").read_text())["interim"]
        newest = saved

    steps = newest + 1
    command(*arguments, f"trainer.total_training_steps={steps}").finish()
    assert sorted(read_metrics(run_folder)) == list(range(1, steps + 1))
    last = run_folder / f"global_step_{steps}"
    assert list(run_folder.glob("global_step_*")) == [last]
    assert checkpoints.problem(last) is None
    assert "interim" not in json.loads((last / "complete.json").read_text())


def test_a_full_disk_in_a_checkpoint_is_named(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nothing_left: None
) -> None:
    """A disk with room for few checkpoints."""
    with mounted(tmp_path / "small", kibibytes=6 * 1024) as small:
        run_folder = small / "run"
        more = ("trainer.total_training_steps=9", "trainer.save_freq=1")
        run = command(*stage2(micro_world, run_folder, *more))
        assert run.wait() == 1
        newest = checkpoints.newest_complete(run_folder)
        assert newest is not None
        size = checkpoints.bytes_of_newest(run_folder)
        failed = run_folder / f"global_step_{newest + 1}"
        expected = rf"the disk is full: {failed} needs {size:,} bytes, and there was room for ([\d,]+)"
        found = re.fullmatch(expected, run.error())
        assert found is not None, run.error()
        assert int(found[1].replace(",", "")) < size
        assert not failed.exists()
        run.assert_all_have_ended()


def test_an_interrupt_of_the_whole_group_ends_a_run_that_is_starting(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nothing_left: None
) -> None:
    """Ctrl-C in a terminal reaches every process of the group."""
    run = command(*stage2(micro_world, tmp_path / "run"))
    run.wait_until(lambda: run.named("WorkerDict"))
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(SHUTDOWN_SECONDS) == 130
    assert run.error() == f"stopped by SIGINT; {tmp_path / 'run'} holds no complete checkpoint"
    assert "Traceback" not in run.output
    run.assert_all_have_ended()


def test_a_termination_ends_both_ranks_of_stage_1(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nothing_left: None
) -> None:
    run = command(
        *("-m", "recipe.rerule.sft", "experiment=tiny", f"model.path={micro_world / 'model'}"),
        f"data.train_files={micro_world / 'sft.parquet'}",
        f"trainer.default_local_dir={tmp_path / 'stage1'}",
        *("trainer.total_training_steps=100000", "trainer.total_epochs=100000"),
        *("trainer.n_gpus_per_node=2", "data.micro_batch_size_per_gpu=4"),
    )
    run.wait_until(lambda: re.search(r"step:\d", run.output))
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(SHUTDOWN_SECONDS) == 143
    assert run.error() == "stopped by SIGTERM"
    assert "Traceback" not in run.output
    run.assert_all_have_ended()
    assert not (tmp_path / "stage1" / "run.lock").exists()


def vllm_is_importing(run: Command) -> bool:
    """Whether the engine's process has begun to load torch; vLLM and the model then need some seconds more.

    A fixed time would not do: a fast machine answers all probes within ten seconds.
    """
    return any("libtorch" in file.path for one in run.named("engine.worker") for file in one.memory_maps())


def test_an_evaluation_is_interrupted_and_leaves_its_answers_alone(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nothing_left: None
) -> None:
    run = command(
        *("-m", "recipe.rerule.evaluate", "model", "--platform", "cpu"),
        *("--probes", micro_world / "probes.parquet", "--model", f"base={micro_world / 'model'}"),
        *("--out", tmp_path / "evaluation"),
    )
    run.wait_until(lambda: "starting vLLM" in run.output)
    run.wait_until(lambda: vllm_is_importing(run))
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(SHUTDOWN_SECONDS) == 130
    assert run.error() == "stopped by SIGINT"
    assert "Traceback" not in run.output
    run.assert_all_have_ended()
    assert not (tmp_path / "evaluation").exists()
