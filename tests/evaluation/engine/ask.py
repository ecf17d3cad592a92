"""Ask a model what a file says, as an evaluation does: `ask.py MODEL REQUESTS.json STORE OUT.json`.

REQUESTS.json: [[prompt, answer or null, max_tokens]]; with an answer its likelihood is measured.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Generation, Likelihood, PromptText, Request
from recipe.rerule.evaluation.engine.run import Decoding, run
from recipe.rerule.platform import select


def request(number: int, prompt: str, answer: str | None, max_tokens: int) -> Request:
    text = PromptText(({"role": "user", "content": prompt},))
    if answer is None:
        return Generation(str(number), text, max_tokens)
    return Likelihood(str(number), text, answer)


def main(model: str, requests: str, store: str, out: str) -> None:
    select("cpu")
    asked = [request(number, *row) for number, row in enumerate(json.loads(Path(requests).read_text()))]
    answers = run([Model("base", Path(model))], asked, Decoding("cpu"), Path(store))["base"]
    rows = [[answer.text, answer.log_probs] for answer in answers.values()]
    Path(out).write_text(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
