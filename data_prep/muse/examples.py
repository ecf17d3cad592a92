"""Few-shot examples before MUSE's questions."""

from __future__ import annotations

from collections.abc import Iterable

from data_prep.sources import Source, Table

NEUTRAL = (
    ("Which planet is closest to the sun?", "Mercury"),
    ("How many sides does a hexagon have?", "Six"),
    ("What is the chemical symbol for gold?", "Au"),
    ("In which country is the city of Lisbon?", "Portugal"),
    ("What do bees collect from flowers?", "Nectar"),
    ("Which ocean lies between Africa and Australia?", "The Indian Ocean"),
    ("What is frozen water called?", "Ice"),
    ("How many minutes are there in two hours?", "120"),
    ("Which instrument has black and white keys?", "The piano"),
    ("What is the tallest land animal?", "The giraffe"),
)
"""Ours: nothing in them is about a corpus of MUSE or about any neighbour."""

TEMPLATE = "Question: {query}\nAnswer: "


def prefix(pairs: Iterable[tuple[str, str]]) -> str:
    """Questions with their answers, as MUSE puts them before a question."""
    return "".join(f"{TEMPLATE.replace('{query}', question)}{answer}\n\n" for question, answer in pairs)


def prefix_of(source: Source, name: str) -> str:
    """The prefix of one of MUSE's example tables, such as forget_qa_icl. Raises SourceError."""
    records = source.read(Table(f"knowmem/{name}", "knowmem", name))
    return prefix((record.text("question"), record.text("answer")) for record in records)
