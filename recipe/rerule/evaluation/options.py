"""What `evaluate model` and `evaluate attack` have in common: their inputs, the options of single benchmarks,
and what is checked of them before anything is written or an engine starts.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe.rerule import io
from recipe.rerule.evaluation.engine.encoding import warnings
from recipe.rerule.evaluation.engine.models import (
    Model,
    add_template_argument,
    check_models,
    chosen_by_probes,
    path_of,
    resolve_models,
    with_template,
)
from recipe.rerule.evaluation.engine.run import Decoding, add_decoding_arguments
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.registry import (
    Benchmark,
    Option,
    add_phrases_argument,
    benchmark_of,
    benchmarks,
    name_of,
)
from recipe.rerule.evaluation.summary import UNIT
from recipe.rerule.io import Kind, check_apart, check_writable, existing, file_sha256
from recipe.rerule.platform import PLATFORMS


def add_arguments(parser: argparse.ArgumentParser, model_help: str) -> None:
    """Declare --model, --probes, --out and what else both commands take."""
    parser.add_argument("--model", action="append", required=True, metavar="NAME=PATH", help=model_help)
    add_template_argument(parser)
    parser.add_argument(
        "--probes", type=Path, required=True, metavar="FILE",
        help="probes.parquet, made by python -m data_prep",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace earlier results in --out")
    parser.add_argument(
        "--platform", choices=PLATFORMS, default="gpu", help="where vLLM runs (default: %(default)s)"
    )
    add_decoding_arguments(parser)
    add_phrases_argument(parser)
    parser.add_argument(
        "--benchmark", type=name_of, choices=tuple(benchmarks()),
        help="the benchmark of the probes (default: what their data_source says; custom: your own data)",
    )  # fmt: skip
    for name, declared in _by_name().items():
        texts: dict[str, list[str]] = {}  # benchmarks that say the same stand together
        for benchmark, option in declared.items():
            texts.setdefault(option.told, []).append(benchmark)
        told = "; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())
        one = next(iter(declared.values()))
        try:
            parser.add_argument(
                one.flag, dest=name, type=one.type, metavar=one.metavar,
                help=told.replace("%", "%%"),  # argparse takes it for a format
            )  # fmt: skip
        except argparse.ArgumentError:  # of another package
            io.warn(f"{one.flag} of {', '.join(declared)} is an option of the command itself")


def _by_name() -> dict[str, dict[str, Option]]:
    """{option: {benchmark: what it declares}}."""
    found: dict[str, dict[str, Option]] = {}
    for benchmark in benchmarks().values():
        for option in benchmark.options:
            found.setdefault(option.name, {})[benchmark.name] = option
    return found


def check_folders(
    options: argparse.Namespace,
    inputs: Mapping[str, Path | None],
    files: Sequence[tuple[str, str]],
    kind: Kind,
) -> None:
    """Refuse an --out that is not to be replaced, or in which an input lies. Raises ValueError.

    Args:
        inputs: by flag; those of single benchmarks are found here.
        files: further (flag, file).
    """
    flags = {one.flag: getattr(options, one.name) for b in benchmarks().values() for one in b.options}
    paths = {flag: value for flag, value in flags.items() if isinstance(value, Path)}
    phrases = ("--refusal-phrases", options.refusal_phrases)
    check_apart(options.out, *existing(*inputs.items(), phrases, *paths.items(), *files))
    check_writable(options.out, options.overwrite, kind)


def benchmark_from(options: argparse.Namespace, probes: Sequence[Probe]) -> Benchmark:
    """The benchmark of the probes as the options say. Raises ValueError where one of them is wrong.

    So is an option that other benchmarks have.
    """
    declared = benchmarks()[options.benchmark or benchmark_of(probes)]
    for name, known in _by_name().items():
        if getattr(options, name, None) is not None and declared.name not in known:
            flag = next(iter(known.values())).flag
            raise ValueError(
                f"{flag} is an option of {', '.join(known)}, and the probes are of {declared.name}; leave it "
                "out"
            )
    return declared.evaluator(options)


def models_from(options: argparse.Namespace, specs: Sequence[str]) -> list[Model]:
    """The models that NAME=PATH strings name, with --template. Raises ValueError where one cannot be used."""
    models = with_template(resolve_models(specs), options.template)
    check_models(models)
    # In a run's folder --out may lie.
    runs = existing(*(("--model", path_of(one.partition("=")[2])) for one in specs))
    check_apart(options.out, *(("--model", model.path) for model in models), runs=runs)
    return models


def warn_of_models(models: Sequence[Model], probes: Sequence[Probe]) -> None:
    """Say what chat templates write without being asked, and which steps were chosen by the probes.

    Raises ValueError as `encoding.warnings`.
    """
    of_templates = () if all(probe.raw for probe in probes) else warnings(models)
    for line in (*of_templates, *chosen_by_probes(models, [str(probe.messages) for probe in probes])):
        io.warn(line)


def told(file: Path) -> dict[str, str]:
    """What meta.json says of a file that a command was given."""
    return {"file": str(file), "sha256": file_sha256(file)}


def origin(
    options: argparse.Namespace, benchmark: Benchmark, models: Sequence[Model], decoding: Decoding
) -> dict[str, Any]:
    """What meta.json of both commands says: how the numbers came about."""
    return {
        "benchmark": benchmark.name,
        "command": shlex.join(["python", "-m", "recipe.rerule.evaluate", *sys.argv[1:]]),
        "models": {
            model.name: {"path": str(model.path), "global_step": model.step}
            | ({"prefix": model.prefix} if model.prefix else {})
            | ({"template": dict(model.template)} if model.template else {})
            for model in models
        },
        "probes": told(options.probes),
        "unit": UNIT,
        "rouge_l_convention": benchmark.convention,
        **({"refusal_phrases": told(options.refusal_phrases)} if options.refusal_phrases else {}),
        "benchmark_settings": dict(benchmark.settings),
        "decoding": {
            "engine": "vLLM",
            "platform": decoding.platform,
            "dtype": decoding.dtype,
            "tensor_parallel_size": decoding.tensor_parallel_size,
            "temperature": 0,
        },
    }
