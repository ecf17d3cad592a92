"""How long the quick budget of attacks takes: python -m benchmarks.attack_cost --out DIR [--world DIR].

Makes the attack world of docs/attacks.md with its model of 2 M parameters and the one that never knew, unless
--world is such a folder, and an "unlearned" model: the first one with its weights rounded to 4 bits. Then it
runs `evaluate attack` twice with one cache: on the model and the never-knew model, and then on all three, so
that the second run finds both controls in the cache. It prints seconds of the clock and of the processor (all
processes together) of both runs, and one JSON object on its last line: seconds, cpu_seconds and facts of the
second run, bound_seconds and ratio (of the larger of the two seconds and the bound), and controls_seconds and
controls_cpu_seconds. Other work on the machine makes the seconds of the clock longer, and hardly those of the
processor. What was made in DIR is used again; both runs are measured anew.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recipe.rerule.evaluation.attacks.quantise import quantise
from recipe.rerule.evaluation.attacks.summary import RESULTS
from recipe.rerule.evaluation.attacks.weights import is_finished

BOUND_SECONDS = 300
"""For one model of 2 M parameters on two idle cores."""
FORGET_PEOPLE = 6


@dataclass(frozen=True)
class Cost:
    """Seconds of the clock and of the processor, over all processes of a command."""

    seconds: float
    cpu_seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. The exit code of a command that fails."""
    options = _parser().parse_args(arguments)
    try:
        world = options.world or _world(options.out)
        model = _unlearned(world, options.out)
        controls, attacked = _measured(options.out, world, model)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    rows = json.loads((options.out / "attacks" / RESULTS).read_text(encoding="utf-8"))
    longest = max(attacked.seconds, attacked.cpu_seconds)
    for name, cost in (("original and never-knew model", controls), ("one model more", attacked)):
        print(f"{cost.seconds:7.1f} s, {cost.cpu_seconds:7.1f} s of the processor: {name}")
    print(f"{longest / BOUND_SECONDS:.2f} of {BOUND_SECONDS} s")
    told = {
        **vars(attacked),
        "facts": rows["none"]["unlearned"]["facts"],
        "bound_seconds": BOUND_SECONDS,
        "ratio": longest / BOUND_SECONDS,
        **{f"controls_{name}": value for name, value in vars(controls).items()},
    }
    print(json.dumps(told))
    return 0


def _measured(out: Path, world: Path, model: Path) -> tuple[Cost, Cost]:
    """What the controls cost, and what one model costs when they are in the cache."""
    shutil.rmtree(out / "cache", ignore_errors=True)
    named = ["--model", f"original={world / 'model'}"]
    own = [*named, "--model", f"unlearned={model}"]
    return tuple(_run(_attack(world, out, models)) for models in (named, own))  # type: ignore[return-value]


def _attack(world: Path, out: Path, models: Sequence[str]) -> list[str]:
    return [
        *("-m", "recipe.rerule.evaluate", "attack", "--platform", "cpu", "--overwrite"),
        *("--probes", f"{world / 'probes.parquet'}", "--train", f"{world / 'train.parquet'}"),
        *(*models, "--control", f"{world / 'retain_model'}"),
        *("--cache", f"{out / 'cache'}", "--out", f"{out / 'attacks'}"),
    ]


def _run(words: Sequence[str]) -> Cost:
    """Raises subprocess.CalledProcessError; the command has said why."""
    before, started = _cpu(), time.monotonic()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return Cost(time.monotonic() - started, _cpu() - before)


def _cpu() -> float:
    """Seconds of the processor of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _world(out: Path) -> Path:
    folder = out / "world"
    if not (folder / "retain_model").is_dir():
        options = ["--forget-people", f"{FORGET_PEOPLE}", "--retain-model", "--out", f"{folder}"]
        _run(["-m", "data_prep", "world", *options])
    return folder


def _unlearned(world: Path, out: Path) -> Path:
    folder = out / "unlearned"
    if not is_finished(folder):
        quantise(world / "model", 4, folder)
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack_cost", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where models and results go")
    parser.add_argument(
        "--world", type=Path, metavar="DIR", help="a folder of data_prep world --retain-model"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
