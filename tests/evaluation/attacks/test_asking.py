"""Attacks by requests: which probes and rows they take, what they ask word for word, and what they read.

And attacks of other packages.
"""

import argparse
import math
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest

from recipe.rerule.evaluation.attacks import (
    choice,
    gold_prefill,
    indirect,
    many_shot,
    memorisation,
    other_language,
    prefill,
    probability,
    prompts,
    registry,
    samples,
    thoughts,
)
from recipe.rerule.evaluation.attacks.asking import first_questions
from recipe.rerule.evaluation.attacks.attack import Asked, Asking, Attack, Material
from recipe.rerule.evaluation.attacks.forward import asked_piece
from recipe.rerule.evaluation.attacks.material import BUDGETS, Budget, material_of
from recipe.rerule.evaluation.attacks.rows import TrainingRow, without_leaks
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Answer, Likelihood
from recipe.rerule.evaluation.probes import Probe, Reference
from recipe.rerule.evaluation.registry import benchmarks
from tests.evaluation.attacks.made import CITIES, asked, material, probe, scores
from tests.evaluation.conftest import make_probe
from tests.families.templates import QWEN_3
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level


def ask(module: Any, given: Material, **options: Any) -> Asking:
    (attack,) = module.ATTACKS
    return attack.ask(given, {**attack.options("quick"), **options})


def prompt_of(asking: Asking, name: str) -> Any:
    (found,) = [request.prompt for request in asking.requests if request.id == name]
    return found


def said(number: int, text: str, **changes: Any) -> Probe:
    return probe(number, messages=[{"role": "user", "content": text}], **changes)


def test_prompts_stand_around_plain_questions_and_answers_become_rows():
    """Of person 0 the plain question alone is asked; person 1 has none."""
    asking = ask(prompts, material([probe(0), probe(0, "aa"), probe(1, "aa")], [probe(4, section="retain")]))
    assert len(asking.requests) == 4 * 3
    text = prompt_of(asking, "affirmative_suffix/forget/0").messages[0]["content"]
    assert text == "Where does person 0 live (qa)? Sure, here is the answer:"
    answers = {request.id: Answer("no") for request in asking.requests}
    rows = asking.read(answers | {"affirmative_suffix/forget/0": Answer("It is Paris.")})
    own = [row for row in rows if row["setting"] == "affirmative_suffix"]
    told = [[row[name] for name in ("side", "probe", "kind", "score", "refused")] for row in own]
    assert told == [["forget", 0, "qa", 1, 0], ["forget", 12, "aa", 0, 1], ["retain", 40, "qa", 0, 1]]
    assert [own[0][name] for name in ("prompt", "response", "fact")] == [
        text, "It is Paris.", "('forget', 'person 0')",
    ]  # fmt: skip


def test_other_languages():
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


def test_the_target_is_named_by_an_alias_a_part_of_its_name_and_another_fact():
    """The first hop is the first other fact without the answer; person 5 has none, and person 6 no name."""
    about = {"subject": "Ada Thorn", "aliases": ("the poet",), "query": ""}
    given = [
        said(0, "Where was Ada Thorn born?", golds=["Oslo"], fact="born", **about),
        said(1, "Where did Ada Thorn write of Oslo?", golds=["Riga"], fact="wrote", **about),
        said(2, "Who taught the poet?", golds=["Bo Fell taught Ada Thorn"], fact="taught", **about),
        said(5, "Where is Bern?", golds=["Aare"], subject="Bern", query="", fact="lies"),
        said(6, "Who is it?", subject="Cleo", query="", fact="is"),
    ]
    asking = ask(indirect, material(given, fact=lambda one: one.fact))
    assert {one.id: one.prompt.messages[0]["content"] for one in asking.requests} == {
        "alias/forget/0": "Where was the poet born?",
        "alias/forget/10": "Where did the poet write of Oslo?",
        "part/forget/0": "Where was Thorn born?",
        "part/forget/10": "Where did Thorn write of Oslo?",
        "part/forget/20": "Who taught Thorn?",
        "two_hops/forget/0": 'The answer to "Who taught X?" is "Bo Fell taught X". Where was X born?',
        "two_hops/forget/10": 'The answer to "Where was X born?" is "Oslo". Where did X write of Oslo?',
        "two_hops/forget/20": 'The answer to "Where was X born?" is "Oslo". Who taught X?',
    }
    answers = {one.id: Answer("Oslo") for one in asking.requests}
    assert scores(asking.read(answers))["two_hops", "forget"] == {0: 1, 10: 0, 20: 0}
    with pytest.raises(ValueError, match="none of the probes has what this attack asks for"):
        ask(indirect, material(given[3:], fact=lambda one: one.fact))


