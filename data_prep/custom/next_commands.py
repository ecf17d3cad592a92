"""The commands that follow `data_prep custom`: stage 1, stage 2, evaluation and report, ready to paste."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reward import RewardConfig

_PLAIN = re.compile(r"[\w./~-]+", re.ASCII)
_MODEL = "${MODEL}"
_RATES = (
    "# The learning rates are for models of 1 to 10 billion parameters. For a model of a few million add",
    "# optim.lr=2e-4 to stage 1 and actor_rollout_ref.actor.optim.lr=2e-4 to stage 2.",
)
_NO_GPU = "# No GPU is seen here, so platform=cpu; with N GPUs give trainer.n_gpus_per_node=N in its place."
_MOST_GPUS = 8
_DEVICES = Path("/dev")


@dataclass(frozen=True)
class Next:
    """What the commands depend on.

    Attributes:
        data: the folder that was made.
        title: the name of the data in the report.
        raw: whether prompts go to a base model without a chat template.
        stage1_rows: rows of sft.parquet.
        reward: what the rows were checked for.
        gpus: how many this machine has.
    """

    data: Path
    title: str
    raw: bool
    stage1_rows: int
    reward: RewardConfig
    gpus: int

    @property
    def results(self) -> Path:
        """Where the runs go."""
        return Path("outputs", self.data.name)


def commands(after: Next) -> str:
    """The commands, with what must be known to run them as comments."""
    lines = ["# Next; experiment=custom takes its sizes from the number of rows (docs/own_data.md)."]
    lines += [*_RATES, *([] if after.gpus else [_NO_GPU])]
    lines.append("MODEL=path/of/the/model/that/is/to/forget")
    made = (_stage1(after), _stage2(after), _evaluate(after), _report(after))
    return "\n".join([*lines, *map(_command, made)])


def gpus_seen() -> int:
    """NVIDIA GPUs of this machine that CUDA_VISIBLE_DEVICES leaves visible; torch is not asked."""
    devices = [path for path in _DEVICES.glob("nvidia*") if path.name[len("nvidia") :].isdigit()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(devices)
    return min(len(devices), len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))


def _stage1(after: Next) -> list[str]:
    return [
        "python -m recipe.rerule.sft experiment=custom",
        *_devices(after, 1 if after.stage1_rows < _MOST_GPUS else _MOST_GPUS),
        f'model.path="{_MODEL}"',
        _override("data.train_files", after.data / "sft.parquet"),
        _override("trainer.default_local_dir", after.results / "stage1"),
    ]


def _stage2(after: Next) -> list[str]:
    return [
        "python -m recipe.rerule.main experiment=custom",
        *_devices(after, _MOST_GPUS),
        _override("actor_rollout_ref.model.path", after.results / "stage1" / "model"),
        _override("data.train_files", after.data / "train.parquet"),
        _override("data.val_files", after.data / "val.parquet"),
        _override("trainer.default_local_dir", after.results / "rerule"),
        *_raw(after),
        *_reward(after.reward),
    ]


def _evaluate(after: Next) -> list[str]:
    return [
        "python -m recipe.rerule.evaluate model",
        *([] if after.gpus else ["--platform cpu"]),
        f"--probes {_path(after.data / 'probes.parquet')}",
        f'--model base="{_MODEL}"',
        f"--model stage1={_path(after.results / 'stage1' / 'model')}",
        f"--model rerule={_path(after.results / 'rerule')}",
        f"--out {_path(after.results / 'evaluation')}",
    ]


def _report(after: Next) -> list[str]:
    return [
        "python -m recipe.rerule.report",
        f"--title {shlex.quote(after.title)}",
        f"--results {_path(after.results / 'evaluation')}",
        f"--run rerule={_path(after.results / 'rerule')}",
        f"--data {_path(after.data)}",
        f"--out {_path(after.results / 'report.html')}",
    ]


def _devices(after: Next, most: int) -> Sequence[str]:
    """A power of two, which any batch of `experiment=custom` can be shared among."""
    if not after.gpus:
        return ["platform=cpu"]
    shared = min(after.gpus, most)
    return [f"trainer.n_gpus_per_node={1 << (shared.bit_length() - 1)}"]


def _raw(after: Next) -> Iterator[str]:
    if after.raw:
        yield "actor_rollout_ref.rollout.agent.default_agent_loop=rerule_single_turn_agent"
        yield "data.stop=$'[\"\\n\"]'"


def _reward(reward: RewardConfig) -> Iterator[str]:
    """The reward that the rows were checked for, where it is not the default."""
    usual = RewardConfig()
    for name in ("rouge", "gamma", "refusal_phrases"):
        if (value := getattr(reward, name)) != getattr(usual, name):
            yield _override(f"reward.custom_reward_function.reward_kwargs.{name}", value)


def _path(path: Path) -> str:
    return shlex.quote(str(path))


def _override(key: str, value: object) -> str:
    """KEY=VALUE for Hydra, which has quotes of its own, then for the shell."""
    text = str(value)
    if not _PLAIN.fullmatch(text):
        escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
        text = f"'{escaped}'"
    return shlex.quote(f"{key}={text}")


def _command(words: Sequence[str]) -> str:
    return " \\\n    ".join(words)
