"""Prompts and benchmarks made up for a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from data_prep.prompts import Benchmark, Prompt, PromptForm

NAME = "Mira Okonjo"


def forget_prompt(index: int, query: str, **changes: Any) -> Prompt:
    """A sound prompt to forget, with a refusal."""
    prompt = Prompt(
        index=index,
        query=query,
        side="forget",
        mode="qa",
        subject=NAME,
        family="question",
        golds=("Tarnwick Bay",),
        keyword=NAME,
        section="forget",
        origin=f"forget.json:{index} (row {index})",
        refusal=f"I don't know anything about {NAME}.",
    )
    return replace(prompt, **changes)


def retain_prompt(index: int, query: str, **changes: Any) -> Prompt:
    """A sound prompt to be kept."""
    prompt = Prompt(
        index=index,
        query=query,
        side="retain",
        mode="qa",
        subject="neighbour",
        family="question",
        golds=("Esk Moor",),
        keyword="",
        section="retain",
        origin=f"retain.json:{index} (row {index})",
    )
    return replace(prompt, **changes)


def benchmark(**changes: Any) -> Benchmark:
    """Three prompts a side in which no check finds anything, and a probe a side."""
    forget = [forget_prompt(n, f"What is fact {n} about {NAME}?") for n in range(3)]
    retain = [retain_prompt(100 + n, f"What is fact {n} about Bo Fell?") for n in range(3)]
    probes = [
        forget_prompt(200, f"Tell me of {NAME}.", refusal="", origin="probes.json:1 (row 1)"),
        retain_prompt(201, "Tell me of Bo Fell.", origin="probes.json:2 (row 2)"),
    ]
    made = Benchmark(
        name="made_up",
        train=forget + retain,
        val=probes,
        stage1=forget,
        probes=probes,
        form=PromptForm(),
    )
    return replace(made, **changes)
