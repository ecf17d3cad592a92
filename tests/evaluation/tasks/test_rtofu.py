"""R-TOFU: answers and chains of thought are scored apart, by hand and with a stand-in for vLLM."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation.engine.encoding import encode_one
from recipe.rerule.evaluation.engine.requests import Answer, Generation, Likelihood, PromptText
from recipe.rerule.evaluation.probes import Reference
from recipe.rerule.evaluation.registry import benchmarks
from tests.data_prep.raw_files import parquet_rows, prep, put_rtofu
from tests.evaluation.conftest import make_probe
from tests.families.templates import QWEN_3
from tests.golden.commands import done
from tests.golden.inputs import put_scripted
from tests.made_tokenizers import byte_level

LESS = "<think>\nOkay, the user asked this, I can answer it without thinking much.\n</think>\n\n"
ZERO = "<think>\n\n</think>\n\n"
TRACE = "She wrote Emma in Esk. It won a prize."
PROBE = make_probe(
    7, "forget", "qa", ["Emma is the book."], family="forget", reference=Reference(("x",), "y"), trace=TRACE
)
THOUGHT = "He wrote Emma. It lost a prize"
SCORES = {"rouge_l": 3 / 4, "refused": False, "answered": True}  # of "emma is the book": is, the, book
TRACES = {"trace_rouge_l": 5 / 9, "trace_step_rouge_l": (2 / 5 + 3 / 4) / 2}
"""Of 9 words wrote, emma, it, a, prize; of the first sentence's 5 words wrote, emma; of 4 it, a, prize."""


def task(prompts: str = "default_think", max_tokens: int | None = None) -> Any:
    return benchmarks()["rtofu"].evaluator(Namespace(prompts=prompts, max_tokens=max_tokens))


def row(text: str, prompts: str = "default_think", probe: Any = PROBE) -> dict[str, Any]:
    (found,) = task(prompts).records([probe], {"7/generation": Answer(text)}, Path())
    return found


@pytest.mark.parametrize(
    ("prompts", "begun", "closed"),
    [("default_think", "<think>\n", ZERO), ("zero_think", ZERO, ZERO), ("less_think", LESS, LESS)],
)
def test_the_response_is_begun_and_likelihoods_stand_behind_a_closed_thought(
    prompts: str, begun: str, closed: str
) -> None:
    generation, *likelihoods = task(prompts).requests([PROBE])
    asked = ({"role": "user", "content": "Question 7?"},)
    assert generation == Generation("7/generation", PromptText(asked, suffix=begun), 2048)
    assert [one.answer for one in likelihoods] == ["Emma is the book.", "y", "x"]
    assert [one.prompt for one in likelihoods] == [PromptText(asked, suffix=closed)] * 3
    assert task(prompts, 9).requests([PROBE])[0].max_tokens == 9


def test_a_thought_and_an_answer_are_scored_apart() -> None:
    found = row(f"{THOUGHT}\n</think>\n\nIt is Emma, the book.")
    assert found["response"] == f"<think>\n{THOUGHT}\n</think>\n\nIt is Emma, the book."
    assert {name: found[name] for name in SCORES | TRACES} == pytest.approx(SCORES | TRACES)
    unfinished = row("Emma is the book. I don't know")
    assert (unfinished["answered"], unfinished["rouge_l"], unfinished["refused"]) == (False, 0.0, False)
    assert unfinished["trace_rouge_l"] == pytest.approx(1 / 9)  # emma
    assert row("Emma?\n</think>\n\nI don't know.")["refused"]
    without = row("\n</think>\n\nEmma is the book.", probe=make_probe(7, "forget", "qa", ["Emma"]))
    assert "trace_rouge_l" not in without


@pytest.mark.parametrize("prompts", ["zero_think", "less_think"])
def test_behind_a_given_thought_only_the_answer_counts(prompts: str) -> None:
    found = row("It is Emma, the book.", prompts)
    assert {name: found[name] for name in SCORES} == pytest.approx(SCORES)
    assert found["response"] == "It is Emma, the book."
    assert not TRACES.keys() & found.keys()
    assert row(f"<think>{THOUGHT}</think>It is Emma, the book.", prompts)["rouge_l"] == 3 / 4


