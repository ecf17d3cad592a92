"""`evaluate attack`: every attack on every model, alike, and what that says about the unlearned ones.

The command is checked before anything is written or an engine starts. The folder (docs/attacks.md) has the
tidy table with a row a response, and what `summary` makes of it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from recipe.rerule import io
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.attacks.attack import Attack, Material
from recipe.rerule.evaluation.attacks.material import BUDGETS, Source, material_of
from recipe.rerule.evaluation.attacks.registry import BEFORE, DEFAULT, attacks, chosen
from recipe.rerule.evaluation.attacks.runner import (
    MODELS,
    Piece,
    Planned,
    Runner,
    check_kept,
    locked,
    pieces_of,
    plan,
    remove,
)
from recipe.rerule.evaluation.attacks.summary import (
    ATTACKED,
    CONTROL,
    CURVES,
    ORIGINAL,
    RESULTS,
    Numbers,
    Results,
    Summary,
)
from recipe.rerule.evaluation.engine.encoding import encode, warnings
from recipe.rerule.evaluation.engine.models import (
    Model,
    add_template_argument,
    check_models,
    path_of,
    resolve_models,
    with_template,
)
from recipe.rerule.evaluation.engine.run import Decoding, add_decoding_arguments, decoding_of
from recipe.rerule.evaluation.output import json_text, versions
from recipe.rerule.evaluation.probes import file_sha256, read_probes, read_training_rows
from recipe.rerule.evaluation.registry import (
    add_benchmark_arguments,
    benchmark_of,
    benchmarks,
    given_paths,
    refuse_foreign,
)
from recipe.rerule.evaluation.summary import LEAST_FACTS
from recipe.rerule.io import check_apart, check_writable, existing, json_lines, new_folder, stamp_folder
from recipe.rerule.platform import PLATFORMS, select
from recipe.rerule.process import Progress, positive

WITHOUT_CONTROL = (
    "E is not given: without a model that never knew the facts (--control), an attack that got an answer "
    "back cannot be told from one that taught it."
)
LEGEND = (
    "Scores are means over facts, from 0 to 1. before: without the attack; after: with it; N: the never-knew "
    "model after the same attack; E = after - N, with its 95 % interval over facts; p: of the paired test of "
    "E, for unlearned models corrected for the number of tests (Holm); share: E by the original model's E; "
    "refused, retain: share of refusals and recall of retained facts under the attack."
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
_BRIEF = ("before", "after", "excess", "interval", "refusal", "retain", "facts")
"""What --json gives of a row."""
_MISSING = {
    ORIGINAL: f"the model before unlearning, --model {ORIGINAL}=FOLDER",
    CONTROL: "a model that never knew the facts, --control FOLDER",
}
_WIDTH = 110
_HEADS = {
    "before": 8, "after": 7, "N": 7, "E": 8, "95 %": 17, "p": 8, "share": 7, "refused": 9, "retain": 8,
    "facts": 7,
}  # fmt: skip


def add_attack_parser(commands: Any, known: Mapping[str, Attack]) -> None:
    """Adds `attack` to the subcommands of `evaluate`; its help lists the attacks of `known`."""
    summary = "attack models, and say what has survived unlearning"
    told = [
        textwrap.fill(
            f"{'*' if attack.default else ' '} {name}: {attack.tells}",
            100,
            initial_indent="  ",
            subsequent_indent="      ",
        )
        for name, attack in known.items()
    ]
    described = "\n".join([f"{_DESCRIPTION}\n\nattacks:", *told])
    parser = commands.add_parser("attack", help=summary, description=described, epilog=_EXAMPLE)
    parser.set_defaults(run=run_attack)
    _add_inputs(parser)
    parser.add_argument(
        "--attacks",
        nargs="+",
        default=[DEFAULT],
        metavar="NAME",
        help=f"the attacks to make (default: {DEFAULT}, which stands for those marked * above)",
    )
    parser.add_argument(
        "--budget",
        choices=tuple(BUDGETS),
        default="quick",
        help="quick: some probes of each fact, one seed; full: all probes, three seeds, more steps and "
        "samples (default: %(default)s)",
    )
    parser.add_argument(
        "--folds", type=int, choices=(2,), default=2, help="halves of the facts in relearning: always 2"
    )
    parser.add_argument(
        "--seeds", type=positive, metavar="N", help="repetitions of relearning (default: the budget's)"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON on standard output")
    add_decoding_arguments(parser)
    add_benchmark_arguments(parser, benchmarks())


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    """What is read and where it is written."""
    parser.add_argument(
        "--model", action="append", required=True, metavar="NAME=PATH",
        help="as for `evaluate model`; repeat the option for more models. The model before unlearning must "
        f"have the name {ORIGINAL}",
    )  # fmt: skip
    parser.add_argument(
        "--control", metavar="PATH",
        help=f"a model that never knew the facts; it is called {CONTROL} in the results. Without it, E is "
        "not given",
    )  # fmt: skip
    add_template_argument(parser)
    parser.add_argument(
        "--probes", type=Path, required=True, metavar="FILE",
        help="probes.parquet, made by python -m data_prep",
    )  # fmt: skip
    parser.add_argument(
        "--train", type=Path, metavar="FILE",
        help="train.parquet of the same data, for relearning and many-shot prompts",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace earlier results in --out")
    parser.add_argument(
        "--cache", type=Path, metavar="FOLDER",
        help="keep finished attacks there for later commands, which then do not attack the same models again",
    )  # fmt: skip
    parser.add_argument("--keep-models", action="store_true", help="keep the changed models, in --out")
    parser.add_argument(
        "--platform", choices=PLATFORMS, default="gpu", help="where vLLM runs (default: %(default)s)"
    )


@dataclass(frozen=True)
class Command:
    """A checked command.

    Attributes:
        title: of the benchmark.
        plans: the attacks, in the order of the registry.
        models: as given, the never-knew model last, under the name CONTROL.
        pieces: all that is to be done.
        kept: the folder where finished pieces are kept.
        origin: all that rows depend on besides attacks and models.
    """

    title: str
    material: Material
    plans: list[Planned]
    models: list[Model]
    pieces: list[Piece]
    decoding: Decoding
    kept: Path
    origin: dict[str, Any]


def run_attack(options: argparse.Namespace) -> int:
    """Exit code 0. Raises ValueError where the input is wrong, EngineError where vLLM fails."""
    command = checked(options)
    with locked(command.kept):
        runner = Runner(command.material, command.decoding, command.kept, options.keep_models)
        rows = pd.DataFrame(runner.run(command.pieces))
        rows[["score", "refused"]] = rows[["score", "refused"]].astype("float64")
        with Progress("attack: intervals and paired tests"):
            summary = Summary(rows, {one.attack.name: one.attack.declared for one in command.plans})
        _write(command, options, rows, summary)
        if options.cache is None:
            remove(command.kept)
    names = [model.name for model in command.models]
    print(f"{command.title}: attacks, budget {options.budget}")
    print(table(summary.results, names))
    print(f"written to {options.out}")
    facts = next(iter(summary.results.values()))[names[0]].facts
    if facts < LEAST_FACTS:
        io.warn(f"{facts} facts are too few for intervals and tests; at least {LEAST_FACTS} are needed")
    if options.json:
        brief = {
            attack: {model: {name: getattr(one, name) for name in _BRIEF} for model, one in of_models.items()}
            for attack, of_models in summary.results.items()
        }
        print(json.dumps(brief, allow_nan=False), flush=True)
    return 0


def checked(options: argparse.Namespace) -> Command:
    """The command asked for. Raises ValueError on anything wrong with it."""
    phrases = options.refusal_phrases
    inputs = {"--probes": options.probes, "--train": options.train, "--refusal-phrases": phrases}
    check_apart(options.out, *existing(*inputs.items(), *given_paths(options, benchmarks()).items()))
    check_writable(options.out, options.overwrite, ATTACKED)
    kept = options.cache or options.out.with_name(f"{options.out.name}.partial")
    check_kept(kept)
    wanted = chosen([BEFORE, *options.attacks])
    models = _models(options)
    wanted = _possible(wanted, options, [model.name for model in models])
    decoding, budget = decoding_of(options), BUDGETS[options.budget]
    probes = read_probes(options.probes)
    benchmark = benchmarks()[options.benchmark or benchmark_of(probes)]
    refuse_foreign(options, benchmark.name, benchmarks())
    source = Source(benchmark, benchmark.evaluator(options), probes, models[0].path)
    train = [] if options.train is None else read_training_rows(options.train)
    material = material_of(source, train, models, budget, options.seeds or budget.seeds)
    plans = []
    for attack in wanted:
        try:
            plans.append(plan(attack, attack.options(budget.name), material))
        except ValueError as error:
            # One that was not named, and can do nothing with these data, is left out.
            if attack.name in (BEFORE, *options.attacks):
                raise
            io.warn(f"{error}; it is left out")
    _check_requests(models, plans)
    if not all(probe.raw for probe in probes):
        for line in warnings(models):
            io.warn(line)
    select(options.platform)
    origin = {
        "benchmark": benchmark.name,
        "rouge_l_convention": source.evaluator.convention,
        "benchmark_settings": dict(source.evaluator.settings),
        "probes": file_sha256(options.probes),
        "train": options.train and file_sha256(options.train),
        **({"refusal_phrases": file_sha256(phrases)} if phrases else {}),
        "budget": options.budget,
        "platform": decoding.platform,
        "dtype": decoding.dtype,
        **({"template": dict(models[0].template)} if models[0].template else {}),
    }
    todo = pieces_of(plans, models, material, origin)
    return Command(benchmark.title, material, plans, models, todo, decoding, kept, origin)


def _models(options: argparse.Namespace) -> list[Model]:
    """All models, the never-knew model last. Raises ValueError."""
    specs = [*options.model, *([] if options.control is None else [f"{CONTROL}={options.control}"])]
    models = with_template(resolve_models(specs), options.template)
    check_models(models)
    if options.control is not None and models[-1].name != CONTROL:
        raise ValueError(f"--control {options.control} is several models; give one folder")
    runs = existing(*(("--model", path_of(one.partition("=")[2])) for one in specs))
    check_apart(options.out, *(("--model", model.path) for model in models), runs=runs)
    return models


def _possible(wanted: Sequence[Attack], options: argparse.Namespace, names: Sequence[str]) -> list[Attack]:
    """The attacks that have what they need.

    An attack that was not named, and lacks a model, is left out with a warning.

    Raises:
        ValueError: rows of --train are missing, or an attack that was named lacks a model.
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
    for planned in plans:
        if planned.asking is None:
            continue
        encoded = encode(models, planned.asking.requests)
        first = encoded[models[0].name]
        for model in models[1:]:
            if any(one.ids != other.ids for one, other in zip(first, encoded[model.name], strict=True)):
                raise ValueError(
                    f"model {model.name}: its tokenizer or chat template makes other tokens of a question "
                    f"than that of {models[0].name}; only models that are asked the same tokens are compared"
                )


