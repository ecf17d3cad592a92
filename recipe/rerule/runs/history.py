"""Training records of stage-2 runs: <run>/config.yaml, and metrics and prompts in <run>/records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pandas as pd
from pydantic import BaseModel, Field

from recipe.rerule.io import parse_json
from recipe.rerule.runs.run_folder import read_config
from recipe.rerule.runs.run_log import metrics_files

NAN = float("nan")
_VALIDATION = "val-"
"""How verl's metrics of a validation begin."""
_Whole = Annotated[int, Field(ge=0, le=2**53)]
"""A step, an index or a count: whole numbers that a float, and so a figure's axis, tells apart."""


class _Record(BaseModel, strict=True):
    step: _Whole


Record = TypeVar("Record", bound=_Record)


class _Metrics(_Record):
    """A line of metrics; null stands for no number, and some metrics are flags."""

    data: dict[str, float | bool | None]


class _Group(BaseModel, strict=True):
    """A rollout group of a line of prompts, or the responses to a validation prompt."""

    index: _Whole
    type: str
    mode: str
    subject: str
    rewards: Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)]
    query: str = ""
    prompt_tokens: _Whole | None = None
    response_tokens: list[_Whole] | None = None

    @property
    def tokens(self) -> int | None:
        """Of all rows of the group: the prompt with each response; None where they were not recorded."""
        if self.prompt_tokens is None or self.response_tokens is None:
            return None
        return len(self.response_tokens) * self.prompt_tokens + sum(self.response_tokens)


class _Prompts(_Record):
    prompts: list[_Group]


GROUPS = ["index", "side", "mode", "subject", "query", "step", "mean_reward", "tokens"]
"""Columns of the tables of groups: the prompt (its index of the data contract and labels; the query of
validation prompts alone), the step, the mean reward of its responses, and the tokens of all its rows, prompt
and response, NaN where the run did not record them."""


