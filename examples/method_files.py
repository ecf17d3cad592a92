"""The data that methods read: python examples/method_files.py ROWS [--planned] METHOD FOLDER...

Prints a setting `data.SIDE=FILE` for each file that the method needs, of each folder that data_prep made.
Refuses, with one line and exit code 2, where such a file is missing; the folder's manifest says why. ROWS is
`answers` (questions with their answers) or `texts` (the texts of the benchmark, as in the papers' tables of
MUSE and RWKU). With --planned the folders need not be made yet.

    python examples/method_files.py ROWS --source BENCHMARK SOURCE METHODS [TARGET...]

refuses in the same way a benchmark's source that lacks the texts of METHODS, which are one word.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from data_prep import muse, rwku
from data_prep.sources import Source
from recipe.rerule import io
from recipe.rerule.unlearning import presets

TEXTS = {"forget": "forget_text.parquet", "retain": "retain_text.parquet"}
"""By the side that `python -m recipe.rerule.unlearn --list` names under `data`."""
CORPORA = {"muse_books": muse.BOOKS, "muse_news": muse.NEWS}


def main(arguments: Sequence[str]) -> int:
    """Print the settings of the method and the folders that the command line names, or check a source."""
    rows, *rest = arguments
    try:
        if rest[0] == "--source":
            benchmark, source, methods, *targets = rest[1:]
            check_source(rows, benchmark, source, methods.split(), targets)
            return 0
        planned = rest[0] == "--planned"
        method, *folders = rest[planned:]
        lines = [line for folder in folders for line in settings(method, Path(folder), rows, planned)]
    except (ValueError, OSError) as error:
        return io.fail(error, 2)
    print("\n".join(lines))
    return 0


def settings(method: str, folder: Path, rows: str, planned: bool = False) -> Iterator[str]:
    """`data.SIDE=FILE` of each file. Raises ValueError naming the method and a file that is missing.

    `planned`: the folder need not be made yet.
    """
    for side, name in read_by(method, rows).items():
        file = folder / name
        if not (planned or file.is_file()):
            raise ValueError(f"the method {method} needs {file}, which is not there: {_reason(file)}")
        yield f"data.{side}={file}"


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
