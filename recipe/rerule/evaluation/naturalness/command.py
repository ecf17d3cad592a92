"""The command `python -m recipe.rerule.evaluate judge`."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from data_prep.contract import SECTIONS
from data_prep.generate import Endpoint, add_call_arguments, endpoint_of, estimate
from recipe.rerule.evaluation.logs.records import by_model
from recipe.rerule.evaluation.naturalness import folder as files
from recipe.rerule.evaluation.naturalness import summary
from recipe.rerule.evaluation.naturalness.judge import Judged, Record, judge, requests_of
from recipe.rerule.evaluation.naturalness.rubric import NOTE, TASK, percent, rubric_sha256
from recipe.rerule.evaluation.probes import file_sha256
from recipe.rerule.evaluation.statistics.facts import UNIT
from recipe.rerule.io import check_apart, check_writable

SUMMARY = "score readability, helpfulness and truthfulness of responses with a judge model"
TEMPERATURE = 0.0
CACHE = Path("outputs/judged")
_EXAMPLES = """\
examples:
  python -m recipe.rerule.evaluate judge --results outputs/evaluation --base-url http://localhost:8000/v1 \\
      --judge-model MODEL --dry-run
      what the calls will cost; no call is made
  python -m recipe.rerule.evaluate judge --results outputs/evaluation --base-url http://localhost:8000/v1 \\
      --judge-model MODEL --limit 50
      scores 50 probes of the forget side for every model, into outputs/evaluation-naturalness
