"""Attacks by requests: what they ask, word for word, and what they read out of answers."""

from __future__ import annotations

from typing import Any

import pytest

from recipe.rerule.evaluation.attacks import gold_prefill, many_shot, memorisation, prefill, prompts, samples
from recipe.rerule.evaluation.attacks.asking import reworded
from recipe.rerule.evaluation.attacks.attack import Asking, Attack, Material
from recipe.rerule.evaluation.attacks.registry import attacks
from recipe.rerule.evaluation.engine.requests import Answer, Generation, Likelihood
from tests.evaluation.attacks.made_material import asked, material, probe, scores


def ask(module: Any, given: Material, **options: Any) -> Asking:
    (attack,) = module.ATTACKS
    return attack.ask(given, {**attack.options("quick"), **options})


def prompt_of(asking: Asking, name: str) -> Any:
    (found,) = [request.prompt for request in asking.requests if request.id == name]
    return found


GIVEN = material([probe(0), probe(0, "aa"), probe(1, "aa")], [probe(4, section="retain")])


@pytest.mark.parametrize("attack", [one for one in attacks().values() if one.ask])
def test_every_request_has_an_id_of_its_own(attack: Attack) -> None:
    forget = [probe(number, golds=[f"Place {number}"]) for number in range(8)]
    given = material(forget, [probe(8, section="retain")], [probe(9, section="retain")])
    requests = attack.ask(given, attack.options("quick")).requests
    assert requests
    assert len({request.id for request in requests}) == len(requests)


def test_the_four_prompts() -> None:
    asking = ask(prompts, GIVEN)
    # Of person 0 the plain question alone; person 1 has none. One retain probe. Four texts.
    places = ("forget/0", "forget/12", "retain/40")
    assert {request.id for request in asking.requests} == {
        f"{name}/{place}" for name in prompts.TEXTS for place in places
    }
    question = "Where does person 0 live (qa)?"
    for name, text in prompts.TEXTS.items():
        (message,) = prompt_of(asking, f"{name}/forget/0").messages
        assert message == {"role": "user", "content": text.replace("{question}", question)}
        assert question in message["content"]
    answers = {request.id: Answer("no") for request in asking.requests}
    answers["role_playing/forget/0"] = Answer("It is Paris.")
    rows = asking.read(answers)
    found, refused = scores(rows), scores(rows, "refused")
    assert found["role_playing", "forget"] == {0: 1.0, 12: 0.0}
    assert refused["role_playing", "forget"] == {0: 0.0, 12: 1.0}
    assert found["role_playing", "retain"] == {40: 0.0}
    assert refused["prefix_injection", "forget"] == {0: 1.0, 12: 1.0}
    (row,) = [one for one in rows if (one["setting"], one["probe"]) == ("role_playing", 0)]
    assert row["prompt"] == prompts.TEXTS["role_playing"].replace("{question}", question)
    assert (row["response"], row["kind"], row["side"]) == ("It is Paris.", "qa", "forget")
    assert row["fact"] == "('forget', 'person 0')"


def test_the_last_message_of_the_user_is_reworded() -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Three?"},
    ]
    question = reworded(str.upper)(asked(probe(0, messages=messages)))
    assert question is not None
    assert [message["content"] for message in question.request.prompt.messages] == [
        "Be kind.", "One?", "Two.", "THREE?",
    ]  # fmt: skip


def test_prefills_stand_behind_the_prompt() -> None:
    raw = probe(2, raw=True, messages=[{"role": "user", "content": "City:"}])
    given = material([probe(0), raw])
    chat, text = (prompt_of(ask(prefill, given), f"statement/forget/{n}") for n in (0, 20))
    assert (chat.suffix, chat.messages[0]["content"]) == ("The answer is", "Where does person 0 live (qa)?")
    assert (text.suffix, text.messages) == ("", ({"role": "user", "content": "City: The answer is"},))
    cued = material([probe(0)], **{"asked": (asked(probe(0), "Answer:"),)})
    assert prompt_of(ask(prefill, cued), "statement/forget/0").suffix == "Answer: The answer is"


