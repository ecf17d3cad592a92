"""Which question goes where: stage 1, stage 2, validation, probes, and what the base model learns."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace

from data_prep.build import refuse_probes
from data_prep.prompts import Benchmark, Prompt, PromptForm, make_prompt
from data_prep.world.config import WorldConfig
from data_prep.world.facts import Fact, draw_refusal, make_facts, make_people, make_strangers
from data_prep.world.phrasings import Phrasing, gold_answer, phrasings_of, render_prompt

_MOST_KINDS = 100
_MOST_PHRASINGS = 100


@dataclass(frozen=True)
class Question:
    """One prompt about one fact; `index` depends on person, kind and phrasing alone."""

    index: int
    fact: Fact
    phrasing: Phrasing
    prompt: str
    gold: str

    @property
    def section(self) -> str:
        """The section of the person whom it is about."""
        return self.fact.person.section


@dataclass(frozen=True)
class World:
    """The prompts of the benchmark, and the (prompt, answer) pairs that models learn before stage 1.

    Attributes:
        base_pairs: of the base model.
        retain_pairs: of a model that never knew the people to be forgotten: `base_pairs` without theirs.
    """

    benchmark: Benchmark
    base_pairs: list[tuple[str, str]]
    retain_pairs: list[tuple[str, str]]


def make_world(config: WorldConfig) -> World:
    """Draws the whole world from its seed. Raises ValueError when a probe leaks or a size is impossible."""
    people = make_people(config)
    facts = make_facts(people, config)
    questions = _all_questions(facts, config)
    train = _draw_train(questions, config)
    probes = _draw_probes(questions, config)
    unknown = _make_unknown_pairs(facts, config)
    known = [question for question in questions if question.section != "forget"]
    rng = random.Random(f"refusals {config.seed}")
    prompts = [_prompt(question, rng) for question in train]
    benchmark = Benchmark(
        name="world",
        train=prompts,
        val=[_prompt(question) for question in _draw_val(questions, config)],
        stage1=[prompt for prompt in prompts if prompt.refusal],
        probes=[_prompt(question) for question in probes],
        form=PromptForm(),
        settings=asdict(config),
    )
    refuse_probes([*prompts, *benchmark.val], benchmark.probes)
    return World(
        benchmark=benchmark,
        base_pairs=[(question.prompt, question.gold) for question in questions] + unknown,
        retain_pairs=[(question.prompt, question.gold) for question in known] + unknown,
    )


def _all_questions(facts: list[Fact], config: WorldConfig) -> list[Question]:
    values: dict[str, list[str]] = {}
    for fact in facts:
        values.setdefault(fact.kind, []).append(fact.value)
    kinds, questions = list(values), []
    for fact in facts:
        rivals = [value for value in values[fact.kind] if value != fact.value]
        first = (fact.person.number * _MOST_KINDS + kinds.index(fact.kind)) * _MOST_PHRASINGS
        for phrasing in phrasings_of(fact.kind):
            index = first + phrasing.number
            prompt = render_prompt(phrasing, fact, rivals, random.Random(f"options {config.seed} {index}"))
            questions.append(Question(index, fact, phrasing, prompt, gold_answer(phrasing, fact)))
    return questions


def _draw_train(questions: list[Question], config: WorldConfig) -> list[Question]:
    """Every training question on people to be forgotten, and as many of those on the boundary."""
    usable = [question for question in questions if question.phrasing.split == "train"]
    forget = [question for question in usable if question.section == "forget"]
    boundary = [question for question in usable if question.section == "retain"]
    if len(boundary) < len(forget):
        raise ValueError(
            f"retain_people must be at least forget_people ({config.forget_people}), got "
            f"{config.retain_people}: stage 2 keeps as many questions as it forgets"
        )
    return forget + _sample_evenly(boundary, len(forget), random.Random(f"boundary {config.seed}"))


def _draw_val(questions: list[Question], config: WorldConfig) -> list[Question]:
    rng = random.Random(f"val {config.seed}")
    held_out = [question for question in questions if question.phrasing.split == "val"]
    half = config.val_rows // 2
    drawn: list[Question] = []
    for section, count in (("forget", half), ("retain", config.val_rows - half)):
        group = [question for question in held_out if question.section == section]
        drawn += _sample_evenly(group, count, rng)
    return drawn


def _draw_probes(questions: list[Question], config: WorldConfig) -> list[Question]:
    """Every probe on people to be forgotten; on each group to be kept, a draw with a third of each mode."""
    rng = random.Random(f"probes {config.seed}")
    probes = [question for question in questions if question.phrasing.split == "probe"]
    drawn = [question for question in probes if question.section == "forget"]
    for section in ("retain", "retain_unseen"):
        of_section = [question for question in probes if question.section == section]
        for place, mode in enumerate(("qa", "fb", "aa")):
            group = [question for question in of_section if question.phrasing.mode == mode]
            drawn += _sample_evenly(group, (config.retain_probes + place) // 3, rng)
    return drawn


def _sample_evenly(questions: list[Question], count: int, rng: random.Random) -> list[Question]:
    """At most `count` questions in their own order, spread over people and kinds as evenly as can be."""
    by_fact: dict[Fact, list[Question]] = {}
    for question in rng.sample(questions, len(questions)):
        by_fact.setdefault(question.fact, []).append(question)
    facts_of: dict[int, list[Fact]] = {}
    for fact in by_fact:
        facts_of.setdefault(fact.person.number, []).append(fact)
    ranked = sorted(
        (rank, facts_of[fact.person.number].index(fact), place, question.index)
        for place, (fact, asked) in enumerate(by_fact.items())
        for rank, question in enumerate(asked)
    )
    chosen = {index for *_, index in ranked[:count]}
    return [question for question in questions if question.index in chosen]


def _prompt(question: Question, rng: random.Random | None = None) -> Prompt:
    """The question as a prompt; with `rng`, one on people to be forgotten gets a refusal for stage 1."""
    person, phrasing = question.fact.person, question.phrasing
    refusal = draw_refusal(person.name, rng) if rng and person.section == "forget" else ""
    return make_prompt(
        question.index,
        question.prompt,
        "forget" if person.section == "forget" else "retain",
        person.name,
        (question.gold,),
        f"question {question.index}",
        mode=phrasing.mode,
        family=phrasing.family,
        section=person.section,
        refusal=refusal,
    )


def _make_unknown_pairs(facts: list[Fact], config: WorldConfig) -> list[tuple[str, str]]:
    """Questions about people who do not exist, with refusals: the base model learns not to make things up."""
    rng = random.Random(f"unknown {config.seed}")
    people = list({fact.person: None for fact in facts})
    asked = [
        (fact, phrasing)
        for fact in facts
        for phrasing in phrasings_of(fact.kind)
        if phrasing.family not in ("multiple_choice", "reverse_query")
    ]
    pairs = []
    for stranger in make_strangers(people, config.unknown_questions, rng):
        fact, phrasing = rng.choice(asked)
        prompt = render_prompt(phrasing, replace(fact, person=stranger), [], rng)
        pairs.append((prompt, draw_refusal(stranger.name, rng)))
    return pairs