def _write(command: Command, options: argparse.Namespace, rows: pd.DataFrame, summary: Summary) -> None:
    """The folder, all of it or nothing. Raises ValueError as `check_writable`."""
    results = {
        attack: {model: asdict(numbers) for model, numbers in of_models.items()}
        for attack, of_models in summary.results.items()
    }
    with new_folder(options.out, options.overwrite, ATTACKED) as draft:
        tidy.write(draft, rows)
        (draft / RESULTS).write_text(json_text(results), encoding="utf-8")
        if summary.curves:
            (draft / CURVES).write_text(json_lines(map(asdict, summary.curves)), encoding="utf-8")
        for piece in command.pieces if options.keep_models else ():
            for setting, folder in piece.folders(command.kept).items():
                assert piece.change is not None
                part = f"fold_{piece.change.fold}_seed_{piece.change.seed}"
                of_attack = draft / MODELS / piece.model.name / piece.planned.attack.name / part
                of_attack.mkdir(parents=True, exist_ok=True)
                # Another file system where --cache is on one.
                shutil.move(folder, of_attack / (setting or "model"))
        marker = {**stamp_folder(ATTACKED, draft), **_meta(command, options)}
        (draft / ATTACKED.marker).write_text(json_text(marker), encoding="utf-8")


def _meta(command: Command, options: argparse.Namespace) -> dict[str, Any]:
    """How the numbers came about."""
    names = [model.name for model in command.models]
    return {
        **command.origin,
        "command": shlex.join(["python", "-m", "recipe.rerule.evaluate", *sys.argv[1:]]),
        "models": {
            model.name: {"path": str(model.path), "global_step": model.step} for model in command.models
        },
        "attacks": {
            one.attack.name: {**one.attack.declared, "options": dict(one.options)} for one in command.plans
        },
        "seeds": command.material.seeds,
        "asked": {"forget": len(command.material.asked), "retain": len(command.material.retained)},
        "excess": None if CONTROL in names else WITHOUT_CONTROL,
        "files": {
            "probes": str(options.probes),
            "train": options.train and str(options.train),
            **({"refusal_phrases": str(options.refusal_phrases)} if options.refusal_phrases else {}),
        },
        "versions": versions(),
    }


