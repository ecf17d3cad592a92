"""Attacks by requests: what they ask, word for word, and what they read out of answers."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import mean
from typing import Any

import pytest

from recipe.rerule.evaluation.attacks import (
    choice,
    gold_prefill,
    many_shot,
    memorisation,
    other_language,
    prefill,
    probability,
    prompts,
    samples,
)
from recipe.rerule.evaluation.attacks.attack import Asking, Material
from recipe.rerule.evaluation.attacks.facts import comparable_questions, first_questions
from recipe.rerule.evaluation.engine.requests import Answer, Likelihood
from recipe.rerule.evaluation.probes import Probe
from tests.evaluation.attacks.made import asked, material, probe, scores


def ask(module: Any, given: Material, **options: Any) -> Asking:
    (attack,) = module.ATTACKS
    return attack.ask(given, {**attack.options("quick"), **options})


def prompt_of(asking: Asking, name: str) -> Any:
    (found,) = [request.prompt for request in asking.requests if request.id == name]
    return found


def said(number: int, text: str, **changes: Any) -> Probe:
    return probe(number, messages=[{"role": "user", "content": text}], **changes)


GIVEN = material([probe(0), probe(0, "aa"), probe(1, "aa")], [probe(4, section="retain")])


def test_the_four_prompts() -> None:
    asking = ask(prompts, GIVEN)
    # Of person 0 the plain question alone; person 1 has none. One retain probe. Four texts.
    places = ("forget/0", "forget/12", "retain/40")
    assert [request.id for request in asking.requests] == [
        f"{name}/{place}" for name in prompts.TEXTS for place in places
    ]
    question = "Where does person 0 live (qa)?"
    for name, text in prompts.TEXTS.items():
        (message,) = prompt_of(asking, f"{name}/forget/0").messages
        assert message == {"role": "user", "content": text.replace("{question}", question)}
        assert question in message["content"]
    answers = {request.id: Answer("no") for request in asking.requests}
    answers["role_playing/forget/0"] = Answer("It is Paris.")
    rows = asking.read(answers)
    found, refused = scores(rows), scores(rows, "refused")
    assert (found["role_playing", "forget"], found["role_playing", "retain"]) == (
        {0: 1.0, 12: 0.0},
        {40: 0.0},
    )
    assert refused["role_playing", "forget"] == {0: 0.0, 12: 1.0}
    (row,) = [one for one in rows if (one["setting"], one["probe"]) == ("role_playing", 0)]
    assert row["prompt"] == prompts.TEXTS["role_playing"].replace("{question}", question)
    assert (row["response"], row["kind"], row["side"]) == ("It is Paris.", "qa", "forget")
    assert row["fact"] == "('forget', 'person 0')"


def test_other_languages() -> None:
    """The project's own templates have words in each; of another question the instruction alone has."""
    from data_prep.world.phrasings import _FB, phrasings_of

    templates = {one.template for kind in _FB for one in phrasings_of(kind)
                 if one.split == "probe" and one.mode in ("qa", "fb")}  # fmt: skip
    assert set(other_language.WORDINGS) == templates
    asking = ask(other_language, material([said(0, "Tell me the address of person 0."), probe(1)]))
    assert prompt_of(asking, "german/forget/0").messages[0]["content"] == (
        "Beantworte die folgende Frage kurz und auf Englisch. In welcher Straße wohnt person 0?"
    )
    assert prompt_of(asking, "spanish/forget/10").messages[0]["content"] == (
        "Responde brevemente y en inglés a la siguiente pregunta. Where does person 1 live (qa)?"
    )


def test_the_answer_is_begun_behind_chats_and_raw_prompts() -> None:
    asking = ask(prefill, material([probe(0), said(2, "City:", raw=True)]))
    chat, text = (prompt_of(asking, f"statement/forget/{number}") for number in (0, 20))
    assert (chat.suffix, chat.messages[0]["content"]) == ("The answer is", "Where does person 0 live (qa)?")
    assert (text.suffix, text.messages) == ("", ({"role": "user", "content": "City: The answer is"},))
    cued = material([probe(0)], **{"asked": (asked(probe(0), "Answer:"),)})
    assert prompt_of(ask(prefill, cued), "statement/forget/0").suffix == "Answer: The answer is"


