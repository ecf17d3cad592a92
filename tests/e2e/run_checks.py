"""What tests of stage 2 read from a run folder and hold against its settings, whichever trainer ran."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from data_prep.contract import read_rows
from recipe.rerule.replay import RolloutGroup
from recipe.rerule.replay.state import read_groups, read_record
from recipe.rerule.runs import checkpoints
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


def stored_groups(run_folder: Path, step: int) -> dict[tuple[int, int], RolloutGroup]:
    """The replay buffer of a checkpoint: groups by their prompt and the step that made them."""
    folder = run_folder / f"global_step_{step}" / "replay"
    return {(one.prompt_index, one.step): one.group() for one in read_groups(folder, read_record(folder))}


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
    assert set(contents.values()) <= {0, 1}
    assert stored_groups(run_folder, steps).keys() == (+contents).keys()


def assert_the_best_step_is_kept(run_folder: Path, scores: dict[int, float], last: int) -> int:
    """The step with the best score of validation, whose checkpoint is kept in addition to the last."""
    noted = checkpoints.best(run_folder)
    assert noted is not None
    assert (noted.step, noted.score) == (max(scores, key=lambda step: scores[step]), max(scores.values()))
    kept = {path.name for path in run_folder.glob("global_step_*")}
    assert kept == {f"global_step_{step}" for step in (noted.step, last)}
    return noted.step


def read_steps(run_folder: Path, name: str) -> dict[int, dict[str, Any]]:
    """The last record of each step."""
    lines = (run_folder / "records" / name).read_text().splitlines()
    return {record["step"]: record for record in map(json.loads, lines)}


def kill_engine(run: Command) -> None:
    """SIGKILL vLLM's engine processes, as a kernel short of memory would; the run ends within a minute."""
    engines = run.named("EngineCore")
    assert engines, [" ".join(process.cmdline())[:80] for process in run.descendants()]
    for engine in engines:
        engine.kill()
    assert run.wait(60) == 1
    assert "engine" in run.error().lower()


def assert_records_are_complete(
    run_folder: Path, rows: Path, steps: int, score: Callable[..., dict[str, float]]
) -> None:
    """Every step's rewards and responses are there, and each reward is that of the text beside it."""
    asked = {row["extra_info"]["index"]: row for row in read_rows(rows)}
    records = read_steps(run_folder, "prompts.jsonl")
    assert sorted(records) == list(range(1, steps + 1))
    for step, record in records.items():
        assert [len(prompt["rewards"]) for prompt in record["prompts"]] == [4] * PROMPTS_A_STEP
        rewards = [(prompt["index"], reward) for prompt in record["prompts"] for reward in prompt["rewards"]]
        responses = (run_folder / "records" / "rollouts" / f"{step}.jsonl").read_text().splitlines()
        written = [json.loads(line) for line in responses]
        assert [(line["index"], line["reward"]) for line in written] == rewards
        for line in written:
            row = asked[line["index"]]
            label, info = row["reward_model"]["ground_truth"], row["extra_info"]
            assert line["reward"] == score(row["data_source"], line["response"], label, info)["score"]


def few_rows(source: Path, target: Path, count: int) -> Path:
    """Write the first rows of a parquet file."""
    pq.write_table(pq.read_table(source).slice(0, count), target)
    return target


def assert_prompts_are_in_order(run_folder: Path, rows: Path, steps: int) -> None:
    """Each epoch is the next permutation of one generator with data.seed, as in a run never stopped."""
    indices = [row["extra_info"]["index"] for row in read_rows(rows)]
    generator = torch.Generator().manual_seed(42)
    order: list[int] = []
    while len(order) < steps * PROMPTS_A_STEP:
        epoch = torch.randperm(len(indices), generator=generator).tolist()
        order += [indices[row] for row in epoch[: len(epoch) // PROMPTS_A_STEP * PROMPTS_A_STEP]]
    prompts = read_steps(run_folder, "prompts.jsonl")
    assert sorted(prompts) == list(range(1, steps + 1))
    for step, record in prompts.items():
        expected = order[(step - 1) * PROMPTS_A_STEP : step * PROMPTS_A_STEP]
        assert sorted(prompt["index"] for prompt in record["prompts"]) == sorted(expected), step
