"""What the worker says without vLLM, when it ends, and how it reads vLLM's outputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipe.rerule.evaluation.engine import worker
from recipe.rerule.evaluation.engine.worker import answer, drawing, main, read


def start(job: Path) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", main.__module__, str(job)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


def test_an_error_is_the_only_thing_on_standard_output(tmp_path: Path):
    """A job that cannot be read fails before vLLM is imported."""
    (tmp_path / "job.json").write_text("{")
    with start(tmp_path / "job.json") as started:
        assert started.wait(60) == 1
        assert started.stdout is not None
        assert started.stderr is not None
        said = started.stdout.read()
        assert said.startswith(b'{"error": "JSONDecodeError: ')
        assert said.count(b"\n") == 1
        assert b"Traceback" in started.stderr.read()


def test_it_ends_with_its_standard_input(tmp_path: Path):
    """A job that nobody writes keeps it waiting for ever otherwise."""
    os.mkfifo(tmp_path / "job.json")
    with start(tmp_path / "job.json") as started:
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(1)
        assert started.stdin is not None
        started.stdin.close()
        assert started.wait(60) == 1


def row(**values: float) -> dict[int, Any]:
    """A row of vLLM's: {token id: log-prob and rank}; the rank is the token id times ten."""
    return {
        int(name[1:]): SimpleNamespace(logprob=value, rank=10 * int(name[1:]))
        for name, value in values.items()
    }


ROWS = [None, row(_5=-1.0), row(_7=-2.0, _9=-0.1), row(_2=-3.0)]


def output(number: int, *texts: str) -> SimpleNamespace:
    return SimpleNamespace(
        request_id=str(number),
        finished=True,
        outputs=[SimpleNamespace(text=text) for text in texts],
        prompt_logprobs=ROWS,
    )


def test_an_output_is_read_as_its_request_asks():
    generation: dict[str, Any] = {"ids": [1, 5], "answer_start": None, "sampling": None}
    assert read(output(3, "it"), generation) == {"request": 3, "text": "it"}
    sampled = read(output(5, "it", "", "that"), generation | {"sampling": {"samples": 3}})
    assert sampled == {"request": 5, "samples": ["it", "", "that"]}
    assert read(output(6, "it"), generation | {"sampling": {"samples": 1}})["samples"] == ["it"]
    measuring = read(output(4, "x"), {"ids": [1, 5, 7, 2], "answer_start": 2, "sampling": None})
    assert measuring == {"request": 4, "log_probs": [-2.0, -3.0], "ranks": [70, 20]}


def test_tokens_are_chosen_greedily_or_drawn_as_the_request_says():
    assert drawing(None) == {"temperature": 0.0}
    drawn = {"temperature": 0.7, "top_p": 0.9, "seed": 12}
    assert drawing({"samples": 3, **drawn}) == {"n": 3, **drawn}


class Engine:
    """Finishes two requests a step, and says of one more that it is not finished."""

    def __init__(self) -> None:
        self.added: list[tuple[str, list[int], int]] = []
        self.waiting: list[str] = []

    def add_request(self, name: str, prompt: dict[str, Any], sampling: Any) -> None:
        self.added.append((name, prompt["prompt_token_ids"], sampling.max_tokens))
        self.waiting.append(name)

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[SimpleNamespace]:
        done, self.waiting = self.waiting[:2], self.waiting[2:]
        unfinished = [SimpleNamespace(request_id=name, finished=False) for name in self.waiting[:1]]
        return [*(output(int(name), f"text {name}") for name in done), *unfinished]


def test_answers_are_sent_as_they_finish_and_the_longest_are_asked_first(monkeypatch):
    def request(max_tokens: int) -> dict[str, Any]:
        ids = [1, max_tokens]
        return {"ids": ids, "answer_start": None, "max_tokens": max_tokens, "stop": [], "sampling": None}

    # Importing vLLM takes longer than all these tests; tests/e2e/test_likelihood.py uses the real ones.
    monkeypatch.setattr(worker, "sampling", lambda request: SimpleNamespace(max_tokens=request["max_tokens"]))
    engine, sent = Engine(), []
    answer(engine, {4: request(2), 5: request(9), 6: request(3)}, sent.append)
    assert engine.added == [("5", [1, 9], 9), ("6", [1, 3], 3), ("4", [1, 2], 2)]
    assert [[one["request"] for one in event["answers"]] for event in sent] == [[5, 6], [4]]
    assert sent[1] == {"answers": [{"request": 4, "text": "text 4"}]}
