"""A judge for tests: a chat server that scores by the words of a reply, and responses for it to score."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from recipe.rerule import evaluate
from recipe.rerule.evaluation import tidy
from tests.data_prep.generate.server import MODEL, Call, ChatServer, say

# reply: readability, helpfulness, truthfulness
SCORES = {
    "Paris.": (5, 5, 5),
    "London.": (5, 1, 1),
    "I don't know.": (5, 3, 5),
    "the the the": (1, 1, 1),
}
OTHERS = (4, 3, 4)


def reply_of(call: Call) -> str:
    found = re.search(r"<reply>\n(.*)\n</reply>", call.prompt, re.DOTALL)
    assert found is not None
    return found[1]


def score_text(scores: Sequence[Any]) -> str:
    return json.dumps(dict(zip(("readability", "helpfulness", "truthfulness"), scores, strict=True)))


def score_well(handler: BaseHTTPRequestHandler, call: Call) -> None:
    say(score_text(SCORES.get(reply_of(call), OTHERS)))(handler, call)


def response(model: str, probe: int, text: str, **changes: Any) -> dict[str, Any]:
    """A row of the tidy table."""
    return {
        "model": model, "probe": probe, "side": "forget", "kind": "qa", "family": "direct",
        "subject": "Ada Quill", "prompt": f"Where does Ada Quill live ({probe})?", "golds": ["Paris"],
        "response": text, "rouge_l": 0.5, "fact": f"probe {probe}", "sample": 0, **changes,
    }  # fmt: skip


def evaluation(folder: Path, responses: Sequence[dict[str, Any]]) -> Path:
    """An evaluation folder, as far as the judge looks at it."""
    folder.mkdir(exist_ok=True)
    tidy.write(folder, tidy.from_rows(responses))
    return folder


def run_judge(server: ChatServer, results: Path, *more: str) -> int:
    """The command, with a cache beside the results; its exit code."""
    return evaluate.main(
        [
            *("judge", "--results", str(results), "--base-url", server.url, "--judge-model", MODEL),
            *("--cache", str(results.parent / "cache"), "--concurrency", "4", *more),
        ]
    )
