"""The command of `recipe.rerule.minimal`: options, what it starts from, a line a step, the table at the end.

Exit codes: 0 finished, 1 training failed, 2 an option, the model or the data were refused before training,
130 and 143 stopped by SIGINT and SIGTERM.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from data_prep.contract import Row, read_rows
from recipe.rerule import io, process
from recipe.rerule.minimal import TINY, Metrics, Policy, Run, Settings, batches, rewards_of
from recipe.rerule.process import ArgumentParser, positive
from recipe.rerule.training.prompts import require_chat_template

MOST_MEASURED = 600
"""Prompts that the table is about at most, drawn at random from more."""
ANSWERED_AT_ONCE = 256
MEASURES = {"recall": "rouge", "refused": "refused", "reward": "score"}
"""Columns of the table, by the reward function's names."""

_DESCRIPTION = """\
Stage 2 of RULE and ReRULE in one process, for small models; recipe/rerule/minimal.py is all of the method.
Without --model and --data it makes the embedded world and its stage-1 model first."""
_EXAMPLES = """\
examples:
  python -m recipe.rerule.minimal
      ReRULE on the embedded world, which is kept in outputs/minimal for the next time
  python -m recipe.rerule.minimal --no-replay
      RULE on the same
  python -m recipe.rerule.minimal --model outputs/quickstart/stage1/model \\
      --data outputs/quickstart/world/train.parquet --probes outputs/quickstart/world/probes.parquet
      on the quickstart's stage-1 model
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print what the model answered before and after."""
    with process.stoppable():
        options = _parser().parse_args(arguments)
        with io.one_line(ValueError, OSError, code=2):
            run, train, probes = prepared(options)
        with io.one_line(Exception, code=1):
            print(f"greedy answers to {len(probes)} prompts before training ...", flush=True)
            before = measured(run.policy, probes)
            train_all(run, train)
            print_table(before, measured(run.policy, probes))


def prepared(options: argparse.Namespace) -> tuple[Run, list[Row], list[Row]]:
    """The run before its first step, the rows it trains on and those that are measured.

    Raises:
        ValueError, OSError: the options, a file or the model cannot be used.
    """
    if (options.model is None) != (options.data is None):
        raise ValueError("--model and --data go together: give both, or neither for the embedded world")
    model, data, probes = options.model, options.data, options.probes
    if model is None:
        world, model = made_world(options.world)
        data, probes = world / "train.parquet", probes or world / "probes.parquet"
    rows = training_rows(data, options.prompts)
    asked = read_rows(probes) if probes else rows
    if len(asked) > MOST_MEASURED:
        asked = random.Random(0).sample(asked, MOST_MEASURED)
    return loaded(str(model), options, [*rows, *asked]), rows, asked


def made_world(folder: Path) -> tuple[Path, Path]:
    """The embedded world and its stage-1 model under `folder`, made unless they are there."""
    from data_prep.world import stage1
    from data_prep.world.config import WorldConfig

    if not (folder / "stage1").exists():
        print(f"making the embedded world and its stage-1 model in {folder}, once ...", flush=True)
    return stage1.prepare(folder, WorldConfig(), stage1.Steering())


def training_rows(path: Path, prompts: int) -> list[Row]:
    """The checked rows of a file of stage 2, enough for a step of `prompts`."""
    from recipe.rerule.preflight import rows as checks

    rows = read_rows(path)
    files = [(str(path), rows)]
    checks.refuse_probes(files)
    for line in (*checks.stage2_warnings(files), *checks.warnings(files, [])):
        io.warn(line)
    if len(rows) < prompts:
        raise ValueError(f"{path} holds {len(rows)} rows, and a step takes {prompts}; lower --prompts")
    return rows


def loaded(model: str, options: argparse.Namespace, rows: Sequence[Row]) -> Run:
    """A run from the model in a folder, or of a name on the Hub, that can be asked these rows."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    from recipe.rerule.runs import model_checks

    model_checks.check(model, "--model")
    tokenizer = tokenizer_of(model, rows)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval().to(options.device)
    # A folder's own may cut or bend the distribution, and the samples would not be the policy's.
    policy.generation_config = GenerationConfig()
    torch.manual_seed(options.seed)
    return Run(policy, copy.deepcopy(policy).requires_grad_(False), tokenizer, settings_of(options))


def tokenizer_of(model: str, rows: Sequence[Row]) -> Any:
    """The model's tokenizer, which can write and end these rows' prompts."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        reason = io.describe(error)[:200]
        raise ValueError(f"--model is {model}, whose tokenizer cannot be read: {reason}") from error
    if any(not row["extra_info"]["raw"] for row in rows):
        require_chat_template(tokenizer)
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of {model} has no end-of-sequence token, which ends a response")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def settings_of(options: argparse.Namespace) -> Settings:
    """The options as settings; the sizes of the buffer and of a draw grow with the prompts of a step."""
    factor = options.prompts / Settings.prompts
    sizes = ("threshold_window", "min_groups", "capacity", "groups_per_update")
    replay = replace(
        TINY,
        enable=options.replay,
        warmup_steps=options.warmup_steps,
        seed=options.seed,
        **{name: round(getattr(TINY, name) * factor) for name in sizes},
    )
    names = ("steps", "prompts", "rollouts", "response_limit", "learning_rate", "seed")
    return Settings(**{name: getattr(options, name) for name in names}, replay=replay)


