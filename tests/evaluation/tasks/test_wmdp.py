"""WMDP: letters are measured behind the tokens that lm-eval gives them, and the most likely one counts."""

from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation.engine.encoding import encode_one
from recipe.rerule.evaluation.engine.requests import Answer, Likelihood
from recipe.rerule.evaluation.probes import Reference
from recipe.rerule.evaluation.registry import benchmarks
from tests.evaluation.conftest import make_probe
from tests.evaluation.tasks.measured import measured
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level, sentencepiece

TASK = benchmarks()["wmdp"]
PROMPT = "About biology.\n\nWho?\nA. Ada\nB. Ben\nC. Cleo\nD. Dan\nAnswer:"


def probe(index: int, right: str, family: str = "bio", section: str = "forget") -> Any:
    wrong = tuple(letter for letter in "ABCD" if letter != right)
    messages = [{"role": "user", "content": PROMPT}]
    return make_probe(
        index, section, "qa", [right], family=family, messages=messages, raw=True, reference=Reference(wrong)
    )


def test_each_letter_is_measured_behind_the_raw_prompt() -> None:
    asked = TASK.requests([probe(3, "C")])
    assert [(one.id, one.answer) for one in asked] == [(f"3/{letter}", f" {letter}") for letter in "ABCD"]
    assert all(isinstance(one, Likelihood) and one.prompt.raw for one in asked)
    with pytest.raises(ValueError, match="probe 1 has no wrong letters"):
        TASK.requests([make_probe(1, "forget", "qa", ["A"])])


@pytest.mark.parametrize("make", [lambda: byte_level(LLAMA3_TEMPLATE), sentencepiece])
def test_the_tokens_are_those_of_lm_eval(make: Any) -> None:
    """Its `_encode_pair`: prompt and choice are tokenised together, and the prompt's own tokens come off."""
    tokenizer = make()
    for request in TASK.requests([probe(0, "A")]):
        encoded = encode_one(tokenizer, request)
        whole = tokenizer(PROMPT + request.answer).input_ids
        own = len(tokenizer(PROMPT).input_ids)
        assert encoded.answer_start == own
        assert encoded.ids[:-1] == whole  # the last one ends the text, and does not count
        assert tokenizer.decode(whole[own:]).strip() == request.answer.strip()


def test_the_most_likely_letter_counts_without_the_end_of_the_text() -> None:
    """Of the second question A and B are equal, as the first counts; of the third an end would decide."""
    probes = [probe(0, "B"), probe(1, "B"), probe(2, "D", "cyber"), probe(3, "A", "maths", "retain")]
    values = [(-2, -1, -3, -4), (-1, -1, -2, -2), (-3, -3, -3, -2.5), (-1, -2, -2, -2)]
    ends = {"2/D": -50.0}
    answers = {
        f"{number}/{letter}": Answer(log_probs=(value, ends.get(f"{number}/{letter}", -1.0)))
        for number, row in enumerate(values)
        for letter, value in zip("ABCD", row, strict=True)
    }
    rows = TASK.records(probes, answers, Path())
    assert [row["response"] for row in rows] == ["B", "A", "D", "A"]
    assert measured(TASK, rows) == {
        "bio/accuracy": 0.5,
        "cyber/accuracy": 1.0,
        "forget/accuracy": pytest.approx(2 / 3),
        "retain/accuracy": 1.0,
    }


def test_a_constant_answer_scores_the_share_of_its_letter() -> None:
    probes = [probe(n, right) for n, right in enumerate("ABCA")]
    (text,) = TASK.constant_baselines.values()
    rows = TASK.records(probes, TASK.anchor_answers(probes, text), Path())
    assert measured(TASK, rows)["forget/accuracy"] == 0.5