def table(results: Results, models: Sequence[str]) -> str:
    """The rows of the models, model by model, then what the columns mean."""
    names = max(map(len, ["attack", *results])) + 1
    head = f"{'attack':{names}}" + _cells(list(_HEADS))
    lines = [head, "-" * len(head)]
    for model in models:
        lines.append(model)
        lines += [
            f"{attack:{names}}" + _cells(_shown(rows[model], rows.get(CONTROL)))
            for attack, rows in results.items()
        ]
    notes = LEGEND if CONTROL in models else f"{LEGEND} {WITHOUT_CONTROL}"
    return "\n".join([*lines, *textwrap.wrap(notes, _WIDTH)])


def _cells(texts: Sequence[str]) -> str:
    return "".join(text.rjust(width) for text, width in zip(texts, _HEADS.values(), strict=True))


def _shown(row: Numbers, control: Numbers | None) -> list[str]:
    between = "–" if row.interval is None else "[{:+.2f}, {:+.2f}]".format(*row.interval)
    return [
        _number(row.before),
        _number(row.after),
        _number(control.after if control else None),
        _number(row.excess, "+.3f"),
        between,
        _number(row.p, ".4f"),
        _number(row.share, ".2f"),
        _number(row.refusal, ".2f"),
        _number(row.retain, ".2f"),
        f"{row.facts}",
    ]


def _number(value: float | None, spec: str = ".3f") -> str:
    return "–" if value is None else format(value, spec)
