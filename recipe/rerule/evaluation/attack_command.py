"""`evaluate attack`: every attack on every model, alike, and what that says about the unlearned ones.

The command is checked before anything is written or an engine starts. The folder (docs/attacks.md) has the
tidy table with a row a response, and what `summary` makes of it.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import reward
from recipe.rerule import io
from recipe.rerule.evaluation import options as shared
from recipe.rerule.evaluation.attacks.attack import Attack, Material
from recipe.rerule.evaluation.attacks.material import BUDGETS, material_of
from recipe.rerule.evaluation.attacks.registry import BEFORE, DEFAULT, attacks, chosen
from recipe.rerule.evaluation.attacks.runner import (
    Piece,
    Planned,
    Runner,
    pieces_of,
    plan,
)
from recipe.rerule.evaluation.attacks.summary import (
    ATTACKED,
    CONTROL,
    CURVES,
    ORIGINAL,
    RESULTS,
    Results,
    curves_of,
    summary,
)
from recipe.rerule.evaluation.engine.answers import PIECES, Kept, check_kept, digest, discard
from recipe.rerule.evaluation.engine.encoding import encode
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.run import Decoding, decoding_of
from recipe.rerule.evaluation.output import json_text, versions, write_folder
from recipe.rerule.evaluation.probes import read_probes, read_training_rows
from recipe.rerule.evaluation.registry import Benchmark
from recipe.rerule.evaluation.summary import LEAST_FACTS
from recipe.rerule.io import file_sha256, json_lines
from recipe.rerule.platform import select
from recipe.rerule.process import Progress

WITHOUT_CONTROL = (
    "E is not given: without a model that never knew the facts (--control), an attack that got an answer "
    "back cannot be told from one that taught it."
)
LEGEND = (
    "Scores are means over facts, from 0 to 1. before: without the attack; after: with it; N: the never-knew "
    "model after the same attack; E = after - N, with its 95 % interval over facts; p: of the paired test of "
    "E, for unlearned models corrected for the number of tests (Holm); share: E by the original model's E; "
    "refused, retain: share of refusals and recall of retained facts under the attack. Of uds the score "
    "and E are the lower, the more is still there."
)
_DESCRIPTION = """\
Attack models that have unlearned something. Compare what comes back with the original model and with a model
that never knew the facts. The command writes a folder with the numbers and prints a table. It needs vLLM."""
_EXAMPLE = """\
examples:
  python -m recipe.rerule.evaluate attack --platform cpu --probes world/probes.parquet \\
      --train world/train.parquet --model original=world/model --model rerule=outputs/rerule \\
      --control world/retain_model --out outputs/attacks
      all attacks of the quick budget
  python -m recipe.rerule.evaluate attack --platform cpu --probes probes.parquet --model mine=FOLDER \\
      --attacks prefill samples quantise_4 --out outputs/attacks
      three attacks on one model; without a never-knew model no E is given

