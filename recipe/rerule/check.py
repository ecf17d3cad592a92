"""Checks a configuration without running it: python -m recipe.rerule.check {stage1,stage2} [overrides].

The same checks as before a run, of settings, model, rows and tokens, on a machine without an accelerator.
`python -m recipe.rerule.check install` checks what is installed (`installation`), so imports are late here.
Exit codes: 0 nothing wrong, 2 otherwise, with one line that says what.
"""

from __future__ import annotations

import sys
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
        command = entry.STAGE1 if stage == "stage1" else entry.STAGE2
        entry.run_task(_report, command, f"{PROGRAM} {stage}")
    else:
        print(_USAGE, file=sys.stderr)
        sys.exit(2)


def _report(config: DictConfig) -> None:
    """Make the checks of a stage, and print what a run of it is planned to be and to take."""
    from recipe.rerule import io, main, sft
    from recipe.rerule.preflight import checks
    from recipe.rerule.training import memory

    is_stage2 = "actor_rollout_ref" in config
    required = main.REQUIRED if is_stage2 else sft.REQUIRED
    with io.one_line(ValueError, code=2):
        checks.prepare(config, *required, require_accelerator=False)
        checks.require(checks.stage2 if is_stage2 else checks.stage1, config)
    stage = "stage 2" if is_stage2 else "stage 1"
    print(f"{stage}: {plan(config)}")
    for line in memory.said(config):
        print(line)
    print(f"{stage}: nothing wrong")


def plan(config: DictConfig) -> str:
    """The sizes of a run of either stage, the learning rate, and when replay starts."""
    from recipe.rerule.training import sizes

    optimizer = config.actor_rollout_ref.actor.optim if "actor_rollout_ref" in config else config.optim
    line = (
        f"{sizes.planned_steps(config)} steps, batch {config.data.train_batch_size}, "
        f"{sizes.planned_rows(config)} rows, at most {config.trainer.total_epochs} epochs, "
        f"learning rate {optimizer.lr:g}"
    )
    if "replay" in config and config.replay.enable:
        replay = config.replay
        line += f"; replay after step {replay.warmup_steps}, from {replay.min_groups} groups on"
    return line


if __name__ == "__main__":
    command()
