"""How runs end on the real stack: killed, terminated, interrupted, without room, beside another run."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from data_prep.contract import read_rows
from recipe.rerule.replay.state import read_groups, read_record
from recipe.rerule.runs import checkpoints
from recipe.rerule.runs.history import read_metrics
from tests.e2e.run_checks import read_steps
from tests.e2e.stack import Command, stage2_arguments
from tests.small_disk import mounted

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
full = pytest.mark.full

SHUTDOWN_SECONDS = 40
DEATH_SECONDS = 60
ROOM_BYTES = 8 * 2**30
"""What a run on the micro world needs at most, all processes together."""
USES_MEMORY = """
import sys, time, psutil
held = []
while psutil.virtual_memory().percent < 100 * float(sys.argv[1]) + 3:
    held.append(bytearray(b"x" * 200_000_000))
    time.sleep(0.2)
time.sleep(60)
"""
PROMPTS_A_STEP = 4
STEPS = 6
LEFT_BY_RUNS = re.compile(
    r"rerule-.*|ckpt_.*\.lock|vllm_dist_.*|rl-colocate-.*|sem\.mp-.*|verl_weights_.*|torchelastic_.*"
    r"|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
"""Names that verl, vLLM, torch and this project give to temporary files."""


def temporary_files() -> set[str]:
    return {
        str(path)
        for folder in (Path("/tmp"), Path("/dev/shm"))
        for path in folder.iterdir()
        if LEFT_BY_RUNS.fullmatch(path.name)
    }


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No temporary file is there after the test that was not there before it."""
    before = temporary_files()
    yield
    assert temporary_files() - before == set()


@pytest.fixture
def nothing_left_but_semaphores() -> Iterator[None]:
    """The same where processes are killed: nobody can delete a killed one's semaphores (32 bytes each)."""
    before = temporary_files()
    yield
    assert {file for file in temporary_files() - before if "/sem.mp-" not in file} == set()


def errors_of(run: Command) -> list[str]:
    assert "Traceback" not in run.output, run.output[-3000:]
    return [line for line in run.output.splitlines() if line.startswith("error: ")]


