"""What rows say of themselves, and those that do not become prompts; files of rows are in tests/refused."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from data_prep.contract import Row, rl_row, sft_row
from recipe.rerule.preflight import rows as checks
from recipe.rerule.preflight.rows import check_end, check_rows
from recipe.rerule.schema import SettingsError
from recipe.rerule.training.prompts import PromptError, load_tokenizer
from reward import RewardConfig
from reward.refusal import RefusalPhrases
from tests.made_models import put_model
from tests.made_tokenizers import ALTERNATING_TEMPLATE, CHATML_TEMPLATE, byte_level, sentencepiece
from tests.refused.rows import TRUTH, changed, rl, sft

PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
INFO = {"mode": "qa", "subject": "Ada", "split": "train", "section": "retain", "family": "question"}


def rows(*texts: str, raw: bool) -> list[Row]:
    shared = {"data_source": "rerule/test", "side": "retain", "golds": ["it"], "keyword": ""}
    return [
        rl_row(prompt=text, extra_info={**INFO, "index": n}, raw=raw, **shared)
        for n, text in enumerate(texts)
    ]


def conversations(*pairs: tuple[str, str], raw: bool) -> list[Row]:
    infos = [{**INFO, "index": index} for index in range(len(pairs))]
    return [
        sft_row(prompt=prompt, answer=answer, extra_info=info, raw=raw)
        for info, (prompt, answer) in zip(infos, pairs, strict=True)
    ]


PAIRS = [("Who", "it"), ("Who", " wrote it")]
PROMPTS = [*rows("Who", "Who wrote", raw=False), *rows("Who", "Who wrote it", "Who wrote it", raw=True)]
"""Tokens: 1, 2; with BOS 2, 4, 4."""
TAUGHT = [*conversations(*PAIRS, raw=False), *conversations(*PAIRS, raw=True)]
"""Tokens: 2, 3; with BOS and EOS 4, 5."""
BRIEF, SAID = {"role": "system", "content": "Be brief."}, TAUGHT[0]["messages"]
THINKING = byte_level("{{ messages[0].content }}{% if thinks %} wrote it{% endif %}")
TURNS = sentencepiece(template=ALTERNATING_TEMPLATE)
REFUSES = "row 1: the chat template refuses it: user and assistant must"


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
        (changed(rows("Who", "it", raw=False), 1, "prompt", value=[BRIEF]), TURNS, {}, math.inf, REFUSES),
        (
            changed(TAUGHT[:2], 1, "messages", value=[BRIEF, *TAUGHT[0]["messages"]]),
            TURNS,
            {},
            math.inf,
            REFUSES,
        ),
        (
            *(conversations(("Who", "it"), ("Who", "\nit"), raw=True), byte_level(), {}, math.inf),
            r"row 1: the answer '\\nit' has no tokens of its own",
        ),
    ],
)
def test_the_first_row_that_does_not_fit_is_named(
    found: list[Row], tokenizer: Any, arguments: dict[str, Any], limit: float, line: str | None
) -> None:
    """Raw rows have BOS; chat rows have what the template writes, here the words alone."""
    with pytest.raises(PromptError, match=rf"^a\.parquet: {line}") if line else contextlib.nullcontext():
        check_rows("a.parquet", found, tokenizer, arguments, limit=limit)


@pytest.mark.parametrize("trained", [True, False])
def test_a_template_is_needed_by_chat_rows_alone(trained: bool) -> None:
    def made(raw: bool) -> list[Row]:
        return conversations(("Who", "it"), raw=raw) if trained else rows("Who", raw=raw)

    check_rows("a", made(raw=True), sentencepiece(), {}, math.inf)
    with pytest.raises(PromptError, match="has no chat template"):
        check_rows("a", [*made(raw=True), *made(raw=False)], sentencepiece(), {}, math.inf)


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
    line = r"^a\.parquet: the chat template .* ends an answer with '<.eot.>'"
    with pytest.raises(PromptError, match=line) if refused else contextlib.nullcontext():
        check_end(config, config.model, [("a.parquet", conversations(("Who", "it"), raw=raw))])


def said(files: list[tuple[str, list[Row]]], validation: list[Row] | None = None) -> list[str]:
    others = rl("val", start=50) if validation is None else validation
    return [*checks.stage2_warnings(files), *checks.warnings(files, [("v", others)])]


def test_rows_that_are_as_data_prep_makes_them_are_no_warning() -> None:
    assert said([("a", rl())]) == []
    assert list(checks.warnings([("a", sft())], [])) == []
    # TOFU forgets rows that it validates on.
    assert said([("a", rl())], [*rl()[:4], *rl("val", start=50)]) == []


def test_each_kind_of_mistake_is_one_warning_however_many_rows() -> None:
    assert said([("a", rl()), ("b", [*rl()[:3], *rl(words="When", start=3)[:3]])]) == [
        "b: row 0 is also row 0 of a, and will count twice in each epoch",
        "b: row 3: extra_info.index 3 is also that of row 3 of a, another prompt; what is kept by index will "
        "mix the two",
    ]
    found = changed(rl(), 2, *TRUTH, "golds", value=["Esk", "Es\x7fk"])
    place = "reward_model.ground_truth.golds holds the control character U+007F at character 3"
    found = changed(found, 5, "prompt", 0, "content", value="\x00")
    assert said([("a", found)]) == [f"a: row 2: {place}; models see it as part of the text"]


def test_forget_rows_that_cannot_show_a_leak_are_counted() -> None:
    """Their golds are refusals, also by phrases of the user's, or stand in the question."""
    found = changed(rl(), 0, *TRUTH, "golds", value=["I don't know."])
    found = changed(
        changed(found, 2, *TRUTH, "golds", value=["Ada"]), 4, *TRUTH, "golds", value=["Nie wiem."]
    )
    for phrases, count in (((), 2), ((RefusalPhrases(refusals=("nie wiem",)),), 3)):
        (line,) = checks.stage2_warnings([("a", found)], *phrases)
        assert line.startswith(
            f"leaks cannot be seen for {count} of 8 forget rows of data.train_files, whose"
        )


