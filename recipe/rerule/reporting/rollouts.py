"""Different answers of one training step to one prompt, from <run>/records/rollouts/N.jsonl."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recipe.rerule.io import is_finite
from recipe.rerule.reporting.document import Heading, Row, Table, number_cell
from recipe.rerule.reporting.evaluations import read_lines
from recipe.rerule.runs.history import Run, replay_start_step

GROUPS_PER_SIDE = 2


@dataclass(frozen=True)
class RolloutGroup:
    """All responses of one step to one prompt.

    Attributes:
        index: prompt index.
        step: training step.
        side: "forget" or "retain".
        mode: "qa", "fb", ...
        prompt: the question.
        answers: (response, reward), in the order recorded.
    """

    index: int
    step: int
    side: str
    mode: str
    prompt: str
    answers: tuple[tuple[str, float], ...]

    @property
    def spread(self) -> float:
        """Highest less lowest reward."""
        rewards = [reward for _, reward in self.answers]
        return max(rewards) - min(rewards)

    @property
    def variety(self) -> int:
        """How many different answers there are."""
        return len({text for text, _ in self.answers})


def answers_tables(runs: Sequence[Run]) -> list[Table]:
    """A table a shown group, for each run that kept its rollouts' text."""
    return [
        _answers_table(run, group, f"answers_{number}_{re.sub(r'[^A-Za-z0-9]+', '_', run.name)}_{place}")
        for number, run in enumerate(runs, start=1)
        for place, group in enumerate(telling_groups(run), start=1)
    ]


def telling_groups(run: Run) -> list[RolloutGroup]:
    """At most two groups a side of one step: widest spread of rewards, then most answers, then lowest index.

    Groups whose answers are all one are left out. The step is that of the run's first replay update; of a run
    without one, the middle of its recorded steps.
    Raises ValueError for a bad record.
    """
    steps = rollout_steps(run)
    if not steps:
        return []
    groups = read_groups(run, _telling_step(run, steps))
    order = sorted(groups, key=lambda group: (-group.spread, -group.variety, group.index))
    by_side = [[group for group in order if group.side == side] for side in ("forget", "retain")]
    return [group for of_side in by_side for group in of_side[:GROUPS_PER_SIDE] if group.variety > 1]


def rollout_steps(run: Run) -> list[int]:
    """Steps with recorded rollouts, ascending."""
    folder = run.folder / "records" / "rollouts"
    return sorted(int(file.stem) for file in folder.glob("*.jsonl") if file.stem.isdigit())


def _telling_step(run: Run, steps: Sequence[int]) -> int:
    """The recorded step at or after the first replay update, else the middle one."""
    start = replay_start_step(run)
    after = [step for step in steps if start is not None and step >= start]
    return after[0] if after else steps[len(steps) // 2]


def read_groups(run: Run, step: int) -> list[RolloutGroup]:
    """The rollout groups of one step, in order of first appearance.

    Raises:
        ValueError: a line that is not such a record.
    """
    file = run.folder / "records" / "rollouts" / f"{step}.jsonl"
    found: dict[int, RolloutGroup] = {}
    for number, record in enumerate(read_lines(file), start=1):
        try:
            index, answer = int(record["index"]), (str(record["response"]), _reward(record["reward"]))
            group = found.get(index) or RolloutGroup(
                index, step, str(record["side"]), str(record["mode"]), str(record["prompt"]), ()
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{file}: line {number} is not a record of a rollout") from error
        found[index] = RolloutGroup(
            index, step, group.side, group.mode, group.prompt, (*group.answers, answer)
        )
    return list(found.values())


def _reward(value: Any) -> float:
    if not is_finite(value):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _answers_table(run: Run, group: RolloutGroup, name: str) -> Table:
    """Different answers, best rewarded first, each with its reward and how often it was given."""
    counts = Counter(group.answers)
    rows = [
        Row(text.strip() or "(empty)", (number_cell(reward, "g"), number_cell(count, "d")))
        for (text, reward), count in sorted(counts.items(), key=lambda item: (-item[0][1], -item[1]))
    ]
    return Table(
        name,
        f"{run.name}, step {group.step}: {group.prompt}",
        "answer",
        (Heading("reward"), Heading("times")),
        tuple(rows),
        f"{group.side}, {group.mode}, prompt #{group.index}: {len(group.answers)} answers sampled from the "
        "same policy to the same prompt.",
    )
