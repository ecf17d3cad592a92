"""Do the loop and verl compute the same? python -m benchmarks.study.agreement --arm rerule --seed 1 --out DIR

Takes a run of `benchmarks.study.verl_path` in DIR and does its updates again in the loop: from the same
stage-1 model, on the responses the run recorded, with the groups its replay drew. Prints the gradient norms
and effective sample sizes of both; the last line is the largest relative difference. As each update starts
from what all earlier ones left, they only stay equal if every update is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from benchmarks.study.arms import ARMS, settings_of
from benchmarks.study.loop import Run
from benchmarks.study.runs import StudyError
from benchmarks.study.trial import Data, start
from benchmarks.study.verl_path import ARMS_HERE, run_folder
from benchmarks.study.worlds import WORLDS, StudyWorld, prepare
from data_prep.contract import Row
from recipe.rerule.minimal import Batch, Policy
from recipe.rerule.replay import RolloutGroup
from recipe.rerule.reporting.evaluations import read_lines
from recipe.rerule.runs.history import read_run

Line = Mapping[str, Any]
ARMS_AGAIN = [name for name in ARMS_HERE if ARMS[name].replay.get("update") != "on_policy"]
"""Those whose updates are all in the records."""
MEASURES = ("actor/grad_norm", "replay/grad_norm", "replay/effective_sample_size")
ROUNDING = 1e-7
"""A gradient's norm up to here is none: float32's rounding, where ratios and KL are those of equal models."""


@dataclass(frozen=True)
class Both:
    """One of MEASURES at a step, as verl logged it and as the loop has it."""

    step: int
    measure: str
    verl: float
    loop: float

    @property
    def difference(self) -> float:
        """Relative to the larger one; 0 where both are rounding alone, as of groups without signal."""
        larger = max(abs(self.loop), abs(self.verl))
        return abs(self.loop - self.verl) / larger if larger > ROUNDING else 0.0


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study.agreement", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--world", choices=WORLDS, default="many")
    parser.add_argument("--arm", choices=ARMS_AGAIN, default="rerule")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tofu", type=Path, metavar="FOLDER", help="TOFU's files, for its world")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    world = WORLDS[options.world]
    try:
        data = Data.read(*prepare(world, options.out / options.world, options.tofu))
        folder = run_folder(options.out, options.world, options.arm, options.seed)
        found = print_all(compared(folder, world, data, options.arm, options.seed))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"largest relative difference of {len(found)}: {max(both.difference for both in found):.1e}")


def print_all(found: Iterator[Both]) -> list[Both]:
    """Print as they come; all of them."""
    print(f"{'step':>4}  {'':32}{'verl':>12}{'loop':>12}{'difference':>12}")
    kept = []
    for both in found:
        numbers = f"{both.verl:>12.6g}{both.loop:>12.6g}{both.difference:>12.1e}"
        print(f"{both.step:>4}  {both.measure:32}{numbers}", flush=True)
        kept.append(both)
    return kept


def compared(folder: Path, world: StudyWorld, data: Data, arm: str, seed: int) -> Iterator[Both]:
    """Every update of the run in `folder`, done again.

    Raises:
        StudyError: a reward of the run is another one here, or its records lack the tokens.
        ValueError, OSError: the records are not there or not readable.
    """
    recorded = read_run(arm, folder)
    rows = {int(row["extra_info"]["index"]): row for row in data.train}
    again = Again(start(data, settings_of(ARMS[arm], world, seed)), rows, drawn_groups(folder))
    for step, logged in zip(recorded.steps, recorded.metrics, strict=True):
        found = again.step(step, list(read_lines(folder / "records" / "rollouts" / f"{step}.jsonl")))
        for measure in MEASURES:
            if measure in found and measure in logged:
                yield Both(step, measure, logged[measure], found[measure])


class Again:
    """The updates of a recorded run, done again by the loop."""

    def __init__(
        self, run: Run, rows: Mapping[int, Row], draws: Mapping[int, Sequence[tuple[int, int]]]
    ) -> None:
        self._run, self._rows, self._draws = run, rows, draws
        self._stored: dict[tuple[int, int], RolloutGroup] = {}

    def step(self, step: int, lines: Sequence[Line]) -> dict[str, float]:
        """The step whose responses these are; its MEASURES."""
        run, policy = self._run, self._run.policy
        rows = [self._rows[line["index"]] for line in lines[:: run.settings.rollouts]]
        batch = as_batch(policy, rows, lines)
        log_probs = policy.log_probs(batch)
        groups, parts = run._rollouts(batch, log_probs.detach(), rows, step)
        if [round(part["score"], 6) for part in parts] != [line["reward"] for line in lines]:
            raise StudyError(f"step {step}: the recorded rewards are not those of the recorded responses")
        self._stored |= {(group.prompt_index, step): group for group in groups}
        found = {"actor/grad_norm": run._update(batch, log_probs)}
        return found | self._extra(step, batch)

    def _extra(self, step: int, batch: Batch) -> dict[str, float]:
        drawn = [self._stored[key] for key in self._draws.get(step, ())]
        return {
            name: value for name, value in self._run._extra_update(drawn, batch).items() if name in MEASURES
        }


def as_batch(policy: Policy, rows: Sequence[Row], lines: Sequence[Line]) -> Batch:
    """The recorded responses as `Policy.respond` gives its own."""
    if any("response_ids" not in line for line in lines):
        raise StudyError("the run's records lack the tokens of the responses (records.rollouts)")
    ids = [torch.tensor(line["response_ids"]) for line in lines]
    pad = policy.tokenizer.pad_token_id
    mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    prompts, prompt_mask = policy.encode(rows)
    copies = len(lines) // len(rows)
    return {
        "prompts": prompts.repeat_interleave(copies, 0),
        "responses": pad_sequence(ids, batch_first=True, padding_value=pad),
        "attention_mask": torch.cat([prompt_mask.repeat_interleave(copies, 0), mask], 1),
        "response_mask": mask,
    }


def drawn_groups(folder: Path) -> dict[int, list[tuple[int, int]]]:
    """What replay drew at each step, as (prompt index, step of storing); empty without replay."""
    lines = read_lines(folder / "records" / "replay.jsonl")
    return {line["step"]: [(index, at) for draw in line["drawn"] for index, at in draw] for line in lines}


if __name__ == "__main__":
    main()