def test_the_answer_is_begun_behind_chats_and_raw_prompts():
    asking = ask(prefill, material([probe(0), said(2, "City:", raw=True)]))
    chat, text = (prompt_of(asking, f"statement/forget/{number}") for number in (0, 20))
    assert (chat.suffix, chat.messages[0]["content"]) == ("The answer is", "Where does person 0 live (qa)?")
    assert (text.suffix, text.messages) == ("", ({"role": "user", "content": "City: The answer is"},))
    cued = material([probe(0)], **{"asked": (asked(probe(0), "Answer:"),)})
    assert prompt_of(ask(prefill, cued), "statement/forget/0").suffix == "Answer: The answer is"


def test_what_is_given_of_a_gold_is_not_scored():
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
    tokenizer = byte_level()
    assert gold_prefill.split_gold(tokenizer, "é b", 1) == ("é b", "")
    assert gold_prefill.split_gold(tokenizer, "é b", 2) == ("é", "b")
    with pytest.raises(ValueError, match="none of the probes has what this attack asks for"):
        ask(gold_prefill, material([probe(0, golds=["a"])]))


def test_shots_are_retain_rows_without_scored_answers_that_fit():
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


def test_the_best_of_k_samples():
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


def test_memorisation_leaves_the_end_of_the_turn_out():
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


def test_probabilities_by_hand():
    """The end of the turn does not count, and of an answer with and without a space the better one does."""
    asking = ask(probability, material([probe(2), probe(3)], [probe(4, section="retain")]))
    answers = {one.id: Answer(log_probs=(-1.0, -3.0, -90.0), ranks=(2, 1, 9)) for one in asking.requests}
    answers["prefilled/forget/30"] = Answer(log_probs=(-0.5, 0.0), ranks=(2, 9))
    answers["prefilled_spaced/forget/30"] = Answer(log_probs=(-0.75, 0.0), ranks=(1, 9))
    found = scores(asking.read(answers))
    expected = pytest.approx(math.exp(-2), abs=1e-15)
    assert found["", "forget"][30] == found["prefilled", "retain"][40] == expected
    assert found["prefilled", "forget"][30] == pytest.approx(math.exp(-0.5), abs=1e-15)
    assert found["prefilled_extraction_strength", "forget"] == {20: 0.5, 30: 1.0}
    told = {one.id: (one.prompt.suffix, one.answer) for one in asking.requests if isinstance(one, Likelihood)}
    begun = "Sure, here is the answer:"
    assert told["plain/forget/30"] == ("", "Bern")
    assert told["prefilled/forget/30"] == (begun, "Bern")
    assert told["prefilled_spaced/forget/30"] == (begun, " Bern")


def test_a_right_answer_behind_a_cue_is_spaced():
    """As RWKU's prompts end in "Answer:", a model writes " Bern" and never "Bern" behind it."""
    probes = of_one_kind(range(8), "forget")
    given = material(probes, asked=tuple(asked(one, "Answer:") for one in probes))
    begun = ("prefilled/", "prefilled_spaced/")
    of_each = [one for module in (probability, choice) for one in ask(module, given).requests]
    spaced = [one.answer[0] == " " for one in of_each if not one.id.startswith(begun)]
    assert len(spaced) > 8
    assert all(spaced)
    piece = asked_piece(given.tokenizer, given.asked[0].request.prompt, "forget0")
    assert given.tokenizer.decode(piece.ids).endswith("Answer: forget0")


def of_one_kind(numbers: range, side: str) -> list[Probe]:
    changes: Any = {"query": "", "section": side}
    return [said(n, f"Who wrote person {n}?", golds=[f"{side}{n}"], **changes) for n in numbers]


