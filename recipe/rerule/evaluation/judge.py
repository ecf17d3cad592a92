"""`evaluate judge`: readability, helpfulness and truthfulness of an evaluation's responses, by a judge model.

An evaluation folder is complete and never changed, so the scores go to a folder of their own with
naturalness.json and naturalness.jsonl, which names the table it belongs to by its SHA-256.
docs/evaluation.md names the rubric by its SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.contract import SECTIONS
from data_prep.generate import (
    Endpoint,
    Generated,
    Request,
    Task,
    add_call_arguments,
    endpoint_of,
    estimate,
    generate,
    prompt_text,
    with_prompts,
)
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.output import write_folder
from recipe.rerule.evaluation.registry import ANCHORS
from recipe.rerule.evaluation.summary import (
    UNIT,
    Samples,
    Statistic,
    compare_all,
    intervals,
    mean_of,
    metrics,
    samples_of,
    with_enough_facts,
)
from recipe.rerule.io import Kind, check_apart, check_writable, file_sha256, json_lines
from recipe.rerule.process import positive
from reward.thoughts import split_thought

if TYPE_CHECKING:  # its import takes two seconds
    import pandas as pd

Record = dict[str, Any]
ProbeKey = tuple[str, str, str, int]
NATURALNESS = Kind("rerule/naturalness", "naturalness.json")
RECORDS = "naturalness.jsonl"
AXES = ("readability", "helpfulness", "truthfulness")
METRICS = (*AXES, "all")
"""What every section has; "all" is the unweighted mean of the three."""
LOWEST, HIGHEST = 1, 5
TEMPERATURE = 0.0
CACHE = Path("outputs/judged")
SUMMARY = "score readability, helpfulness and truthfulness of responses with a judge model"
NOTE = (
    "Scored by a judge model with this project's own rubric. The papers publish neither prompt nor scale nor "
    "judge, so these numbers cannot be compared with theirs."
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    # enum rather than minimum and maximum: every server that enforces schemas knows it
    "properties": {axis: {"type": "integer", "enum": list(range(LOWEST, HIGHEST + 1))} for axis in AXES},
    "required": list(AXES),
    "additionalProperties": False,
}
TASK = Task(
    name="naturalness",
    version=1,
    prompt=prompt_text("naturalness", "project"),
    schema=lambda inputs: SCHEMA,
    problem=lambda inputs, answer: None,
    needs=("reply",),
    answer_tokens=lambda inputs: 25,
)
"""(question, reference, reply) to {"readability", "helpfulness", "truthfulness"}."""
_EXAMPLES = """\
examples:
  python -m recipe.rerule.evaluate judge --results outputs/evaluation --base-url http://localhost:8000/v1 \\
      --judge-model MODEL --dry-run
      how many calls and tokens it takes; no call is made
  python -m recipe.rerule.evaluate judge --results outputs/evaluation --base-url http://localhost:8000/v1 \\
      --judge-model MODEL --limit 50
      scores 50 probes of the forget side for every model, into outputs/evaluation-naturalness