docs/attacks.md says what each attack tells and does not tell.
"""
_MISSING = {
    ORIGINAL: f"the model before unlearning, --model {ORIGINAL}=FOLDER",
    CONTROL: "a model that never knew the facts, --control FOLDER",
}
_WIDTH = 110


def add_attack_parser(commands: Any, known: Mapping[str, Attack]) -> None:
    """Adds `attack` to the subcommands of `evaluate`; its help lists the attacks of `known`."""
    summary = "attack models, and say what has survived unlearning"
    told = [
        textwrap.fill(
            f"{'*' if attack.default else ' '} {name}: {attack.tells}", 100,
            initial_indent="  ", subsequent_indent="      ",
        )
        for name, attack in known.items()
    ]  # fmt: skip
    described = "\n".join([f"{_DESCRIPTION}\n\nattacks:", *told])
    parser = commands.add_parser("attack", help=summary, description=described, epilog=_EXAMPLE)
    shared.add_arguments(
        parser,
        "as for `evaluate model`; repeat the option for more models. The model before unlearning must have "
        f"the name {ORIGINAL}",
    )
    parser.add_argument(
        "--control", metavar="PATH",
        help=f"a model that never knew the facts; it is called {CONTROL} in the results. Without it, E is "
        "not given",
    )  # fmt: skip
    parser.add_argument(
        "--train", type=Path, metavar="FILE",
        help="train.parquet of the same data, for relearning and many-shot prompts",
    )  # fmt: skip
    parser.add_argument(
        "--cache", type=Path, metavar="FOLDER",
        help="keep finished attacks there for later commands, which then do not attack the same models again",
    )  # fmt: skip
    parser.add_argument(
        "--attacks", nargs="+", default=[DEFAULT], metavar="NAME",
        help=f"the attacks to make (default: {DEFAULT}, which stands for those marked * above)",
    )  # fmt: skip
    parser.add_argument(
        "--budget", choices=tuple(BUDGETS), default="quick",
        help="quick: some probes of each fact, one seed; full: all probes, three seeds, more steps and "
        "samples (default: %(default)s)",
    )  # fmt: skip
    parser.set_defaults(run=run_attack)


@dataclass(frozen=True)
class Command:
    """A checked command.

    Attributes:
        plans: the attacks, in the order of the registry.
        models: as given, the never-knew model last, under the name CONTROL.
        pieces: all that is to be done.
        kept: the folder where finished pieces are kept.
    """

    benchmark: Benchmark
    material: Material
    plans: list[Planned]
    models: list[Model]
    pieces: list[Piece]
    decoding: Decoding
    kept: Path


def run_attack(options: argparse.Namespace) -> int:
    """Exit code 0. Raises ValueError where the input is wrong, EngineError where vLLM fails."""
    command = checked(options)
    names = [model.name for model in command.models]
    with Kept(command.kept / PIECES) as kept:
        runner = Runner(command.material, command.decoding, command.kept, kept)
        rows = pd.DataFrame(runner.run(command.pieces))
        rows[["score", "refused"]] = rows[["score", "refused"]].astype("float64")
        plans = [one for one in command.plans if one.attack.name in set(rows["attack"])]
        with Progress("attack: intervals and paired tests"):
            declared = {one.attack.name: one.attack.declared for one in plans}
            results = summary(rows, declared)
            curves = curves_of(results, declared)
        told = {
            attack: {model: asdict(numbers) for model, numbers in of_models.items()}
            for attack, of_models in results.items()
        }
        files = {RESULTS: json_text(told)}
        if curves:
            files[CURVES] = json_lines(curves)
        meta = shared.origin(options, command.benchmark, command.models, command.decoding) | {
            "attacks": {
                one.attack.name: {**declared[one.attack.name], "options": dict(one.options)} for one in plans
            },
            "train": options.train and shared.told(options.train),
            "budget": options.budget,
            "seeds": command.material.seeds,
            "asked": {"forget": len(command.material.asked), "retain": len(command.material.retained)},
            "excess": None if CONTROL in names else WITHOUT_CONTROL,
            "versions": versions(),
        }
        write_folder(options.out, ATTACKED, meta, files, options.overwrite, rows)
        if options.cache is None:
            discard(command.kept)
    print(f"{command.benchmark.title}: attacks, budget {options.budget}")
    print(table(results, names))
    print(f"written to {options.out}")
    facts = next(iter(results.values()))[names[0]].facts
    if facts < LEAST_FACTS:
        io.warn(f"{facts} facts are too few for intervals and tests; at least {LEAST_FACTS} are needed")
    return 0


def checked(options: argparse.Namespace) -> Command:
    """The command asked for. Raises ValueError on anything wrong with it."""
    shared.check_folders(options, {"--probes": options.probes, "--train": options.train}, [], ATTACKED)
    kept = options.cache or options.out.with_name(f"{options.out.name}.partial")
    check_kept(kept)
    wanted = chosen([BEFORE, *options.attacks])
    control = [] if options.control is None else [f"{CONTROL}={options.control}"]
    models = shared.models_from(options, [*options.model, *control])
    if control and models[-1].name != CONTROL:
        raise ValueError(f"--control {options.control} is several models; give one folder")
    wanted = _possible(wanted, options, [model.name for model in models])
    decoding, budget = decoding_of(options), BUDGETS[options.budget]
    probes = read_probes(options.probes)
    benchmark = shared.benchmark_from(options, probes)
    train = [] if options.train is None else read_training_rows(options.train)
    material = material_of(benchmark, probes, train, models, budget)
    plans = []
    for attack in wanted:
        try:
            plans.append(plan(attack, attack.options(options.budget), material))
        except ValueError as error:
            # What these data do not allow is left out, where anything is left to do.
            if attack.name == BEFORE or (attack is wanted[-1] and len(plans) == 1):
                raise
            io.warn(f"{error}; it is left out")
    _check_requests(models, plans)
    names = {one.attack.name for one in plans}
    if decoding.dtype == "bfloat16" and "quantise_8" in names:
        io.warn("attack quantise_8: bfloat16 rounds its 8 bits again; give --dtype float32 or float16")
    if benchmark.texts.sets and not any(name.startswith("membership") for name in names):
        io.warn("--texts is not read: of the attacks membership alone reads it (--attacks membership)")
    shared.warn_of_models(models, probes)
    select(options.platform)
    origin = {
        "benchmark": benchmark.name,
        "rouge_l_convention": benchmark.convention,
        "benchmark_settings": dict(benchmark.settings),
        "probes": file_sha256(options.probes),
        "train": options.train and file_sha256(options.train),
        "refusal_phrases": options.refusal_phrases and file_sha256(options.refusal_phrases),
        "budget": options.budget,
        "platform": decoding.platform,
        "dtype": decoding.dtype,
        "versions": versions(),
        "code": _code(),
        "context": material.context,
        "template": dict(models[0].template),
    }
    pieces = pieces_of(plans, models, material, origin)
    return Command(benchmark, material, plans, models, pieces, decoding, kept)


def _code() -> str:
    """A digest of the files that ask, change and score: rows that other code has found do not count."""
    return digest(
        {
            f"{path.relative_to(root.parent)}": file_sha256(path)
            for root in (Path(__file__).parent, Path(reward.__file__).parent)
            for path in sorted(root.rglob("*"))
            if path.suffix in (".py", ".txt")
        }
    )


def _possible(wanted: Sequence[Attack], options: argparse.Namespace, names: Sequence[str]) -> list[Attack]:
    """The attacks that have what they need.

    An attack that was not named, and lacks a model, is left out with a warning.

    Raises ValueError: rows of --train are missing, or an attack that was named lacks a model.
    """
    there_are = {*names, *([] if options.train is None else ["train"])}
    lacking = {attack.name: sorted(attack.needs - there_are) for attack in wanted}
    if rows := [name for name, needs in lacking.items() if "train" in needs]:
        others = [one for one in attacks().values() if one.default and "train" not in one.needs]
        instead = " ".join(one.name for one in others if one.name != BEFORE)
        raise ValueError(
            f"{', '.join(rows)}: rows to train on or to show are missing; give --train FILE (train.parquet "
            f"of the data), or leave these attacks out: --attacks {instead}"
        )
    for name, needs in lacking.items():
        if needs:
            text = f"attack {name} needs {' and '.join(_MISSING[need] for need in needs)}"
            if name in options.attacks:
                raise ValueError(text)
            io.warn(f"{text}; it is left out")
    return [attack for attack in wanted if not lacking[attack.name]]


def _check_requests(models: Sequence[Model], plans: Sequence[Planned]) -> None:
    """Refuse what a model cannot be asked, and models with different tokenizers. Raises ValueError."""
    for asking in [planned.asking for planned in plans if planned.asking]:
        encoded = encode(models, asking.requests)
        first = encoded[models[0].name]
        for model in models[1:]:
            if any(one.ids != other.ids for one, other in zip(first, encoded[model.name], strict=True)):
                raise ValueError(
                    f"model {model.name}: its tokenizer or chat template makes other tokens of a question "
                    f"than that of {models[0].name}; only models that are asked the same tokens are compared"
                )


def table(results: Results, models: Sequence[str]) -> str:
    """The rows of the models, model by model, then what the columns mean."""
    names = max(map(len, ["attack", *results])) + 1
    head = f"{'attack':{names}}" + "".join(f"{title:>{width}}" for title, width, _ in _COLUMNS)
    lines = [head, "-" * len(head)]
    for model in models:
        lines.append(model)
        for attack, rows in results.items():
            cells = (f"{shown(rows[model], rows.get(CONTROL)):>{width}}" for _, width, shown in _COLUMNS)
            lines.append(f"{attack:{names}}" + "".join(cells))
    notes = LEGEND if CONTROL in models else f"{LEGEND} {WITHOUT_CONTROL}"
    return "\n".join([*lines, *textwrap.wrap(notes, _WIDTH)])


def _number(value: float | None, spec: str = ".3f") -> str:
    return "–" if value is None else format(value, spec)


_COLUMNS = (
    ("before", 8, lambda row, control: _number(row.before)),
    ("after", 7, lambda row, control: _number(row.after)),
    ("N", 7, lambda row, control: _number(control and control.after)),
    ("E", 8, lambda row, control: _number(row.excess, "+.3f")),
    ("95 %", 17, lambda row, control: "[{:+.2f}, {:+.2f}]".format(*row.interval) if row.interval else "–"),
    ("p", 8, lambda row, control: _number(row.p, ".4f")),
    ("share", 7, lambda row, control: _number(row.share, ".2f")),
    ("refused", 9, lambda row, control: _number(row.refusal, ".2f")),
    ("retain", 8, lambda row, control: _number(row.retain, ".2f")),
    ("facts", 7, lambda row, control: f"{row.facts}"),
)
"""Title, width, and what is shown of the numbers of a model and of the never-knew model."""