"""
_NAME_WIDTH = 36


def add_judge_parser(commands: argparse._SubParsersAction) -> None:
    """Declare the command."""
    description = textwrap.fill(f"{SUMMARY[0].upper()}{SUMMARY[1:]}. {NOTE}", 110)
    parser = commands.add_parser("judge", help=SUMMARY, description=description, epilog=_EXAMPLES)
    parser.set_defaults(run=run)
    parser.add_argument(
        "--results",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder of an evaluation; nothing in it is changed",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder to write (default: the name of --results and -naturalness)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace earlier scores in --out")
    parser.add_argument(
        "--sections",
        nargs="+",
        choices=SECTIONS,
        default=["forget"],
        help="sections of the probes to score (default: forget)",
    )
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="score at most N probes of each section, drawn at random, the same for all models",
    )
    parser.add_argument(
        "--no-anchors",
        action="store_true",
        help="do not score the constant refusals, which saves their calls",
    )
    group = parser.add_argument_group("judge", "A model behind an OpenAI-compatible endpoint.")
    group.add_argument("--base-url", required=True, metavar="URL", help="as in http://localhost:8000/v1")
    group.add_argument(
        "--judge-model", required=True, dest="model", metavar="NAME", help="the judge's name at that server"
    )
    add_call_arguments(group, TEMPERATURE, CACHE)


def run(options: argparse.Namespace) -> int:
    """`evaluate judge`. Exit code 0. Raises ValueError as `judge_folder`, with nothing written."""
    judge_folder(options)
    return 0


def judge_folder(options: argparse.Namespace) -> None:
    """Score and write the folder; with --dry-run only say what it will cost.

    Raises:
        ValueError: a wrong option, folder or record, no call can succeed (EndpointError), or no score came.
    """
    endpoint = _endpoint(options)
    out = options.out or options.results.with_name(f"{options.results.name}-naturalness")
    if not options.dry_run:
        check_apart(out, ("--results", options.results), ("--cache", options.cache))
        check_writable(out, options.overwrite, files.NATURALNESS)
    responses = _responses(options)
    print(estimate(requests_of(responses), endpoint, options.cache if options.cache.is_dir() else None))
    if options.dry_run:
        return
    judged = _judged(responses, endpoint, options.cache)
    found = {**_summary(judged.records), **_origin(options, endpoint, judged)}
    files.write_naturalness(out, files.Naturalness(found, judged.records), options.overwrite)
    print(format_scores(found))
    print(f"written to {out}")


def format_scores(found: dict[str, Any]) -> str:
    """A table of naturalness.json: a line a model and section, anchors after a rule, then the note."""
    head = f"{'model':{_NAME_WIDTH}}{'section':>15}" + "".join(
        f"{title:>8}" for title in ("read", "help", "truth", "all", "missing")
    )
    models = _table_lines(found, found["results"])
    anchors = _table_lines(found, found["anchors"])
    rule, note = "-" * len(head), textwrap.fill(NOTE, len(head))
    return "\n".join([head, rule, *models, *([rule, *anchors] if anchors else []), note])


def _table_lines(found: dict[str, Any], names: Iterable[str]) -> list[str]:
    lines = []
    for name in names:
        means = found["results"].get(name, found["anchors"].get(name))
        for section, counted in found["counts"][name].items():
            cells = [means.get(f"{section}/{metric}") for metric in summary.METRICS]
            shown = "".join(f"{'–' if cell is None else format(cell, '.1f'):>8}" for cell in cells)
            lines.append(f"{name[:_NAME_WIDTH]:{_NAME_WIDTH}}{section:>15}{shown}{counted['missing']:>8}")
    return lines


def _endpoint(options: argparse.Namespace) -> Endpoint:
    if options.limit is not None and options.limit < 1:
        raise ValueError(f"--limit is {options.limit}; it must be at least 1")
    endpoint = endpoint_of(options)
    assert endpoint is not None  # both options are required
    return endpoint


def _responses(options: argparse.Namespace) -> list[Record]:
    read = files.read_responses(options.results, options.sections)
    responses = files.limited(read, options.limit, options.sampling_seed)
    return responses if options.no_anchors else [*responses, *files.anchor_responses(responses)]


def _judged(responses: list[Record], endpoint: Endpoint, cache: Path) -> Judged:
    try:
        judged = judge(responses, endpoint, cache)
    except OSError as error:
        raise ValueError(f"the cache {cache} cannot be used: {error}") from error
    failures = judged.generated.failures
    if failures and len(failures) == len(judged.generated.results):
        raise ValueError(f"the judge scored no response; of the first one: {failures[0].reason}")
    return judged


def _summary(records: list[Record]) -> dict[str, Any]:
    """The numbers of naturalness.json."""
    rows = by_model(records)
    anchors = {record["model"] for record in records if record.get("anchor")}
    means = {name: summary.means(own) for name, own in rows.items()}
    return {
        "results": {name: found for name, found in means.items() if name not in anchors},
        "anchors": {name: found for name, found in means.items() if name in anchors},
        "intervals": {name: summary.mean_intervals(own) for name, own in rows.items()},
        "unit": UNIT,
        "comparisons": summary.comparisons(record for record in records if not record.get("anchor")),
        "counts": {name: summary.counts(own) for name, own in rows.items()},
        "missing": summary.missing(records),
    }


def _origin(options: argparse.Namespace, endpoint: Endpoint, judged: Judged) -> dict[str, Any]:
    """How the numbers of naturalness.json came about."""
    usage = judged.generated.usage
    return {
        "note": NOTE,
        "rubric": {
            "version": TASK.version,
            "sha256": rubric_sha256(),
            "scale": f"scores of 1 to 5 as 0 to 100, {percent(2):g} a step; empty responses score 1 on all",
        },
        "judge": {
            "model": endpoint.model,
            "temperature": endpoint.temperature,
            "seed": endpoint.seed,
            "max_tokens": endpoint.max_tokens,
            "calls": judged.generated.calls,
            "from_cache": judged.generated.from_cache,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cost": endpoint.cost(usage.prompt_tokens, usage.completion_tokens),
        },
        "responses_sha256": file_sha256(options.results / files.RESPONSES),
        "sections": options.sections,
        "limit": options.limit,
        "command": shlex.join(["python", "-m", "recipe.rerule.evaluate", *sys.argv[1:]]),
    }