"""
_NAME_WIDTH = 36
_KEPT = ("model", "anchor", "target", "probe", "side", "kind", "family", "subject", "fact")


def percent(score: Any) -> Any:
    """Scores of 1 to 5, a number or a table of them, on the scale of 0 to 100 that tables show."""
    return 100 * (score - LOWEST) / (HIGHEST - LOWEST)


def rubric_sha256(task: Task = TASK) -> str:
    """Hex SHA-256 over all that the judge is told: another hash, another rubric."""
    told = json.dumps({"prompt": task.prompt, "schema": SCHEMA, "version": task.version}, sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def add_judge_parser(commands: argparse._SubParsersAction) -> None:
    description = textwrap.fill(f"{SUMMARY[0].upper()}{SUMMARY[1:]}. {NOTE}", 110)
    parser = commands.add_parser("judge", help=SUMMARY, description=description, epilog=_EXAMPLES)
    parser.set_defaults(run=run)
    parser.add_argument(
        "--results", type=Path, required=True, metavar="DIR",
        help="folder of an evaluation; nothing in it is changed",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="DIR",
        help="folder to write (default: the name of --results and -naturalness)",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace earlier scores in --out")
    parser.add_argument(
        "--sections", nargs="+", choices=SECTIONS, default=["forget"],
        help="sections of the probes to score (default: forget)",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=positive, metavar="N",
        help="score at most N probes of each section, drawn at random, the same for all models",
    )  # fmt: skip
    parser.add_argument(
        "--no-anchors", action="store_true",
        help="do not score the constant refusals, which saves their calls",
    )  # fmt: skip
    group = parser.add_argument_group("judge", "A model behind an OpenAI-compatible endpoint.")
    group.add_argument("--base-url", required=True, metavar="URL", help="as in http://localhost:8000/v1")
    group.add_argument(
        "--judge-model", required=True, dest="model", metavar="NAME", help="the judge's name at that server"
    )
    group.add_argument(
        "--prompt", default="project", metavar="FILE",
        help="file of another rubric, with {question}, {reference} and {reply} (default: this project's)",
    )  # fmt: skip
    add_call_arguments(group, TEMPERATURE, CACHE)


def run(options: argparse.Namespace) -> int:
    """Score and write the folder; with --dry-run only say what it will take. Exit code 0.

    Raises ValueError: a wrong option, folder or record, no call can succeed (EndpointError), or no score
    came; nothing is written.
    """
    endpoint = endpoint_of(options)
    assert endpoint is not None  # both options are required
    task = with_prompts([TASK], [f"{TASK.name}={options.prompt}"])[TASK.name]
    if options.results.is_file():
        raise ValueError(f"--results {options.results} is a file; give the folder of evaluate model")
    out = options.out or options.results.with_name(f"{options.results.name}-naturalness")
    if not options.dry_run:
        check_apart(out, ("--results", options.results), ("--cache", options.cache))
        check_writable(out, options.overwrite, NATURALNESS)
    responses = limited(
        read_responses(options.results, options.sections), options.limit, options.sampling_seed
    )
    responses += [] if options.no_anchors else anchor_responses(responses)
    print(estimate(requests_of(responses, task), endpoint, options.cache))
    if options.dry_run:
        return 0
    try:
        records, generated = judge(responses, endpoint, options.cache, task)
    except OSError as error:
        raise ValueError(f"the cache {options.cache} cannot be used: {error}") from error
    if generated.failures and len(generated.failures) == len(generated.results):
        raise ValueError(f"the judge scored no response; of the first one: {generated.failures[0].reason}")
    found = summary(records) | _origin(options, endpoint, generated, task)
    write_folder(out, NATURALNESS, found, {RECORDS: json_lines(records)}, options.overwrite)
    print(format_scores(found))
    print(f"written to {out}")
    return 0


def read_responses(folder: Path, sections: Sequence[str]) -> list[Record]:
    """The responses of an evaluation folder to probes of `sections`, as rows of the tidy table.

    Raises ValueError: no such table, one that is wrong, or no response.
    """
    table = tidy.read_responses(folder)
    if missing := [name for name in ("golds", "subject", "family") if name not in table]:
        raise ValueError(f"{folder / tidy.FILE} has no column {missing[0]}, which a judge is shown")
    chosen = table[table["side"].isin(sections)]
    if not len(chosen):
        known = ", ".join(dict.fromkeys(table["side"])) or "none"
        raise ValueError(
            f"{folder / tidy.FILE} has no response in {', '.join(sections)}; its sections: {known}"
        )
    return [{**row, "golds": list(row["golds"])} for row in chosen.to_dict("records")]


def probe_key(record: Mapping[str, Any]) -> ProbeKey:
    """Which probe a record is about: section, kind, target ("" where there is but one) and index."""
    return record["side"], record["kind"], record.get("target", ""), record["probe"]


def limited(responses: Sequence[Record], limit: int | None, seed: int) -> list[Record]:
    """At most `limit` probes a section, drawn by `seed`, the same ones for every model."""
    if limit is None:
        return list(responses)
    probes = sorted(set(map(probe_key, responses)))
    draw, kept = random.Random(seed), set[ProbeKey]()
    for _, of_section in groupby(probes, key=itemgetter(0)):
        keys = list(of_section)
        kept.update(draw.sample(keys, min(limit, len(keys))))
    return [response for response in responses if probe_key(response) in kept]


def anchor_responses(responses: Sequence[Record]) -> list[Record]:
    """What constant refusals would say to the same probes, as responses of models named after them.

    A refusal names the target where the probe is about somebody near it.
    """
    probes = {probe_key(response): response for response in responses}
    return [
        {
            **probe,
            "model": name,
            "anchor": True,
            "response": answer.replace("{subject}", str(probe.get("target", probe["subject"]))),
        }
        for name, answer in ANCHORS.items()
        for probe in probes.values()
    ]


def said(response: Record) -> str:
    """What the user reads of a response: what follows the thought, without space around it."""
    return split_thought(response["response"])[1].strip()


def requests_of(responses: Sequence[Record], task: Task = TASK) -> list[Request]:
    """One request for every response that is not empty, in order. Model names are no part of them."""
    found = []
    for response in responses:
        if reply := said(response):
            reference = "\n".join(response["golds"])
            inputs = {"question": response["prompt"], "reference": reference or "(none)", "reply": reply}
            # No text may end the tags around it.
            found.append(Request(task, {name: text.replace("</", "< /") for name, text in inputs.items()}))
    return found


def judge(
    responses: Sequence[Record], endpoint: Endpoint, cache: Path, task: Task = TASK
) -> tuple[list[Record], Generated]:
    """Scores for all responses; the empty ones get the lowest without a call.

    Returns:
        The calls, and before them a record for each response: which response it is, an integer score for each
        of AXES and `all` (0 to 100), all None without scores, `scored_by` ("judge", "rule" or None) and
        `reason` (why there is no score; "" where there is one).

    Raises:
        EndpointError: no call can succeed.
        OSError: the cache cannot be read or written.
    """
    generated = generate(requests_of(responses, task), endpoint, cache)
    reasons = {failure.request: failure.reason for failure in generated.failures}
    records, asked = [], 0
    for response in responses:
        scores: Any = dict.fromkeys(AXES, LOWEST)
        by, reason = "rule", ""
        if said(response):
            scores = generated.results[asked]
            by, reason = "" if scores is None else "judge", reasons.get(asked, "")
            asked += 1
        # 4.0 is an integer to a JSON schema
        found = {axis: None if scores is None else int(scores[axis]) for axis in AXES}
        mean = None if scores is None else sum(percent(int(scores[axis])) for axis in AXES) / len(AXES)
        kept = {key: response[key] for key in _KEPT if key in response}
        records.append({**kept, **found, "all": mean, "scored_by": by or None, "reason": reason})
    return records, generated


# From records to the numbers of naturalness.json.


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Means, intervals, counts, what is missing, and every two models on the probes that all have scores
    for."""
    import pandas as pd

    table = pd.DataFrame(records)
    place = [name for name in ("side", "kind", "target", "probe") if name in table]
    if "target" in table:  # facts of two targets are two facts
        table["fact"] = table["target"].str.cat(table["fact"], "\n")
    anchor = table["anchor"].notna() if "anchor" in table else table["model"].isna()
    scored = table[table["scored_by"].notna()].astype(dict.fromkeys(METRICS, float))
    scored[list(AXES)] = percent(scored[list(AXES)])
    means, ends, counts = {}, {}, {}
    for name, own in table.groupby("model", sort=False):
        samples, facts = samples_of(scored[scored["model"] == name], _section)
        statistics = _statistics(samples)
        means[name] = metrics(samples, statistics)
        enough = with_enough_facts(statistics, samples, facts)
        ends[name] = {metric: list(pair) for metric, pair in intervals(samples, enough, facts=facts).items()}
        counts[name] = {
            section: {
                "responses": len(one),
                "scored": int(one["scored_by"].notna().sum()),
                "missing": int(one["scored_by"].isna().sum()),
                "empty": int((one["scored_by"] == "rule").sum()),
            }
            for section, one in own.groupby("side", sort=False)
        }
    anchors = set(table[anchor]["model"])
    listed = [name for name in ("model", *place, "reason") if name in table]
    return {
        "results": {name: found for name, found in means.items() if name not in anchors},
        "anchors": {name: found for name, found in means.items() if name in anchors},
        "intervals": ends,
        "unit": UNIT,
        "comparisons": _comparisons(scored[~scored["model"].isin(anchors)], place),
        "counts": counts,
        "missing": table[table["scored_by"].isna()][listed].to_dict("records"),
    }