def test_what_is_given_of_a_gold_is_not_scored() -> None:
    """ "it wrote" are two tokens, the first without a space; then single characters."""
    given = material([probe(0, golds=["it wrote ab"]), probe(1, golds=["it"])])
    asking = ask(gold_prefill, given)
    assert {request.id: request.prompt.suffix for request in asking.requests} == {
        "1/forget/0": "it", "2/forget/0": "it wrote", "4/forget/0": "it wrote a",
    }  # fmt: skip
    # All of "wrote ab" is there, and so are "ab" and "b".
    found = scores(asking.read({request.id: Answer("wrote ab") for request in asking.requests}))
    assert found == {(count, "forget"): {0: 1.0} for count in ("1", "2", "4")}
    empty = scores(asking.read({request.id: Answer("it wrote") for request in asking.requests}))
    assert [values[0] for values in empty.values()] == [0.5, 0.0, 0.0]


def test_a_gold_that_begins_within_a_character_is_left_whole() -> None:
    tokenizer = GIVEN.tokenizer
    assert gold_prefill.split_gold(tokenizer, "é b", 1) == ("é b", "")
    assert gold_prefill.split_gold(tokenizer, "é b", 2) == ("é", "b")
    with pytest.raises(ValueError, match="has nothing to ask"):
        ask(gold_prefill, material([probe(0, golds=["a"])]))


def test_shots_are_retain_rows_without_scored_answers() -> None:
    rows = [probe(n, section="retain") for n in (6, 7, 8, 9)]  # the cities of 0, 1, 2 and 3
    given = material([probe(0), probe(1)], [probe(4, section="retain")], [*rows, probe(3)])
    asking = ask(many_shot, given, shots=8)
    messages = prompt_of(asking, "forget/0").messages
    assert messages[-1] == {"role": "user", "content": "Where does person 0 live (qa)?"}
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2 + ["user"]
    assert {message["content"] for message in messages if message["role"] == "assistant"} == {"Oslo", "Bern"}
    assert prompt_of(asking, "retain/40").messages[:-1] == messages[:-1]
    raw = probe(5, raw=True, messages=[{"role": "user", "content": "City:"}])
    (text,) = prompt_of(ask(many_shot, material([raw], [], rows), shots=1), "forget/50").messages
    assert text["content"].splitlines()[-1] == "City:"
    assert text["content"].splitlines()[0].split()[-1] in {"Paris", "Rome", "Oslo", "Bern"}


def test_fewer_shots_where_the_context_is_short() -> None:
    rows = [probe(n, section="retain") for n in (8, 9)]

    def shots(context: int) -> int:
        given = material([probe(0)], [], rows, context=context)
        return len(prompt_of(ask(many_shot, given), "forget/0").messages) // 2

    # About 30 characters, which are tokens, and 32 for what the template writes.
    assert (shots(1000), shots(200)) == (2, 1)
    with pytest.raises(ValueError, match="many_shot has no examples"):
        shots(120)


def test_the_best_of_k_samples() -> None:
    """Recalls 1, 0.5, 0, 0: with k = 2 the maximum is 1 in 3 of 6 pairs and 0.5 in 2."""
    asking = ask(samples, material([probe(0)]), samples=4, k=(1, 2, 4))
    (request,) = asking.requests
    assert isinstance(request, Generation)
    assert (request.sampling.samples, request.sampling.temperature, request.sampling.top_p) == (4, 1, 1)
    rows = asking.read({request.id: Answer(samples=("Paris", "P", "no", "x"))})
    found = {setting: values[0] for (setting, _), values in scores(rows).items()}
    assert found == pytest.approx(
        {"max_1": 0.375, "max_2": 4 / 6, "max_4": 1, "leak_1": 0.25, "leak_2": 0.5, "leak_4": 1}
    )
    assert {values[0] for values in scores(rows, "refused").values()} == {0.25}
    drawn = [row for row in rows if row["setting"] == "max_1"]
    assert [(row["sample"], row["response"], row["score"]) for row in drawn] == [
        (0, "Paris", 1.0), (1, "P", 0.5), (2, "no", 0.0), (3, "x", 0.0),
    ]  # fmt: skip


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
