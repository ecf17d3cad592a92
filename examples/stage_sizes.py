"""What the stages of a dry run take.

As comments: of each stage the parameters of the model, the memory of a device and the disk as
`python -m recipe.rerule.check` computes them, and the hours that the paper gives. Of the model only
config.json is read, in its folder or in the cache of Hugging Face's library; nothing is downloaded. Rows and
other models need not be made yet. Stages that take the same, of one target or several, are shown together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import huggingface_hub.constants
from omegaconf import DictConfig, OmegaConf

from recipe.rerule import schema
from recipe.rerule.evaluation.registry import published
from recipe.rerule.preflight import disk
from recipe.rerule.training import entry, memory, sizes
from recipe.rerule.unlearning.method import Method

COMMANDS = {
    "recipe.rerule.sft": entry.STAGE1,
    "recipe.rerule.main": entry.STAGE2,
    "recipe.rerule.unlearn": entry.UNLEARN,
}
FOLDER = "trainer.default_local_dir="
AT_THE_END = (-1, 1_000_000)
"""Values of trainer.save_freq with which a run of ours has one checkpoint, whatever its number of rows."""
PUBLISHED = {"rule": "RULE", "rerule": "ReRULE"}
"""Arms of which the paper gives hours, with their names there."""


def told(benchmark: str, model: str, commands: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines; `commands`: the words after `python -m`. Raises ValueError where a setting is wrong."""
    commands = [command for command in commands if command[0] in COMMANDS]
    times = Counter(map(stage_of, commands))
    of_stage = {stage_of(command): command for command in commands}
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    known = bool(sizes.model_config(model))
    alike: dict[tuple[str, ...], list[str]] = {}  # what stages take: their names
    checkpoints: dict[str, disk.Checkpoints | None] = {}
    hours: dict[str, str] = {}
    for stage in times:
        config = composed(of_stage[stage], model)
        checkpoints[stage] = written(config) if known else None
        alike.setdefault(tuple(taken(config, checkpoints[stage])) if known else (), []).append(stage)
        hours[stage] = published_hours(stage, benchmark, config)
    if not known:
        reason = f"{model} and the cache of the Hub have no config.json" if model else "it is not made yet"
        yield f"# size of the model, memory and disk: not known, because {reason}"
    for lines, stages in alike.items():
        yield "# " + ", ".join(f"{one} ({times[one]} times)" if times[one] > 1 else one for one in stages)
        for line in (*lines, *(f"hours of {stage}: {hours[stage]}" for stage in stages)):
            yield f"#   {line}"
    if all(one and one.parts for one in checkpoints.values()):
        most = sum(times[stage] * one.most for stage, one in checkpoints.items() if one)
        yield f"# checkpoints and models of all stages: up to {most / memory.GB:,.1f} GB"
    yield "# evaluation and report: not known"


def stage_of(command: Sequence[str]) -> str:
    """The name of its run folder, such as stage1 or rerule."""
    (folder,) = (word.removeprefix(FOLDER) for word in command if word.startswith(FOLDER))
    return Path(folder.strip("'")).name


def composed(command: Sequence[str], model: str) -> DictConfig:
    """The resolved settings of MODULE SETTING... for the model. Raises SettingsError."""
    config = entry.composed(COMMANDS[command[0]], command[1:])
    stage2 = "actor_rollout_ref" in config
    OmegaConf.update(config, "actor_rollout_ref.model.path" if stage2 else "model.path", model)
    OmegaConf.resolve(config)
    return config


def taken(config: DictConfig, checkpoints: disk.Checkpoints | None) -> Iterator[str]:
    """Parameters, memory and disk, in words."""
    if (model := memory.model_sizes(config)) is not None:
        yield f"model: {model.base / 1e9:.3g} billion parameters"
    yield from memory.said(config)
    if (others := uncounted(config)) is not None:
        yield f"memory: {others} not counted"
    unknown = "not known, because trainer.save_freq gives a checkpoint every so many steps"
    yield f"disk: {unknown if checkpoints is None else checkpoints}"


def uncounted(config: DictConfig) -> str | None:
    """Models on the devices that the arithmetic of memory leaves out."""
    if "method" not in config:
        return None
    method = Method(**schema.plain(config, "method"))
    return "frozen models are" if method.referenced or method.reinforced else None


def written(config: DictConfig) -> disk.Checkpoints | None:
    """The checkpoints of the run; None where their number is not known."""
    if config.trainer.save_freq in AT_THE_END:
        return disk.of_run(config, steps=2)  # or any other number above one
    try:
        return disk.of_run(config, config.trainer.total_training_steps or sizes.planned_steps(config))
    except ValueError:  # rows that are not made yet
        return None


def published_hours(stage: str, benchmark: str, config: DictConfig) -> str:
    """As the paper gives them, for all rows of the benchmark; there are none of a machine without a GPU."""
    for row in published(benchmark).cost if config.platform.name == "gpu" else ():
        if row.name.rpartition(", ")[2] == PUBLISHED.get(stage):
            hours = row.values["hours with validation"]
            return f"{hours} for the whole benchmark, from the paper ({row.source})"
    return "not known"
