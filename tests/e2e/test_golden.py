"""The commands on the real stack, on a micro world, compared with golden files (CONTRIBUTING.md).

`tests/golden/stack.json` has what is the same everywhere: files, names of metrics, and which prompts are
trained on and stored. `stack_numbers.json` has numbers that follow from trained weights. Their last digits
differ between kinds of processors, so they are compared only on a kind like the one that they were written
on. What is sampled in stage 2 differs from run to run. Neither file has numbers that follow from it.
"""

import json
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.stack import Command, stage2_arguments
from tests.golden import folders
from tests.golden.commands import files
from tests.golden.golden import FOLDER, check

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(2400)]

STEPS = 3
LIMIT_SECONDS = 900
FIXED = (
    *("actor/lr", "actor/kl_coef", "prompt_length/max", "training/epoch", "training/global_step"),
    *("replay/threshold", "replay/size", "replay/admitted", "replay/evicted", "replay/gate_open"),
    *("replay/updates", "replay/drawn_groups", "replay/reuse_max", "replay/staleness_max"),
)
"""Metrics of stage 2 that no sample changes."""
TRAINED = ("train/loss", "train/grad_norm", "train/lr", "train/global_tokens", "loss/forget", "loss/retain")
"""Metrics of the other trainings, in which nothing is sampled."""
SAMPLED = ("rule", "rerule")
ROWS = {"forget": "forget_gold", "retain": "retain", "alternate": "alternate"}


def commands(world: Path, out: Path) -> dict[str, list[str]]:
    """Words behind `python -m`, by the folder of `out` that each command writes."""
    trained = ["experiment=tiny", f"model.path={world}/model", f"trainer.total_training_steps={STEPS}"]
    models = {"base": f"{world}/model", "stage1": f"{out}/stage1/model", "rule": f"{out}/rule"}
    models |= {"rerule": f"{out}/rerule", "unlearned": f"{out}/unlearned/model"}
    asked = ["--platform", "cpu", "--probes", f"{world}/probes.parquet"]
    # All groups are stored, whatever was sampled.
    stage2 = [f"trainer.total_training_steps={STEPS}", "replay.admission=all"]
    return {
        "stage1": ["recipe.rerule.sft", *trained, f"data.train_files={world}/sft.parquet", "optim.lr=1e-3"],
        "rule": [
            "recipe.rerule.main",
            *stage2_arguments(world, out / "rule", *stage2, "replay.enable=false"),
        ],
        "rerule": ["recipe.rerule.main", *stage2_arguments(world, out / "rerule", *stage2)],
        "unlearned": [
            *("recipe.rerule.unlearn", "method=npo_gdr", *trained),
            *(f"data.{side}={world}/{file}.parquet" for side, file in ROWS.items()),
        ],
        "evaluation": [
            *("recipe.rerule.evaluate", "model", *asked, "--out", f"{out}/evaluation"),
            *(word for name, path in models.items() for word in ("--model", f"{name}={path}")),
        ],
        "attacks": [
            *("recipe.rerule.evaluate", "attack", *asked, "--out", f"{out}/attacks"),
            *("--train", f"{world}/train.parquet", "--attacks", "prefill"),
            *("--model", f"original={world}/model", "--model", f"rerule={out}/rerule"),
        ],
    }


@pytest.fixture
def out(command: Callable[..., Command], micro_world: Path, tmp_path: Path) -> Path:
    """What all commands have written."""
    for name, words in commands(micro_world, tmp_path).items():
        own = [f"trainer.default_local_dir={tmp_path / name}"] if name in ("stage1", "unlearned") else []
        started = command("-m", *words, *own)
        assert started.wait(LIMIT_SECONDS) == 0, started.output[-3000:]
    return tmp_path


def test_what_the_commands_write(out: Path) -> None:
    """Stage 1, RULE, ReRULE and another method in three steps each, an evaluation and an attack of them."""
    everywhere: dict[str, Any] = {}
    here: dict[str, Any] = {"processor": [platform.machine(), torch.backends.cpu.get_cpu_capability()]}
    for name in ("stage1", *SAMPLED, "unlearned"):
        run = folders.run_records(out / name)
        everywhere[name] = {
            "files": [re.sub(r"[0-9a-f]{16}", "DIGEST", file) for file in files(out / name)],
            "metrics": _grouped({metric for metrics in run["steps"].values() for metric in metrics}),
            "records": run["sizes"],
        }
        numbers = _by_metric(run["steps"], FIXED if name in SAMPLED else TRAINED)
        if name in SAMPLED:
            everywhere[name] |= {"numbers": numbers}
            everywhere[name] |= {part: run[part] for part in ("prompts", "stored", "drawn")}
        else:
            here[name] = numbers
    evaluation, attacks = folders.evaluation(out / "evaluation"), folders.attacks(out / "attacks")
    everywhere["evaluation"] = {
        "files": files(out / "evaluation"),
        "rows": evaluation["rows"],
        "metrics": list(evaluation["numbers"]),
        "intervals": list(evaluation["intervals"]),
        "tests": len(evaluation["tests"]),
        "responses": evaluation["responses"]["count"],
    }
    everywhere["attacks"] = {
        "files": files(out / "attacks"),
        "columns": attacks["columns"],
        "rows": list(attacks["rows"]),
        "values of single probes": attacks["values of single probes"],
    }
    places = [place for place, row in enumerate(evaluation["rows"]) if row not in SAMPLED]
    here["evaluation"] = {
        "rows": [evaluation["rows"][place] for place in places],
        "numbers": {
            metric: [numbers[place] for place in places] for metric, numbers in evaluation["numbers"].items()
        },
    }
    here["attacks"] = {row: values for row, values in attacks["rows"].items() if row.endswith("original")}
    check("stack", everywhere)
    if not NUMBERS.is_file() or json.loads(NUMBERS.read_text())["processor"] == here["processor"]:
        check("stack_numbers", here, relative=1e-3, absolute=1e-5)


NUMBERS = FOLDER / "stack_numbers.json"


def _by_metric(steps: dict[int, dict[str, float]], names: tuple[str, ...]) -> dict[str, list[Any]]:
    """The values of metrics at each step."""
    found = {name: [metrics.get(name) for metrics in steps.values()] for name in names}
    return {name: values for name, values in found.items() if values != [None] * len(steps)}


def _grouped(names: set[str]) -> dict[str, str]:
    """Names of metrics by their first part."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        first, _, rest = name.partition("/")
        groups.setdefault(first, []).append(rest)
    return {first: " ".join(rests) for first, rests in groups.items()}
