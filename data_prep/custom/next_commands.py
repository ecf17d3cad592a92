"""The commands that follow `data_prep custom`: both stages, evaluation, attack and report, ready to paste."""

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
_HINTS = (
    "# Half of each batch of stage 1 is the model's own right answers to retain prompts, and stage 1 keeps",
    "# the step that is the best start of stage 2. Stage 2 takes half of each batch from each side.",
    "# A prompt may have 512 tokens and a response 1024. For a model that reads fewer than 1536 tokens,",
    "# lower data.max_prompt_length and data.max_response_length in stage 2.",
)
_STOP = "data.stop=$'[\"\\n\"]'"
_NO_GPU = "# No GPU is seen here, so platform=cpu; with N GPUs give trainer.n_gpus_per_node=N in its place."
_ATTACKS = ("prefill", "samples", "quantise_4", "relearn_forget_half")
_LEAST_ATTACKED = 2
"""Forget probes that an attack needs: relearning divides them into two halves."""
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
        forget_probes: held-out questions to forget.
    """

    data: Path
    title: str
    raw: bool
    stage1_rows: int
    reward: RewardConfig
    gpus: int
    forget_probes: int

    @property
    def results(self) -> Path:
        """Where the runs go."""
        return Path("outputs", self.data.name)

    @property
    def platform(self) -> list[str]:
        """Options of the commands that ask models."""
        return [] if self.gpus else ["--platform cpu"]

    @property
    def attacked(self) -> bool:
        """Whether the probes are enough for an attack."""
        return self.forget_probes >= _LEAST_ATTACKED


def commands(after: Next) -> str:
    """The commands, with what must be known to run them as comments."""
    lines = ["# Next; experiment=custom takes its sizes from the number of rows (docs/own_data.md)."]
    lines += [*_HINTS, *([] if after.gpus else [_NO_GPU])]
    lines.append("MODEL=path/of/the/model/that/is/to/forget")
    attack = [_attack(after)] if after.attacked else []
    made = (_stage1(after), _stage2(after), _evaluate(after), *attack, _report(after))
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
        *([_STOP] if after.raw else []),
        *_reward(after.reward, "signal.reward_kwargs"),
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
        *_reward(after.reward, "reward.custom_reward_function.reward_kwargs"),
    ]


def _evaluate(after: Next) -> list[str]:
    return [
        "python -m recipe.rerule.evaluate model",
        *after.platform,
        f"--probes {_path(after.data / 'probes.parquet')}",
        f'--model base="{_MODEL}"',
        f"--model stage1={_path(after.results / 'stage1' / 'model')}",
        f"--model rerule={_path(after.results / 'rerule')}",
        f"--out {_path(after.results / 'evaluation')}",
    ]


def _attack(after: Next) -> list[str]:
    return [
        "python -m recipe.rerule.evaluate attack",
        *after.platform,
        f"--probes {_path(after.data / 'probes.parquet')}",
        f"--train {_path(after.data / 'train.parquet')}",
        f'--model original="{_MODEL}"',
        f"--model rerule={_path(after.results / 'rerule')}",
        f"--attacks {' '.join(_ATTACKS)}",
        f"--out {_path(after.results / 'attacks')}",
    ]


def _report(after: Next) -> list[str]:
    return [
        "python -m recipe.rerule.report",
        f"--title {shlex.quote(after.title)}",
        f"--results {_path(after.results / 'evaluation')}",
        *([f"--attacks {_path(after.results / 'attacks')}"] if after.attacked else []),
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
        yield _STOP


def _reward(reward: RewardConfig, key: str) -> Iterator[str]:
    """The reward that the rows were checked for, where it is not the default; `key` of its options."""
    usual = RewardConfig()
    for name in ("rouge", "gamma", "refusal_phrases"):
        if (value := getattr(reward, name)) != getattr(usual, name):
            yield _override(f"{key}.{name}", value)


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
