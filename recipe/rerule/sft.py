"""Stage 1, rejection steering: `python -m recipe.rerule.sft [hydra overrides]`.

verl's own SFT trainer on (forget prompt, refusal) pairs, ending in the Hugging Face folder <run>/model. With
`trainer.n_gpus_per_node` above 1 the command starts its ranks itself, through torch's launcher.

Exit codes: 0 finished, 1 the run failed, 2 the settings or data were refused before anything started.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from omegaconf import DictConfig

from recipe.rerule import entry, errors, records, run_folder
from recipe.rerule.keys import usage

REQUIRED = ("model.path", "data.train_files")


def main() -> None:
    """Compose the configuration, check it, train; every failure ends in one line on stderr."""
    entry.run_task(_check_and_run, usage.STAGE1)


def _check_and_run(config: DictConfig) -> None:
    from recipe.rerule import learning, settings

    with errors.one_line(ValueError, code=2):
        entry.prepare(config, *REQUIRED, require_accelerator=config.platform.require_accelerator)
        if "RANK" not in os.environ:
            settings.check_stage1(config)
    with errors.one_line(Exception, code=1):
        if "RANK" in os.environ:
            return train(config)
        run_folder.begin(config.trainer.default_local_dir, stage=1)
        _start_ranks(config)
        print(f"stage 1 finished: {publish_model(Path(config.trainer.default_local_dir))}", file=sys.stderr)
        learning.after_stage1(config)


def train(config: DictConfig) -> None:
    """Run verl's SFT trainer as one rank of torch's launcher."""
    from recipe.rerule.platform import sdpa

    if config.platform.name == "cpu":
        from recipe.rerule.platform import patches

        patches.install_in_engine()
    if sdpa.is_chosen(config.model):
        sdpa.install()
    from verl.trainer.sft_trainer import run_sft

    if os.environ["RANK"] == "0":
        records.start(config)
    run_sft(config)


def _start_ranks(config: DictConfig) -> None:
    if config.trainer.n_gpus_per_node == 1 and config.trainer.nnodes == 1:
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        os.environ.update(rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()))
        return train(config)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ranks = f"--nproc-per-node={config.trainer.n_gpus_per_node}"
    subprocess.run([*launcher, ranks, "-m", "recipe.rerule.sft", *sys.argv[1:]], check=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def publish_model(run_folder: Path) -> Path:
    """Move the last checkpoint's Hugging Face folder to <run>/model, in one rename.

    Raises:
        FileNotFoundError: no checkpoint holds one.
    """
    written = run_folder.glob("global_step_*/huggingface")
    last = max(written, key=lambda path: int(path.parent.name.removeprefix("global_step_")), default=None)
    if last is None:
        raise FileNotFoundError(f"{run_folder} holds no global_step_N/huggingface: stage 1 wrote no model")
    model = run_folder / "model"
    os.replace(last, model)
    return model


if __name__ == "__main__":
    main()
