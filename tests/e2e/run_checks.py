"""What tests of stage 2 read from a run folder and hold against its settings, whichever trainer ran."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from data_prep.contract import read_rows
from recipe.rerule.replay.state import read_groups, read_record
from reward.score import compute_score
from tests.e2e.stack import Command

PROMPTS_A_STEP = 4


def assert_replay_is_on(metrics: dict[int, dict[str, float]]) -> None:
    """After the gate opens every step replays; with signal drawn, the policy-gradient part is not 0."""
    opened = [step for step, data in metrics.items() if data["replay/gate_open"]]
    assert opened == list(range(min(opened), max(metrics) + 1))
    for step in opened:
        data = metrics[step]
        assert data["replay/updates"] == 1
        assert data["replay/grad_norm"] > 0
        with_signal = data["replay/drawn_zero_signal"] < data["replay/drawn_groups"]
        assert (data["replay/pg_signal_norm"] > 0) == with_signal
        assert 0 < data["replay/effective_sample_size"] <= 1


def assert_same_model(metrics: dict[int, dict[str, float]], most: float = 1e-6) -> None:
    """The engine samples from the trained weights, after every update.

    Args:
        metrics: of every step.
        most: of the mean over a step's tokens of |p of the engine - p of the trainer|. In float32 an engine
            with the trained weights was seen to differ by 1e-8; with those of the step before by far more.
    """
    differences = {step: data["training/rollout_probs_diff_mean"] for step, data in metrics.items()}
    assert max(differences.values()) < most, differences


def assert_the_buffer_follows_its_records(run_folder: Path, steps: int) -> None:
    """What the last checkpoint holds is what the records say was stored and did not leave."""
    contents: Counter[tuple[int, int]] = Counter()
    records = read_steps(run_folder, "replay.jsonl")
    assert sorted(records) == list(range(1, steps + 1))
    for _, record in sorted(records.items()):
        contents.update(tuple(key) for key in record["stored"])
        contents.subtract((index, stored) for index, stored, _ in record["evicted"])
        assert record["size"] == contents.total()
        for drawn in record["drawn"]:
            assert all(stored <= record["step"] for _, stored in drawn)
    folder = run_folder / f"global_step_{steps}" / "replay"
    groups = read_groups(folder, read_record(folder))
    assert Counter((group.prompt_index, group.step) for group in groups) == +contents


def read_steps(run_folder: Path, name: str) -> dict[int, dict[str, Any]]:
    """The last record of each step."""
    lines = (run_folder / "records" / name).read_text().splitlines()
    return {record["step"]: record for record in map(json.loads, lines)}


def kill_engine(run: Command) -> None:
    """SIGKILL vLLM's engine process, as a kernel short of memory would."""
    engines = [process for process in run.descendants() if "EngineCore" in process.name()]
    engines = engines or [p for p in run.descendants() if "EngineCore" in " ".join(p.cmdline())]
    assert engines, [" ".join(process.cmdline())[:80] for process in run.descendants()]
    for engine in engines:
        engine.kill()


def assert_records_are_complete(run_folder: Path, rows: Path, steps: int) -> None:
    """Every step's rewards and responses are there, and each reward is that of the text beside it."""
    asked = {
        row["extra_info"]["index"]: (row["reward_model"]["ground_truth"], row["extra_info"])
        for row in read_rows(rows)
    }
    records = read_steps(run_folder, "prompts.jsonl")
    assert sorted(records) == list(range(1, steps + 1))
    for step, record in records.items():
        assert [len(prompt["rewards"]) for prompt in record["prompts"]] == [4] * PROMPTS_A_STEP
        rewards = [(prompt["index"], reward) for prompt in record["prompts"] for reward in prompt["rewards"]]
        responses = (run_folder / "records" / "rollouts" / f"{step}.jsonl").read_text().splitlines()
        written = [json.loads(line) for line in responses]
        assert [(line["index"], line["reward"]) for line in written] == rewards
        assert [line["reward"] for line in written] == [
            compute_score("rerule/world", line["response"], *asked[line["index"]])["score"]
            for line in written
        ]
    assert (run_folder / "config.yaml").is_file()


def few_rows(source: Path, target: Path, count: int) -> list[int]:
    """Write the first rows of a parquet file; returns their prompt indices."""
    rows = pq.read_table(source).slice(0, count)
    pq.write_table(rows, target)
    return [info["index"] for info in rows["extra_info"].to_pylist()]


def assert_prompts_are_in_order(run_folder: Path, indices: list[int], steps: int) -> None:
    """Each epoch is the next permutation of one generator with data.seed, as in a run never stopped."""
    generator = torch.Generator().manual_seed(42)
    epochs = [torch.randperm(len(indices), generator=generator).tolist() for _ in range(steps)]
    order = [indices[row] for epoch in epochs for row in epoch]
    for step, prompts in read_steps(run_folder, "prompts.jsonl").items():
        expected = order[(step - 1) * PROMPTS_A_STEP : step * PROMPTS_A_STEP]
        assert sorted(prompt["index"] for prompt in prompts["prompts"]) == sorted(expected), step


def assert_a_finished_run_does_nothing_more(
    command: Callable[..., Command], run_folder: Path, arguments: list[str]
) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in run_folder.rglob("*"))
    again = command("-m", "recipe.rerule.main", *arguments, "trainer.resume_mode=auto")
    assert again.wait() == 0
    assert "already holds the run's last step" in again.output
    assert sorted((path, path.stat().st_mtime_ns) for path in run_folder.rglob("*")) == before
