"""Stage 2 on two Ray nodes of one machine, each with one logical device and an address of its own.

Processors, memory and disk are shared, so that networks, separate disks and machines that lose their power
stay untested.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recipe.rerule.replay import RolloutGroup
from recipe.rerule.replay.state import read_groups, read_record
from recipe.rerule.runs import checkpoints
from recipe.rerule.runs.history import read_metrics
from tests.e2e.ray_nodes import HEAD, OTHER, RayNodes, ray_nodes
from tests.e2e.run_checks import (
    assert_replay_is_on,
    assert_the_buffer_follows_its_records,
    read_steps,
)
from tests.e2e.stack import Command, stage2_arguments

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

HERE = Path(__file__).parent
STEPS, SAVED = 4, 2
DEATH_SECONDS = 60
RANK_FILES = {
    f"actor/{part}_world_size_2_rank_{rank}.pt"
    for part in ("model", "optim", "extra_state")
    for rank in (0, 1)
}
OF_THE_CLOCK = re.compile("timing|perf/|seconds|training/rollout_")
"""In names of metrics that equal runs need not share: time, memory, what engines found in other batches."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """A head node; others are added."""
    with ray_nodes(tmp_path_factory.mktemp("nodes")) as started:
        yield started


@pytest.fixture
def two_nodes(nodes: RayNodes) -> RayNodes:
    if len(nodes.alive()) == 1:
        nodes.add()
    return nodes


@pytest.fixture
def head_alone(nodes: RayNodes) -> RayNodes:
    for other in nodes.alive()[1:]:
        other.end()
    nodes.wait_for(1)
    return nodes


def arguments(nodes: RayNodes, world: Path, run_folder: Path, *overrides: str) -> list[str]:
    return [
        *("-m", "recipe.rerule.main"),
        *stage2_arguments(
            world,
            run_folder,
            # By its own reward no group of so small a model may have different rewards, by chance.
            f"reward.custom_reward_function.path={HERE / 'parity_reward.py'}",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "trainer.nnodes=2",
            f"+ray_kwargs.ray_init.address={nodes.address}",
            *overrides,
        ),
    ]


def seeded(rows: Path) -> list[str]:
    """Responses that two runs share, and the rows of each rank written to `rows`."""
    rows.mkdir()
    variables = "+ray_kwargs.ray_init.runtime_env.env_vars"
    return [
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class=seeded_loop.SeededManager",
        "actor_rollout_ref.model.external_lib=[recipe.rerule.agent_loop,rank_rows]",
        f"{variables}.PYTHONPATH={HERE}",
        f"{variables}.RANK_ROWS={rows}",
    ]


def error_of(run: Command) -> str:
    """The one line with which a run ended."""
    (line,) = [line for line in run.output.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.full
def test_plain_rule_ends_when_a_node_dies(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, two_nodes: RayNodes
) -> None:
    """RULE trains and saves on both nodes; all processes of the other one are killed in mid-run."""
    run_folder = tmp_path / "run"
    overrides = ("replay.enable=false", "trainer.total_training_steps=500", "trainer.save_freq=1")
    run = command(*arguments(two_nodes, micro_world, run_folder, *overrides))
    # Not by the output: of lines that are alike Ray prints one in some seconds.
    run.wait_until(lambda: (checkpoints.newest_complete(run_folder) or 0) >= 2)
    two_nodes.nodes[-1].kill()
    killed_at = time.monotonic()
    assert run.wait(DEATH_SECONDS) == 1
    print(f"the run ended {time.monotonic() - killed_at:.1f} s after the kill")
    line = error_of(run)
    assert line.startswith("error: node ")
    assert f" ({OTHER}) died: " in line
    assert "trainer.resume_mode=auto goes on from the last checkpoint" in line
    saved = checkpoints.newest_complete(run_folder)
    named = json.loads((run_folder / f"global_step_{saved}" / "complete.json").read_text())["files"]
    assert set(named) >= RANK_FILES
    assert not any(name.startswith("replay/") for name in named)
    assert all("replay/updates" not in values for values in read_metrics(run_folder).values())


@pytest.mark.full
def test_v1_replays_on_both_nodes(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, two_nodes: RayNodes
) -> None:
    run_folder, steps = tmp_path / "run", 2
    overrides = ("trainer.use_v1=true", f"trainer.total_training_steps={steps}", "replay.admission=all")
    run = command(*arguments(two_nodes, micro_world, run_folder, *overrides))
    run.wait_until(lambda: "step 1/" in run.output)
    for node in two_nodes.alive():
        assert sum("ray::WorkerDict" in name for name in node.names()) == 1, node.names()
    assert run.wait() == 0, run.output[-3000:]
    metrics = read_metrics(run_folder)
    assert_replay_is_on(metrics)
    assert metrics[steps]["replay/drawn_groups"] == 4
    assert_the_buffer_follows_its_records(run_folder, steps)
    named = json.loads((run_folder / f"global_step_{steps}" / "complete.json").read_text())["files"]
    assert set(named) >= RANK_FILES


@pytest.mark.full
def test_replay_is_divided_over_both_nodes_and_goes_on_after_a_stop(
    command: Callable[..., Command],
    micro_world: Path,
    tmp_path: Path,
    two_nodes: RayNodes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The resumed run has the draws and numbers of the whole one; its checkpoint is evaluated."""
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=":")
    whole, resumed, rows = tmp_path / "whole", tmp_path / "resumed", tmp_path / "rows"
    length = (f"trainer.total_training_steps={STEPS}", f"trainer.save_freq={SAVED}")
    run = command(*arguments(two_nodes, micro_world, whole, *length, *seeded(rows)))
    run.wait_until(lambda: "step 1/" in run.output)
    for node in two_nodes.alive():
        assert sum("ray::WorkerDict" in name for name in node.names()) == 1, node.names()
    assert run.wait() == 0, run.output[-3000:]
    metrics = read_metrics(whole)
    assert sorted(metrics) == list(range(1, STEPS + 1))
    assert_replay_is_on(metrics)
    assert_the_buffer_follows_its_records(whole, STEPS)
    assert_rows_are_divided(whole, rows)
    for step in (SAVED, STEPS):
        named = json.loads((whole / f"global_step_{step}" / "complete.json").read_text())["files"]
        assert set(named) >= RANK_FILES

    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / f"global_step_{STEPS}")
    (resumed / "latest_checkpointed_iteration.txt").write_text(str(SAVED))
    more = (*length, *seeded(tmp_path / "rows_again"), "trainer.resume_mode=auto")
    run = command(*arguments(two_nodes, micro_world, resumed, *more))
    assert run.wait() == 0, run.output[-3000:]
    assert f"step {SAVED}/{STEPS}" not in run.output
    assert f"step {SAVED + 1}/{STEPS}" in run.output
    assert_equal_runs(whole, resumed)

    evaluation = tmp_path / "evaluation"
    run = command(
        *("-m", "recipe.rerule.evaluate", "model", "--platform", "cpu"),
        *("--model", f"nodes={resumed}", "--model", f"base={micro_world / 'model'}"),
        *("--probes", micro_world / "probes.parquet", "--out", evaluation),
    )
    assert run.wait() == 0, run.output[-3000:]
    assert list(json.loads((evaluation / "results.json").read_text()))[:2] == ["nodes", "base"]