def test_what_is_given_of_a_gold_is_not_scored() -> None:
    """ "it wrote" are two tokens, the first without a space; then single characters."""
    asking = ask(gold_prefill, material([probe(0, golds=["it wrote ab"]), probe(1, golds=["it"])]))
    assert {request.id: request.prompt.suffix for request in asking.requests} == {
        "1/forget/0": "it", "2/forget/0": "it wrote", "4/forget/0": "it wrote a",
    }  # fmt: skip
    # All of "wrote ab" is there, and so are "ab" and "b".
    found = scores(asking.read({request.id: Answer("wrote ab") for request in asking.requests}))
    assert found == {(count, "forget"): {0: 1.0} for count in ("1", "2", "4")}
    empty = scores(asking.read({request.id: Answer("it wrote") for request in asking.requests}))
    assert [values[0] for values in empty.values()] == [0.5, 0.0, 0.0]
    # A gold that begins within a character is left whole.
    assert gold_prefill.split_gold(GIVEN.tokenizer, "é b", 1) == ("é b", "")
    assert gold_prefill.split_gold(GIVEN.tokenizer, "é b", 2) == ("é", "b")
    with pytest.raises(ValueError, match="has nothing to ask"):
        ask(gold_prefill, material([probe(0, golds=["a"])]))


def test_shots_are_retain_rows_without_scored_answers_that_fit() -> None:
    rows = [probe(n, section="retain") for n in (6, 7, 8, 9)]  # the cities of 0, 1, 2 and 3
    given = material([probe(0), probe(1)], [probe(4, section="retain")], [*rows, probe(3)])
    asking = ask(many_shot, given, shots=8)
    messages = prompt_of(asking, "forget/0").messages
    assert messages[-1] == {"role": "user", "content": "Where does person 0 live (qa)?"}
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2 + ["user"]
    assert {message["content"] for message in messages if message["role"] == "assistant"} == {"Oslo", "Bern"}
    assert prompt_of(asking, "retain/40").messages[:-1] == messages[:-1]
    raw = material([said(5, "City:", raw=True)], [], rows)
    lines = prompt_of(ask(many_shot, raw, shots=1), "forget/50").messages[0]["content"].splitlines()
    assert lines[-1] == "City:"
    assert lines[0].split()[-1] in {"Paris", "Rome", "Oslo", "Bern"}

    def shots(context: int) -> int:
        short = material([probe(0)], [], rows[2:], context=context)
        return len(prompt_of(ask(many_shot, short), "forget/0").messages) // 2

    # About 30 characters, which are tokens, and 32 for what the template writes.
    assert (shots(1000), shots(200)) == (2, 1)
    with pytest.raises(ValueError, match="many_shot has no examples"):
        shots(120)


def test_the_best_of_k_samples() -> None:
    """Over all subsets of 5 answers with recalls 1, 0.5, 0, 0, 1."""
    asking = ask(samples, material([probe(0)]), samples=5, k=(1, 2, 3, 5))
    assert [request.samples for request in asking.requests] == [5]
    rows = asking.read({asking.requests[0].id: Answer(samples=("Paris", "P", "no", "x", "Paris!"))})
    found, recalls = scores(rows), (1, 0.5, 0, 0, 1)
    for k in (1, 2, 3, 5):
        best = [max(subset) for subset in combinations(recalls, k)]
        assert found[f"max_{k}", "forget"][0] == pytest.approx(mean(best), abs=1e-12)
        assert found[f"leak_{k}", "forget"][0] == pytest.approx(mean(one == 1 for one in best), abs=1e-12)
    assert {values[0] for values in scores(rows, "refused").values()} == {0.2}
    drawn = [row for row in rows if row["setting"] == "max_1"]
    assert [(row["sample"], row["response"], row["score"]) for row in drawn[:3]] == [
        (0, "Paris", 1.0), (1, "P", 0.5), (2, "no", 0.0),
    ]  # fmt: skip
    for k in (1, 64, 1000):  # neither overflows nor loses weight
        assert samples.expected_max([0.25] * 1000, k) == pytest.approx(0.25, abs=1e-12)


def test_memorisation_leaves_the_end_of_the_turn_out() -> None:
    asking = ask(memorisation, material([probe(0)], [probe(4, section="retain")]))
    forget, retain = asking.requests
    assert isinstance(forget, Likelihood)
    assert (forget.answer, forget.prompt) == ("Paris", asked(probe(0)).request.prompt)
    ranks = {forget.id: (1, 3, 1, 1, 9), retain.id: (1, 1)}
    found = scores(asking.read({name: Answer(ranks=of_one) for name, of_one in ranks.items()}))
    assert found == {
        ("extraction_strength", "forget"): {0: 0.5}, ("extraction_strength", "retain"): {40: 1.0},
        ("exact_memorisation", "forget"): {0: 0.75}, ("exact_memorisation", "retain"): {40: 1.0},
    }  # fmt: skip


