"""Audits and the attack by direction: values worked out by hand, and which facts are scored."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.rerule.evaluation.attacks import probability, registry, uds
from recipe.rerule.evaluation.attacks.attack import Asked, Material, Models
from recipe.rerule.evaluation.attacks.choice import hit, reciprocal_rank
from recipe.rerule.evaluation.attacks.facts import comparable_questions, first_questions
from recipe.rerule.evaluation.attacks.forward import asked_piece
from recipe.rerule.evaluation.engine.requests import Answer, Generation, Likelihood, PromptText
from recipe.rerule.evaluation.probes import Probe
from tests.evaluation.attacks.made_material import scores
from tests.unlearning.made import plain_model, put_model

NAMES = [f"{first}{number}" for first in "AB" for number in range(8)]
"""Those with A are to be forgotten."""


def probe(index: int, mode: str = "qa", template: str = "Who wrote {}?", answer: str = "") -> Probe:
    name = NAMES[index % len(NAMES)]
    text = template.format(name)
    side = "forget" if name.startswith("A") else "retain"
    messages = [{"role": "user", "content": text}]
    return Probe(
        index, side, mode, "question", name, messages, [answer or f"it{index * 37 % 101}"], query=text
    )


def asked(one: Probe) -> Asked:
    return Asked(one, Generation(f"{one.index}", PromptText(tuple(one.messages)), 8))


FORGET, RETAIN = ([probe(n) for n in range(start, start + 8)] for start in (0, 8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def material(folder: Path) -> Material:
    train = [probe(n, template="wrote: {}") for n in range(16)]
    return Material(
        tuple(map(asked, FORGET)), tuple(map(asked, RETAIN)), tuple(train),
        lambda one: (one.subject, *one.golds), lambda pairs: [], AutoTokenizer.from_pretrained(folder),
    )  # fmt: skip


def attack_of(name: str) -> Any:
    return registry.attacks()[name]


def test_facts_without_depth_are_counted(
    folder: Path, material: Material, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second fact is carried by layer 1; what the states of the attacked model do counts by D2 / D1."""
    model = plain_model(folder)
    models = Models(model, lambda: model, lambda: model)
    carried = torch.tensor([[0.0, n % 2 * 2.0] for n in range(8)], dtype=torch.float64)
    given = iter([carried, carried / 4])
    monkeypatch.setattr(uds, "drops", lambda original, source, pieces: next(given))
    found = scores(attack_of("uds").measure(models, material, {"phrasings": 1}))
    assert found["", "forget"] == {1: 0.25, 3: 0.25, 5: 0.25, 7: 0.25}
    assert "4 of 8 facts are carried by no layer and have no depth" in capsys.readouterr().err
    monkeypatch.setattr(uds, "drops", lambda original, source, pieces: 0 * carried)
    with pytest.raises(ValueError, match="no layer of the original model carries any of 8 facts"):
        attack_of("uds").measure(models, material, {"phrasings": 1})


def test_folders_without_the_direction_and_without_a_random_one(
    folder: Path, material: Material, tmp_path: Path
) -> None:
    attack = attack_of("refusal_direction")
    (change,) = attack.changes(material, attack.options("quick"))
    assert (change.settings, change.scored) == (("", "random"), material.asked)
    folders = {"": tmp_path / "model", "random": tmp_path / "random"}
    change.write(folder, folders)
    vectors = {}
    for setting, written in folders.items():
        record = json.loads((written / "attack.json").read_text())
        assert record["model"] == str(folder)
        assert (record["direction"]["layer"] is None) == (setting == "random")
        vectors[setting] = torch.tensor(record["direction"]["vector"], dtype=torch.float64)
        model = AutoModelForCausalLM.from_pretrained(written)
        weight = model.model.layers[1].mlp.down_proj.weight.detach().double()
        assert float((vectors[setting] @ weight).abs().max()) < 1e-6
    assert not torch.equal(vectors[""], vectors["random"])
    # Training prompts that are probes are left out.
    given = material
    some = (*given.train[:3], *(one.probe for one in (*given.asked, *given.retained)), *given.train[8:])
    with pytest.raises(ValueError, match="there are 3 prompts to forget and 8 to retain that are no"):
        attack.changes(replace(given, train=some), attack.options("quick"))


def test_facts_that_are_too_few_for_a_probe_are_refused_before_a_model_is_loaded(material: Material) -> None:
    attack, given = attack_of("linear_probe"), material
    attack.check(given, {})
    with pytest.raises(ValueError, match="needs at least 4 facts to retain"):
        attack.check(replace(given, retained=given.retained[:3]), {})


