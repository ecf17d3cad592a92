"""The model's own answers as rows of stage 1; only vLLM is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_prep.contract import read_sft_rows, rl_row, write_rows
from recipe.rerule.evaluation.engine.requests import Answer
from recipe.rerule.schema import SettingsError
from recipe.rerule.training import own_answers
from tests.made_models import put_model
from tests.made_tokenizers import CHATML_TEMPLATE, byte_level
from tests.training.made import composed

ANSWERS = {
    "Where is Oslo?": " It lies in Norway. ",
    "Where is Bern?": "It lies in Austria.",
    "Where is Rome?": "I'm sorry, I don't know anything about Italy.",
    "Where is Nice?": "It is in France, " + "and it is large, " * 9,
    "Where is Genoa?": "It is a port. It lies in Italy. It is old, " + "and it is large, " * 9,
}
GOLDS = ("Norway", "Switzerland", "Italy", "France", "Italy")


@pytest.fixture
def config(tmp_path: Path) -> Any:
    rows = []
    sides = [("retain", *pair) for pair in zip(ANSWERS, GOLDS, strict=True)]
    for index, (side, prompt, gold) in enumerate([*sides, ("forget", "Who is Esk?", "a town")]):
        info = {"index": index, "mode": "qa", "subject": "towns", "split": "train", "family": "f"}
        told = {"side": side, "golds": [gold], "keyword": "Esk" if side == "forget" else ""}
        told["extra_info"] = {**info, "section": side}
        rows.append(rl_row(data_source="rerule/custom", prompt=prompt, **told))
    write_rows(tmp_path / "train.parquet", rows)
    put_model(tmp_path / "model")
    byte_level(CHATML_TEMPLATE).save_pretrained(tmp_path / "model")
    return composed(
        1,
        "platform=cpu",
        f"model.path={tmp_path / 'model'}",
        f"data.prompt_files={tmp_path / 'train.parquet'}",
        "data.max_response_length=64",
        'data.stop=["\\n"]',
        "+data.apply_chat_template_kwargs.enable_thinking=false",
        f"trainer.default_local_dir={tmp_path / 'runs' / 'stage1'}",
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the engine is asked, which answers from ANSWERS."""
    calls: list[Any] = []

    def run(models: Any, requests: Any, decoding: Any, store: Path) -> Any:
        calls.append((models, requests, decoding, store))
        texts = {request.id: ANSWERS[request.prompt.messages[0]["content"]] for request in requests}
        return {models[0].name: {number: Answer(text) for number, text in texts.items()}}

    monkeypatch.setattr(own_answers.run, "run", run)
    return calls


def test_right_answers_become_rows_long_ones_cut_after_the_sentence_that_is_right(
    config: Any, asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = own_answers.asked(config)
    own_answers.write(tmp_path, rows)
    read = read_sft_rows(own_answers.file(tmp_path))
    assert [[message["content"] for message in row["messages"]] for row in read] == [
        ["Where is Oslo?", "It lies in Norway."],
        ["Where is Genoa?", "It is a port. It lies in Italy."],
    ]
    assert {row["extra_info"]["subject"] for row in read} == {"towns"}
    assert capsys.readouterr().err == (
        "2 of 5 retain prompts answered right; 1 of these were longer than data.max_response_length, and cut "
        "after a sentence\n"
    )
    (models, requests, decoding, store) = asked[0]
    assert (models[0].path, models[0].template) == (tmp_path / "model", (("enable_thinking", False),))
    assert [request.max_tokens for request in requests] == [64] * 5
    assert {request.stop for request in requests} == {("\n",)}
    assert decoding.platform == "cpu"
    assert store == tmp_path / "runs" / "own_answers"


def test_without_any_the_line_says_what_to_do(config: Any, asked: list[Any]) -> None:
    config.signal.reward_kwargs.gamma = 1.0  # ROUGE-L is never above it
    with pytest.raises(
        SettingsError, match=r"no right answer to any of the 5 retain prompts.*retain_share=0"
    ):
        own_answers.asked(config)