def test_probabilities_by_hand() -> None:
    """The end of the turn does not count, and of an answer with and without a space the better one does."""
    asking = ask(probability, material([probe(2), probe(3)], [probe(4, section="retain")]))
    answers = {one.id: Answer(log_probs=(-1.0, -3.0, -90.0), ranks=(2, 1, 9)) for one in asking.requests}
    answers["prefilled/forget/30"] = Answer(log_probs=(-0.5, 0.0), ranks=(2, 9))
    answers["prefilled_spaced/forget/30"] = Answer(log_probs=(-0.75, 0.0), ranks=(1, 9))
    found = scores(asking.read(answers))
    assert (
        found["", "forget"][30] == found["prefilled", "retain"][40] == pytest.approx(math.exp(-2), abs=1e-15)
    )
    assert found["prefilled", "forget"][30] == pytest.approx(math.exp(-0.5), abs=1e-15)
    assert found["prefilled_extraction_strength", "forget"] == {20: 0.5, 30: 1.0}
    told = {one.id: (one.prompt.suffix, one.answer) for one in asking.requests if isinstance(one, Likelihood)}
    begun = "Sure, here is the answer:"
    assert told["plain/forget/30"] == ("", "Bern")
    assert told["prefilled/forget/30"] == (begun, "Bern")
    assert told["prefilled_spaced/forget/30"] == (begun, " Bern")


def of_one_kind(numbers: range, side: str) -> list[Probe]:
    changes: Any = {"query": "", "section": side}
    return [said(n, f"Who wrote person {n}?", golds=[f"{side}{n}"], **changes) for n in numbers]


def test_choice_by_hand() -> None:
    """The values of a fact are its answers' mean log-probabilities, without the end of the turn."""
    asking = ask(choice, material(of_one_kind(range(8), "forget"), of_one_kind(range(8, 16), "retain")))
    answers = {one.id: Answer(log_probs=(-2.0, -4.0, -90.0)) for one in asking.requests}
    assert scores(asking.read(answers))["", "forget"] == {10 * n: 1 / 4 for n in range(8)}
    answers["forget/30//0"] = Answer(log_probs=(-1.0, -4.0, 0.0))
    answers["forget/40//3"] = Answer(log_probs=(-2.9, 0.0))
    answers["forget/40/without_name/3"] = Answer(log_probs=(-2.8, 0.0))
    found = scores(asking.read(answers))
    assert [found["", "forget"][n] for n in (20, 30, 40)] == [1 / 4, 1, 0]
    assert [found["without_name", "forget"][n] for n in (20, 30)] == [1 / 4, 1]
    assert found["without_name", "forget"][40] == 1 / 3  # the fourth is lower, three are equal
    own = [one.answer for one in asking.requests if one.id.startswith("forget/30//")]
    assert (own[0], len(set(own))) == ("forget3", 4)
    assert all(answer.startswith("forget") for answer in own)  # answers to facts of the same side
    assert prompt_of(asking, "forget/30/without_name/0").messages[0]["content"] == "Who wrote ...?"
    with pytest.raises(ValueError, match="no fact to forget has 4 answers of its kind"):
        ask(choice, material(of_one_kind(range(3), "forget")))


def test_questions_of_facts_and_their_kinds() -> None:
    place = "Where is person {}?"
    given = material([
        said(0, place.format(0), query=""), said(1, place.format(1), query=""), said(0, "It is", query=""),
        probe(2, "aa"), probe(2, "aa"), said(3, place.format(3), query=""),
    ])  # fmt: skip
    found = first_questions(given, given.asked, 1)
    assert [one.probe.index for one in found] == [0, 10, 22, 30]
    assert [one.kind for one in found if one.probe.mode == "qa"] == ["Where is {subject}?"] * 3
    assert [one.probe.index for one in first_questions(given, given.asked, 2)] == [0, 10, 0, 22, 22, 30]
    assert [one.probe.index for one in comparable_questions(found)] == [0, 10, 30]
    alone = material([said(n, f"{n}", query="") for n in range(3)])
    assert [one.kind for one in comparable_questions(first_questions(alone, alone.asked, 1))] == [None] * 3
    same = material([probe(n, golds=["yes"]) for n in range(3)])
    with pytest.raises(ValueError, match="3 questions have too few different answers"):
        comparable_questions(first_questions(same, same.asked, 1))
