"""Three optimiser steps of methods of every kind through verl's engine, against plain transformers and AdamW.

And a killed run of the command, which ends as if it had not been killed. tests/unlearning/test_loss.py has
the loss and the gradient of every preset, without an engine.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import Tensor

from data_prep.world.model import one_thread
from recipe.rerule.runs import checkpoints
from tests.e2e import plain_unlearning
from tests.e2e.stack import Command, torchrun
from tests.unlearning import made

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

STEPS, RATE, DECAY = 3, 1e-3, 0.01
EPS = 1e-6
"""Of AdamW. With its default, 1e-8, weights whose gradient is float32's rounding take whole steps, and
rounding differs between processors."""
ADAPTER = {"r": 4, "lora_alpha": 8}
LORA = [f"model.lora_rank={ADAPTER['r']}", f"model.lora_alpha={ADAPTER['lora_alpha']}"]
BY_TOKENS = ["data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=220"]
OTHER = "reference.path=OTHER"
CASES = {
    # One rank in passes by tokens, and with an adapter in two passes.
    1: {
        **{name: BY_TOKENS for name in ("npo_gdr", "undial", "whp")},
        "ga_klr-other": [*BY_TOKENS, OTHER],
        "rmu-other": [*BY_TOKENS, OTHER, "method.layer=0"],
        **{f"{name}-lora": [*LORA, "data.micro_batch_size_per_gpu=2"] for name in ("npo", "whp")},
    },
    # Two ranks in two passes.
    2: {
        **{name: ["data.micro_batch_size_per_gpu=1"] for name in ("npo_gdr", "dpo", "whp")},
        **{f"{name}-other": ["data.micro_batch_size_per_gpu=1", OTHER] for name in ("llmu", "ga_klr")},
        "rmu-other": ["data.micro_batch_size_per_gpu=1", OTHER, "method.layer=0"],
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The model that is trained; beside it `other`, a frozen model that is near it."""
    folder = tmp_path_factory.mktemp("unlearn")
    with one_thread():  # the tensors are too small to share
        yield made.put_near(made.put_model(folder / "model"), folder / "other")


@pytest.mark.parametrize("ranks", CASES)
def test_the_steps_are_what_plain_transformers_compute(ranks: int, model: Path, tmp_path: Path) -> None:
    other = model.parent / "other"
    words = (
        f"experiment=tiny model.path={model} reinforced.path={other} data.train_batch_size=4 "
        f"trainer.total_epochs=2 trainer.total_training_steps={STEPS} trainer.logger=[] "
        f"trainer.n_gpus_per_node={ranks} trainer.default_local_dir={tmp_path}/run optim.lr={RATE} "
        f"optim.weight_decay={DECAY} optim.override_optimizer_config={{eps:{EPS}}} optim.clip_grad=1e9"
    )
    common = [*words.split(), *made.put_rows(model.parent / "rows")]
    cases = {
        name: [*common, f"method={name.split('-')[0]}", *(one.replace("OTHER", str(other)) for one in case)]
        for name, case in CASES[ranks].items()
    }
    torchrun("unlearn_steps.py", ranks, {"cases": cases, "out": str(tmp_path)}, tmp_path)
    for name in cases:
        assert_plain(name, tmp_path, model)
    saved = [load_file(tmp_path / f"{name}.safetensors") for name in cases if name.endswith("-lora")]
    adapters = [part(tensors, "start") for tensors in saved]
    assert all(distance(one, adapters[0]) == 0 for one in adapters), "trainer.seed decides a new adapter"


def assert_plain(name: str, out: Path, folder: Path) -> None:
    """The losses, the first gradient and the movement of the parameters."""
    record, tensors = json.loads((out / f"{name}.json").read_text()), load_file(out / f"{name}.safetensors")
    start, end, found = (part(tensors, kind) for kind in ("start", "end", "grad"))
    model = adapted(folder, start) if name.endswith("-lora") else made.plain_model(folder)
    preset, reference = name.partition("-")[0], "other" if "-other" in name else "model"
    frozen = [made.plain_model(folder.parent / other) for other in (reference, "other")]
    losses, gradient = plain_unlearning.train(preset, record["batches"], model, *frozen, RATE, DECAY, EPS)
    assert len(record["losses"]) == STEPS
    # Absolutely where terms of about 1 nearly cancel, as in LLMU.
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
    first = f"{kind}/"
    return {key.removeprefix(first): value for key, value in tensors.items() if key.startswith(first)}


def norm(tensors: dict[str, Tensor]) -> float:
    return sum(value.double().square().sum().item() for value in tensors.values()) ** 0.5


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return norm({key: one[key].double() - other[key].double() for key in one})


@pytest.mark.full
@pytest.mark.parametrize(
    ("ranks", "killed_after", "method"),
    [
        (1, 2, "method=whp method.retain=kl reinforced.path={}/other"),
        (2, 3, "method=pdu method.dual_warmup=1"),
    ],
)
def test_a_killed_run_ends_with_the_parameters_of_one_that_was_not(
    ranks: int,
    killed_after: int,
    method: str,
    model: Path,
    command: Callable[..., Command],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After step 2, which ends an epoch, and after step 3, which does not.

    WHP reads both frozen models, and PDU's weight moves from step 3 on, the first after an epoch.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    whole, run = tmp_path / "whole", tmp_path / "killed"
    arguments = [
        *("-m", "recipe.rerule.unlearn", "experiment=tiny", f"model.path={model}"),
        *method.format(model.parent).split(),
        *made.put_rows(tmp_path / "rows"),
        *("data.train_batch_size=4", "data.micro_batch_size_per_gpu=2", f"trainer.n_gpus_per_node={ranks}"),
        *("optim.lr=1e-3", "trainer.total_epochs=3", "trainer.save_freq=1"),  # six steps, two an epoch
    ]
    command(*arguments, f"trainer.default_local_dir={whole}").finish()
    arguments.append(f"trainer.default_local_dir={run}")
    killed = command(*arguments)
    killed.wait_until(lambda: (checkpoints.newest_complete(run) or 0) >= killed_after)
    killed.end()
    for step in range(killed_after + 1, 7):
        shutil.rmtree(checkpoints.step_folder(run, step), ignore_errors=True)
    assert not (run / "model").exists()
    command(*arguments, "trainer.resume_mode=auto").finish()
    if "pdu" in method:
        moved = [
            (whole / f"global_step_{step}/retain_weight.txt").read_text() != "100.0\n" for step in (2, 3)
        ]
        assert moved == [False, True]
    expected, found = (load_file(folder / "model" / "model.safetensors") for folder in (whole, run))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
