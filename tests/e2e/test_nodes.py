"""Stage 2 in a Ray cluster that runs already, of one and of two nodes of one machine with a device each.

Processors, memory and disk are shared, so that networks, separate disks and machines that lose their power
stay untested.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recipe.rerule.runs import checkpoints
from recipe.rerule.runs.history import read_metrics
from tests.e2e.ray_nodes import OTHER, RayNodes, ray_nodes
from tests.e2e.stack import Command, stage2_arguments

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """A head node alone."""
    with ray_nodes(tmp_path_factory.mktemp("nodes")) as started:
        yield started


def test_a_run_in_somebody_elses_cluster_leaves_nothing_running(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nodes: RayNodes
) -> None:
    run_folder = tmp_path / "joined"
    joined = command(
        *("-m", "recipe.rerule.main"),
        *stage2_arguments(micro_world, Path(os.path.relpath(run_folder)), "trainer.total_training_steps=50"),
        f"+ray_kwargs.ray_init.address={nodes.address}",
    )
    joined.wait_until(lambda: "step 2/50" in joined.output)
    assert "Connecting to existing Ray cluster" in joined.output
    assert not any("raylet" in name for name in joined.seen)
    assert read_metrics(run_folder).keys() in ({1}, {1, 2})  # verl logs a step after it has told it
    joined.process.send_signal(signal.SIGTERM)
    assert joined.wait(40) == 143
    deadline = time.monotonic() + 30
    while of_the_run(nodes) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert of_the_run(nodes) == []
    assert nodes.head.process.poll() is None


def of_the_run(nodes: RayNodes) -> list[str]:
    """Processes of a stage 2 that the head node runs."""
    return [name for name in nodes.head.names() if re.search("WorkerDict|vLLM|EngineCore", name)]


def test_a_run_on_two_nodes_ends_when_one_dies(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nodes: RayNodes
) -> None:
    """All processes of the other node are killed in mid-run."""
    run_folder = tmp_path / "run"
    arguments = [
        *("-m", "recipe.rerule.main"),
        *stage2_arguments(
            micro_world,
            run_folder,
            "trainer.nnodes=2",
            f"+ray_kwargs.ray_init.address={nodes.address}",
            "trainer.save_freq=1",
            "trainer.resume_mode=auto",
        ),
    ]
    other = nodes.other()
    run = command(*arguments, "trainer.total_training_steps=500")
    # Not by the output: of lines that are alike Ray prints one in some seconds.
    run.wait_until(lambda: (checkpoints.newest_complete(run_folder) or 0) >= 2)
    for node in (nodes.head, other):
        assert sum("ray::WorkerDict" in name for name in node.names()) == 1, node.names()
    other.kill()
    assert run.wait(60) == 1
    assert run.error().startswith("node ")
    assert f" ({OTHER}) died: " in run.error()
    assert "trainer.resume_mode=auto goes on from the last checkpoint" in run.error()
