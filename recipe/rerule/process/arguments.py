"""Command lines: what is wrong with one stands in one line, and `--help` explains the rest."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn


class ArgumentParser(argparse.ArgumentParser):
    """argparse's; help texts keep their lines, and no usage stands before an error."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **settings)

    def error(self, message: str) -> NoReturn:
        """Print `error: <message>; see <command> --help` as one line on stderr, and exit with code 2."""
        self.exit(2, f"error: {' '.join(message.split())}; see {self.prog} --help\n")


def positive(text: str) -> int:
    """A whole number above 0, as an option's type."""
    if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


_DIGITS = 18
"""Of a whole number that 64 bits hold."""