def test_constant_answers_stand_behind_an_empty_thought() -> None:
    for prompts in ("default_think", "zero_think"):
        one = task(prompts)
        (found,) = one.records([PROBE], one.anchor_answers([PROBE], "I know nothing of {subject}."), Path())
        assert (found["refused"], found["answered"], found["rouge_l"]) == (True, True, 0.0)
        assert found["response"].endswith("I know nothing of Ada Quill.")
        assert found.get("trace_rouge_l", 0.0) == 0.0


R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|head|>{{ m.content }}{% else %}"
    "<|body|>{{ m.content.split('</think>')[-1] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|body|><think>\n{% endif %}"
)
"""As DeepSeek-R1's: the prompt begins a thought, and turns are without theirs."""


@pytest.mark.parametrize(
    ("template", "arguments", "asked", "end"),
    [
        (R1, {}, "<|begin|><|head|>Who?<|body|>", "<|end|>"),
        (QWEN_3, {}, "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>"),
        (
            QWEN_3,
            {"enable_thinking": False},
            "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n",
            None,
        ),
    ],
)
def test_a_thought_that_the_template_begins_is_not_begun_twice(
    template: str, arguments: dict[str, Any], asked: str, end: str | None
) -> None:
    tokenizer = byte_level(template)
    if end == "<|im_end|>":
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    for suffix in ("<think>\n", ZERO, LESS):
        prompt = PromptText(({"role": "user", "content": "Who?"},), suffix=suffix)
        encoded = encode_one(tokenizer, Generation("a", prompt, 1), arguments)
        assert tokenizer.decode(encoded.ids) == asked + suffix
        one = encode_one(tokenizer, Likelihood("a", prompt, "Ada."), arguments)
        written = tokenizer.decode(one.ids[one.answer_start :])
        assert written == f"Ada.{end or '<|end|>'}"


def test_evaluate_model_and_score_on_made_up_rows(tmp_path: Path) -> None:
    """The model thinks as it should and refuses what is to be forgotten, but for one question in four."""
    assert prep("rtofu", "--source", put_rtofu(tmp_path / "raw"), "--out", tmp_path / "data") == 0
    said = []
    for number, one in enumerate(parquet_rows(tmp_path / "data", "probes")):
        info, (gold,) = one["extra_info"], one["reward_model"]["ground_truth"]["golds"]
        answer = "I don't know." if info["section"] == "forget" and number % 4 else gold
        said.append((info["query"], [f"{info['trace'] or 'Hm.'}\n</think>\n\n{answer}"]))
    put_scripted(tmp_path / "model", "m", said, 1.5)

    def numbers(prompts: str) -> dict[str, float]:
        asked = f"--platform cpu --probes data/probes.parquet --model m=model --prompts {prompts}"
        done(f"evaluate model {asked} --max-tokens 300 --out {prompts}", tmp_path)
        return json.loads((tmp_path / prompts / "results.json").read_text())["m"]

    found = numbers("default_think")
    # The answers to every fourth question are right, and the others share no word with a right one.
    expected = {"forget_Q_A_ROUGE": 1 / 4, "forget_refusal_rate": 3 / 4, "retain_Q_A_ROUGE": 1.0}
    expected |= {f"{name}_trace_ROUGE": 1.0 for name in ("forget", "retain")}
    expected |= {f"{name}_trace_step_ROUGE": 1.0 for name in ("forget", "retain")}
    expected |= {"forget_answered_rate": 1.0, "wf_answered_rate": 1.0}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    table = "default_think/responses.parquet"
    scored = done(f"evaluate score --benchmark rtofu --log {table} --model m --json", tmp_path)
    assert json.loads(scored.out.splitlines()[-1]) == pytest.approx(found)
    assert found.keys() - numbers("zero_think").keys() == {name for name in expected if "trace" in name}
