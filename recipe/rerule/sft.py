"""Stage 1, rejection steering: `python -m recipe.rerule.sft [hydra overrides]`.

verl's own SFT trainer on (forget prompt, refusal) pairs, ending in the Hugging Face folder <run>/model. With
`data.retain_share`, the model is asked the retain prompts first, and its own right answers are part of each
batch. With `trainer.n_gpus_per_node` above 1 the command starts its ranks itself, through torch's launcher.

Exit codes: 0 finished, 1 the run failed, 2 the settings or data were refused before anything started,
130 and 143 stopped by SIGINT and SIGTERM.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from omegaconf import DictConfig

from recipe.rerule import io, process
from recipe.rerule.runs import run_folder
from recipe.rerule.training import entry, ranks

REQUIRED = ("model.path", "data.train_files")


def main() -> None:
    """Compose the configuration, check it, train; every failure ends in one line on stderr."""
    # A rank ends at once and without a word; the command that started it has the line.
    with contextlib.nullcontext() if process.is_rank() else process.stoppable():
        entry.run_task(_check_and_run, entry.STAGE1)


def _check_and_run(config: DictConfig) -> None:
    from recipe.rerule.preflight import checks
    from recipe.rerule.runs import written_model
    from recipe.rerule.training import learning, own_answers, signal

    with io.one_line(ValueError, code=2):
        checks.prepare(config, *REQUIRED, require_accelerator=config.platform.require_accelerator)
        if not process.is_rank():
            checks.require(checks.stage1, config)
    with io.one_line(Exception, code=1), io.one_line(run_folder.BusyError, code=2):
        if process.is_rank():
            return train(config)
        folder = Path(config.trainer.default_local_dir)
        with io.one_line(ValueError, code=2):
            answers = own_answers.asked(config) if config.data.retain_share else []
        run_folder.begin(folder, stage=1)
        with run_folder.held(folder) as lock, ranks.temporary_files():
            run_folder.keep_identity(folder, {"model.path": run_folder.resolved(config.model.path)})
            if answers:
                own_answers.write(folder, answers)
            ranks.start(config, "recipe.rerule.sft", "stage 1", train, lock)
            with io.naming_full_disk(folder):
                written_model.settle_all(folder, config.model, config.save.weights_dtype)
            print(f"stage 1 finished: {written_model.publish_model(folder)}", file=sys.stderr)
        learning.warn_after(config, stage=1)
        start, *warnings = signal.summary(folder, config.stop == "signal") or [""]
        for warning in warnings:
            io.warn(warning)
        if start:
            print(start, file=sys.stderr)


def train(config: DictConfig) -> None:
    """Run verl's SFT trainer as one rank of torch's launcher.

    Raises DiskFullError: the run folder's disk is full.
    """
    with ranks.as_rank(config):
        from verl.utils import distributed

        from recipe.rerule.training import fsdp2, stage1

        fsdp2.install()
        distributed.initialize_global_process_group()
        stage1.Stage1Trainer(config).fit()
        distributed.destroy_global_process_group()


if __name__ == "__main__":
    main()
