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


def command() -> None:
    """Check what the command line describes."""
    stages = {"stage1": _stage1, "stage2": _stage2, "install": _install}
    if len(sys.argv) < 2 or sys.argv[1] not in stages:
        print("usage: python -m recipe.rerule.check {stage1,stage2,install} [overrides]", file=sys.stderr)
        sys.exit(2)
    stages[sys.argv.pop(1)]()


def _install() -> None:
    from recipe.rerule import installation

    installation.command(sys.argv[1:])


def _stage1() -> None:
    from recipe.rerule import entry

    entry.run_task(_check_stage1, config_path="config/stage1", config_name="sft_trainer")


def _stage2() -> None:
    from recipe.rerule import entry

    entry.run_task(_check_stage2, config_path="config", config_name="rerule_trainer")


def _check_stage1(config: DictConfig) -> None:
    from recipe.rerule import entry, errors, settings, sft

    with errors.one_line(ValueError, code=2):
        entry.prepare(config, *sft.REQUIRED, require_accelerator=False)
        settings.check_stage1(config)
    print("stage 1: nothing wrong")


def _check_stage2(config: DictConfig) -> None:
    from recipe.rerule import entry, errors, main, settings

    with errors.one_line(ValueError, code=2):
        entry.prepare(config, *main.REQUIRED, require_accelerator=False)
        settings.check(config)
    print("stage 2: nothing wrong")


if __name__ == "__main__":
    command()
