"""Attack by relearning similar sentences: training on the retain rows that are worded as the probes are.

Protocol: as `relearn`, on the ROWS retain rows whose questions are the most similar to the questions of the
forget side. All names of whom a question is about become one sign, where its row says them: the retain rows
of TOFU, RWKU and MUSE do not, so that their names count as words. The similarity of two
questions is the ratio of Python's difflib over their words, from 0 to 1, and that of a row is the highest one
over all forget probes. Of equal rows the first ones count. `relearn_retain`, with all rows, and
`relearn_benign`, with rows of another syntax, are the controls.

Source: after "Rethinking Benign Relearning: Syntax as the Hidden Driver of Unlearning Failures",
arXiv:2602.03379, which finds that rows with the syntax of the forgotten ones bring them back also where their
topic is another one. Its measure of similarity and its rows were not at hand: those here are this project's.

Traps: where all retain rows are worded as the probes are, as in `data_prep.world`, the rows are nearly those
of `relearn_retain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from recipe.rerule.evaluation.attacks.attack import Asked, Material
from recipe.rerule.evaluation.attacks.relearn import relearning
from recipe.rerule.evaluation.attacks.rows import TrainingRow, of_retain_side, true_answers
from recipe.rerule.evaluation.probes import Probe
from reward.rouge import words

ROWS = 64
"""Those of the first 8 steps."""
NAME = "NAME"


def sentence(probe: Probe) -> tuple[str, ...]:
    """The words of the question, with one sign for every name."""
    return tuple(words(probe.renamed(probe.query or probe.messages[-1]["content"], NAME)))


def most_similar(candidates: Sequence[Probe], forget: Sequence[Probe], count: int) -> list[Probe]:
    """The `count` candidates with the highest similarity, in their order."""
    wanted = set(map(sentence, forget))
    found = {
        own: max(SequenceMatcher(None, own, other, autojunk=False).ratio() for other in wanted)
        for own in set(map(sentence, candidates))
    }
    places = sorted(range(len(candidates)), key=lambda place: -found[sentence(candidates[place])])
    return [candidates[place] for place in sorted(places[:count])]


def _rows(material: Material, half: Sequence[Asked], seed: int) -> list[TrainingRow]:
    forget = [one.probe for one in material.asked]
    return true_answers(most_similar(of_retain_side(material.train), forget, ROWS))


ATTACKS = (
    relearning(
        "relearn_similar",
        "relearn: similar",
        "The model is trained on the retain rows that are worded as the questions to forget are.",
        "on retain rows that are worded as the questions to forget",
        _rows,
    ),
)