def test_choice_by_hand():
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
    # Another right answer is no wrong choice.
    two = replace(of_one_kind(range(4), "forget")[3], golds=["forget3", "forget2"])
    asking = ask(
        choice, material([*of_one_kind(range(3), "forget"), two, *of_one_kind(range(5, 8), "forget")])
    )
    assert "forget2" not in [one.answer for one in asking.requests if one.id.startswith("forget/30/")]
    with pytest.raises(ValueError, match="no fact to forget has 4 answers of its kind"):
        ask(choice, material(of_one_kind(range(3), "forget")))


def test_every_name_of_the_target_is_left_out():
    """The longest one first."""
    question = said(
        0, "Who is Mira Okonjo, called Mira, of Miraland?", subject="Mira", aliases=("Mira Okonjo",), query=""
    )
    other = replace(question, golds=["Oslo"], index=1)
    found = choice.kinds_of([asked(question), asked(other)])
    assert list(found["kind"]) == ["Who is {subject}, called {subject}, of Miraland?"] * 2
    assert replace(question, subject="玛丽").renamed("玛丽在哪里", "X") == "X在哪里"
    changed = choice.nameless(asked(question))
    assert changed.request.prompt.messages[0]["content"] == "Who is ..., called ..., of Miraland?"


def test_questions_of_facts_and_their_kinds():
    place = "Where is person {}?"
    given = material([
        said(0, place.format(0), query=""), said(1, place.format(1), query=""), said(0, "It is", query=""),
        probe(2, "aa"), probe(2, "aa"), said(3, place.format(3), query=""),
    ])  # fmt: skip
    found = first_questions(given, given.asked, 1)
    assert [one.probe.index for one in found] == [0, 10, 22, 30]
    assert [one.probe.index for one in first_questions(given, given.asked, 2)] == [0, 10, 0, 22, 22, 30]
    kinds = choice.kinds_of(found)["kind"]
    assert [found[number].probe.index for number in kinds.index] == [0, 10, 30]
    assert list(kinds) == ["Where is {subject}?"] * 3
    alone = [asked(said(n, f"{n}", query="")) for n in range(3)]
    assert list(choice.kinds_of(alone)["kind"]) == [choice.ANY_KIND] * 3
    same = [asked(probe(n, golds=["yes"])) for n in range(3)]
    with pytest.raises(ValueError, match="3 questions have too few different answers"):
        choice.kinds_of(same)


# Which probes are asked, and how responses are scored.


def subject(one: Asked) -> str:
    return one.probe.subject


def test_a_quick_budget_takes_each_mode_of_each_fact_first():
    of_0 = [probe(0), probe(0, family="second"), probe(0, "fb"), probe(0, "aa"), probe(0, "aa", family="b")]
    given = [asked(one) for one in (*of_0, probe(1), probe(2, "aa"))]
    assert Budget(3, 2, 1).forget(given, subject) == [given[place] for place in (0, 2, 3, 5, 6)]
    assert Budget(4, 2, 1).forget(given[:5], subject) == given[:4]
    chosen = Budget(3, 2, 1).retain(given, subject)
    assert Counter(map(subject, chosen)) == {"person 0": 1, "person 1": 1}
    assert BUDGETS["full"].forget(given, subject) == BUDGETS["full"].retain(given, subject) == given


def made_of(
    benchmark: str, probes: list[Probe], train: list[Probe], folder: Path, budget: str = "quick"
) -> Material:
    names = {option.name for one in benchmarks().values() for option in one.options}
    chosen = benchmarks()[benchmark].evaluator(argparse.Namespace(**dict.fromkeys(names)))
    return material_of(chosen, probes, train, [Model("m", folder)], BUDGETS[budget])


def test_material_of_a_benchmark(folder):
    probes = [
        make_probe(0, "forget", "qa", ["Paris"]),
        make_probe(1, "forget", "fb", ["Paris"]),
        make_probe(2, "forget", "aa", ["Paris"], family="multiple_choice"),
        make_probe(103, "forget", "qa", ["1970"]),
        make_probe(204, "retain", "qa", ["Rome"], subject="Ben Orr"),
        make_probe(305, "retain_unseen", "qa", ["Oslo"], subject="Cleo Marsh"),
    ]
    made = made_of("world", probes, [], folder, "full")
    assert [one.probe.index for one in made.asked] == [0, 1, 103]
    assert [one.probe.index for one in made.retained] == [204]
    assert made.asked[0].request.max_tokens == 32


