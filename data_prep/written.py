"""Prompts made from other prompts by a writer; what it could not write is left out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from data_prep.prompts import Prompt, mode_of
from data_prep.text import normalise
from data_prep.writers import Writer


def with_refusals(prompts: Sequence[Prompt], writer: Writer, rng: random.Random) -> list[Prompt]:
    """The prompts; where one to be forgotten has no refusal one of the writer's, naming its target."""
    lacking = [prompt for prompt in prompts if prompt.side == "forget" and not prompt.refusal]
    refusals = {name: writer.refusals(name) for name in dict.fromkeys(prompt.keyword for prompt in lacking)}
    drawn = {prompt.index: rng.choice(refusals[prompt.keyword]) for prompt in lacking}
    return [replace(prompt, refusal=drawn.get(prompt.index, prompt.refusal)) for prompt in prompts]


def blanks(prompts: Sequence[Prompt], first_index: int, writer: Writer, *, answered: bool) -> list[Prompt]:
    """Fill-in-the-blank forms of questions, numbered from `first_index` as their questions are.

    `answered`: their golds answer them, rather than refuse.
    """
    written = writer.blanks([(prompt.query, prompt.golds[0] if answered else "") for prompt in prompts])
    return [
        replace(prompt, index=first_index + number, query=query, mode="fb", family="fb")
        for number, (prompt, query) in enumerate(zip(prompts, written, strict=True))
        if query is not None
    ]


def neighbours(
    prompts: Sequence[Prompt], first_index: int, writer: Writer, probes: Sequence[Prompt]
) -> list[Prompt]:
    """Questions on somebody else after those to be forgotten, without those that a probe asks."""
    asked = {normalise(probe.query) for probe in probes}
    made = []
    for name in dict.fromkeys(prompt.keyword for prompt in prompts):
        own = [(number, prompt) for number, prompt in enumerate(prompts) if prompt.keyword == name]
        pairs = writer.neighbours(name, [prompt.query for _, prompt in own])
        for (number, prompt), pair in zip(own, pairs, strict=True):
            if pair is not None and normalise(pair[0]) not in asked:
                made.append(_neighbour(prompt, first_index + number, *pair))
    return made


def _neighbour(prompt: Prompt, index: int, question: str, answer: str) -> Prompt:
    return Prompt(
        index=index,
        query=question,
        side="retain",
        mode=mode_of(question),
        subject="neighbour",
        family=prompt.family,
        golds=(answer,),
        keyword="",
        section="retain",
        origin=f"{prompt.origin}, its neighbour",
    )
