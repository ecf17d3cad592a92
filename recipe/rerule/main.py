"""Stage 2: `python -m recipe.rerule.main [hydra overrides]`.

Exit codes: 0 finished, 1 the run failed, 2 the settings or data were refused before any worker started,
130 and 143 stopped by SIGINT and SIGTERM.
"""

from __future__ import annotations

import os
import sys

from omegaconf import DictConfig

from recipe.rerule import io, process
from recipe.rerule.runs import run_folder
from recipe.rerule.training import entry

REQUIRED = ("actor_rollout_ref.model.path", "data.train_files", "data.val_files")


def main() -> None:
    """Compose the configuration, check it, run; every failure ends in one line on stderr."""
    with process.stoppable():
        entry.run_task(_check_and_run, entry.STAGE2)


def _check_and_run(config: DictConfig) -> None:
    from recipe.rerule.preflight import checks, nodes

    with io.one_line(ValueError, code=2):
        checks.prepare(config, *REQUIRED, require_accelerator=config.platform.require_accelerator)
        checks.require(checks.stage2, config)
        nodes.check(config)
    with io.one_line(Exception, code=1), io.one_line(run_folder.BusyError, code=2):
        run(config)


def run(config: DictConfig) -> None:
    """Run stage 2 with a checked configuration; returns when the last step is saved.

    However the run ends, its processes have ended when this returns or raises.

    Raises:
        run_folder.BusyError: another run is writing into the run folder.
        cluster.DeathError: a machine or a process died; the message says which.
        ray.exceptions.RayError: a worker failed; the cause says which and why.
    """
    from verl.trainer.main_ppo import run_ppo

    from recipe.rerule.preflight import identity
    from recipe.rerule.runs import checkpoints
    from recipe.rerule.training import cluster, learning

    folder = config.trainer.default_local_dir
    run_folder.begin(folder, stage=2)
    with run_folder.held(folder), process.stoppable(lambda: _how_to_go_on(folder)):
        run_folder.keep_identity(folder, identity.of_stage2(config))
        before = checkpoints.newest_complete(folder)
        with cluster.of_run(config, _task_runner(config)) as task_runner:
            run_ppo(config, task_runner_class=task_runner)
        trained = not config.trainer.val_only
        if trained and before is not None and checkpoints.newest_complete(folder) == before:
            print(f"{folder} already holds the run's last step", file=sys.stderr)
    print(f"stage 2 finished: {os.path.abspath(folder)}", file=sys.stderr)
    if (best := checkpoints.best(folder)) is not None:
        shares = f"forget refused {best.forget_refused:.0%}, retain right {best.retain_right:.0%}"
        print(f"the best step by validation is {best.step}: {shares}", file=sys.stderr)
    learning.warn_after(config, stage=2)


def _task_runner(config: DictConfig) -> type:
    """The process of a run on verl's V1 trainer, or on the one before it."""
    if config.trainer.use_v1:
        from recipe.rerule.training.runner_v1 import ReRULETaskRunnerV1

        return ReRULETaskRunnerV1
    from recipe.rerule.training.runner import ReRULETaskRunner

    return ReRULETaskRunner


def _how_to_go_on(folder: str) -> str:
    from recipe.rerule.runs import checkpoints

    step = checkpoints.newest_complete(folder)
    if step is None:
        return f"{folder} holds no complete checkpoint"
    return f"trainer.resume_mode=auto goes on from {folder}/global_step_{step}"


if __name__ == "__main__":
    main()
