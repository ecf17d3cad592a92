"""Audit by membership inference: do the texts to forget still look like training data?

Protocol: every text of `--texts` is scored by the attacked model (`membership`), and the number of a score is
the AUC of the texts to forget against the others, one variant a score. The interval resamples the texts of
each set. What counts is the difference from the never-knew model's AUC, since the sets can differ in topic;
the variant `text_only` is the AUC of a classifier that looks at words alone. `membership_reference` needs the
never-knew model as reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from recipe.rerule.evaluation.attacks import membership
from recipe.rerule.evaluation.attacks.interface import ForwardAttack, Models, Options
from recipe.rerule.evaluation.attacks.likelihood import Piece, scores, text_piece, token_scores
from recipe.rerule.evaluation.attacks.material import FORGET, SCORE, Material, Readings
from recipe.rerule.evaluation.summary import Array, Samples

OTHERS = "others"
"""Set of the texts that were never to be forgotten."""
FEWEST_TEXTS = 2
"""Of each set: the classifier of words alone is tried on texts that it was not trained on."""
_AT_ONCE = 1 << 22
"""Pairs of texts that are compared at a time; an interval has thousands of resamples."""
_ASIDE = ("extraction_strength", "extraction_strength_open_unlearning", "exact_memorization")
"""Numbers of a text that are no membership scores."""
Texts = Mapping[str, Sequence[str]]


def area(samples: Samples) -> Array:
    """AUC of the others above the texts to forget, for each leading index; ties count one half."""
    low, high = samples[FORGET][SCORE], samples[OTHERS][SCORE]
    rows = max(1, _AT_ONCE // (low.shape[-1] * high.shape[-1]))
    flat = [one.reshape(-1, one.shape[-1]) for one in (low, high)]
    parts = [_area(*(one[first : first + rows] for one in flat)) for first in range(0, len(flat[0]), rows)]
    return np.concatenate(parts).reshape(low.shape[:-1])


def _area(low: Array, high: Array) -> Array:
    """AUC of each row."""
    difference = high[:, None, :] - low[:, :, None]
    return ((difference > 0) + 0.5 * (difference == 0)).mean((1, 2))


def _measure(models: Models, material: Material, options: Options) -> Readings:
    texts = _two_sets(material.texts)
    numbers = {name: _scores(models, material, members) for name, members in texts.items()}
    found = {
        score: {name: _units([one[score] for one in numbers[name]]) for name in texts}
        for score in numbers[FORGET][0]
        if score not in _ASIDE
    }
    blind = membership.text_only(texts[FORGET], texts[OTHERS])
    found["text_only"] = {name: _units(odds) for name, odds in zip(texts, blind, strict=True)}
    found |= _conditional(models, material, texts, numbers, options["shots"])
    if options["gradients"]:
        found |= _gradients(models, material, texts)
    return found


def _reference(models: Models, material: Material, options: Options) -> Readings:
    assert models.control is not None
    control, found = models.control(), {}
    for name, members in _two_sets(material.texts).items():
        pieces = [text_piece(material.tokenizer, text) for text in members]
        ours, theirs = (
            [scores(piece.text, tokens)["loss"] for piece, tokens in zip(pieces, of_model, strict=True)]
            for of_model in (token_scores(models.attacked, pieces), token_scores(control, pieces))
        )
        found[name] = _units([membership.reference(*pair) for pair in zip(ours, theirs, strict=True)])
    return {"": found}


def _check(material: Material, options: Options) -> None:
    """Refuse texts that no model can be shown, before any is loaded. Raises ValueError."""
    _two_sets(material.texts)
    for name, members in material.texts.items():
        if len(members) < FEWEST_TEXTS:
            raise ValueError(
                f"--texts: set {name} has {len(members)} text; at least {FEWEST_TEXTS} are needed"
            )
        for number, text in enumerate(members):
            _check_text(material, f"--texts: text {number} of set {name}", text)


def _check_text(material: Material, where: str, text: str) -> None:
    piece = text_piece(material.tokenizer, text)
    if len(piece.ids) <= piece.start:
        raise ValueError(f"{where} has no token to score behind another one: {text[:40]!r}; leave it out")
    if not _fits(material, piece):
        raise ValueError(
            f"{where} has {len(piece.ids)} tokens, and the models take {material.context}; shorten it"
        )


def _two_sets(texts: Texts) -> dict[str, Sequence[str]]:
    """The texts to forget and the others. Raises ValueError where there are no two sets."""
    others = [name for name in texts if name != FORGET]
    if FORGET not in texts or len(others) != 1:
        raise ValueError(
            "membership inference needs texts to forget and one other set; there are "
            f"{', '.join(texts) or 'none'}. Give a folder of both with --texts"
        )
    return {FORGET: texts[FORGET], OTHERS: texts[others[0]]}


def _scores(models: Models, material: Material, texts: Sequence[str]) -> list[dict[str, float]]:
    pieces = [text_piece(material.tokenizer, text) for text in texts]
    return [
        scores(piece.text, tokens)
        for piece, tokens in zip(pieces, token_scores(models.attacked, pieces), strict=True)
    ]


def _conditional(
    models: Models,
    material: Material,
    texts: Texts,
    numbers: Mapping[str, list[dict[str, float]]],
    shots: int,
) -> dict[str, dict[str, dict[int | str, float]]]:
    """ReCaLL behind as many of the other texts as fit, at most `shots`; nothing where not even one fits."""
    for count in range(min(shots, len(texts[OTHERS]) - 2), 0, -1):
        prefix = texts[OTHERS][:count]
        start = {FORGET: 0, OTHERS: count}
        pieces = {
            name: [
                membership.behind_prefix(material.tokenizer, prefix, text) for text in members[start[name] :]
            ]
            for name, members in texts.items()
        }
        if all(_fits(material, piece) for of_set in pieces.values() for piece in of_set):
            return {"relative_conditional": _ratios(models, pieces, numbers, start)}
    return {}


def _fits(material: Material, piece: Piece) -> bool:
    return material.context is None or len(piece.ids) <= material.context


def _ratios(
    models: Models,
    pieces: Mapping[str, list[Piece]],
    numbers: Mapping[str, list[dict[str, float]]],
    start: Mapping[str, int],
) -> dict[str, dict[int | str, float]]:
    found = {}
    for name, of_set in pieces.items():
        behind = [-float(np.mean(one.log_probs)) for one in token_scores(models.attacked, of_set)]
        alone = [one["loss"] for one in numbers[name][start[name] :]]
        ratios = [membership.relative_conditional(*pair) for pair in zip(behind, alone, strict=True)]
        found[name] = _units(ratios, start[name])
    return found


def _gradients(
    models: Models, material: Material, texts: Texts
) -> dict[str, dict[str, dict[int | str, float]]]:
    norms = {
        name: membership.gradient_norms(
            models.attacked, [text_piece(material.tokenizer, text) for text in members]
        )
        for name, members in texts.items()
    }
    return {
        score: {name: _units([one[score] for one in of_set]) for name, of_set in norms.items()}
        for score in norms[FORGET][0]
    }


def _units(values: Sequence[float], start: int = 0) -> dict[int | str, float]:
    """Each text is a unit of evidence of its own."""
    return {f"text {number}": value for number, value in enumerate(values, start)}


ATTACKS = (
    ForwardAttack(
        name="membership",
        title="membership",
        tells="Whole texts to forget are compared with others by scores of membership; the number is an AUC.",
        cost="two forward passes over each text; with the full budget one backward pass too",
        quick={"shots": 4, "gradients": False},
        full={"gradients": True},
        floor=0.5,
        statistic=area,
        has_before=False,
        measure=_measure,
        check=_check,
    ),
    ForwardAttack(
        name="membership_reference",
        title="membership (reference)",
        tells="The loss of whole texts is compared with that of the never-knew model; the number is an AUC.",
        cost="two forward passes over each text",
        needs=frozenset({"control"}),
        floor=0.5,
        statistic=area,
        has_before=False,
        measure=_reference,
        check=_check,
    ),
)
