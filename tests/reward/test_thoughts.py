import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.thoughts import split_thought


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("Rome.", "", "Rome."),
        (" Rome. ", "", " Rome. "),  # untouched where no mark is
        ("<think>Hm</think>\n\nRome.", "Hm", "Rome."),
        ("<think>\n\n</think>\n\nRome.", "", "Rome."),
        ("<Thinking>Hm</Thinking> Rome.", "Hm", "Rome."),
        ("<thought>Hm</thought>Rome.", "Hm", "Rome."),
        ("<reasoning>Hm</reasoning><answer>Rome.</answer>", "Hm", "Rome."),
        ("[THINK]Hm[/THINK]Rome.", "Hm", "Rome."),
        ("<seed:think>Hm</seed:think>Rome.", "Hm", "Rome."),
        ("◁think▷Hm◁/think▷Rome.", "Hm", "Rome."),
        (
            "<|begin_of_thought|>Hm<|end_of_thought|>\n<|begin_of_solution|>Rome.<|end_of_solution|>",
            "Hm",
            "Rome.",
        ),
        ("<|START_THINKING|>Hm<|END_THINKING|><|START_RESPONSE|>Rome.<|END_RESPONSE|>", "Hm", "Rome."),
        (
            "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Rome.<|return|>",
            "Hm",
            "Rome.",
        ),
        ("analysisWe need Rome.assistantfinalRome.", "We need Rome.", "Rome."),  # special tokens left out
        ("analysis of the text", "", "analysis of the text"),
        ("Hm</think>Rome.", "Hm", "Rome."),  # the template wrote the opening into the prompt
        ("<think>Hm", "Hm", ""),  # cut off at the limit
        ("Rome. <think>Hm", "Hm", "Rome."),
        ("<think>Hm</think>Rome.<think>So</think>Italy.", "Hm\nSo", "Rome. Italy."),
        ("<think>a<think>b</think>Rome.", "a<think>b", "Rome."),
    ],
)
def test_thought_and_answer(text: str, thought: str, answer: str) -> None:
    assert split_thought(text) == (thought, answer)


@given(
    thought=st.text("ab \n"),
    answer=st.text("cd .\n"),
    name=st.sampled_from(["think", "thinking", "reasoning"]),
)
def test_a_thought_and_its_mark_change_nothing_of_the_answer(thought: str, answer: str, name: str) -> None:
    assert split_thought(f"<{name}>{thought}</{name}>{answer}") == (thought.strip(), answer.strip())


@pytest.mark.parametrize(
    "mark", ["<think>", "</think>", "</think><think>", "<|channel|>analysis", "a</think>"]
)
def test_the_time_grows_with_the_text_alone(mark: str) -> None:
    began = time.process_time()
    split_thought(mark * (300_000 // len(mark)))
    assert time.process_time() - began < 5
