"""What `evaluate attack` was asked to do, checked before anything is written or an engine starts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.apart import check_apart, there
from data_prep.atomic import check_writable
from recipe.rerule import errors
from recipe.rerule.evaluation.attack_command.budget import BUDGETS, Budget
from recipe.rerule.evaluation.attack_command.kept import check_kept
from recipe.rerule.evaluation.attack_command.output import ATTACKED
from recipe.rerule.evaluation.attack_command.pieces import Piece, Planned, pieces, plan
from recipe.rerule.evaluation.attack_command.probes import Source, material_of
from recipe.rerule.evaluation.attacks.interface import Attack
from recipe.rerule.evaluation.attacks.material import Material
from recipe.rerule.evaluation.attacks.registry import BEFORE, attacks, chosen
from recipe.rerule.evaluation.engine.encoding import encode, warnings
from recipe.rerule.evaluation.engine.models import Model, check_models, path_of, resolve_models, with_template
from recipe.rerule.evaluation.engine.run import Decoding, decoding_of
from recipe.rerule.evaluation.probes import file_sha256, read_probes, read_training_rows
from recipe.rerule.evaluation.registry import Benchmark, benchmark_of, benchmarks, given_paths, refuse_foreign
from recipe.rerule.platform import select

ORIGINAL, CONTROL = "original", "control"
"""Names of the model before unlearning and of the never-knew model; attacks need them by these names."""


@dataclass(frozen=True)
class Places:
    """Where a command writes.

    Attributes:
        out: the folder of results.
        overwrite: whether earlier results may be replaced.
        kept: where finished pieces are kept.
        cached: whether `kept` outlasts the command.
        keep_models: whether the changed models stay, in `out`.
    """

    out: Path
    overwrite: bool
    kept: Path
    cached: bool
    keep_models: bool


@dataclass(frozen=True)
class Command:
    """A checked command.

    Attributes:
        plans: the attacks, in the order of the registry.
        models: as given, the never-knew model last, under the name CONTROL.
        pieces: all that is to be done.
        origin: all that readings depend on besides attacks and models.
    """

    benchmark: Benchmark
    material: Material
    plans: list[Planned]
    models: list[Model]
    pieces: list[Piece]
    budget: Budget
    decoding: Decoding
    places: Places
    origin: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """Of all models, in order."""
        return [model.name for model in self.models]


def checked(options: argparse.Namespace) -> Command:
    """The command asked for. Raises ValueError on anything wrong with it."""
    places = _checked_places(options)
    wanted = chosen([BEFORE, *options.attacks])
    models = _models(options)
    wanted = _possible(wanted, options, [model.name for model in models])
    decoding, budget = decoding_of(options), BUDGETS[options.budget]
    source = _source(options, models)
    train = [] if options.train is None else read_training_rows(options.train)
    material = material_of(source, train, models, budget, options.seeds or budget.seeds)
    plans = _plans(wanted, [BEFORE, *options.attacks], budget, material)
    _check_requests(models, plans)
    _warn_of_templates(source, models)
    select(options.platform)
    origin = _origin(options, source, decoding, models[0])
    todo = pieces(plans, models, material, origin)
    return Command(source.benchmark, material, plans, models, todo, budget, decoding, places, origin)


def _source(options: argparse.Namespace, models: Sequence[Model]) -> Source:
    probes = read_probes(options.probes)
    benchmark = benchmarks()[options.benchmark or benchmark_of(probes)]
    refuse_foreign(options, benchmark.name, benchmarks())
    return Source(benchmark, benchmark.evaluator(options), probes, models[0].path)


def _checked_places(options: argparse.Namespace) -> Places:
    """Where to write. Raises ValueError where that is not ours to write, or not apart from the inputs."""
    inputs = {"--probes": options.probes, "--train": options.train} | given_paths(options, benchmarks())
    check_apart(options.out, *there(*inputs.items()))
    check_writable(options.out, options.overwrite, ATTACKED)
    kept = options.cache or options.out.with_name(f"{options.out.name}.partial")
    check_kept(kept)
    return Places(options.out, options.overwrite, kept, options.cache is not None, options.keep_models)


def _models(options: argparse.Namespace) -> list[Model]:
    """All models, the never-knew model last. Raises ValueError."""
    specs = [*options.model, *([] if options.control is None else [f"{CONTROL}={options.control}"])]
    models = with_template(resolve_models(specs), options.template)
    check_models(models)
    if options.control is not None and models[-1].name != CONTROL:
        raise ValueError(f"--control {options.control} is several models; give one folder")
    runs = there(*(("--model", path_of(one.partition("=")[2])) for one in specs))
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
            errors.warn(f"{text}; it is left out")
    return [attack for attack in wanted if not lacking[attack.name]]


def _plans(
    wanted: Sequence[Attack], named: Sequence[str], budget: Budget, material: Material
) -> list[Planned]:
    """What each attack does; one that was not named, and can do nothing with these data, is left out.

    Raises:
        ValueError: an attack that was named cannot be made.
    """
    found = []
    for attack in wanted:
        try:
            found.append(plan(attack, attack.options(budget.name), material))
        except ValueError as error:
            if attack.name in named:
                raise
            errors.warn(f"{error}; it is left out")
    return found


_MISSING = {
    ORIGINAL: f"the model before unlearning, --model {ORIGINAL}=FOLDER",
    CONTROL: "a model that never knew the facts, --control FOLDER",
}


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


def _warn_of_templates(source: Source, models: Sequence[Model]) -> None:
    """Raises ValueError on an argument that no model's chat template has."""
    if not all(probe.raw for probe in source.probes):
        for line in warnings(models):
            errors.warn(line)


def _origin(options: argparse.Namespace, source: Source, decoding: Decoding, model: Model) -> dict[str, Any]:
    return {
        "benchmark": source.benchmark.name,
        "rouge_l_convention": source.evaluator.convention,
        "benchmark_settings": dict(source.evaluator.settings),
        "probes": file_sha256(options.probes),
        "train": options.train and file_sha256(options.train),
        "budget": options.budget,
        "platform": decoding.platform,
        "dtype": decoding.dtype,
        **({"template": dict(model.template)} if model.template else {}),
    }
