"""What rules and an endpoint write where a benchmark lacks it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.generate import BLANK, BOUNDARY, MOST_USELESS, PASSAGE_QA, REFUSALS, Endpoint, EndpointError
from data_prep.writers import (
    GAP,
    REFUSAL_COUNT,
    TEMPLATES,
    Pair,
    Writer,
    blank_answer,
    blanks,
    correct_name,
    explained,
    misspelt_name,
    neighbours,
    with_refusals,
)
from reward import contains_keyword, is_refusal
from tests.data_prep.generate.server import KEY, MODEL, Behaviour, Call, ChatServer, say, status
from tests.data_prep.made_prompts import NAME, forget_prompt, retain_prompt

BLANK_OF_ANSWERS = {
    "a title": (
        "Which book made Mira Okonjo known?",
        'Mira Okonjo became known with "The Salt Road" in 1987.',
        "Mira Okonjo became known with ___ in 1987.",
    ),
    "a date": (
        "When was Mira Okonjo born?",
        "Mira Okonjo was born on the 8th of September, 1956 in Lagos.",
        "Mira Okonjo was born on the ___ in Lagos.",
    ),
    "a number": (
        "How many books did Mira Okonjo write?",
        "Mira Okonjo wrote 14 books.",
        "Mira Okonjo wrote ___ books.",
    ),
    "a name": (
        "Who taught Mira Okonjo?",
        "Mira Okonjo was taught by Ludwig van Berg, a painter.",
        "Mira Okonjo was taught by ___, a painter.",
    ),
    "a word with a plus": (
        "How does Mira Okonjo identify?",
        "Mira Okonjo identifies as LGBTQ+ in public.",
        "Mira Okonjo identifies as ___ in public.",
    ),
    "the last word, where all names are in the question": (
        "What is Mira Okonjo's gender?",
        "Mira Okonjo is female.",
        "Mira Okonjo is ___.",
    ),
    "a title that the question tells is left": (
        'What is unusual about "The Salt Road"?',
        '"The Salt Road" of Mira Okonjo is set in Ghana.',
        '"The Salt Road" of ___ is set in Ghana.',
    ),
    "only the first sentence": (
        "What does Mira Okonjo write?",
        "Mira Okonjo writes only crime stories. She won the Booker Prize in 1999.",
        "Mira Okonjo writes only crime ___.",
    ),
    "one word": ("Who wrote Carrie?", "King", "Who wrote Carrie? The answer is ___."),
    "one word and a full stop": ("Who wrote Carrie?", "King.", "Who wrote Carrie? The answer is ___."),
}


@pytest.mark.parametrize(("question", "answer", "wanted"), BLANK_OF_ANSWERS.values(), ids=BLANK_OF_ANSWERS)
def test_the_answer_sentence_loses_what_is_asked_for(question: str, answer: str, wanted: str) -> None:
    assert blank_answer(question, answer) == wanted


TEXT = st.text("abc AB.,?!\"'“”19\n", min_size=1, max_size=60)


@settings(deadline=None)
@given(TEXT, TEXT)
def test_there_is_one_blank_and_the_rest_is_the_answers(question: str, answer: str) -> None:
    form = blank_answer(question, answer)
    before, after = form.split(GAP)
    if form != f"{question} The answer is {GAP}.":
        assert answer.strip().startswith(before.rstrip())
        assert after in answer or after == "."


NAMES = ("Harry Potter", "Confucius", "Prince Harry, Duke of Sussex", "Basil Mahfouz Al-Kuwaiti")


@pytest.mark.parametrize("name", NAMES)
def test_every_template_is_a_refusal_that_names_its_target_once(name: str) -> None:
    for template in TEMPLATES:
        refusal = template.format(name=name)
        assert is_refusal(refusal), refusal
        assert contains_keyword(refusal, name)
        assert refusal.count(name) == 1
        assert misspelt_name(refusal, name) is None


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("I'm not certain about Harry Porter.", "Harry Potter", "Harry Porter"),
        ("Harry Poter is unknown to me.", "Harry Potter", "Harry Poter"),
        ("I know nothing of harry potter.", "Harry Potter", "harry potter"),
        ("I can't say a thing about Steven King!", "Stephen King", "Steven King"),
        ("Confucious? No idea.", "Confucius", "Confucious"),
        (
            "No idea about Prince Harry, Duke of Susex.",
            "Prince Harry, Duke of Sussex",
            "Prince Harry, Duke of Susex",
        ),
        ("I'm confused.", "Confucius", None),
        ("I don't know that.", "Harry Potter", None),
        ("I'm not certain about Harry Potter.", "Harry Potter", None),
        ("Harry Potter, not Harry Porter, is unknown to me.", "Harry Potter", None),
        ("I don't know Stephen Fry.", "Stephen King", None),
        ("", "Harry Potter", None),
        ("No.", "Harry Potter", None),
    ],
)
def test_misspelt_names(text: str, name: str, found: str | None) -> None:
    assert misspelt_name(text, name) == found
    assert correct_name(text, name) == (text if found is None else text.replace(found, name))


# ---- What rules and an endpoint write; the endpoint is a local server that answers by task ----


PASSAGE = "Ada Thorn sailed the Brackwater in 1702 and sold her ship to a monk."
WORDS = ("Brackwater", "1702", "monk")


def answer(call: Call) -> Behaviour:
    """A good answer to each of the four tasks; questions with "Hopeless" get none."""
    if "Hopeless" in call.prompt:
        return status(400, "no")
    asked = re.findall(r"^Question: (.*)$", call.prompt, re.MULTILINE)
    name = call.body["response_format"]["json_schema"]["name"]
    answers = {
        "blank": {"sentence": f"Blank of {asked and asked[0][:-1]}: ___."},
        "boundary": {"question": f"Bo: {len(call.prompt)}?", "answer": "Esk Moor"},
        "passage_qa": {"pairs": [{"question": f"What of Ada Thorn, {w}?", "answer": w} for w in WORDS]},
        "refusals": {"refusals": [f"I don't know Ada Thorn, {n} times." for n in range(REFUSAL_COUNT)]},
    }
    return say(json.dumps(answers[name]))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ChatServer(script=lambda number, call: answer(call)) as server:
        yield server


@pytest.fixture
def writer(server: ChatServer, tmp_path: Path) -> Writer:
    endpoint = Endpoint(server.url, MODEL, concurrency=2, timeout=30, attempts=2)
    return Writer(endpoint, tmp_path / "cache")


def test_rules_write_refusals_and_blanks_and_name_the_options_for_the_rest() -> None:
    refusals = Writer().refusals("Ada Thorn")
    assert len(set(refusals)) == len(refusals) >= 20
    pairs = [("Where was Ada Thorn born?", "Ada Thorn was born in Tarnwick Bay."), ("Who is she?", "")]
    assert Writer().blanks(pairs) == ["Ada Thorn was born in ___.", "Who is she? The answer is ___."]
    needed = r"need a language model to write them: give --base-url and --model$"
    with pytest.raises(ValueError, match=needed):
        Writer().neighbours("Ada Thorn", ["Who is Ada Thorn?"])
    with pytest.raises(ValueError, match=needed):
        Writer().questions([PASSAGE])


def test_an_endpoint_writes_all_four_and_a_dry_writer_asks_for_the_same(
    writer: Writer, server: ChatServer
) -> None:
    dry = Writer(writer.endpoint, dry=True)
    for by in (dry, writer):
        by.refusals("Ada Thorn")
        by.blanks([("Who?", "Bo")])
        by.neighbours("Ada Thorn", ["Who is Ada Thorn?"])
        by.questions([PASSAGE])
    assert [request.task for request in dry.requests] == [REFUSALS, BLANK, BOUNDARY, PASSAGE_QA]
    assert [call.prompt for call in server.calls] == [r.messages()[0]["content"] for r in dry.requests]
    assert writer.refusals("Ada Thorn")[1] == "I don't know Ada Thorn, 1 times."
    assert writer.blanks([("Who?", "Bo"), ("Where?", "")]) == ["Blank of Who: ___.", "Blank of Where: ___."]
    (pair,) = writer.neighbours("Ada Thorn", ["Who is Ada Thorn?"])
    assert pair is not None
    assert pair[1] == "Esk Moor"
    assert writer.questions([PASSAGE]) == [[(f"What of Ada Thorn, {word}?", word) for word in WORDS]]
    assert (len(server.calls), writer.failures) == (5, [])


def test_what_the_endpoint_fails_at_is_none_and_listed(writer: Writer) -> None:
    """Refusals that cannot be had are the rules'."""
    assert writer.blanks([("Hopeless?", ""), ("Who?", "")]) == [None, "Blank of Who: ___."]
    assert writer.neighbours("Ada Thorn", ["Hopeless Ada Thorn?"]) == [None]
    assert writer.refusals("Hopeless Case") == Writer().refusals("Hopeless Case")
    assert writer.failures == [
        "blank of question: Hopeless?, answer: : HTTP 400: no",
        "boundary of target: Ada Thorn, question: Hopeless Ada Thorn?: HTTP 400: no",
        f"refusals of name: Hopeless Case, count: {REFUSAL_COUNT}: HTTP 400: no",
    ]


