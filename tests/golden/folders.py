"""What golden files keep of the folders that commands write."""

import json
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation import tidy


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def evaluation(folder: Path) -> dict[str, Any]:
    """The numbers of a folder of `evaluate model`, with their intervals and tests, and what a response has.

    A metric is one entry: its numbers in the order of `rows`, and its intervals in the order of the models.
    """
    names = ("results", "anchors", "intervals", "comparisons", "meta")
    results, anchors, intervals, tests, meta = (read_json(folder / f"{name}.json") for name in names)
    responses = tidy.read_responses(folder)
    (first,) = json.loads(responses.head(1).to_json(orient="records"))
    tested = ("difference", "low", "high", "p_value", "p_holm", "facts")
    settings = ("benchmark", "unit", "rouge_l_convention", "benchmark_settings", "probes")
    return {
        "rows": [*results, *anchors],
        "numbers": _by_metric(results | anchors),
        "intervals": _by_metric({name: intervals.get(name, {}) for name in results}),
        "tests": {
            f"{one['a']}, {one['b']}, {one['metric']}": [one[name] for name in tested] for one in tests
        },
        "responses": {
            "count": len(responses),
            "first": {name: value for name, value in first.items() if value is not None},
        },
        "settings": {name: meta[name] for name in settings} | {"keys": list(meta)},
    }


def _by_metric(by_model: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    metrics = dict.fromkeys(metric for numbers in by_model.values() for metric in numbers)
    return {metric: [numbers.get(metric) for numbers in by_model.values()] for metric in metrics}


def attacks(folder: Path) -> dict[str, Any]:
    """The rows of a folder of `evaluate attack`, its curves, and how many values of single probes it has."""
    rows = read_json(folder / "attacks.json")
    table = tidy.read(folder)
    # A value of a fact's probe or of a text: the mean over samples, folds and seeds.
    places = table[["model", "attack", "setting", "side", "fact", "probe"]]
    scores = places[table["score"].notna()].drop_duplicates()
    refusals = places[table["refused"].notna() & (table["side"] == "forget")].drop_duplicates()
    curves = folder / "curves.jsonl"
    return {
        "columns": list(next(iter(next(iter(rows.values())).values()))),
        "rows": {
            f"{attack}, {model}": list(row.values())
            for attack, of_models in rows.items()
            for model, row in of_models.items()
        },
        "curves": read_lines(curves) if curves.is_file() else [],
        "values of single probes": len(scores) + len(refusals),
    }