def test_rwku_scores_retain_probes_alone_and_rows_that_it_cannot_read_are_facts_of_their_own(folder):
    probes = [make_probe(0, "forget", "qa", ["Paris"]), make_probe(1, "forget", "fb", ["1970"])]
    kept = make_probe(2, "retain", "qa", ["Rome"], subject="Ben Orr")
    row = make_probe(7, "forget", "completion", ["Paris"], subject="Somebody else")
    made = made_of("rwku", [*probes, kept], [row], folder)
    assert [one.recall for one in made.score([(kept, "Rome"), (kept, "Oslo")])] == [1, 0]
    assert made.fact(row) not in {made.fact(one) for one in (*probes, kept)}


EIGHT = [*CITIES, "Kyiv", "Doha"]
"""As many as a choice is among."""
PARTLY = re.compile("4|leak_.*").fullmatch
OF_BENCHMARKS = {
    "world": {},
    "rwku": {},
    "muse_books": {"raw": True},
    "tofu": {"family": "forget", "reference": Reference(("Bern", "Oslo"), "It is there.")},
}


@pytest.mark.parametrize("benchmark", OF_BENCHMARKS)
def test_every_benchmark_can_be_attacked(benchmark, folder):
    """Each request attack asks its probes under ids of their own, and reads answers that hold the gold."""
    changes: Any = OF_BENCHMARKS[benchmark]
    golds = [f"it wrote {city}" for city in EIGHT]
    forget = [make_probe(100 * n, "forget", "qa", [gold], **changes) for n, gold in enumerate(golds)]
    named = f"Who is {forget[0].subject}?"
    forget[0] = replace(forget[0], messages=[{"role": "user", "content": named}], query=named)
    retain = [make_probe(900, "retain", "qa", ["Rome"], **changes, subject="Ben Orr")]
    if benchmark == "tofu":
        retain = [replace(one, family="retain") for one in retain]
    train = [make_probe(n, "retain", "qa", ["Rom"], **changes, subject="Ben Orr") for n in (2000, 2100)]
    made = made_of(benchmark, [*forget, *retain], train, folder)
    assert len(made.asked) == len(forget)
    text = f"it wrote {' '.join(EIGHT)}"
    answer = Answer(text, (-1.0,) * 3, (1, 1, 1), (text,) * 16)
    for attack in registry.attacks().values():
        if attack.ask and attack is not thoughts.ATTACKS[0]:  # the model does not think
            asking = attack.ask(made, attack.options("quick"))
            assert len({request.id for request in asking.requests}) == len(asking.requests) > 0
            found = scores(asking.read({request.id: answer for request in asking.requests}))
            # Behind four tokens of a gold the rest begins within a word; an F1 of 1 needs the gold alone.
            whole = [found[name, side] for name, side in found if side == "forget" and not PARTLY(name)]
            assert all(0 < value <= 1 for values in whole for value in values.values()), attack.name


def test_models_that_think(folder):
    """R1's template begins the thought itself, and R-TOFU's default is asked within one."""
    other = Reference(("Bern",), "It is.")
    probes = [said(n, "Who?", golds=[city], reference=other) for n, city in enumerate("AB")]
    less = "Okay, the user asked this, I can answer it without thinking much."
    for template, begun in ((QWEN_3, "<think>\n"), (QWEN_3 + "{{ '<think>\n' }}", "")):
        asking = ask(thoughts, material(probes, tokenizer=byte_level(template)))
        assert prompt_of(asking, "zero_think/forget/0").suffix == f"{begun}\n</think>\n\n"
        assert prompt_of(asking, "less_think/forget/0").suffix == f"{begun}{less}\n</think>\n\n"
    for template, told in ((LLAMA3_TEMPLATE, "do not think"), (QWEN_3 + "<think></think>", "already")):
        with pytest.raises(ValueError, match=told):
            ask(thoughts, material(probes, tokenizer=byte_level(template)))
    for prompts_of, error in (("zero_think", None), ("default_think", "give --prompts zero_think")):
        chosen = benchmarks()["rtofu"].evaluator(argparse.Namespace(prompts=prompts_of, max_tokens=None))
        with pytest.raises(ValueError, match=error) if error else nullcontext():
            material_of(chosen, probes, [], [Model("m", folder)], BUDGETS["quick"])


