"""The table of what users can get wrong, `cases.txt`, whose head says how a line is read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Case(NamedTuple):
    """A line: an input of its group, "refused", "warned" or "valid", and what the line or the output says."""

    group: str
    given: str
    outcome: str
    says: str = ""

    def __str__(self) -> str:
        return f"{self.group}: {self.given[:80]}"

    @property
    def settings(self) -> list[dict[str, Any]]:
        """The settings of the line; of KEY: VALUE | VALUE one for each value."""
        key, _, values = self.given.partition(": ")
        if "=" not in key:
            return [{key: yaml.safe_load(text)} for text in values.split(" | ")]
        pairs = [pair.partition("=")[::2] for pair in self.given.split("  ")]
        return [{key: yaml.safe_load(text) for key, text in pairs}]

    def is_said(self, text: str) -> bool:
        """Whether the parts of `says` stand in the text in their order."""
        return re.search(".*".join(map(re.escape, self.says.split(" ... "))), text, re.DOTALL) is not None


def read() -> Iterator[Case]:
    """The cases in the order of the table."""
    group = ""
    for line in Path(__file__).with_name("cases.txt").read_text("utf-8").splitlines():
        given, arrow, end = line.partition(" => ")
        if not line or line.startswith("#"):
            continue
        if arrow:
            outcome, _, says = end.partition(": ")
            assert outcome in ("refused", "warned", "valid"), line
            yield Case(group, given, outcome, says)
        elif line.startswith("["):
            group = line[1:-1]
        else:
            yield Case(group, line, "refused", f"{line.partition(': ')[0]} is ")


def told(stderr: str) -> list[str]:
    """The lines of a command without those of its progress, which a machine that is busy has too."""
    progress = r"(?!error|warning).+: (\d+ of \d+ [\w ]+, )?\d+ s([,;].*)?"
    return [line for line in stderr.splitlines() if not re.fullmatch(progress, line)]
