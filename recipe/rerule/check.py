"""Checks a configuration without running it: python -m recipe.rerule.check {stage1,stage2} [overrides].

The same checks as before a run, of settings, model, rows and tokens, on a machine without an accelerator.
`python -m recipe.rerule.check install` checks what is installed (`installation`), so imports are late here.
Exit codes: 0 nothing wrong, 2 otherwise, with one line that says what.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

PROGRAM = "python -m recipe.rerule.check"
_USAGE = f"usage: {PROGRAM} {{stage1,stage2,install}} [KEY=VALUE ...] [--help]"
_HELP = f"""{_USAGE}

Makes all checks of a training command and starts nothing. It checks settings, run folder, model, rows, and
the tokens of every row. It needs no accelerator. An error is one line, with exit code 2. A setting that is
allowed but probably not meant is a line that begins with "warning:". It prints the memory that a device is
computed to need, and what fits which GPUs. Give the KEY=VALUE of the training command:

  {PROGRAM} stage1 ...   as python -m recipe.rerule.sft ...
  {PROGRAM} stage2 ...   as python -m recipe.rerule.main ...

"{PROGRAM} stage2 --help" lists the settings. "{PROGRAM} install" names each package that is
missing, too old, or built for another torch.

Example:
  {PROGRAM} stage2 experiment=tiny actor_rollout_ref.model.path=MODEL \\
      data.train_files=DIR/train.parquet data.val_files=DIR/val.parquet"""


def command() -> None:
    """Check what the command line describes."""
    if sys.argv[1:2] == ["install"]:  # where packages may be missing
        from recipe.rerule.preflight import installation

        return installation.command(sys.argv[2:])
    from recipe.rerule import process

    with process.stoppable():
        _check()


def _check() -> None:
    stage = sys.argv[1] if len(sys.argv) > 1 else ""
    if stage in ("--help", "-h"):
        print(_HELP)
    elif stage in ("stage1", "stage2"):
        from recipe.rerule.training import entry

        del sys.argv[1]
        command, check = (entry.STAGE1, _stage1) if stage == "stage1" else (entry.STAGE2, _stage2)
        entry.run_task(check, command, f"{PROGRAM} {stage}")
    else:
        print(_USAGE, file=sys.stderr)
        sys.exit(2)


def _stage1(config: DictConfig) -> None:
    from recipe.rerule import sft
    from recipe.rerule.preflight import checks

    _report(config, "stage 1", sft.REQUIRED, checks.stage1)


def _stage2(config: DictConfig) -> None:
    from recipe.rerule import main
    from recipe.rerule.preflight import checks

    _report(config, "stage 2", main.REQUIRED, checks.stage2)


def _report(
    config: DictConfig,
    stage: str,
    required: Sequence[str],
    check: Callable[[DictConfig], Iterator[str]],
) -> None:
    from recipe.rerule import io
    from recipe.rerule.preflight import checks
    from recipe.rerule.training import learning, memory

    with io.one_line(ValueError, code=2):
        checks.prepare(config, *required, require_accelerator=False)
        checks.require(check, config)
    optim = config.optim if stage == "stage 1" else config.actor_rollout_ref.actor.optim
    print(f"{stage}: {learning.plan(config)}, learning rate {optim.lr:g}{_replay(config)}")
    for line in memory.said(config):
        print(line)
    print(f"{stage}: nothing wrong")


def _replay(config: DictConfig) -> str:
    if "replay" not in config or not config.replay.enable:
        return ""
    return f"; replay after step {config.replay.warmup_steps}, from {config.replay.min_groups} groups on"


if __name__ == "__main__":
    command()
