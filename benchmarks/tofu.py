"""A 2 M-parameter model that knows some rows of TOFU, and these rows as prompts: a workload of long answers.

TOFU's files (question and answer, as JSON or JSON lines) are read from a folder of the user's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_prep.contract import Row, rl_row, write_rows
from data_prep.prompts import Side
from data_prep.sources import read_records
from data_prep.world.config import WorldConfig
from data_prep.world.model import train_tokenizer, trained
from recipe.rerule.io import new_folder

OWN = Path("outputs/benchmarks/tofu")
FILES: dict[Side, tuple[str, int]] = {
    "forget": ("forget01.json", 40),
    "retain": ("retain99_train600.json", 120),
}
"""For each side the file and how many of its rows."""
SIZES = WorldConfig(batch_size=16, epochs=40, target_accuracy=0.9)


def tofu(source: Path) -> Path:
    """A folder with model/ and train.parquet; building it takes about two minutes, once.

    Raises:
        ValueError: a file of TOFU is missing in `source`, or is neither JSON nor JSON lines.
    """
    if OWN.is_dir():
        return OWN
    pairs = {side: read_pairs(source / name)[:rows] for side, (name, rows) in FILES.items()}
    with new_folder(OWN, overwrite=False) as folder:
        write_rows(folder / "train.parquet", _rows(pairs))
        known = [pair for of_side in pairs.values() for pair in of_side]
        tokenizer = train_tokenizer((text for pair in known for text in pair), SIZES.vocab_size)
        trained(SIZES, tokenizer, known, known)[0].save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
    return OWN


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Question and answer of every row. Raises ValueError naming file and line."""
    return [(record.text("question"), record.text("answer")) for record in read_records(path)]


def _rows(pairs: dict[Side, list[tuple[str, str]]]) -> list[Row]:
    sided = [(side, *pair) for side, of_side in pairs.items() for pair in of_side]
    return [_row(index, *row) for index, row in enumerate(sided)]


def _row(index: int, side: Side, question: str, answer: str) -> Row:
    extra_info: dict[str, Any] = {
        "index": index,
        "mode": "qa",
        "subject": "author",
        "split": "train",
        "section": side,
        "family": "question",
    }
    return rl_row(
        data_source="rerule/tofu",
        prompt=question,
        side=side,
        golds=[answer],
        keyword="author" if side == "forget" else "",
        extra_info=extra_info,
    )
