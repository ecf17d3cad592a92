"""What an attack is, what it works with, and the rows that it finds.

An attack is a module of this folder with its protocol in the docstring, which declares `ATTACKS`, a tuple of
`Attack` objects. Each of them has one of three functions: `ask` says what every model is asked through
vLLM, `changes` writes changed model folders, which are then asked as the benchmark asks, and `measure`
computes scores from a transformers model. All models are attacked alike: unlearned, original and never-knew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from recipe.rerule.evaluation.engine.requests import Answers, Generation, PromptText, Request
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.io import Kind

FORGET, RETAIN, OTHERS = "forget", "retain", "others"
"""Sides of rows: what is to be forgotten, what is to be kept, and texts that were never to be forgotten."""
Need = Literal["train", "original", "control"]
"""Rows of --train, the model called `original`, the never-knew model of --control."""
Options = Mapping[str, Any]
Row = dict[str, Any]
"""A row of the tidy table (`evaluation.tidy`) but for its model and attack: `setting` is "" for an attack
that has one setting only, `score` is the attack's number for the row, and `refused` is 1 for a refusal, 0 for
an answer and None where there is no response. Rows of one probe that differ in `sample` are averaged first,
then the probes of a fact."""
CHANGED = Kind("rerule/attacked_model", "attack.json")
"""The folders of changed models, until these have been asked."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True)
class Asked:
    """A probe and how its benchmark asks it: one generation."""

    probe: Probe
    request: Generation


@dataclass(frozen=True)
class Scored:
    """What a benchmark says of a response: `Benchmark.recovered`, from 0 to 1; if it is a refusal."""

    recall: float
    refused: bool


@dataclass(frozen=True)
class Material:
    """What an attack works with: the same for every model of a command.

    Attributes:
        asked: the forget probes that count (`Benchmark.counts`).
        retained: probes of the retain side, which show whether the model still works.
        train: rows of --train, as probes; () where it is not given.
        fact: what a probe or a row asks for.
        score: what the benchmark says of (probe, response) pairs. A probe may come with other golds than its
            own, and several times.
        tokenizer: of all models; calls of its chat template get the arguments of --template by themselves.
        context: most tokens that every model takes, None where the models do not say.
        seeds: how often an attack that draws at random is repeated.
        texts: whole texts by set, for membership inference: members and others.
    """

    asked: tuple[Asked, ...]
    retained: tuple[Asked, ...]
    train: tuple[Probe, ...]
    fact: Callable[[Probe], Hashable]
    score: Callable[[Sequence[tuple[Probe, str]]], list[Scored]]
    tokenizer: Any
    context: int | None = None
    seeds: int = 1
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def sides(self) -> dict[str, tuple[Asked, ...]]:
        """The probes of both sides."""
        return {FORGET: self.asked, RETAIN: self.retained}

    def row(self, side: str, probe: Probe, prompt: PromptText, score: float | None, **more: Any) -> Row:
        """The row of a probe; `more`: columns that differ from their defaults."""
        named = {"probe": probe.index, "side": side, "kind": probe.mode, "fact": f"{self.fact(probe)}"}
        return row(**named, prompt=shown(prompt), score=score, **more)


def row(**columns: Any) -> Row:
    """A row with defaults for the columns that are not given."""
    empty = {"probe": -1, "side": FORGET, "kind": "", "fact": "", "sample": 0, "prompt": "", "response": ""}
    return {**empty, "setting": "", "score": None, "refused": None, **columns}


def shown(prompt: PromptText) -> str:
    """The messages of a prompt and the beginning of its answer, a line each."""
    texts = [message["content"] for message in prompt.messages]
    return "\n".join([*texts, prompt.suffix] if prompt.suffix else texts)


@dataclass(frozen=True)
class Asking:
    """What is asked of every model: requests with unique ids, and the rows of one model's answers to them."""

    requests: Sequence[Request]
    read: Callable[[Answers], list[Row]]


@dataclass(frozen=True)
class Change:
    """One set of changed folders that is made of a model, in one go.

    Attributes:
        settings: of the folders.
        write: (model folder, {setting: new folder to write}). Every folder is whole or absent after a kill
            (`weights.model_folder`).
        scored: the forget probes that the changed models are asked.
        fold: which half is trained on, 0 where there are no halves.
        seed: of what is drawn at random.
    """

    settings: tuple[str, ...]
    write: Callable[[Path, Mapping[str, Path]], object]
    scored: tuple[Asked, ...]
    fold: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Models:
    """Transformers models in evaluation mode: the one that is scored, and what loads the original and the
    never-knew model, None where they are not given."""

    attacked: Any
    original: Callable[[], Any] | None = None
    control: Callable[[], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack; `ask`, `changes` or `measure` says which kind it is.

    Attributes:
        name: on the command line and in results: small letters, digits and "_".
        title: in tables.
        tells: one sentence for the list of attacks: what is done to the model.
        ask: (material, options) -> what to ask of every model. Raises ValueError where it cannot be asked.
        changes: (material, options) -> what to make of every model. Raises ValueError where that cannot be.
        measure: (models, material, options) -> rows. Raises ValueError where they cannot be computed.
        check: refuses material that `measure` can do nothing with, before any model is loaded.
        default: whether it belongs to `--attacks default`.
        quick: its options under `--budget quick`.
        full: the options that `--budget full` changes.
        needs: what it cannot do without.
        higher_is_leak: whether a higher score means that more was left of the knowledge.
        statistic: "mean" of the forget side over facts, or "auc" of the side `others` above the forget side.
        has_before: whether the score is comparable with the recall before the attack; a text where that holds
            for the settings that begin with it.
        curve: whether its settings are the steps of one run, of which step 0 is the model before the attack.
        trained_on: of a curve, the words of the report behind "After 8 training steps": "on wrong answers".
    """

    name: str
    title: str
    tells: str
    ask: Callable[[Material, Options], Asking] | None = None
    changes: Callable[[Material, Options], Sequence[Change]] | None = None
    measure: Callable[[Models, Material, Options], list[Row]] | None = None
    check: Callable[[Material, Options], object] = lambda material, options: None
    default: bool = False
    quick: Options = field(default_factory=dict)
    full: Options = field(default_factory=dict)
    needs: frozenset[Need] = frozenset()
    higher_is_leak: bool = True
    statistic: Literal["mean", "auc"] = "mean"
    has_before: bool | str = True
    curve: bool = False
    trained_on: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"its name is {self.name!r}; at most 40 small letters, digits and _ are allowed")
        if unknown := [name for name in self.full if name not in self.quick]:
            raise ValueError(f"its full budget has the option {unknown[0]}, which its quick budget lacks")
        if [self.ask, self.changes, self.measure].count(None) != 2:
            raise ValueError("it needs one of ask, changes and measure")

    def options(self, budget: str) -> Options:
        """The options of a budget, "quick" or "full"."""
        return {**self.quick, **(self.full if budget == "full" else {})}

    @property
    def declared(self) -> Row:
        """What meta.json says of it, which the summary of a table needs."""
        names = ("title", "higher_is_leak", "statistic", "has_before", "curve", "trained_on")
        return {name: getattr(self, name) for name in names}
