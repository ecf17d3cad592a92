"""Checks a configuration without running it: python -m recipe.rerule.check {stage1,stage2} [overrides].

The same checks as before a run, of settings, model, rows and tokens, on a machine without an accelerator.
`python -m recipe.rerule.check install` checks what is installed (`installation`), so imports are late here.
Exit codes: 0 nothing wrong, 2 otherwise, with one line that says what.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from recipe.rerule import process

if TYPE_CHECKING:
    from omegaconf import DictConfig

PROGRAM = "python -m recipe.rerule.check"
_USAGE = f"usage: {PROGRAM} {{stage1,stage2,install}} [KEY=VALUE ...] [--help]"
_HELP = f"""{_USAGE}

Makes all checks of a training command and starts nothing. It checks settings, run folder, model, rows, and
the tokens of every row. It needs no accelerator. An error is one line, with exit code 2. A setting that is
allowed but probably not meant is a line that begins with "warning:". For a LoRA adapter it prints the memory
that a device is computed to need. Give the KEY=VALUE of the training command:

  {PROGRAM} stage1 ...   as python -m recipe.rerule.sft ...
  {PROGRAM} stage2 ...   as python -m recipe.rerule.main ...

"{PROGRAM} stage2 --help" lists the settings. "{PROGRAM} install" names each package that is
missing, too old, or built for another torch.

Example:
  {PROGRAM} stage2 experiment=tiny actor_rollout_ref.model.path=MODEL \\
      data.train_files=DIR/train.parquet data.val_files=DIR/val.parquet"""


def command() -> None:
    """Check what the command line describes."""
    with process.stoppable():
        _check()


def _check() -> None:
    stages = {"stage1": _stage1, "stage2": _stage2, "install": _install}
    stage = sys.argv[1] if len(sys.argv) > 1 else ""
    if stage in ("--help", "-h"):
        print(_HELP)
    elif stage in stages:
        del sys.argv[1]
        stages[stage]()
    else:
        print(_USAGE, file=sys.stderr)
        sys.exit(2)


def _install() -> None:
    from recipe.rerule.training import installation

    installation.command(sys.argv[1:])


def _stage1() -> None:
    from recipe.rerule.training import entry

    entry.run_task(_check_stage1, entry.STAGE1, f"{PROGRAM} stage1")


def _stage2() -> None:
    from recipe.rerule.training import entry

    entry.run_task(_check_stage2, entry.STAGE2, f"{PROGRAM} stage2")


def _check_stage1(config: DictConfig) -> None:
    from recipe.rerule import io, sft
    from recipe.rerule.training import entry, learning, memory, settings

    with io.one_line(ValueError, code=2):
        entry.prepare(config, *sft.REQUIRED, require_accelerator=False)
        settings.check_stage1(config)
    print(f"stage 1: {learning.plan(config)}, learning rate {config.optim.lr:g}")
    for line in memory.said(config, memory.of_stage1(config)):
        print(line)
    print("stage 1: nothing wrong")


def _check_stage2(config: DictConfig) -> None:
    from recipe.rerule import io, main
    from recipe.rerule.training import entry, learning, memory, settings

    with io.one_line(ValueError, code=2):
        entry.prepare(config, *main.REQUIRED, require_accelerator=False)
        settings.check(config)
    rate = config.actor_rollout_ref.actor.optim.lr
    print(f"stage 2: {learning.plan(config)}, learning rate {rate:g}{_replay(config)}")
    for line in memory.said(config, memory.of_stage2(config)):
        print(line)
    print("stage 2: nothing wrong")


def _replay(config: DictConfig) -> str:
    if not config.replay.enable:
        return ""
    return f"; replay after step {config.replay.warmup_steps}, from {config.replay.min_groups} groups on"


if __name__ == "__main__":
    command()