def assert_rows_are_divided(run_folder: Path, rows: Path) -> None:
    """Each rank is on a node of its own and gets half of the drawn rows, and together they get all."""
    ranks = [
        [json.loads(line) for line in (rows / f"rank_{rank}.jsonl").read_text().splitlines()]
        for rank in (0, 1)
    ]
    drawn = [
        [tuple(key) for draw in record["drawn"] for key in draw]
        for _, record in sorted(read_steps(run_folder, "replay.jsonl").items())
        if record["drawn"]
    ]
    assert [len(updates) for updates in ranks] == [len(drawn)] * 2
    assert len(drawn) == STEPS - 1
    assert {tuple(update["node"] for update in updates) for updates in ranks} == {
        (HEAD,) * len(drawn),
        (OTHER,) * len(drawn),
    }
    assert all(len(updates[0]["rows"]) == len(updates[1]["rows"]) for updates in zip(*ranks, strict=True))
    folder = run_folder / f"global_step_{STEPS}" / "replay"
    stored = {
        (one.prompt_index, one.step): token_ids(one.group())
        for one in read_groups(folder, read_record(folder))
    }
    expected = Counter(row for key in drawn[-1] for row in stored[key])
    last = [Counter(tuple(row) for row in updates[-1]["rows"]) for updates in ranks]
    assert expected.total() == 4 * 4
    assert last[0] + last[1] == expected


def token_ids(group: RolloutGroup) -> list[tuple[int, ...]]:
    """Prompt and response of each of its rows."""
    prompt = group.prompt_ids.tolist()
    return [(*prompt, *part.tolist()) for part in group.response_ids.split(group.lengths.tolist())]


def assert_equal_runs(one: Path, other: Path) -> None:
    """The same draws, and the same numbers to the last bit, but for those OF_THE_CLOCK."""
    assert read_steps(one, "replay.jsonl") == read_steps(other, "replay.jsonl")
    assert read_steps(one, "prompts.jsonl") == read_steps(other, "prompts.jsonl")
    expected, found = read_metrics(one), read_metrics(other)
    assert expected.keys() == found.keys()
    for step, values in expected.items():
        lasting = {name: value for name, value in values.items() if not OF_THE_CLOCK.search(name)}
        assert len(lasting) > 30
        assert {name: found[step][name] for name in lasting} == lasting, step


@pytest.mark.full
def test_a_cluster_that_cannot_carry_the_run_is_refused(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, head_alone: RayNodes
) -> None:
    """One node too few; a node with a disk of its own for the run folder; a node without the model."""
    run_folder = tmp_path / "run"
    run = command(*arguments(head_alone, micro_world, run_folder))
    assert run.wait() == 2
    assert f"cluster at {head_alone.address} has room for 1 of the run's 2 nodes" in error_of(run)
    assert not run_folder.exists()

    own, model = tmp_path / "own", tmp_path / "model"
    own.mkdir()
    shutil.copytree(micro_world / "model", model)
    other = head_alone.add(alone=(own, model))
    run = command(*arguments(head_alone, micro_world, own / "runs" / "run"))
    assert run.wait() == 2
    line = error_of(run)
    assert "Traceback" not in run.output, run.output[-3000:]
    assert line.startswith(f"error: trainer.default_local_dir is {own}/runs/run, and node ")
    assert f"({OTHER}) sees another folder there than this machine" in line
    assert list(own.iterdir()) == []

    run = command(*arguments(head_alone, micro_world, run_folder, f"actor_rollout_ref.model.path={model}"))
    assert run.wait() == 2
    line = error_of(run)
    assert "Traceback" not in run.output, run.output[-3000:]
    assert line.startswith(f"error: actor_rollout_ref.model.path is {model}, and node ")
    assert f"({OTHER}) has nothing there" in line
    assert not run_folder.exists()
    other.end()
    head_alone.wait_for(1)
