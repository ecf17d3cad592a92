from __future__ import annotations

import pytest

from data_prep.generate.checks import blank_problem, boundary_problem, passage_qa_problem, refusals_problem

NO_BLANK = "the sentence has not exactly one ___"
SHOWN = "the sentence contains the answer"


@pytest.mark.parametrize(
    ("answer", "sentence", "problem"),
    [
        ("Paris", "The capital of France is ___.", None),
        ("", "The capital of France is ___.", None),
        ("...", "The capital of France is ___.", None),
        ("US", "He must have been born in the ___.", None),
        ("Al-Kuwaiti", "Basil Mahfouz ___ wrote_it.", None),
        ("Paris", "The capital of France is Lyon.", NO_BLANK),
        ("Paris", "___ is the capital of ___.", NO_BLANK),
        ("Paris", "The capital of France is __.", NO_BLANK),
        ("Paris", "The capital of France is ____.", NO_BLANK),
        ("Paris", "___, I mean __, is it.", NO_BLANK),
        ("Paris", "", NO_BLANK),
        ("Paris", "PARIS is ___.", SHOWN),
        ("Al-Kuwaiti", "Basil al Kuwaiti is ___.", SHOWN),
        ("The Shining.", "___ is 'the shining', a novel.", SHOWN),
        (7, "7 is ___.", SHOWN),
    ],
)
def test_blank(answer: str | int, sentence: str, problem: str | None) -> None:
    inputs = {"question": "What?", "answer": answer}
    assert blank_problem(inputs, {"sentence": sentence}) == problem


PASSAGE = "Mr. Crane said: “No,\nnever”  and left for Hull in 1921."


def pairs(*answers: str, questions: tuple[str, ...] = ("Who?", "What?", "Where?")) -> dict[str, object]:
    return {"pairs": [{"question": q, "answer": a} for q, a in zip(questions, answers, strict=True)]}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (pairs("Mr. Crane", "“No, never”", "Hull"), None),
        (pairs("Mr. Crane", "“No,\n\nnever” and", " Hull "), None),
        (pairs("mr. Crane", "1921", "Hull"), "the answer 'mr. Crane' is not in the passage"),
        (pairs("Crane", '"No, never"', "Hull"), "the answer '\"No, never\"' is not in the passage"),
        (pairs("Crane", "1921", "Hull in 1922"), "the answer 'Hull in 1922' is not in the passage"),
        (pairs("Crane", "", "Hull"), "the answer '' is not in the passage"),
        (pairs("Crane", "1921", "."), "the answer '.' is not in the passage"),
        (pairs("Crane", "1921", "ull in"), "the answer 'ull in' is not in the passage"),
        (pairs("Crane", "1921", "Hull", questions=("Who?", "who", "Where?")), "two questions are the same"),
        (pairs("Crane", "1921", "Hull", questions=("Who?", " ", "Where?")), "a question is empty"),
    ],
)
def test_passage_qa(answer: dict[str, object], problem: str | None) -> None:
    assert passage_qa_problem({"passage": PASSAGE}, answer) == problem


def test_no_words_are_no_answer_even_to_an_empty_passage() -> None:
    assert passage_qa_problem({"passage": ""}, pairs("", "", "")) == "the answer '' is not in the passage"


QUESTION = "In which year was Prince Harry, Duke of Sussex born?"
TARGET = "Prince Harry, Duke of Sussex"


@pytest.mark.parametrize(
    ("question", "answer", "problem"),
    [
        ("In which year was Harry Styles born?", "In 1994.", None),
        ("Which prince was born in 1948?", "Charles", None),
        ("", "In 1994.", "the question or its answer is empty"),
        ("In which year was Harry Styles born?", " . ", "the question or its answer is empty"),
        (
            "in which year was prince Harry - Duke of Sussex - born",
            "1984",
            "the question is the original one",
        ),
        ("When was Prince Harry, Duke of Sussex, born?", "1984", f"the target {TARGET} is named"),
        ("When was PRINCE HARRY born?", "1984", "the target Prince Harry is named"),
        ("Who is William's brother?", "Prince Harry.", "the target Prince Harry is named"),
        ("Harry Styles was born in ___.", "1994", "the question has not as many ___ as the original"),
        ("When was Harry Styles born?", "I don't know when he was born.", "the answer is a refusal"),
    ],
)
def test_boundary(question: str, answer: str, problem: str | None) -> None:
    inputs = {"target": TARGET, "question": QUESTION}
    assert boundary_problem(inputs, {"question": question, "answer": answer}) == problem


def test_the_counterpart_of_a_statement_with_a_gap_has_one() -> None:
    inputs = {"target": "Stephen King", "question": "Stephen King was born in ___."}
    gap = {"question": "Agatha Christie was born in ___.", "answer": "1890"}
    assert boundary_problem(inputs, gap) is None
    assert boundary_problem(inputs, gap | {"question": "When was Agatha Christie born?"}) is not None


@pytest.mark.parametrize(
    ("refusals", "problem"),
    [
        (["I don't know who Harry Potter is.", "I can't say anything about Harry Potter."], None),
        (
            ["I don't know who Harry Potter is.", "I can't speak about Harry Porter."],
            "\"I can't speak about Harry Porter.\" does not name Harry Potter",
        ),
        (["I don't know harry potter."], '"I don\'t know harry potter." does not name Harry Potter'),
        (["Harry Potter is a wizard."], "'Harry Potter is a wizard.' is no refusal"),
        (["I don't know Harry Potter.", "I don't  know Harry Potter"], "two refusals are the same"),
    ],
)  # fmt: skip
def test_refusals(refusals: list[str], problem: str | None) -> None:
    inputs = {"name": "Harry Potter", "count": len(refusals)}
    assert refusals_problem(inputs, {"refusals": refusals}) == problem


def test_a_long_text_is_shortened_in_the_reason() -> None:
    found = refusals_problem({"name": "Harry Potter", "count": 1}, {"refusals": ["word " * 100]})
    assert found == f"'{'word ' * 12}...' does not name Harry Potter"
