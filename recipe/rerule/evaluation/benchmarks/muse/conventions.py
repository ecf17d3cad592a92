"""How MUSE's questions and passages are asked and cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Convention:
    """How a mode is asked and cut.

    Attributes:
        max_tokens: most new tokens.
        stop: strings that end the answer.
        template: of the text sent, with the place {prompt}.
    """

    max_tokens: int
    stop: tuple[str, ...] = ()
    template: str = "{prompt}"


_KNOWMEM = Convention(32, ("\n\n", "\nQuestion", "Question:"))
CONVENTIONS: Mapping[str, Mapping[str, Convention]] = {
    "muse": {"qa": _KNOWMEM, "completion": Convention(128)},
    "rule": {
        "qa": Convention(32, ("\n",)),
        "completion": Convention(128, ("\n",), "Completion: {prompt}\nAnswer: "),
    },
}
"""MUSE's own; and what RULE asks during training, which gives an answer that begins with a newline 0."""
