"""Rows that do not become prompts are named by file and row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from data_prep.contract import Row, rl_row, sft_row
from recipe.rerule.training.prompt_checks import check_conversations, check_prompts, load_tokenizer
from recipe.rerule.training.prompts import PromptError
from recipe.rerule.training.settings.rows import check_end
from tests.made_models import put_model
from tests.made_tokenizers import ALTERNATING_TEMPLATE, CHATML_TEMPLATE, byte_level, sentencepiece

PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
INFO = {"mode": "qa", "subject": "Ada", "split": "train", "section": "retain", "family": "question"}


def rows(*texts: str, raw: bool) -> list[Row]:
    shared = {"data_source": "rerule/test", "side": "retain", "golds": ["it"], "keyword": ""}
    return [
        rl_row(prompt=text, extra_info={**INFO, "index": index}, raw=raw, **shared)
        for index, text in enumerate(texts)
    ]


def conversations(*pairs: tuple[str, str], raw: bool) -> list[Row]:
    return [
        sft_row(prompt=prompt, answer=answer, extra_info={**INFO, "index": index}, raw=raw)
        for index, (prompt, answer) in enumerate(pairs)
    ]


def test_the_first_prompt_that_is_too_long_is_named() -> None:
    """Raw: BOS and the words; chat here: the words alone."""
    tokenizer = byte_level(PLAIN)
    mixed = [*rows("Who", "Who wrote", raw=False), *rows("Who", "Who wrote it", "Who wrote it", raw=True)]
    check_prompts("a.parquet", mixed, tokenizer, {}, limit=4)
    with pytest.raises(
        PromptError, match=r"^a\.parquet: row 3: the prompt has 4 tokens where .* is 3; raise"
    ):
        check_prompts("a.parquet", mixed, tokenizer, {}, limit=3)
    with pytest.raises(PromptError, match="row 1: the prompt has 2 tokens"):
        check_prompts("a.parquet", mixed, tokenizer, {}, limit=1)


def test_the_first_conversation_that_is_too_long_is_named() -> None:
    """Raw: BOS, prompt, answer and EOS; chat here: prompt and answer alone."""
    tokenizer = byte_level(PLAIN)
    pairs = [("Who", "it"), ("Who", " wrote it")]
    mixed = [*conversations(*pairs, raw=False), *conversations(*pairs, raw=True)]
    check_conversations("a.parquet", mixed, tokenizer, {}, limit=5)
    with pytest.raises(PromptError, match=r"^a\.parquet: row 3: prompt and answer have 5 tokens where .* 4;"):
        check_conversations("a.parquet", mixed, tokenizer, {}, limit=4)
    with pytest.raises(PromptError, match="row 1: prompt and answer have 3 tokens"):
        check_conversations("a.parquet", mixed, tokenizer, {}, limit=2)


def test_arguments_of_the_template_count() -> None:
    tokenizer = byte_level("{{ messages[0].content }}{% if thinks %} wrote it{% endif %}")
    check_prompts("a", rows("Who", raw=False), tokenizer, {}, limit=1)
    with pytest.raises(PromptError, match="has 3 tokens"):
        check_prompts("a", rows("Who", raw=False), tokenizer, {"thinks": True}, limit=1)


def test_a_row_that_the_template_refuses_is_named() -> None:
    tokenizer = sentencepiece(template=ALTERNATING_TEMPLATE)
    wrong = rows("Who", "it", raw=False)
    wrong[1]["prompt"] = [{"role": "system", "content": "Be brief."}, *wrong[1]["prompt"]]
    with pytest.raises(
        PromptError, match=r"^a: row 1: the chat template refuses it: user and assistant must"
    ):
        check_prompts("a", wrong, tokenizer, {}, math.inf)
    turned = conversations(("Who", "it"), ("Who", "it"), raw=False)
    turned[1]["messages"].insert(0, {"role": "system", "content": "Be brief."})
    with pytest.raises(
        PromptError, match=r"^a: row 1: the chat template refuses it: user and assistant must"
    ):
        check_conversations("a", turned, tokenizer, {}, math.inf)


def test_an_answer_without_tokens_of_its_own_is_named() -> None:
    pairs = conversations(("Who", "it"), ("Who", "\nit"), raw=True)
    with pytest.raises(PromptError, match=r"^a: row 1: the answer '\\nit' has no tokens of its own"):
        check_conversations("a", pairs, byte_level(), {}, math.inf)


@pytest.mark.parametrize("check", [check_prompts, check_conversations])
def test_a_template_is_needed_by_chat_rows_alone(check: Any) -> None:
    def made(raw: bool) -> list[Row]:
        return rows("Who", raw=raw) if check is check_prompts else conversations(("Who", "it"), raw=raw)

    check("a", made(raw=True), sentencepiece(), {}, math.inf)
    with pytest.raises(PromptError, match="has no chat template"):
        check("a", [*made(raw=True), *made(raw=False)], sentencepiece(), {}, math.inf)


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
    with pytest.raises(PromptError, match="no tokenizer that transformers can load"):
        load(path=str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("raw", "stop", "refused"), [(False, [], True), (True, [], False), (False, ["\n"], False)]
)
def test_only_an_end_that_a_template_writes_and_nothing_else_stops_is_refused(
    raw: bool, stop: list[str], refused: bool, tmp_path: Path
) -> None:
    """The template ends an answer with id 4; the model stops at 2, its tokenizer at 1, where raw rows end."""
    (put_model(tmp_path) / "generation_config.json").write_text('{"eos_token_id": 2}')
    byte_level(CHATML_TEMPLATE).save_pretrained(tmp_path)
    names = {"path": str(tmp_path), "tokenizer_path": None, "custom_chat_template": None}
    data = {"stop": stop, "apply_chat_template_kwargs": {}}
    config = OmegaConf.create({"model": names | {"trust_remote_code": False}, "data": data})
    files = [("a.parquet", conversations(("Who", "it"), raw=raw))]
    if refused:
        with pytest.raises(
            PromptError, match=r"^a\.parquet: the chat template .* ends an answer with '<.eot.>'"
        ):
            check_end(config, config.model, files)
    else:
        check_end(config, config.model, files)
