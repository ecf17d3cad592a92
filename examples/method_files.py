"""The data that a method reads: python examples/method_files.py ROWS [--planned] METHOD FOLDER...

Prints a setting `data.SIDE=FILE` for each file that the method needs, of each folder that data_prep made.
Refuses, with one line and exit code 2, where such a file is missing; the folder's manifest says why. ROWS is
`answers` (questions with their answers) or `texts` (the texts of the benchmark, as in the papers' tables of
MUSE and RWKU). With --planned the folders need not be made yet.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from recipe.rerule import io
from recipe.rerule.unlearning import presets

FILES = {
    "answers": {
        "forget": "forget_gold.parquet",
        "retain": "retain.parquet",
        "alternate": "alternate.parquet",
    },
    "texts": {"forget": "forget_text.parquet", "retain": "retain_text.parquet"},
}
"""By ROWS, and by the side that `python -m recipe.rerule.unlearn --list` names under `data`."""


def main(arguments: Sequence[str]) -> int:
    """Print the settings of the method and the folders that the command line names."""
    rows, *rest = arguments
    planned = rest[0] == "--planned"
    method, *folders = rest[planned:]
    try:
        lines = [line for folder in folders for line in settings(method, Path(folder), rows, planned)]
    except (ValueError, OSError) as error:
        return io.fail(error, 2)
    print("\n".join(lines))
    return 0


def settings(method: str, folder: Path, rows: str, planned: bool = False) -> Iterator[str]:
    """`data.SIDE=FILE` of each file. Raises ValueError naming the method and a file that is missing.

    `planned`: the folder need not be made yet.
    """
    if rows not in FILES:
        raise ValueError(f"METHOD_ROWS is {rows}; choose {' or '.join(FILES)}")
    for side in presets.load(method).data:
        if side not in FILES[rows]:
            raise ValueError(f"the method {method} needs answers to train on; leave METHOD_ROWS={rows} out")
        file = folder / FILES[rows][side]
        if not (planned or file.is_file()):
            raise ValueError(f"the method {method} needs {file}, which is not there: {_reason(file)}")
        yield f"data.{side}={file}"


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