def train_all(run: Run, rows: Sequence[Row]) -> None:
    """Every step of the run, with a line for each."""
    steps, source = run.settings.steps, batches(rows, run.settings.prompts, run.settings.seed)
    for step in range(1, steps + 1):
        start = time.perf_counter()
        metrics, _ = run.step(next(source), step)
        print(progress(step, steps, metrics, time.perf_counter() - start), flush=True)


def progress(step: int, steps: int, metrics: Mapping[str, float], seconds: float) -> str:
    """The line of a step."""
    rewards = [f"{name} {metrics[name]:.3f}" for name in sorted(metrics) if name.startswith("reward/")]
    replayed = "replay/effective_sample_size"
    extra = [f"{replayed} {metrics[replayed]:.3f}"] if replayed in metrics else []
    return f"step {step}/{steps}  " + "  ".join([*rewards, *extra, f"{seconds:.1f} s"])


def measured(policy: Policy, rows: Sequence[Row]) -> dict[str, Metrics]:
    """Mean MEASURES of one greedy answer to each row, by section."""
    found: dict[str, list[Row]] = {}
    for first in range(0, len(rows), ANSWERED_AT_ONCE):
        part = rows[first : first + ANSWERED_AT_ONCE]
        texts = policy.texts(policy.respond(part, 1, greedy=True))
        for row, answer in zip(part, rewards_of(texts, part, {}), strict=True):
            found.setdefault(row["extra_info"]["section"], []).append(answer)
    return {
        section: {name: sum(a[part] for a in answers) / len(answers) for name, part in MEASURES.items()}
        for section, answers in sorted(found.items())
    }


def print_table(before: Mapping[str, Metrics], after: Mapping[str, Metrics]) -> None:
    """A section a row: each measure before and after training."""
    print(f"{'before -> after':16}" + "".join(f"{name:>18}" for name in MEASURES))
    for section, values in before.items():
        cells = (f"{values[name]:.3f} -> {after[section][name]:.3f}" for name in MEASURES)
        print(f"{section:16}" + "".join(f"{cell:>18}" for cell in cells))


def device(text: str) -> str:
    """A device that torch can use here, as an option's type."""
    try:
        torch.empty(0, device=text)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise argparse.ArgumentTypeError(f"{text!r} is no device that torch can use here") from None
    return text


def rate(text: str) -> float:
    """A number above 0, as an option's type."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def rollouts(text: str) -> int:
    """Responses of a group, as an option's type: an advantage compares them, so there are at least two."""
    if positive(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is below 2: an advantage compares responses to a prompt")
    return int(text)


def seed(text: str) -> int:
    """A seed, as an option's type."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at most 18 digits")
    return int(text)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m recipe.rerule.minimal", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    file: dict[str, Any] = {"type": Path, "metavar": "FILE"}
    parser.add_argument("--model", metavar="MODEL", help="the stage-1 model: a Hugging Face folder or name")
    parser.add_argument("--data", **file, help="its train.parquet of data_prep (data.train_files)")
    parser.add_argument("--probes", **file, help="rows for the table (default: the rows it trains on)")
    parser.add_argument(
        "--world",
        type=Path,
        metavar="FOLDER",
        default=Path("outputs/minimal"),
        help="where the embedded world is made, or is, without --model (default: %(default)s)",
    )
    parser.add_argument(
        "--replay", action=argparse.BooleanOptionalAction, default=True, help="ReRULE (default), or RULE"
    )
    parser.add_argument("--device", type=device, default="cpu", help="cpu, cuda, cuda:1 (default: cpu)")
    numbers = {
        "steps": (positive, "training steps"),
        "warmup_steps": (positive, "steps before the first replay (replay.warmup_steps)"),
        "prompts": (positive, "prompts a step"),
        "rollouts": (rollouts, "responses a prompt"),
        "response_limit": (positive, "most tokens of a response"),
        "learning_rate": (rate, "of AdamW"),
        "seed": (seed, "of data order, responses and draws"),
    }
    defaults = vars(Settings()) | {"warmup_steps": TINY.warmup_steps}
    for name, (kind, meaning) in numbers.items():
        text = f"{meaning} (default: %(default)s)"
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=kind, metavar="N", default=defaults[name], help=text)
    return parser
