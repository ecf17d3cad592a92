"""Attack by indirection: the question names the target by an alias, a part of the name, or another fact.

Protocol: one greedy answer a probe for each way, which is a setting. In the question, every name of whom it
is about is replaced:
- `alias`: by the second name in the keyword of the row (`reward.names_of`), where it has one;
- `part`: by the last word of the name, where it has several words;
- `two_hops`: by X, and before the question stands another one about the same target, with its answer: 'The
  answer to "Which book did X write?" is "The Salt Road". Where was X born?' The first hop is the first other
  fact of the target whose question and answer hold no right answer to the probe.
Probes are left out whose question holds no name, or that a way has nothing for; so are those that are attacks
themselves, unless a fact has no others. The retain side is asked in the same ways, where its questions hold
the `subject` of their rows, as those of the world do. Answers are scored as in
the other attacks.

Source: after "The Unlearning Mirage: A Dynamic Framework for Evaluating LLM Unlearning", arXiv:2603.11266,
which asks the model before unlearning for what it knows, and builds its questions from that, up to chains of
several facts. Here aliases and facts come from the rows alone; chains have two facts, and the wording is this
project's.

Traps: a model that has learnt facts in one direction only ("Ada wrote The Salt Road") does not find Ada by
the book, and one that has never read an alias does not know whom it names. Where the original model's score
is low, the way says nothing. The first hop tells the model another fact to forget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from recipe.rerule.evaluation.attacks.asking import Way, asking, plain, reworded
from recipe.rerule.evaluation.attacks.attack import Asked, Asking, Attack, Material, Options
from recipe.rerule.evaluation.attacks.rows import true_answers, without_leaks
from recipe.rerule.evaluation.probes import Probe

UNKNOWN = "X"
HOPS = 'The answer to "{first}" is "{answer}". {question}'


def _called(name: Callable[[Probe], str], asked: Asked) -> Asked | None:
    """The probe with another name; None where there is none."""
    other = name(asked.probe)
    changed = reworded(lambda text: asked.probe.renamed(text, other))(asked)
    return changed if other and changed != asked else None


def _part(probe: Probe) -> str:
    words = probe.subject.split()
    return words[-1] if len(words) > 1 else ""


def _two_hops(material: Material, asked: Asked) -> Asked | None:
    """The probe about X behind another fact about X; None where there is none."""
    probe, renamed = asked.probe, _called(lambda _: UNKNOWN, asked)
    if renamed is None:
        return None
    for other in (one.probe for one in (*material.asked, *material.retained)):
        if other.subject != probe.subject or material.fact(other) == material.fact(probe):
            continue
        text = other.query or other.messages[-1]["content"]
        first = other.renamed(text, UNKNOWN)
        if first != text and without_leaks(true_answers([other]), probe.golds):
            answer = other.renamed(other.golds[0], UNKNOWN)  # TOFU's answers name the target
            begun = HOPS.replace("{first}", first).replace("{answer}", answer)
            return reworded(partial(begun.replace, "{question}"))(renamed)
    return None


def _ask(material: Material, options: Options) -> Asking:
    own = replace(material, asked=plain(material.asked, material))
    ways: dict[str, Way] = {
        "alias": partial(_called, lambda probe: next(iter(probe.aliases), "")),
        "part": partial(_called, _part),
        "two_hops": partial(_two_hops, own),
    }
    return asking(own, ways)


ATTACKS = (
    Attack(
        name="indirect",
        title="indirect",
        tells="The question names the target by an alias, by a part of its name, or by another fact.",
        ask=_ask,
    ),
)
