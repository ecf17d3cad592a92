"""The data of the probe browser: probes and every model's answers, as small as can be.

Texts of the probes stand once, whatever the number of models; answers stand by model, so that equal refusals
are neighbours and compress well. A page holds at most `MOST_PROBES` probes and `MOST_CHARACTERS` characters;
beyond that, every k-th probe in the order of the file is kept, k as small as will do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from recipe.rerule.evaluation import tidy
from recipe.rerule.reporting.document import Browser
from recipe.rerule.reporting.evaluations import Evaluation

MOST_PROBES = 20_000
MOST_CHARACTERS = 24_000_000
LONGEST_TEXT = 2_000
_KEY = ["side", "kind", "probe", "sample", "prompt"]


def browser_of(targets: Sequence[Evaluation], name: str) -> Browser | None:
    """The browser over the answers of all targets; None where no answers were kept.

    Raises ValueError: a table that is wrong, or models that answered other probes.
    """
    found = [(target, tables) for target in targets if (tables := _by_model(target))]
    if not found:
        return None
    first, models = found[0]
    for target, tables in found[1:]:
        if lacking := models.keys() ^ tables.keys():
            raise ValueError(
                f"{tidy.FILE} of {target.folders[0]} and {first.folders[0]}: only one of them has answers of "
                f"{', '.join(sorted(lacking))}"
            )
    every = [table.dropna(axis=1, how="all") for _, tables in found for table in tables.values()]
    numbers = dict.fromkeys(column for one in every for column in one.select_dtypes("float64"))
    scores = [column for column in numbers if column != "refused"]
    probes: list[dict[str, Any]] = []
    answers: dict[str, list[list[Any]]] = {}
    for target, tables in found:
        of_target = target.target if len(targets) > 1 else ""
        probes += [_probe(row, of_target) for row in next(iter(tables.values())).to_dict("records")]
        for model, table in tables.items():
            answers.setdefault(model, []).extend(_answers(table, scores))
    texts = sum(len(str(field)) for probe in probes for field in probe.values())
    texts += sum(len(answer[0]) for of_model in answers.values() for answer in of_model)
    step = max(1, -(-len(probes) // MOST_PROBES), -(-texts // MOST_CHARACTERS))
    kept = range(0, len(probes), step)
    data = {
        "fields": list(probes[0]),
        "probes": [list(probes[place].values()) for place in kept],
        "scores": scores,
        "answers": {model: [of_model[place] for place in kept] for model, of_model in answers.items()},
    }
    note = f"{len(kept):,} probes, {len(answers)} models."
    if len(kept) < len(probes):
        note = (
            f"{len(kept):,} of {len(probes):,} probes (one in {step}, in the order of the file), "
            f"{len(answers)} models; all answers are in {tidy.FILE} of the evaluation."
        )
    return Browser(name, note, data)


def _by_model(target: Evaluation) -> dict[str, pd.DataFrame]:
    """{model: its rows} of the evaluation's models, the probes in the order of the first one."""
    table = target.responses()
    if table is None:
        return {}
    rows = {model: own.set_index(_KEY, drop=False) for model, own in table.groupby("model", sort=False)}
    models = {model: rows[model] for model in target.results if model in rows}
    for model, own in models.items():
        first = next(iter(models.values()))
        if len(own) != len(first) or not own.index.isin(first.index).all():
            raise ValueError(
                f"{target.folders[0] / tidy.FILE}: {model} answered other probes than {next(iter(models))}, "
                "so their answers cannot be shown side by side"
            )
        models[model] = own.loc[first.index]
    return models


def _probe(row: Mapping[Any, Any], target: str) -> dict[str, Any]:
    """A probe, by the fields that templates/browser.js reads; `target` where the row says no subject."""
    prompt = row["prompt"]
    return {
        "index": row["probe"],
        "section": row["side"],
        "mode": row["kind"],
        "family": row.get("family") or "",
        "subject": row.get("target") or row.get("subject") or target,
        # Of a long prompt the end, where its question stands.
        "prompt": prompt if len(prompt) <= LONGEST_TEXT else "…" + prompt[1 - LONGEST_TEXT :],
        "golds": [_start(gold) for gold in row.get("golds", ())],
    }


def _answers(table: pd.DataFrame, scores: Sequence[str]) -> list[list[Any]]:
    """[response, 1 where it refuses, then the scores, null where one is missing] of each row."""
    numbers = table.reindex(columns=scores).round(3)
    numbers = numbers.astype(object).where(numbers.notna(), None)
    refused = table["refused"].eq(1).astype(int) if "refused" in table else [0] * len(table)
    responses = map(_start, table["response"])
    return [list(one) for one in zip(responses, map(int, refused), *numbers.to_numpy().T, strict=True)]


def _start(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
