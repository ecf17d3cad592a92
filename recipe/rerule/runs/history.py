"""Training records of stage-2 runs: <run>/config.yaml, and metrics and prompts in <run>/records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, Field

from recipe.rerule.io import parse_json
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


@dataclass(frozen=True)
class Visit:
    """One rollout group: `mean_reward` of a prompt's n responses at `step`.

    `tokens` are those of all its rows, prompt and response; None where the run did not record them.
    """

    step: int
    mean_reward: float
    tokens: int | None = None


@dataclass(frozen=True)
class Prompt:
    """A training or validation prompt followed over a run; `visits` are in order of step.

    Attributes:
        index: stable prompt index of the data contract.
        side: "forget" or "retain".
        mode: "qa", "fb", ...
        subject: whom it is about.
        query: the question; "" of a training prompt.
    """

    index: int
    side: str
    mode: str
    subject: str
    visits: tuple[Visit, ...]
    query: str = ""


@dataclass(frozen=True)
class Run:
    """The records of one run under the name it has in the report.

    Attributes:
        name: as given on the command line.
        steps: the training steps recorded, ascending.
        metrics: at each of `steps`, the metrics logged then.
        prompts: by prompt index; empty where the run kept no prompt records.
        folder: where it was read from.
        config: its resolved configuration; empty where the run kept none.
        validations: at each step where it validated, what verl logged of that; step 0 is before training.
        validated: the validation prompts by index; empty where the run kept no records of them.
    """

    name: str
    steps: tuple[int, ...]
    metrics: tuple[dict[str, float], ...]
    prompts: dict[int, Prompt]
    folder: Path = Path()
    config: dict[str, Any] = field(default_factory=dict)
    validations: dict[int, dict[str, float]] = field(default_factory=dict)
    validated: dict[int, Prompt] = field(default_factory=dict)

    def series(self, metric: str) -> list[float]:
        """The metric at each of `steps`, NaN where it was not logged."""
        return [at_step.get(metric, NAN) for at_step in self.metrics]

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

    Raises:
        ValueError: no metrics.jsonl, no step in it, or a line that is not such a record.
    """
    try:
        logged = _logged(folder)
        metrics = _trained(folder, logged)
    except ValueError as error:
        raise ValueError(f"run {name}: {error}") from error
    return Run(
        name,
        tuple(metrics),
        tuple(metrics.values()),
        _followed(folder / "records" / "prompts.jsonl"),
        folder,
        config=read_config(folder / "config.yaml"),
        validations={step: found for step, data in logged.items() if (found := _of_validation(data))},
        validated=_followed(folder / "records" / "validation.jsonl"),
    )


def read_config(file: Path) -> dict[str, Any]:
    """A run's configuration, {} where it kept none. Raises ValueError where the file is no YAML mapping."""
    if not file.is_file():
        return {}
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not YAML: {str(error).splitlines()[0]}") from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ValueError(f"{file} is not YAML that can be read ({type(error).__name__})") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file} is no configuration of a run")
    return config


def read_metrics(folder: Path) -> dict[int, dict[str, float]]:
    """Metrics of a run folder by training step, ascending; where a resumed run overlaps, the later ones.

    Raises:
        ValueError: no metrics.jsonl, no step in it, or a line that is not such a record.
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


def _followed(file: Path) -> dict[int, Prompt]:
    """The prompts of a file by index, each with all its visits; {} where there is no file."""
    prompts: dict[int, Prompt] = {}
    for record in _by_step(file, _Prompts).values() if file.is_file() else ():
        for group in record.prompts:
            visit = Visit(record.step, mean(group.rewards), group.tokens)
            earlier = prompts[group.index].visits if group.index in prompts else ()
            told = (group.index, group.type, group.mode, group.subject)
            prompts[group.index] = Prompt(*told, (*earlier, visit), group.query)
    return prompts


def replay_start_step(run: Run) -> int | None:
    """The first step with a replay update, or None where the run made none."""
    updates = run.series("replay/updates")
    return next((step for step, count in zip(run.steps, updates, strict=True) if count > 0), None)


def replay_starts(runs: Sequence[Run]) -> dict[str, int]:
    """{run: step of its first replay update}, of the runs that make one."""
    return {run.name: start for run in runs if (start := replay_start_step(run)) is not None}


def early_reward(prompt: Prompt) -> float:
    """Mean reward over the first third of the prompt's visits, rounded up to a whole visit."""
    third = -(-len(prompt.visits) // 3)
    return mean([visit.mean_reward for visit in prompt.visits[:third]])


def hardest_prompts(of_runs: Sequence[Mapping[int, Prompt]], count: int) -> list[int]:
    """Indices of the `count` prompts that earned least at first, hardest first, equal ones by index.

    Of several runs, each with its prompts by index, only prompts that all of them have count, by the mean of
    their early rewards over the runs: the same prompts for all runs, favouring none.
    """
    shared = set.intersection(*map(set, of_runs))
    hardness = {index: mean([early_reward(prompts[index]) for prompts in of_runs]) for index in shared}
    return sorted(shared, key=lambda index: (hardness[index], index))[:count]


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one value."""
    return sum(values) / len(values)