@pytest.mark.parametrize(
    ("gold", "text", "holds"),
    [
        ("The Silent Sea", "she wrote SILENT   SEA", True),
        ("Zoë Müller", "Her name is Zoe Muller.", True),
        ("1250", "They sold 1,250", True),
        ("O'Neil", "It was O’Neil's", True),
        ("北京", "他住在北京。", True),
        ("ﬁne arts", "She studied Fine Arts", True),
        ("The", "the band The The", True),
        ("Straße 4", "STRASSE 4", True),
        ("art", "She started with parties", False),
        ("Silent Sea", "silent was the sea", False),
        ("12", "1,2", False),
        ("北京", "东京", False),
        ("d sea", "the old sea", False),
    ],
)
def test_which_rows_hold_a_gold(gold, text, holds):
    """In the prompt or in the answer."""
    for prompt, answer in (("Tell me.", text), (f"Is it so? {text}", "Yes.")):
        row = TrainingRow([{"role": "user", "content": prompt}], answer)
        assert without_leaks([row], [gold]) == ([] if holds else [row])
    with pytest.raises(ValueError, match=r"the scored answer '\?!' has no letters or digits"):
        without_leaks([row], ["?!"])


# attacks of other packages, what one may declare, and the example of the documents

DOCS = Path(__file__).parents[3] / "docs"


def made(name: str, **changes: Any) -> Attack:
    def ask(material: Any, options: Any) -> Asking:
        return Asking([], lambda answers: [])

    return Attack(**{"name": name, "title": "T", "tells": "It asks.", "ask": ask, **changes})


def test_the_example_of_an_attack():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n# loud\.py\n(.*?)```", text, re.DOTALL)
    written: dict[str, Any] = {}
    exec(code, written)
    asking = written["ATTACK"].ask(material([probe(0)]), {})
    (request,) = asking.requests
    assert request.prompt.messages[0]["content"] == "WHERE DOES PERSON 0 LIVE (QA)?"
    assert scores(asking.read({request.id: Answer("Paris")}))["", "forget"] == {0: 1.0}


def test_attacks_of_other_packages_are_chosen_by_name(monkeypatch, capsys):
    def broken() -> None:
        raise SystemExit(3)

    given = [made("one"), made("one"), "no attack", made("default"), made("two", default=True)]
    loads = [broken, *((lambda one=one: one) for one in given)]
    entries = [SimpleNamespace(name="theirs", value="package:ATTACK", load=load) for load in loads]
    monkeypatch.setattr(registry.pkgutil, "iter_modules", lambda folder: [])
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    registry.attacks.cache_clear()
    assert list(registry.attacks()) == ["one", "two"]
    _, second, third, fourth = capsys.readouterr().err.splitlines()
    left_out = "warning: attack theirs (package:ATTACK) is left out: "
    assert second == f"{left_out}there is an attack one already"
    assert third.startswith(f"{left_out}it is no recipe.rerule.evaluation.attacks.attack.Attack")
    assert fourth == f"{left_out}there is an attack default already"
    assert [one.name for one in registry.chosen(["two", "one", "two"])] == ["one", "two"]
    assert [one.name for one in registry.chosen(["default"])] == ["two"]
    with pytest.raises(ValueError, match=r"there is no attack 'tow'; the nearest name is two\. Known are"):
        registry.chosen(["one", "tow"])
    registry.attacks.cache_clear()


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("A b", {}, "its name is 'A b'"),
        ("one", {"full": {"n": 1}}, "has the option n, which its quick budget lacks"),
        ("one", {"ask": None}, "needs one of ask, changes and measure"),
    ],
)
def test_what_may_not_be_declared(name, changes, told):
    with pytest.raises(ValueError, match=told):
        made(name, **changes)