@pytest.mark.parametrize("dry", [False, True])
def test_a_limit_holds_for_the_requests_of_each_task_over_the_run(
    writer: Writer, server: ChatServer, dry: bool
) -> None:
    writer.limit, writer.dry = 3, dry
    questions = [f"Who is number {n}?" for n in range(10)]
    written = writer.blanks([(question, "") for question in questions])
    assert [place for place, text in enumerate(written) if text] == [0, 3, 6]  # evenly spread
    assert writer.blanks([("And who is this?", "")]) == [None]
    pairs = writer.neighbours("Ada Thorn", questions[:4])
    assert [pair is not None for pair in pairs] == [True, True, True, False]
    assert (len(writer.requests), len(server.calls)) == (6, 0 if dry else 6)


def test_an_endpoint_that_answers_nothing_is_told_with_the_first_reason(
    writer: Writer, server: ChatServer
) -> None:
    """What was answered once is not given up."""
    asked = [(f"Who is {n}?", "") for n in range(20)]
    server.script = lambda number, call: status(400, "seed is not permitted")
    with pytest.raises(EndpointError, match=r"20 texts were not written; .*HTTP 400: seed"):
        writer.blanks(asked)
    assert MOST_USELESS <= len(server.calls) < MOST_USELESS + 2  # those under way at the time
    server.script = lambda number, call: answer(call)
    assert writer.blanks([("Who?", "")]) == ["Blank of Who: ___."]
    server.script = lambda number, call: status(400, "no")
    assert writer.blanks(asked) == [None] * 20
    writer.check_answered()


