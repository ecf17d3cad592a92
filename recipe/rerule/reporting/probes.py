"""The data of the probe browser: probes and every model's answers, as small as can be.

Texts of the probes stand once, whatever the number of models; answers stand by model, so that equal refusals
are neighbours and compress well. A page holds at most `MOST_PROBES` probes and `MOST_CHARACTERS` characters;
beyond that, every k-th probe in the order of the file is kept, k as small as will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from recipe.rerule.io import is_finite
from recipe.rerule.reporting.document import Browser
from recipe.rerule.reporting.evaluations import Evaluation

MOST_PROBES = 20_000
MOST_CHARACTERS = 24_000_000
LONGEST_TEXT = 2_000

_PROBE_FIELDS = ("section", "mode", "family", "subject", "prompt")
_NOT_SCORES = {"model", "index", "golds", "response", "refused", "target", *_PROBE_FIELDS}
_Record = dict[str, Any]


def browser_of(targets: Sequence[Evaluation], name: str) -> Browser | None:
    """The browser over the answers of all targets; None where no answers were kept.

    Raises:
        ValueError: a record without the fields of responses.jsonl, or models that answered other probes.
    """
    found = [(target, records) for target in targets if (records := _by_model(target))]
    if not found:
        return None
    _check_models(found)
    scores = _score_names(records for _, records in found)
    probes: list[list[Any]] = []
    answers: dict[str, list[list[Any]]] = {}
    for target, records in found:
        probes += _probes(records, target.target if len(targets) > 1 else "")
        for model, of_model in records.items():
            answers.setdefault(model, []).extend(_answer(record, scores) for record in of_model.values())
    return _browser(name, probes, answers, scores)


def _check_models(found: Sequence[tuple[Evaluation, Mapping[str, Any]]]) -> None:
    """Raises ValueError where a target lacks the answers of a model: its column would have gaps."""
    first, models = found[0]
    for target, records in found[1:]:
        if lacking := models.keys() ^ records.keys():
            places = f"{target.folders[0]} and {first.folders[0]}"
            raise ValueError(
                f"responses.jsonl of {places}: only one of them has answers of {', '.join(sorted(lacking))}"
            )


def _browser(
    name: str, probes: list[list[Any]], answers: Mapping[str, list[list[Any]]], scores: list[str]
) -> Browser:
    kept = kept_places(probes, answers)
    data = {
        "fields": ["index", *_PROBE_FIELDS, "golds"],
        "probes": [probes[place] for place in kept],
        "scores": scores,
        "answers": {model: [of_model[place] for place in kept] for model, of_model in answers.items()},
    }
    note = f"{len(kept):,} probes, {len(answers)} models."
    if len(kept) < len(probes):
        note = (
            f"{len(kept):,} of {len(probes):,} probes (one in {kept.step}, in the order of the file), "
            f"{len(answers)} models; all answers are in responses.jsonl of the evaluation."
        )
    return Browser(name, "Single probes", note, data)


def kept_places(probes: Sequence[Sequence[Any]], answers: Mapping[str, Sequence[Any]]) -> range:
    """Places of the probes that a page holds: all, or every k-th."""
    texts = sum(len(str(field)) for probe in probes for field in probe)
    texts += sum(len(answer[0]) for of_model in answers.values() for answer in of_model)
    step = max(1, -(-len(probes) // MOST_PROBES), -(-texts // MOST_CHARACTERS))
    return range(0, len(probes), step)


def _score_names(found: Iterable[Mapping[str, Mapping[Any, _Record]]]) -> list[str]:
    """The numbers that any record of any model has."""
    records = (record for target in found for of_model in target.values() for record in of_model.values())
    names = {name: None for record in records for name, value in record.items() if _is_number(value)}
    return [name for name in names if name not in _NOT_SCORES]


def _is_number(value: Any) -> bool:
    return is_finite(value)


def _by_model(target: Evaluation) -> dict[str, dict[Any, _Record]]:
    """{model: {probe: record}} in file order, of the evaluation's models.

    A model that several folders evaluated on the same probes has its first answers.
    """
    found: dict[str, dict[Any, _Record]] = {}
    for record in target.responses():
        found.setdefault(record["model"], {}).setdefault(_key(record), record)
    models = {model: found[model] for model in target.results if model in found}
    for model, records in models.items():
        if records.keys() != next(iter(models.values())).keys():
            raise ValueError(
                f"{target.folders[0] / 'responses.jsonl'}: {model} answered other probes than "
                f"{next(iter(models))}, so their answers cannot be shown side by side"
            )
    return models


def _key(record: _Record) -> tuple[Any, ...]:
    return record["index"], record.get("section"), record.get("mode"), record["prompt"]


def _probes(found: Mapping[str, Mapping[Any, _Record]], target: str) -> list[list[Any]]:
    """A row a probe, as `fields` of the data names its columns; `target` where a record says no subject."""
    first = next(iter(found.values()))
    return [
        [
            record["index"],
            *(str(record.get(field) or "") for field in _PROBE_FIELDS[:3]),
            str(record.get("target") or record.get("subject") or target),
            _end(record["prompt"]),
            [_start(gold) for gold in record["golds"]],
        ]
        for record in first.values()
    ]


def _answer(record: _Record, scores: Sequence[str]) -> list[Any]:
    """[response, 1 where it refuses, then the scores, null where one is missing]."""
    numbers = [round(record[score], 3) if _is_number(record.get(score)) else None for score in scores]
    return [_start(record["response"]), int(bool(record.get("refused"))), *numbers]


def _start(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def _end(text: str) -> str:
    """The end of a long prompt, where its question stands."""
    return text if len(text) <= LONGEST_TEXT else "…" + text[1 - LONGEST_TEXT :]