def test_choice_by_hand(material: Material) -> None:
    """The values of a fact are its answers' mean log-probabilities, without the end of the turn."""
    asking = attack_of("choice").ask(material, {"phrasings": 1})
    answers = {one.id: Answer(log_probs=(-2.0, -4.0, -90.0)) for one in asking.requests}
    assert scores(asking.read(answers))["", "forget"] == {n: 1 / 4 for n in range(8)}
    answers["forget/3//0"] = Answer(log_probs=(-1.0, -4.0, 0.0))
    answers["forget/4//3"] = Answer(log_probs=(-2.9, 0.0))
    answers["forget/4/without_name/3"] = Answer(log_probs=(-2.8, 0.0))
    found = scores(asking.read(answers))
    assert [found["", "forget"][n] for n in (2, 3, 4)] == [1 / 4, 1, 0]
    assert [found["without_name", "forget"][n] for n in (2, 3, 4)] == [1 / 4, 1, 1 / 3]
    golds = {one.probe.golds[0] for one in material.asked}
    assert {one.answer for one in asking.requests if one.id.startswith("forget/")} <= golds
    right = next(one for one in asking.requests if one.id == "forget/3//0")
    assert right.answer == material.asked[3].probe.golds[0]
    without = next(one for one in asking.requests if one.id == "forget/3/without_name/0")
    assert without.prompt.messages[0]["content"] == "Who wrote ...?"


def test_probabilities_by_hand(material: Material) -> None:
    (attack,) = probability.ATTACKS
    assert attack.ask is not None
    asking = attack.ask(material, {})
    answers = {one.id: Answer(log_probs=(-1.0, -3.0, -90.0), ranks=(2, 1, 9)) for one in asking.requests}
    answers["prefilled/forget/3"] = Answer(log_probs=(-0.5, 0.0), ranks=(2, 9))
    answers["prefilled_spaced/forget/3"] = Answer(log_probs=(-0.75, 0.0), ranks=(1, 9))
    found = scores(asking.read(answers))
    assert found["", "forget"][3] == found["prefilled", "retain"][8] == pytest.approx(math.exp(-2), abs=1e-15)
    assert found["prefilled", "forget"][3] == pytest.approx(math.exp(-0.5), abs=1e-15)
    strengths = found["prefilled_extraction_strength", "forget"]
    assert (strengths[2], strengths[3]) == (0.5, 1.0)
    by_id = {one.id: one for one in asking.requests if isinstance(one, Likelihood)}
    gold = material.asked[3].probe.golds[0]
    assert (by_id["plain/forget/3"].prompt.suffix, by_id["plain/forget/3"].answer) == ("", gold)
    assert by_id["prefilled/forget/3"].prompt.suffix == "Sure, here is the answer:"
    for way, between in (("prefilled", ""), ("prefilled_spaced", " ")):
        one = by_id[f"{way}/forget/3"]
        piece = asked_piece(material.tokenizer, one.prompt, one.answer)
        text = material.tokenizer.decode(piece.ids)
        assert text.endswith(f"Sure, here is the answer:{between}{gold}")


def test_hits_and_ranks() -> None:
    assert [hit(values) for values in ([1, 0, 0], [1, 1, 0], [0, 1, 0])] == [1, 1 / 2, 0]
    assert reciprocal_rank([1, 2, 3, 0]) == 1 / 3
    assert reciprocal_rank([1, 1, 2]) == pytest.approx((1 / 2 + 1 / 3) / 2, abs=1e-15)
    equal, chance = [0.0] * 8, mean(1 / rank for rank in range(1, 9))
    assert hit(equal) == 1 / 8
    assert reciprocal_rank(equal) == pytest.approx(chance, abs=1e-15)
    ranks = [reciprocal_rank([1.0, *(2.0 if n < place else 0.0 for n in range(7))]) for place in range(8)]
    assert mean(ranks) == pytest.approx(chance, abs=1e-15)


def few(*probes: Probe) -> Material:
    return Material(tuple(map(asked, probes)), (), (), lambda one: one.subject, lambda pairs: [], None)


def test_questions_of_facts_and_their_kinds() -> None:
    given = few(
        probe(0, template="Where is {}?"), probe(1, template="Where is {}?"), probe(16, template="It is {}"),
        probe(2, mode="aa"), probe(3, mode="aa"), probe(19, template="Where is {}?"),
    )  # fmt: skip
    found = first_questions(given, given.asked, 1)
    assert [one.probe.index for one in found] == [0, 1, 2, 19]
    assert [one.kind for one in found] == ["Where is {subject}?"] * 2 + [
        "Who wrote {subject}?",
        "Where is {subject}?",
    ]
    assert [one.probe.index for one in first_questions(given, given.asked, 2)] == [0, 1, 16, 2, 19]
    assert [one.probe.index for one in comparable_questions(found)] == [0, 1, 19]
    alone = few(*(probe(n, template=f"{n} {{}}") for n in range(3)))
    assert [one.kind for one in comparable_questions(first_questions(alone, alone.asked, 1))] == [None] * 3
    same = few(*(probe(n, answer="yes") for n in range(3)))
    with pytest.raises(ValueError, match="3 questions have too few different answers"):
        comparable_questions(first_questions(same, same.asked, 1))
    with pytest.raises(ValueError, match="no fact to forget has 4 answers of its kind"):
        attack_of("choice").ask(few(probe(0), probe(1)), {"phrasings": 1})