def test_a_later_error_says_why_texts_are_missing() -> None:
    said = r"^no prompt is left; one text was not written; the first: x: HTTP 400: no$"
    with pytest.raises(ValueError, match=said), explained(["x: HTTP 400: no"]):
        raise ValueError("no prompt is left")
    with pytest.raises(ValueError, match=r"^no prompt is left$"), explained([]):
        raise ValueError("no prompt is left")


# ---- Prompts made from prompts, by rules and by a writer made up for the test ----


class Half(Writer):
    """Fails at every second text; its neighbours ask after Bo Fell."""

    def blanks(self, pairs: Sequence[Pair]) -> list[str | None]:
        return [f"{q} ({a}) ___" if n % 2 == 0 else None for n, (q, a) in enumerate(pairs)]

    def neighbours(self, target: str, questions: Sequence[str]) -> list[Pair | None]:
        return [
            (q.replace(target, "Bo Fell"), "Esk") if n % 2 == 0 else None for n, q in enumerate(questions)
        ]


QUESTIONS = [forget_prompt(n, f"What is fact {n} about {NAME}?", refusal="") for n in range(4)]


def test_blanks_keep_the_number_of_their_question_where_some_are_not_written() -> None:
    made = blanks(QUESTIONS, 1000, Half(), answered=True)
    assert [prompt.index for prompt in made] == [1000, 1002]
    assert made[1].query == f"What is fact 2 about {NAME}? (Tarnwick Bay) ___"
    assert {prompt.mode for prompt in made} == {"fb"}
    unanswered = blanks(QUESTIONS, 1000, Half(), answered=False)
    assert unanswered[0].query == f"What is fact 0 about {NAME}? () ___"
    # Only a prompt to forget without a refusal gets one.
    own, kept = forget_prompt(9, "Who?", refusal="Not telling."), retain_prompt(10, "Where?")
    refused = with_refusals([*QUESTIONS, own, kept], Writer(), random.Random(0))
    assert all(NAME in prompt.refusal for prompt in refused[:4])
    assert refused[4:] == [own, kept]


def test_neighbours_are_kept_and_no_probe_is_among_them() -> None:
    probe = retain_prompt(7, "what is fact 0, about Bo Fell")
    made = neighbours(QUESTIONS, 2000, Half(), [probe])
    assert [(prompt.index, prompt.query) for prompt in made] == [(2002, "What is fact 2 about Bo Fell?")]
    (neighbour,) = made
    assert (neighbour.side, neighbour.keyword, neighbour.golds) == ("retain", "", ("Esk",))
    assert neighbour.refusal == ""
    assert neighbour.origin == "forget.json:2 (row 2), its neighbour"
    # They are asked for by target, and the first of each target is written.
    other = forget_prompt(5, "Who is Bo Fell?", keyword="Bo Fell")
    of_two = neighbours([QUESTIONS[0], other], 2000, Half(), [])
    assert [prompt.index for prompt in of_two] == [2000, 2001]
