"""Three optimiser steps of every preset through verl's engine, against plain transformers and AdamW."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import Tensor

from recipe.rerule.unlearning import presets
from tests.e2e import plain_unlearning
from tests.e2e.stack import ROOT
from tests.unlearning import made

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ALIASES = ("gd", "kl", "npo_rt", "dpo_rt")
PRESETS = [name for name in presets.names() if name not in ALIASES]
CASES = {
    **{name: [f"method={name}"] for name in PRESETS},
    **{f"flat_{name}": ["method=flat", f"method.divergence={name}"] for name in ("kl", "tv", "js")},
    "whp_soft": ["method=whp", "method.labels=soft"],
}
# Compared in full where the reference is another model. At the start model the KL is 0 and its gradient is
# rounding, of which AdamW makes whole steps: there only the first loss can be compared.
WITH_KL = [name for name in PRESETS if presets.load(name).retain == "kl"]
STEPS, RATE, DECAY = 3, 1e-3, 0.01
EPS = 1e-6
"""Of AdamW. With its default, 1e-8, weights whose gradient is float32's rounding take whole steps, and
rounding differs between processors."""
Launch = Callable[[int, dict[str, list[str]]], Path]


def micro_batches(rows: int) -> list[str]:
    return [f"data.micro_batch_size_per_gpu={rows}"]


BY_TOKENS = ["data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=220"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The model that is trained; beside it `other`, a frozen model that is near it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are too small to share
    folder = tmp_path_factory.mktemp("unlearn")
    yield made.put_near(made.put_model(folder / "model"), folder / "other")
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def launch(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """launch(ranks, cases): the folder with what they did."""
    common = [
        "experiment=tiny",
        f"model.path={model}",
        f"reinforced.path={model.parent}/other",
        *made.put_rows(model.parent / "rows"),
        "data.train_batch_size=4",
        "trainer.total_epochs=2",
        f"trainer.total_training_steps={STEPS}",
        "trainer.logger=[]",
        f"optim.lr={RATE}",
        f"optim.weight_decay={DECAY}",
        f"optim.override_optimizer_config={{eps: {EPS}}}",
        "optim.clip_grad=1e9",
    ]

    def run(ranks: int, cases: dict[str, list[str]]) -> Path:
        out = tmp_path_factory.mktemp("steps")
        of_run = [*common, f"trainer.n_gpus_per_node={ranks}", f"trainer.default_local_dir={out}/run"]
        job = {"cases": {name: [*of_run, *case] for name, case in cases.items()}, "out": str(out)}
        (out / "job.json").write_text(json.dumps(job))
        script = Path(__file__).with_name("unlearn_steps.py")
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
        ]
        done = subprocess.run(
            [*launcher, str(script), str(out / "job.json")],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        return out

    return run


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_preset_is_what_plain_transformers_compute(ranks: int, model: Path, launch: Launch) -> None:
    other = f"reference.path={model.parent}/other"
    cases = CASES | {f"{name}-other": [*CASES[name], other] for name in WITH_KL}
    two_passes = micro_batches(2 // ranks)
    out = launch(ranks, {name: [*case, *two_passes] for name, case in cases.items()})
    for name in cases:
        assert_plain(name, out, model, reference="other" if name.endswith("-other") else "model")


ADAPTER = {"r": 4, "lora_alpha": 8}


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
def test_so_it_is_with_any_micro_batches_and_with_an_adapter(ranks: int, model: Path, launch: Launch) -> None:
    sizes = (1, 4) if ranks == 1 else (2,)
    splits = {"tokens": BY_TOKENS} | {str(size): micro_batches(size) for size in sizes}
    cases = {
        f"{name}-{split}": [*case, *overrides]
        for name, case in CASES.items()
        for split, overrides in splits.items()
    }
    lora = [f"model.lora_rank={ADAPTER['r']}", f"model.lora_alpha={ADAPTER['lora_alpha']}"]
    cases |= {f"{name}-lora": [*CASES[name], *lora, *micro_batches(2)] for name in ("npo", "whp")}
    out = launch(ranks, cases)
    for name in cases:
        assert_plain(name, out, model)


def assert_plain(name: str, out: Path, folder: Path, reference: str = "model") -> None:
    """The losses, the first gradient and the movement of the parameters."""
    record, tensors = json.loads((out / f"{name}.json").read_text()), load_file(out / f"{name}.safetensors")
    start, end, found = (part(tensors, kind) for kind in ("start", "end", "grad"))
    model = adapted(folder, start) if name.endswith("-lora") else made.plain_model(folder)
    preset = name.partition("-")[0]
    frozen = [made.plain_model(folder.parent / other) for other in (reference, "other")]
    losses, gradient = plain_unlearning.train(preset, record["batches"], model, *frozen, RATE, DECAY, EPS)
    assert len(record["losses"]) == STEPS
    if reference == "model" and preset in WITH_KL:
        assert record["losses"][0] == pytest.approx(losses[0], rel=1e-5, abs=1e-8), name
        return
    # Absolutely where two terms of about 1 nearly cancel, as in FLAT at the start model.
    assert record["losses"] == pytest.approx(losses, rel=1e-5, abs=1e-7), name
    assert distance(found, gradient) < 1e-5 * norm(gradient), name
    expected = {key: value.detach() for key, value in model.named_parameters()}
    assert distance(end, expected) < 1e-4 * distance(expected, start), name


def adapted(folder: Path, start: dict[str, Tensor]) -> Any:
    """The model with a new adapter of peft, whose random parameters are those of `start`."""
    model = get_peft_model(made.plain_model(folder), LoraConfig(target_modules="all-linear", **ADAPTER))
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    model.load_state_dict(start, strict=False)
    changed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if "lora_A" in name}
    return model


def part(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(f"{kind}/"): value for key, value in tensors.items() if key.startswith(f"{kind}/")
    }


def norm(tensors: dict[str, Tensor]) -> float:
    return sum(value.double().square().sum().item() for value in tensors.values()) ** 0.5


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return norm({key: one[key].double() - other[key].double() for key in one})
