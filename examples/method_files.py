"""The files of rows that methods read, and what to do where data_prep has not written one.

METHOD_ROWS is `answers` (questions with their answers) or `texts` (the texts of the benchmark, as in the
papers' tables of MUSE and RWKU).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from data_prep import muse, rwku
from data_prep.sources import Source, Table
from recipe.rerule.unlearning import presets

TEXTS = {"forget": "forget_text.parquet", "retain": "retain_text.parquet"}
"""By the side that `python -m recipe.rerule.unlearn --list` names under `data`."""
CORPORA = {"muse_books": muse.BOOKS, "muse_news": muse.NEWS}


def files(method: str, folder: Path, rows: str) -> dict[str, Path]:
    """{"data.SIDE": file} of each file that the method reads, there or not. Raises ValueError."""
    return {f"data.{side}": folder / name for side, name in read_by(method, rows).items()}


def check(method: str, folder: Path, rows: str) -> None:
    """Raises ValueError naming the method and a file of a folder that is made, where the file is missing."""
    for file in files(method, folder, rows).values():
        if not file.is_file():
            raise ValueError(f"the method {method} needs {file}, which is not there: {_reason(file)}")


def read_by(method: str, rows: str) -> dict[str, str]:
    """The file of each side that the method reads. Raises ValueError where there are no such rows for it."""
    if rows not in ("answers", "texts"):
        raise ValueError(f"METHOD_ROWS is {rows}; choose answers or texts")
    files = presets.answer_files(method)
    if rows == "answers":
        return files
    if not TEXTS.keys() >= files.keys():
        raise ValueError(f"the method {method} needs answers to train on; leave METHOD_ROWS={rows} out")
    return {side: TEXTS[side] for side in files}


def check_source(
    rows: str, benchmark: str, source: str, methods: Sequence[str], targets: Sequence[str]
) -> None:
    """Refuse a source without the texts that one of the methods reads. Raises ValueError naming the files."""
    needed = {name: method for method in methods for name in read_by(method, rows).values()}
    if rows != "texts":
        return
    places: Sequence[Source]
    tables: Mapping[str, Sequence[Table]]
    if benchmark == "rwku":
        tables, places = rwku.TEXTS, rwku.choose(rwku.target_folders(source), targets, written=True)
    elif benchmark in CORPORA:
        tables, places = muse.TEXTS, [muse.open_corpus(source, CORPORA[benchmark])]
    else:
        raise ValueError(f"{benchmark} has no texts; leave METHOD_ROWS=texts out")
    for name, method in needed.items():
        found = tables[name.removesuffix(".parquet")]
        files = " or ".join(f"{table.file}.json" for table in found)
        without = [place.name for place in places if not any(map(place.has, found))]
        if without:
            raise ValueError(
                f"{source}: no {files} in {', '.join(without)}, so that {name}, which the method {method} "
                "reads, cannot be made; add the file, or leave METHOD_ROWS=texts out"
            )


def _reason(file: Path) -> str:
    """Why data_prep did not write the file, and what to do."""
    manifest = json.loads((file.parent / "manifest.json").read_text("utf-8"))
    said = manifest.get("classical", {}).get("left_out", [])
    reasons = [text.partition(": ")[2] for text in said if text.startswith(f"{file.name} is not written: ")]
    if reasons:
        return f'{reasons[0]} (PREPARE_OPTIONS="--gold FILE" and another OUT)'
    return "give another OUT, so that data_prep makes the rows again"
