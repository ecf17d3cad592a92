"""Rows that do not become prompts; what rows say of themselves are cases of tests/refused."""

import contextlib
import math
from typing import Any

import pytest
from omegaconf import OmegaConf

from data_prep.contract import Row, rl_row
from recipe.rerule.preflight.rows import check_rows
from recipe.rerule.training.prompts import PromptError, load_tokenizer
from tests.made_tokenizers import CHATML_TEMPLATE, byte_level, sentencepiece
from tests.unlearning import made

PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
INFO = {"mode": "qa", "subject": "Ada", "split": "train", "section": "retain", "family": "question"}


def rows(*texts: str, raw: bool) -> list[Row]:
    shared = {"data_source": "rerule/test", "side": "retain", "golds": ["it"], "keyword": ""}
    numbered = [(text, {**INFO, "index": n}) for n, text in enumerate(texts)]
    return [rl_row(prompt=text, extra_info=info, raw=raw, **shared) for text, info in numbered]


def conversations(*pairs: tuple[str, str], raw: bool) -> list[Row]:
    return [made.row(index, *pair, raw=raw) for index, pair in enumerate(pairs)]


PAIRS = [("Who", "it"), ("Who", " wrote it")]
PROMPTS = [*rows("Who", "Who wrote", raw=False), *rows("Who", "Who wrote it", "Who wrote it", raw=True)]
"""Tokens: 1, 2; with BOS 2, 4, 4."""
TAUGHT = [*conversations(*PAIRS, raw=False), *conversations(*PAIRS, raw=True)]
"""Tokens: 2, 3; with BOS and EOS 4, 5."""
NO_TOKENS = conversations(("Who", "it"), ("Who", "\nit"), raw=True)
THINKING = byte_level("{{ messages[0].content }}{% if thinks %} wrote it{% endif %}")


@pytest.mark.parametrize(
    ("found", "tokenizer", "arguments", "limit", "line"),
    [
        (PROMPTS, byte_level(PLAIN), {}, 4, None),
        (PROMPTS, byte_level(PLAIN), {}, 3, "row 3: the prompt has 4 tokens where .* is 3; raise"),
        (PROMPTS, byte_level(PLAIN), {}, 1, "row 1: the prompt has 2 tokens"),
        (TAUGHT, byte_level(PLAIN), {}, 5, None),
        (TAUGHT, byte_level(PLAIN), {}, 4, "row 3: prompt and answer have 5 tokens where .* 4;"),
        (TAUGHT, byte_level(PLAIN), {}, 2, "row 1: prompt and answer have 3 tokens"),
        (rows("Who", raw=False), THINKING, {}, 1, None),
        (rows("Who", raw=False), THINKING, {"thinks": True}, 1, "row 0: the prompt has 3 tokens"),
        (NO_TOKENS, byte_level(), {}, math.inf, r"row 1: the answer '\\nit' has no tokens of its own"),
    ],
)
def test_the_first_row_that_does_not_fit_is_named(
    found: list[Row], tokenizer: Any, arguments: dict[str, Any], limit: float, line: str | None
) -> None:
    """Raw rows have BOS; chat rows have what the template writes, here the words alone."""
    with pytest.raises(PromptError, match=rf"^a\.parquet: {line}") if line else contextlib.nullcontext():
        check_rows("a.parquet", found, tokenizer, arguments, limit=limit)


def test_the_tokenizer_is_the_one_verl_will_load(tmp_path: Any) -> None:
    byte_level(CHATML_TEMPLATE).save_pretrained(tmp_path / "model")
    sentencepiece().save_pretrained(tmp_path / "other")
    model = {"path": str(tmp_path / "model"), "tokenizer_path": None}
    model |= {"custom_chat_template": None, "trust_remote_code": False}

    def load(**changes: Any) -> Any:
        return load_tokenizer(OmegaConf.create(model | changes))

    assert load().chat_template == CHATML_TEMPLATE
    assert load(custom_chat_template=PLAIN).chat_template == PLAIN
    assert load(tokenizer_path=str(tmp_path / "other")).bos_token == "<s>"