def assert_all_have_ended(run: Command, seconds: float = 0.0) -> None:
    deadline = time.monotonic() + seconds
    while (alive := run.alive()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert alive == []


def wait_fast(condition: Callable[[], bool], run: Command, limit: float = 400) -> None:
    """Wait without a pause, for what lasts some milliseconds only."""
    deadline = time.monotonic() + limit
    while not condition():
        assert run.process.poll() is None, run.output[-3000:]
        assert time.monotonic() < deadline


def stopped_in_a_write(run: Command, run_folder: Path) -> tuple[psutil.Process, int]:
    """The actor's worker, stopped while it writes a checkpoint, and the step of that checkpoint.

    On a busy machine this test may see a write too late; then the worker goes on to the next checkpoint.
    """
    (writer,) = processes_named(run, "WorkerDict")
    for step in (2, 3):
        folder = run_folder / f"global_step_{step}"
        wait_fast(lambda folder=folder: any(folder.glob("actor/*.pt")), run)
        writer.suspend()
        time.sleep(1)
        if not (folder / "complete.json").exists():
            return writer, step
        writer.resume()
    pytest.fail("both checkpoints were complete before their writer could be stopped")


def processes_named(run: Command, name: str) -> list[psutil.Process]:
    found = [one for one in run.descendants() if name in " ".join(one.cmdline())]
    assert found, [one.cmdline() for one in run.descendants()]
    return found


@full
def test_kills_a_second_run_and_a_termination_lose_nothing(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nothing_left_but_semaphores: None
) -> None:
    """A worker is killed in a checkpoint's write, then runner and driver right after one, then SIGTERM comes.

    Each time the run goes on from the last checkpoint that counts, with its buffer and the order of prompts.
    """
    run_folder = tmp_path / "run"
    arguments = [
        "-m",
        "recipe.rerule.main",
        *stage2_arguments(
            micro_world, run_folder, f"trainer.total_training_steps={STEPS}", "trainer.save_freq=1"
        ),
        "trainer.resume_mode=auto",
    ]

    first = command(*arguments)
    first.wait_until(lambda: (run_folder / "run.lock").exists())
    second = command(*arguments)
    assert second.wait(120) == 2
    (line,) = errors_of(second)
    assert f"{run_folder} is in use by another run (process {first.process.pid} on " in line

    first.wait_until(lambda: f"step 1/{STEPS}" in first.output)
    # From here on the first run may save at any time, so that what follows has no time to spare.
    writer, torn = stopped_in_a_write(first, run_folder)
    folder = run_folder / f"global_step_{torn}"
    writer.kill()
    written = {path.name for path in folder.rglob("*")}
    assert first.wait(120) == 1
    assert checkpoints.problem(folder) == "complete.json is missing", written
    assert checkpoints.newest_complete(run_folder) == torn - 1
    (line,) = errors_of(first)
    assert "actor worker 0" in line or "ActorDied" in line or "died" in line
    assert_all_have_ended(first)

    third = command(*arguments)
    last = torn + 1
    folder = run_folder / f"global_step_{last}"
    third.wait_until(lambda: f"step {torn}/{STEPS}" in third.output)
    (runner,) = processes_named(third, "ReRULETaskRunner")
    wait_fast(lambda: (folder / "complete.json").exists(), third)
    runner.kill()
    third.process.kill()
    third.process.wait()
    # Ray's own agents try for a minute to tell the dead driver of it, and end then.
    assert_all_have_ended(third, seconds=120)
    assert last not in logged_by_verl(run_folder)
    kept = read_metrics(run_folder)[last]
    assert kept["training/global_step"] == last
    logged = read_metrics(run_folder)[torn]
    # A step has the rewards of the sides and modes that it drew.
    missing = {name for name in set(logged) - set(kept) if not re.search("/(forget|retain)/", name)}
    assert {name.split("/")[0] for name in missing} <= {"timing_s", "timing_per_token_ms", "perf"}, missing

    fourth = command(*arguments)
    fourth.wait_until(lambda: f"step {last + 1}/{STEPS}" in fourth.output)
    fourth.descendants()
    at = time.monotonic()
    fourth.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    fourth.process.send_signal(signal.SIGTERM)
    assert fourth.wait(SHUTDOWN_SECONDS) == 143
    print(f"stopped after {time.monotonic() - at:.1f} s")
    assert_all_have_ended(fourth)
    step = checkpoints.newest_complete(run_folder)
    assert errors_of(fourth) == [
        f"error: stopped by SIGTERM; trainer.resume_mode=auto goes on from {run_folder}/global_step_{step}"
    ]

    fifth = command(*arguments)
    assert fifth.wait() == 0, fifth.output[-3000:]
    assert_all_have_ended(fifth)
    assert sorted(read_metrics(run_folder)) == list(range(1, STEPS + 1))
    assert_prompts_are_in_order(run_folder, micro_world / "train.parquet")
    assert_the_buffer_follows_its_records(run_folder)
    assert not (run_folder / "run.lock").exists()


def logged_by_verl(run_folder: Path) -> set[int]:
    files = (run_folder / "records").glob("metrics.*jsonl")
    return {json.loads(line)["step"] for file in files for line in file.read_text().splitlines()}


def assert_prompts_are_in_order(run_folder: Path, rows: Path) -> None:
    """The first epoch's order is that of one generator with data.seed, as in a run never stopped."""
    indices = [row["extra_info"]["index"] for row in read_rows(rows)]
    order = torch.randperm(len(indices), generator=torch.Generator().manual_seed(42)).tolist()
    assert len(order) >= STEPS * PROMPTS_A_STEP
    for step, record in read_steps(run_folder, "prompts.jsonl").items():
        expected = [indices[row] for row in order[(step - 1) * PROMPTS_A_STEP : step * PROMPTS_A_STEP]]
        assert sorted(prompt["index"] for prompt in record["prompts"]) == sorted(expected), step


def assert_the_buffer_follows_its_records(run_folder: Path) -> None:
    contents: Counter[tuple[int, int]] = Counter()
    for _, record in sorted(read_steps(run_folder, "replay.jsonl").items()):
        contents.update(tuple(key) for key in record["stored"])
        contents.subtract((index, stored) for index, stored, _ in record["evicted"])
    folder = run_folder / f"global_step_{STEPS}" / "replay"
    groups = read_groups(folder, read_record(folder))
    assert Counter((group.prompt_index, group.step) for group in groups) == +contents


@full
def test_a_full_disk_in_a_checkpoint_and_a_dead_raylet_are_named(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nothing_left: None
) -> None:
    """A disk with room for few checkpoints; then, in another run, the raylet is killed."""
    arguments = ["trainer.total_training_steps=9", "trainer.save_freq=1"]
    small = tmp_path / "small"
    with mounted(small, kibibytes=6 * 1024):
        run_folder = small / "run"
        run = command("-m", "recipe.rerule.main", *stage2_arguments(micro_world, run_folder, *arguments))
        assert run.wait() == 1
        newest = checkpoints.newest_complete(run_folder)
        assert newest is not None
        size = checkpoints.bytes_of_newest(run_folder)
        (line,) = [line for line in run.output.splitlines() if line.startswith("error: ")]
        failed = run_folder / f"global_step_{newest + 1}"
        expected = rf"error: the disk is full: {failed} needs {size:,} bytes, and there was room for ([\d,]+)"
        found = re.fullmatch(expected, line)
        assert found is not None, line
        assert int(found[1].replace(",", "")) < size
        assert not failed.exists()
        assert_all_have_ended(run)

    run_folder = tmp_path / "run"
    run = command("-m", "recipe.rerule.main", *stage2_arguments(micro_world, run_folder, *arguments))
    run.wait_until(lambda: "step 1/" in run.output)
    (raylet,) = [one for one in run.descendants() if one.name() == "raylet"]
    raylet.kill()
    assert run.wait(90) == 1
    (line,) = [line for line in run.output.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: node {socket.gethostname()} (")
    assert ") died: " in line
    assert "trainer.resume_mode=auto goes on from the last checkpoint" in line
    assert_all_have_ended(run, seconds=10)


@full
def test_a_dead_gcs_server_is_named_and_the_run_goes_on(
    command: Callable[..., Command],
    micro_world: Path,
    tmp_path: Path,
    nothing_left_but_semaphores: None,
) -> None:
    """Ray itself would end the driver after a minute without a word of ours, its workers still running."""
    run_folder = tmp_path / "run"
    steps = ("trainer.total_training_steps=200", "trainer.save_freq=1", "trainer.resume_mode=auto")
    arguments = ["-m", "recipe.rerule.main", *stage2_arguments(micro_world, run_folder, *steps)]
    run = command(*arguments)
    run.wait_until(lambda: "step 2/" in run.output)
    (server,) = [one for one in run.descendants() if one.name() == "gcs_server"]
    server.kill()
    assert_ends_in_time(run, "Ray's gcs_server (")
    newest = checkpoints.newest_complete(run_folder)
    assert newest is not None
    again = command(*arguments)
    again.wait_until(lambda: f"step {newest + 1}/" in again.output)
    assert f"step {newest}/" not in again.output
    again.process.send_signal(signal.SIGTERM)
    assert again.wait(SHUTDOWN_SECONDS) == 143


def waiting_in(phase: str, run: Command, pauses: Path) -> None:
    """Wait until the run has come to a phase, where it stays."""
    run.wait_until((pauses / f"{phase}.there").exists)


def assert_ends_in_time(run: Command, named: str) -> None:
    """The run, of which a process has just died, ends in one line that names it and says what to do."""
    at = time.monotonic()
    assert run.wait(DEATH_SECONDS) == 1
    print(f"{named}: ended after {time.monotonic() - at:.1f} s")
    (line,) = [line for line in run.output.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {named}"), line
    assert "data.train_batch_size" in line
    assert line.endswith("; trainer.resume_mode=auto goes on from the last checkpoint")
    assert_all_have_ended(run, seconds=10)


@pytest.fixture
def pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of `pauses`, which workers then find as a module."""
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), here])))
    monkeypatch.setenv("RERULE_PAUSES", str(tmp_path / "pauses"))
    (tmp_path / "pauses").mkdir()
    return tmp_path / "pauses"


def paused_arguments(world: Path, run_folder: Path) -> list[str]:
    return [
        "-m",
        "recipe.rerule.main",
        *stage2_arguments(world, run_folder, "trainer.total_training_steps=2", "trainer.save_freq=1"),
        "trainer.resume_mode=auto",
        "actor_rollout_ref.model.external_lib=[recipe.rerule.agent_loop,pauses]",
    ]


DEATHS = (
    ("generation", "EngineCore", "rollout engine 0 ("),
    ("update", "WorkerDict", "actor worker 0 (WorkerDict, process "),
    ("weights", "vLLMHttpServer", "rollout server 0 (vLLMHttpServer, process "),
)
"""Phase in which the run waits, process that is killed there, and how the line begins."""


@full
def test_whatever_is_killed_the_run_ends_in_time_and_goes_on(
    command: Callable[..., Command],
    micro_world: Path,
    tmp_path: Path,
    pauses: Path,
    nothing_left_but_semaphores: None,
) -> None:
    run_folder = tmp_path / "run"
    for phase, killed, named in DEATHS:
        (pauses / phase).touch()
        run = command(*paused_arguments(micro_world, run_folder))
        waiting_in(phase, run, pauses)
        next(one for one in run.descendants() if killed in one.name()).kill()
        for file in pauses.iterdir():
            file.unlink()
        assert_ends_in_time(run, named)
    last = command(*paused_arguments(micro_world, run_folder))
    assert last.wait() == 0, last.output[-3000:]
    assert checkpoints.newest_complete(run_folder) == 2


@full
def test_a_process_that_rays_memory_monitor_kills_ends_the_run(
    command: Callable[..., Command],
    micro_world: Path,
    tmp_path: Path,
    pauses: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process uses up the memory during an update; the limit is below the machine's own."""
    memory = psutil.virtual_memory()
    limit = (memory.total - memory.available + ROOM_BYTES) / memory.total
    if limit > 0.85:
        pytest.skip("the machine has too little free memory for this test")
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{limit:.3f}")
    (pauses / "update").touch()
    run = command(*paused_arguments(micro_world, tmp_path / "run"))
    waiting_in("update", run, pauses)
    with subprocess.Popen([sys.executable, "-c", USES_MEMORY, f"{limit:.3f}"]) as other:
        try:
            run.wait_until(lambda: "run ended: " in run.output or run.process.poll() is not None, limit=60)
        finally:
            other.kill()
    assert_ends_in_time(run, "")
    assert "was killed by Ray's memory monitor: " in run.output


@full
def test_an_interrupt_of_the_whole_group_ends_a_run_that_is_starting(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nothing_left: None
) -> None:
    """Ctrl-C in a terminal reaches every process of the group."""
    run = command("-m", "recipe.rerule.main", *stage2_arguments(micro_world, tmp_path / "run"))
    run.wait_until(
        lambda: (
            "WorkerDict" in run.output
            or any("WorkerDict" in " ".join(p.cmdline()) for p in run.descendants())
        )
    )
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(SHUTDOWN_SECONDS) == 130
    (line,) = errors_of(run)
    assert line == f"error: stopped by SIGINT; {tmp_path / 'run'} holds no complete checkpoint"
    assert_all_have_ended(run)


def test_stage_1_is_terminated(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nothing_left: None
) -> None:
    assert_stage_1_ends(command, micro_world, tmp_path)


@full
def test_a_termination_kills_both_ranks_of_stage_1(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nothing_left: None
) -> None:
    ranks = ("trainer.n_gpus_per_node=2", "data.micro_batch_size_per_gpu=4")
    assert_stage_1_ends(command, micro_world, tmp_path, *ranks)


def assert_stage_1_ends(
    command: Callable[..., Command], world: Path, tmp_path: Path, *overrides: str
) -> None:
    run = command(
        "-m",
        "recipe.rerule.sft",
        "experiment=tiny",
        f"model.path={world / 'model'}",
        f"data.train_files={world / 'sft.parquet'}",
        f"trainer.default_local_dir={tmp_path / 'stage1'}",
        "trainer.total_training_steps=100000",
        "trainer.total_epochs=100000",
        *overrides,
    )
    run.wait_until(lambda: re.search(r"step:\d", run.output))
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(SHUTDOWN_SECONDS) == 143
    assert errors_of(run) == ["error: stopped by SIGTERM"]
    assert_all_have_ended(run)
    assert not (tmp_path / "stage1" / "run.lock").exists()


def vllm_is_importing(run: Command) -> bool:
    """Whether the engine's process has begun to load torch; vLLM and the model then need some seconds more.

    A fixed time would not do: a fast machine answers all probes within ten seconds.
    """
    workers = [one for one in run.descendants() if "engine.worker" in " ".join(one.cmdline())]
    return any("libtorch" in file.path for worker in workers for file in worker.memory_maps())


@full
def test_an_evaluation_is_interrupted_and_leaves_its_answers_alone(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nothing_left: None
) -> None:
    run = command(
        "-m",
        "recipe.rerule.evaluate",
        "model",
        "--platform=cpu",
        "--probes",
        micro_world / "probes.parquet",
        "--model",
        f"base={micro_world / 'model'}",
        "--out",
        tmp_path / "evaluation",
    )
    run.wait_until(lambda: "starting vLLM" in run.output)
    run.wait_until(lambda: vllm_is_importing(run))
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(SHUTDOWN_SECONDS) == 130
    assert errors_of(run) == ["error: stopped by SIGINT"]
    assert_all_have_ended(run)
    assert not (tmp_path / "evaluation").exists()


@pytest.fixture
def foreign_cluster(tmp_path: Path) -> Iterator[str]:
    """The address of somebody else's Ray cluster, whose environment has nothing of ours."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    temporary = Path(f"/tmp/foreign-{port}")  # Ray's socket paths have to be short
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "RAY_AUTH_MODE": "disabled"}
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    options = ["--num-cpus=16", "--num-gpus=1", "--include-dashboard=false", f"--temp-dir={temporary}"]
    with open(tmp_path / "foreign.txt", "w") as log:
        started = subprocess.Popen(
            [*ray, *options], stdout=log, stderr=log, env=environment, cwd="/", start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while "Ray runtime started" not in (tmp_path / "foreign.txt").read_text():
            assert started.poll() is None, (tmp_path / "foreign.txt").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield f"{socket.gethostbyname(socket.gethostname())}:{port}"
        assert started.poll() is None, "the foreign cluster ended with our runs"
    finally:
        processes = psutil.Process(started.pid).children(recursive=True) if started.poll() is None else []
        started.terminate()
        psutil.wait_procs(processes, timeout=20)
        for one in processes:
            if one.is_running():
                one.kill()
        started.wait()
        subprocess.run(["rm", "-rf", str(temporary)], check=True)


@full
def test_runs_beside_and_in_somebody_elses_cluster(
    command: Callable[..., Command],
    micro_world: Path,
    tmp_path: Path,
    foreign_cluster: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without an address a run has its own cluster; with one it trains there and leaves nothing running."""
    before = foreign_processes(foreign_cluster)
    own = command(
        "-m",
        "recipe.rerule.main",
        *stage2_arguments(micro_world, tmp_path / "own", "trainer.total_training_steps=1"),
    )
    assert own.wait() == 0, own.output[-3000:]
    assert "Connecting to existing Ray cluster" not in own.output
    assert any("raylet" in name for name in own.seen)

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    run_folder = tmp_path / "joined"
    joined = command(
        "-m",
        "recipe.rerule.main",
        *stage2_arguments(micro_world, Path(os.path.relpath(run_folder)), "trainer.total_training_steps=50"),
        f"+ray_kwargs.ray_init.address={foreign_cluster}",
    )
    joined.wait_until(lambda: "step 2/50" in joined.output)
    assert "Connecting to existing Ray cluster" in joined.output
    assert not any("raylet" in name for name in joined.seen)
    assert read_metrics(run_folder).keys() in ({1}, {1, 2})  # verl logs a step after it has told it
    joined.process.send_signal(signal.SIGTERM)
    assert joined.wait(SHUTDOWN_SECONDS) == 143
    deadline = time.monotonic() + 30
    while (running := foreign_processes(foreign_cluster) - before) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not any("WorkerDict" in one or "vLLM" in one or "EngineCore" in one for one in running), running


def foreign_processes(address: str) -> set[str]:
    """Command lines of the processes of the cluster at `address`."""
    (head,) = [
        one
        for one in psutil.process_iter(["cmdline"])
        if "ray" in " ".join(one.info["cmdline"] or [])
        and f"--port={address.split(':')[1]}" in one.info["cmdline"]
        and "start" in one.info["cmdline"]
    ]
    found = set()
    for one in head.children(recursive=True):
        try:
            found.add(" ".join(one.cmdline()))
        except psutil.Error:
            continue
    return found


@full
def test_a_node_that_dies_is_named(
    command: Callable[..., Command],
    micro_world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two raylets stand for two machines; the rank on the other one then only sees a closed connection."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    node = {"num_cpus": 12, "num_gpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        other = cluster.add_node(**node)
        run = command(
            "-m",
            "recipe.rerule.main",
            *stage2_arguments(micro_world, tmp_path / "run", "trainer.total_training_steps=50"),
            "trainer.nnodes=2",
            f"+ray_kwargs.ray_init.address={cluster.address}",
        )
        run.wait_until(lambda: "step 1/50" in run.output)
        cluster.remove_node(other, allow_graceful=False)
        assert run.wait(120) == 1
        (line,) = [line for line in run.output.splitlines() if line.startswith("error: ")]
        assert line.startswith(f"error: node {socket.gethostname()} (")
        assert ") died: " in line
    finally:
        cluster.shutdown()