@dataclass(frozen=True, eq=False)
class Run:
    """The records of one run under the name it has in the report.

    Attributes:
        name: as given on the command line.
        metrics: a row for each training step, ascending, and a column for each metric; NaN where it was not
            logged.
        groups: a row for each rollout group (GROUPS), steps ascending; none where the run kept no records.
        folder: where it was read from.
        config: its resolved configuration; empty where the run kept none.
        validations: what verl logged of validations, as `metrics`; step 0 is before training.
        validated: the validation prompts, as `groups`.
    """

    name: str
    metrics: pd.DataFrame
    groups: pd.DataFrame
    folder: Path = Path()
    config: dict[str, Any] = field(default_factory=dict)
    validations: pd.DataFrame = field(default_factory=pd.DataFrame)
    validated: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=GROUPS))

    @property
    def steps(self) -> list[int]:
        """The training steps recorded, ascending."""
        return [*map(int, self.metrics.index)]

    def logged(self, names: Iterable[str]) -> pd.DataFrame:
        """A row for each step, and a column for each of these metrics; NaN where one was not logged."""
        return self.metrics.reindex(columns=list(names)).astype(float)

    def series(self, metric: str) -> pd.Series[float]:
        """The metric at each step, without the steps at which it was not logged."""
        return self.logged([metric])[metric].dropna()

    def setting(self, key: str) -> Any:
        """The configured value of a dotted key such as "replay.threshold", None where it is not recorded."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    @property
    def storage(self) -> str:
        """What replay stores: "none" (plain RULE), "hard", "random", ...; "not recorded" without a config."""
        if not self.config:
            return "not recorded"
        return str(self.setting("replay.admission")) if self.setting("replay.enable") else "none"


def read_run(name: str, folder: Path) -> Run:
    """Read a run's records.

    A step recorded twice (a run resumed from an earlier checkpoint) counts as recorded last. A last line cut
    short by a kill is left out.

    Raises ValueError: no metrics.jsonl, no step in it, or a line that is not such a record.
    """
    try:
        logged = _logged(folder)
        metrics = _trained(folder, logged)
    except ValueError as error:
        raise ValueError(f"run {name}: {error}") from error
    validations = {step: found for step, data in logged.items() if (found := _of_validation(data))}
    return Run(
        name,
        pd.DataFrame([*metrics.values()], index=[*metrics]),
        _groups(folder / "records" / "prompts.jsonl"),
        folder,
        config=read_config(folder / "config.yaml"),
        validations=pd.DataFrame([*validations.values()], index=[*validations]),
        validated=_groups(folder / "records" / "validation.jsonl"),
    )


def read_metrics(folder: Path) -> dict[int, dict[str, float]]:
    """Metrics of a run folder by training step, ascending; where a resumed run overlaps, the later ones.

    Raises ValueError: no metrics.jsonl, no step in it, or a line that is not such a record.
    """
    return _trained(folder, _logged(folder))


def _trained(folder: Path, logged: dict[int, dict[str, float]]) -> dict[int, dict[str, float]]:
    """The steps that trained, of all that was logged. Raises ValueError where there is none."""
    metrics = {step: data for step, data in logged.items() if not _only_validation(data)}
    if not metrics:
        raise ValueError(f"{metrics_files(folder)[-1]} holds no step; the run ended before its first one")
    return metrics


def _logged(folder: Path) -> dict[int, dict[str, float]]:
    """All that was logged at each step, ascending."""
    files = metrics_files(folder)
    if not files:
        missing = folder / "records" / "metrics.jsonl"
        raise ValueError(f"{missing} does not exist; give the folder of a stage-2 run")
    logged: dict[int, dict[str, float]] = {}
    for step, record in (item for file in files for item in _by_step(file, _Metrics).items()):
        data = {name: NAN if value is None else float(value) for name, value in record.data.items()}
        # With trainer.val_before_train a resumed run logs the step it goes on from again, with that alone.
        logged[step] = logged.get(step, {}) | data if _only_validation(data) else data
    return dict(sorted(logged.items()))


def _of_validation(data: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in data.items() if name.startswith(_VALIDATION)}


def _only_validation(data: dict[str, float]) -> bool:
    return bool(data) and data.keys() == _of_validation(data).keys()


def _by_step(file: Path, kind: type[Record]) -> dict[int, Record]:
    """The records of a file in ascending order of step, the last record of a step winning."""
    found = {}
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            record = kind.model_validate(parse_json(line, nan=True))
            found[record.step] = record
        except ValueError as error:  # pydantic's is one
            # Without a newline after it, the line was being written when the run was killed.
            if number == len(lines):
                break
            raise ValueError(f"{file}: line {number} is not a record of a training step") from error
    return dict(sorted(found.items()))


def _groups(file: Path) -> pd.DataFrame:
    """The groups of a file, steps ascending; none where there is no file."""
    rows = [
        (one.index, one.type, one.mode, one.subject, one.query, record.step, mean(one.rewards), one.tokens)
        for record in (_by_step(file, _Prompts).values() if file.is_file() else ())
        for one in record.prompts
    ]
    return pd.DataFrame(rows, columns=GROUPS).astype({"tokens": float})


def replay_start_step(run: Run) -> int | None:
    """The first step with a replay update, or None where the run made none."""
    updates = run.series("replay/updates")
    return next((int(step) for step in updates.index[updates > 0]), None)


def replay_starts(runs: Sequence[Run]) -> dict[str, int]:
    """{run: step of its first replay update}, of the runs that make one."""
    return {run.name: start for run in runs if (start := replay_start_step(run)) is not None}


def early_rewards(groups: pd.DataFrame) -> pd.Series[float]:
    """By prompt index, the mean reward over the first third of its groups, rounded up to a whole one."""
    of_prompt = groups.groupby("index")["mean_reward"]
    is_early = of_prompt.cumcount() < (of_prompt.transform("size") + 2) // 3
    return groups[is_early].groupby("index")["mean_reward"].mean()


def hardest_prompts(of_runs: Sequence[pd.DataFrame], count: int) -> list[int]:
    """Indices of the `count` prompts that earned least at first, hardest first, equal ones by index.

    Of the groups of several runs only prompts that all of them have count, by the mean of their early rewards
    over the runs: the same prompts for all runs, favouring none.
    """
    early = pd.concat([early_rewards(groups) for groups in of_runs], axis=1, join="inner").mean(axis=1)
    return [int(index) for index in early.sort_index().sort_values(kind="stable").index[:count]]


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one value."""
    return sum(values) / len(values)
