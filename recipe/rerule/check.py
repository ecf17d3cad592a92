"""Checks a configuration without running it: python -m recipe.rerule.check {stage1,stage2} [overrides].

The same checks as before a run, of settings, model, rows and tokens, on a machine without an accelerator.
Exit codes: 0 nothing wrong, 2 otherwise, with one line that says what.
"""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from recipe.rerule import entry, errors, main, sft


def command() -> None:
    """Check what the command line describes."""
    stages = {"stage1": _stage1, "stage2": _stage2}
    if len(sys.argv) < 2 or sys.argv[1] not in stages:
        print("usage: python -m recipe.rerule.check {stage1,stage2} [hydra overrides]", file=sys.stderr)
        sys.exit(2)
    stages[sys.argv.pop(1)]()


def _stage1() -> None:
    entry.run_task(_check_stage1, config_path="config/stage1", config_name="sft_trainer")


def _stage2() -> None:
    entry.run_task(_check_stage2, config_path="config", config_name="rerule_trainer")


def _check_stage1(config: DictConfig) -> None:
    from recipe.rerule import learning, settings

    with errors.one_line(ValueError, code=2):
        entry.prepare(config, *sft.REQUIRED, require_accelerator=False)
        settings.check_stage1(config)
    print(f"stage 1: {learning.plan(config)}, learning rate {config.optim.lr:g}")
    print("stage 1: nothing wrong")


def _check_stage2(config: DictConfig) -> None:
    from recipe.rerule import learning, settings

    with errors.one_line(ValueError, code=2):
        entry.prepare(config, *main.REQUIRED, require_accelerator=False)
        settings.check(config)
    rate = config.actor_rollout_ref.actor.optim.lr
    print(f"stage 2: {learning.plan(config)}, learning rate {rate:g}{_replay(config)}")
    print("stage 2: nothing wrong")


def _replay(config: DictConfig) -> str:
    if not config.replay.enable:
        return ""
    return f"; replay after step {config.replay.warmup_steps}, from {config.replay.min_groups} groups on"


if __name__ == "__main__":
    command()