def _section(row: Mapping[str, Any]) -> list[str]:
    return [row["side"]]


def _statistics(samples: Samples) -> dict[str, Statistic]:
    return {f"{section}/{name}": mean_of(name, [section]) for section in samples for name in METRICS}


def _comparisons(scored: pd.DataFrame, place: list[str]) -> list[dict[str, Any]]:
    names = list(scored["model"].unique())
    common = scored[scored.groupby(place)["model"].transform("size") == len(names)].sort_values(place)
    if len(names) < 2 or not len(common):
        return []
    found = {name: samples_of(common[common["model"] == name], _section) for name in names}
    first, facts = found[names[0]]
    samples = {name: own for name, (own, _) in found.items()}
    return compare_all(samples, with_enough_facts(_statistics(first), first, facts), facts=facts)


def _origin(
    options: argparse.Namespace, endpoint: Endpoint, generated: Generated, task: Task
) -> dict[str, Any]:
    """How the numbers of naturalness.json came about."""
    usage = generated.usage
    return {
        "note": NOTE if options.prompt == "project" else f"Scored by a judge model with {options.prompt}.",
        "rubric": {
            "version": task.version,
            "sha256": rubric_sha256(task),
            "scale": f"scores of 1 to 5 as 0 to 100, {percent(2):g} a step; empty responses score 1 on all",
        },
        "judge": {
            "model": endpoint.model,
            "temperature": endpoint.temperature,
            "seed": endpoint.seed,
            "max_tokens": endpoint.max_tokens,
            "calls": generated.calls,
            "from_cache": generated.from_cache,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
        },
        "responses_sha256": file_sha256(options.results / tidy.FILE),
        "sections": options.sections,
        "limit": options.limit,
        "command": shlex.join(["python", "-m", "recipe.rerule.evaluate", *sys.argv[1:]]),
    }


def format_scores(found: Mapping[str, Any]) -> str:
    """A table of naturalness.json: a line a model and section, anchors after a rule, then the note."""
    titles = "".join(f"{title:>8}" for title in ("read", "help", "truth", "all", "missing"))
    head = f"{'model':{_NAME_WIDTH}}{'section':>15}{titles}"
    rule = "-" * len(head)
    lines = [head]
    for part in ("results", "anchors"):
        lines += [rule] if found[part] else []
        for name, means in found[part].items():
            for section, counted in found["counts"][name].items():
                cells = [means.get(f"{section}/{metric}") for metric in METRICS]
                shown = "".join(f"{'–' if cell is None else format(cell, '.1f'):>8}" for cell in cells)
                first = f"{name[:_NAME_WIDTH]:{_NAME_WIDTH}}"
                lines.append(f"{first}{section:>15}{shown}{counted['missing']:>8}")
    return "\n".join([*lines, textwrap.fill(found["note"], len(head))])
