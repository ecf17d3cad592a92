"""Stage 2: `python -m recipe.rerule.main [hydra overrides]`.

Exit codes: 0 finished, 1 the run failed, 2 the settings or data were refused before any worker started.
"""

from __future__ import annotations

import os
import sys

from omegaconf import DictConfig

from recipe.rerule import entry, errors
from recipe.rerule.keys import usage

REQUIRED = ("actor_rollout_ref.model.path", "data.train_files", "data.val_files")


def main() -> None:
    """Compose the configuration, check it, run; every failure ends in one line on stderr."""
    entry.run_task(_check_and_run, usage.STAGE2)


def _check_and_run(config: DictConfig) -> None:
    from recipe.rerule import settings

    with errors.one_line(ValueError, code=2):
        entry.prepare(config, *REQUIRED, require_accelerator=config.platform.require_accelerator)
        settings.check(config)
    with errors.one_line(Exception, code=1):
        run(config)


def run(config: DictConfig) -> None:
    """Run stage 2 with a checked configuration; returns when the last step is saved.

    Raises:
        ray.exceptions.RayError: a worker failed; the cause says which and why.
    """
    import ray
    from verl.trainer.main_ppo import run_ppo

    from recipe.rerule import checkpoints, learning
    from recipe.rerule.runner import ReRULETaskRunner

    folder = config.trainer.default_local_dir
    before = checkpoints.newest_complete(folder)
    try:
        run_ppo(config, task_runner_class=ray.remote(ReRULETaskRunner))
    finally:
        ray.shutdown()
    if before is not None and checkpoints.newest_complete(folder) == before:
        print(f"{folder} already holds the run's last step", file=sys.stderr)
    print(f"stage 2 finished: {os.path.abspath(folder)}", file=sys.stderr)
    learning.after_stage2(config)


if __name__ == "__main__":
    main()
