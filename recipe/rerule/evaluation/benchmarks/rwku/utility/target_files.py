"""A target's files of utility sets, membership texts and instructions, as RWKU has them: one folder a
target."""

from __future__ import annotations

from pathlib import Path

from recipe.rerule.evaluation.row_files import Row, checked_rows, file_of


def utility_rows(folder: Path) -> dict[str, list[Row]]:
    """The rows of every utility set that the folder has, by name: mmlu, bbh, truthfulqa, triviaqa.

    Files are retain_mmlu.json, retain_bbh.json, truthful.json and triviaqa.json. Of the first two, the form
    NAME.compact.json is read too: {few_shot_field, few_shot_by_task, rows}, where the field of a row is that
    of its task.

    Raises:
        ValueError: none is there, or a file is not as described, named with its row.
    """
    names = {"mmlu": "retain_mmlu", "bbh": "retain_bbh", "truthfulqa": "truthful", "triviaqa": "triviaqa"}
    fields: dict[str, dict[str, type]] = {
        "mmlu": {"task": str, "question": str, "choices": list, "answer": int, "examples": list},
        "bbh": {"task": str, "question": str, "answer": str, "cot": str},
        "truthfulqa": {"question": str, "mc1_targets": dict, "mc2_targets": dict},
        "triviaqa": {"question": str, "answers": list},
    }
    found = {
        name: checked_rows(path, fields[name])
        for name, file in names.items()
        if (path := file_of(folder, file))
    }
    if not found:
        raise ValueError(f"{folder}: has none of {', '.join(f'{file}.json' for file in names.values())}")
    return found


def membership_texts(folder: Path) -> dict[str, list[str]]:
    """The texts of forget_mia.json and retain_mia.json, as {"forget": [...], "retain": [...]}.

    Raises ValueError where a file is missing or wrong.
    """
    return {side: _column(folder, f"{side}_mia", "text") for side in ("forget", "retain")}


def instructions(folder: Path) -> list[str]:
    """The instructions of fluency.json. Raises ValueError where it is missing or wrong."""
    return _column(folder, "fluency", "instruction")


def _column(folder: Path, file: str, field: str) -> list[str]:
    path = file_of(folder, file)
    if path is None:
        raise ValueError(f"{folder}: {file}.json is missing")
    return [row[field] for row in checked_rows(path, {field: str})]
