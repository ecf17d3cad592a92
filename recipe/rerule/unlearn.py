"""Unlearning methods that are not reinforcement: `python -m recipe.rerule.unlearn method=NAME [overrides]`.

On verl's SFT trainer; ends in the Hugging Face folder <run>/model. `--list [--json]` prints the methods, the
data that they need and what they cost. With `trainer.n_gpus_per_node` above 1 the command starts its ranks
itself, through torch's launcher.

Exit codes: 0 finished, 1 the run failed, 2 the settings or data were refused before anything started,
130 and 143 stopped by SIGINT and SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from omegaconf import DictConfig

from recipe.rerule import io, process
from recipe.rerule.runs import run_folder
from recipe.rerule.training import entry, ranks
from recipe.rerule.unlearning import presets


def main() -> None:
    """Compose the configuration, check it, train; every failure ends in one line on stderr."""
    # A rank ends at once and without a word; the command that started it has the line.
    with contextlib.nullcontext() if process.is_rank() else process.stoppable():
        if "--list" in sys.argv[1:]:
            return _list(sys.argv[1:])
        entry.run_task(_check_and_run, entry.UNLEARN)


def _list(arguments: list[str]) -> None:
    if further := sorted(set(arguments) - {"--list", "--json"}):
        sys.exit(io.fail(ValueError(f"{further[0]} is not for --list, which takes --json alone"), 2))
    print(json.dumps(presets.listed(), indent=2) if "--json" in arguments else presets.as_table())


def _check_and_run(config: DictConfig) -> None:
    from recipe.rerule.preflight import checks, identity
    from recipe.rerule.runs import checkpoints
    from recipe.rerule.runs.written_model import publish_model

    with io.one_line(ValueError, code=2):
        checks.prepare(config, "model.path", require_accelerator=config.platform.require_accelerator)
        if not process.is_rank():
            checks.require(checks.unlearn, config)
    with io.one_line(Exception, code=1), io.one_line(run_folder.BusyError, code=2):
        if process.is_rank():
            return train(config)
        folder = Path(config.trainer.default_local_dir)
        run_folder.begin(folder, stage="unlearn")
        with run_folder.held(folder) as lock, ranks.temporary_files():
            run_folder.keep_identity(folder, identity.of_unlearn(config))
            checkpoints.find(config.trainer)
            ranks.start(config, "recipe.rerule.unlearn", "recipe.rerule.unlearn", train, lock)
            print(f"unlearning finished: {publish_model(folder)}", file=sys.stderr)


def train(config: DictConfig) -> None:
    """Train as one rank of torch's launcher.

    Raises DiskFullError: the run folder's disk is full.
    """
    with ranks.as_rank(config):
        from recipe.rerule.unlearning import trainer

        trainer.run(config)


if __name__ == "__main__":
    main()
