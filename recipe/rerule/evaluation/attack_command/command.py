"""The command `python -m recipe.rerule.evaluate attack`, from its options to its folder."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from recipe.rerule import errors
from recipe.rerule.evaluation.attack_command import output
from recipe.rerule.evaluation.attack_command.checked import CONTROL, Command, checked
from recipe.rerule.evaluation.attack_command.kept import MODELS, KeptReadings, locked, remove
from recipe.rerule.evaluation.attack_command.pieces import Piece, folder_of
from recipe.rerule.evaluation.attack_command.results import Found, Results, curves_of, found_of, results_of
from recipe.rerule.evaluation.attack_command.statistics import FEWEST_FACTS
from recipe.rerule.evaluation.attack_command.working import work
from recipe.rerule.evaluation.attacks.interface import key_of
from recipe.rerule.evaluation.output import json_text, versions
from recipe.rerule.files import json_lines
from recipe.rerule.process.progress import Progress

_BRIEF = ("before", "after", "excess", "interval", "refusal", "retain", "facts")
"""What --json gives of a row."""


def run_attack(options: argparse.Namespace) -> int:
    """Exit code 0. Raises ValueError where the input is wrong, EngineError where vLLM fails."""
    command = checked(options)
    places = command.places
    with locked(places.kept):
        kept = KeptReadings(places.kept)
        work(command, kept)
        with Progress("attack: intervals and paired tests"):
            found = found_of(command, kept)
            results = results_of(command, found)
            files = _files(command, found, results)
        output.write(places.out, places.overwrite, _meta(command, options), files, _models(command))
        if not places.cached:
            remove(places.kept)
    _tell(command, results, options.json)
    return 0


def _tell(command: Command, results: Results, as_json: bool) -> None:
    print(f"{command.benchmark.title}: attacks, budget {command.budget.name}")
    print(output.table(results, command.names, CONTROL))
    print(f"written to {command.places.out}")
    facts = next(iter(results.values()))[command.names[0]]["facts"]
    if facts < FEWEST_FACTS:
        errors.warn(f"{facts} facts are too few for intervals and tests; at least {FEWEST_FACTS} are needed")
    if as_json:
        brief = {
            attack: {model: {name: row[name] for name in _BRIEF} for model, row in rows.items()}
            for attack, rows in results.items()
        }
        print(json.dumps(brief, allow_nan=False), flush=True)


def _files(command: Command, found: Found, results: Results) -> dict[str, str]:
    curves = curves_of(command, found, results)
    return {
        output.RESULTS: json_text(results),
        output.SCORES: json_lines(_scores(command, found)),
        **({output.CURVES: json_lines(curves)} if curves else {}),
    }


def _scores(command: Command, found: Found) -> list[dict[str, Any]]:
    """Every value of every reading: {attack, model, set, unit, value}."""
    return [
        {"attack": key_of(planned.attack, variant), "model": model, "set": name, "unit": unit, "value": value}
        for planned in command.plans
        for model in command.names
        for variant, reading in found.readings[planned.attack.name, model].items()
        for name, values in reading.items()
        for unit, value in values.items()
    ]


def _models(command: Command) -> dict[str, Path]:
    """The changed models that are to stay, by their names in --out."""
    if not command.places.keep_models:
        return {}
    changed = [piece for piece in command.pieces if piece.change is not None]
    return {_folder_name(piece): folder_of(piece, command.places.kept / MODELS) for piece in changed}


def _folder_name(piece: Piece) -> str:
    assert piece.change is not None
    part = f"fold_{piece.change.fold}_seed_{piece.change.seed}"
    return f"{piece.model.name}/{piece.planned.attack.name}/{part}"


def _meta(command: Command, options: argparse.Namespace) -> dict[str, Any]:
    """How the numbers came about."""
    return {
        **command.origin,
        "command": shlex.join(["python", "-m", "recipe.rerule.evaluate", *sys.argv[1:]]),
        "models": {
            model.name: {"path": str(model.path), "global_step": model.step} for model in command.models
        },
        "attacks": {
            planned.attack.name: {
                "title": planned.attack.title,
                "kind": planned.attack.kind,
                "options": dict(planned.options),
                "floor": planned.attack.floor,
                "higher_is_leak": planned.attack.higher_is_leak,
            }
            for planned in command.plans
        },
        "seeds": command.material.seeds,
        "asked": {"forget": len(command.material.asked), "retain": len(command.material.retained)},
        "excess": None if CONTROL in command.names else output.WITHOUT_CONTROL,
        "files": {"probes": str(options.probes), "train": options.train and str(options.train)},
        "versions": versions(),
    }