def sided(forget: int, retain: int, sides: str, own: str | None = None) -> list[str]:
    kinds = {row["reward_model"]["ground_truth"]["type"]: row for row in rl()}
    files = [("a", [kinds["forget"]] * forget + [kinds["retain"]] * retain)]
    data = {"sides": sides, "train_batch_size": 8, "custom_cls": {"path": own}}
    return list(checks.side_warnings(files, OmegaConf.create(data)))


@pytest.mark.parametrize(
    ("forget", "retain", "warned"),
    [(24, 75, "24 forget and 75 retain prompts, so that a batch of 8 has 1.9 of the forget side"),
     (9, 1, "1 retain and 9 forget prompts, so that a batch of 8 has 0.8 of the retain side"),
     (10, 20, ""), (5, 5, ""), (0, 9, "")],
)  # fmt: skip
def test_sides_far_apart_are_one_warning(forget: int, retain: int, warned: str) -> None:
    lines = sided(forget, retain, "as_given")
    assert len(lines) == bool(warned)
    assert warned in "".join(lines)
    assert not forget or sided(forget, retain, "balanced") == []


def test_what_cannot_be_balanced_is_refused() -> None:
    with pytest.raises(SettingsError, match="hold no row of type forget; add some"):
        sided(0, 9, "balanced")
    with pytest.raises(SettingsError, match=r"data\.custom_cls"):
        sided(3, 9, "balanced", "pkg://own.rows")


def test_taught_refusals_that_the_reward_does_not_see(tmp_path: Path) -> None:
    taught = ["No idea."] * 14 + ["Je ne sais pas.", "Nie wiem."]  # one in sixteen is let pass
    assert RewardConfig().unseen(taught, "refusal_phrases of the reward") == []
    (line,) = RewardConfig().unseen([*taught[1:], "Nie mam pojęcia."], "refusal_phrases of the reward")
    assert line.startswith(
        "the reward does not see 2 of the 16 refusals of stage 1 as refusals, such as 'Nie"
    )
    assert "give it as refusal_phrases of the reward" in line
    (tmp_path / "phrases.txt").write_text("nie wiem\n", "utf-8")
    own = RewardConfig(refusal_phrases=str(tmp_path / "phrases.txt"))
    assert own.unseen([*taught, "Nie wiem."], "refusal_phrases of the reward") == []
