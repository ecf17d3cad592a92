"""A model folder's tokenizer, without transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer


class Tokens:
    """Ids to texts and back; `ends` are the tokens that end a response."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        end = settings["eos_token"]
        self.ends = {self._tokenizer.token_to_id(end["content"] if isinstance(end, dict) else end)}

    def ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def text(self, ids: Sequence[int], special: bool = False) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=not special)


def cut(text: str, stops: Sequence[str]) -> str:
    """The text before the first of the strings that end a response."""
    return min((text.split(stop)[0] for stop in stops if stop in text), key=len, default=text)
