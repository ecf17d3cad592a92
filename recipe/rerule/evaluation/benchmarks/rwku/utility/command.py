"""`evaluate utility`: score a model on a target's utility sets.

Writes a folder: results.json {"utility/mmlu": fraction of 1, ...}, samples.jsonl (a question a line) and
meta.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shlex
import sys
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.benchmarks.rwku.utility.harness import (
    Settings,
    UtilityResult,
    evaluate_utility,
    require_lm_eval,
)
from recipe.rerule.evaluation.benchmarks.rwku.utility.target_files import utility_rows
from recipe.rerule.evaluation.output import UTILITY, json_text, write_folder
from recipe.rerule.io import check_apart, check_writable, json_lines
from recipe.rerule.platform import PLATFORMS, select

_EXAMPLES = """\
examples:
  python -m recipe.rerule.evaluate utility --model MODEL --target RULE/data/RWKU/Target/1_Stephen_King \\
      --out outputs/utility
  python -m recipe.rerule.evaluate utility --platform cpu --limit 20 --model MODEL --target TARGET \\
      --out outputs/try
      a try with 20 questions of each set
"""


def add_utility_parser(commands: Any) -> None:
    """Adds `utility` to the subcommands of `evaluate`."""
    summary = "score a model on RWKU's utility sets, through lm-eval"
    parser = commands.add_parser(
        "utility", help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=_EXAMPLES
    )
    parser.add_argument(
        "--model", type=Path, required=True, metavar="FOLDER", help="a Hugging Face model folder"
    )
    parser.add_argument(
        "--target", type=Path, required=True, metavar="FOLDER", help="RWKU's folder of one target"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier evaluation in --out")
    parser.add_argument(
        "--platform", choices=PLATFORMS, default="gpu", help="where the model runs (default: %(default)s)"
    )
    parser.add_argument("--raw", action="store_true", help="no chat template: for base models")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="only the first N questions of each set (default: all)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit code 0. Raises ValueError where the input is wrong or lm-eval is missing, with nothing written."""
    settings = Settings(options.model, options.platform, not options.raw, options.limit)
    _check(options, settings)
    rows = utility_rows(options.target)
    select(options.platform)
    result = evaluate_utility(rows, settings)
    _write(options, result, _meta(options, settings, {name: len(found) for name, found in rows.items()}))
    for name, value in result.metrics.items():
        print(f"{name:28} {value:.3f}")
    print(f"written to {options.out}")
    return 0


def _check(options: argparse.Namespace, settings: Settings) -> None:
    settings.check()
    if not (options.model / "config.json").is_file():
        raise ValueError(f"{options.model} is no Hugging Face model folder: it has no config.json")
    check_apart(options.out, ("--model", options.model), ("--target", options.target))
    check_writable(options.out, options.overwrite, UTILITY)
    require_lm_eval()


def _write(options: argparse.Namespace, result: UtilityResult, meta: dict[str, Any]) -> None:
    files = {
        "results.json": json_text(result.metrics),
        "samples.jsonl": json_lines(result.samples),
    }
    write_folder(options.out, UTILITY, meta, files, options.overwrite)


def _meta(options: argparse.Namespace, settings: Settings, questions: dict[str, int]) -> dict[str, Any]:
    return {
        "benchmark": "rwku utility sets",
        "command": shlex.join(["python", "-m", "recipe.rerule.evaluate", *sys.argv[1:]]),
        "model": str(options.model),
        "target": str(options.target),
        "questions": questions,
        "limit": settings.limit,
        "backend": "lm-eval hf",
        "dtype": settings.dtype,
        "chat": settings.chat,
        "versions": {name: importlib.metadata.version(name) for name in ("lm_eval", "torch", "transformers")},
    }
