from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recipe.rerule.evaluation.worker import main, progress_bar, tokenize
from tests.made_tokenizers import CHATML_TEMPLATE, byte_level, sentencepiece


def prompt(raw: bool) -> dict:
    return {"messages": [{"role": "user", "content": "Who wrote"}], "raw": raw}


def test_raw_and_chat_prompts_of_one_job(tmp_path: Path):
    tokenizer = byte_level(CHATML_TEMPLATE)
    tokenizer.save_pretrained(tmp_path)
    chat, raw = tokenize(str(tmp_path), [prompt(raw=False), prompt(raw=True)])
    written = "<|head|>system\nBe brief.<|eot|>\n<|head|>user\nWho wrote<|eot|>\n<|head|>assistant\n"
    assert tokenizer.decode(chat) == written
    assert tokenizer.convert_ids_to_tokens(raw) == ["<|begin|>", "Who", "Ġwrote"]


def test_raw_prompts_alone_need_no_chat_template(tmp_path: Path):
    sentencepiece().save_pretrained(tmp_path)
    (ids,) = tokenize(str(tmp_path), [prompt(raw=True)])
    assert sentencepiece().convert_ids_to_tokens(ids) == ["<s>", "▁Who", "▁wrote"]
    with pytest.raises(ValueError, match=f"the tokenizer of {tmp_path} has no chat template"):
        tokenize(str(tmp_path), [prompt(raw=True), prompt(raw=False)])


def test_finished_responses_are_events_and_prepared_prompts_are_not():
    sent: list[dict] = []
    bar_class = progress_bar(sent.append)
    assert list(bar_class(["a", "b", "c"], mininterval=0)) == ["a", "b", "c"]
    assert sent == []
    with bar_class(total=3) as bar:
        bar.update(1)
        bar.update(2)
    assert sent == [{"done": 1}, {"done": 2}]


def test_an_error_is_the_only_thing_on_standard_output(tmp_path: Path):
    """A job that cannot be read fails before vLLM is imported."""
    (tmp_path / "job.json").write_text("{")
    command = [sys.executable, "-m", main.__module__, str(tmp_path / "job.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith('{"error": "JSONDecodeError: ')
    assert done.stdout.count("\n") == 1
    assert "Traceback" in done.stderr
