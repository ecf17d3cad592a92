"""TOFU's definitions: probability, truth ratio, model utility, forget quality, and other readings of them.

They are open-unlearning's, and so are the metrics' names; docs/evaluation.md gives each with its variants.
"loss" is the mean negative log-likelihood a token of an answer, end-of-sequence included; exp(-loss) is the
answer's probability.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recipe.rerule.evaluation.logs.open_unlearning import EPSILON
from recipe.rerule.evaluation.memorised import MEMORISATION
from recipe.rerule.evaluation.statistics.samples import Array, Samples, Statistic, mean_of

PREFIXES = {"forget": "forget", "retain": "retain", "real_authors": "ra", "world_facts": "wf"}
"""TOFU's question sets, and what open-unlearning's metric names call them."""
OPTIONS = ("real_authors", "world_facts")
"""Sets of short answers: the right one is weighed against the wrong ones, and has no paraphrase."""
LEGEND = (
    "ROUGE: ROUGE-L recall of rouge_score with the stemmer. Prob: exp(-loss), loss the mean negative "
    "log-likelihood a token, end-of-sequence counted; normalised: among right and wrong answers. "
    "Truth ratio: geometric mean of the wrong answers' probabilities over the right one's. "
    "All are fractions of 1; privleak is in percent."
)


# Per probe. Losses and probabilities of one answer have shape (...,), of several (..., answers).


def truth_ratio(right_loss: Array, wrong_losses: Array, epsilon: float = EPSILON) -> Array:
    """R: geometric mean of the wrong answers' probabilities over the right (paraphrased) answer's."""
    return np.exp(-wrong_losses.mean(axis=-1)) / (np.exp(-right_loss) + epsilon)


def arithmetic_truth_ratio(right_loss: Array, wrong_losses: Array, epsilon: float = EPSILON) -> Array:
    """R with the arithmetic mean, as the TOFU paper prints it."""
    return np.exp(-wrong_losses).mean(axis=-1) / (np.exp(-right_loss) + epsilon)


def true_share(right_loss: Array, wrong_losses: Array, epsilon: float = EPSILON) -> Array:
    """true / (true + false), open-unlearning's aggregator prob_mean; false is the geometric mean."""
    right, wrong = np.exp(-right_loss), np.exp(-wrong_losses.mean(axis=-1))
    return right / (right + wrong + epsilon)


def option_probability(right: Array, wrong: Array, epsilon: float = EPSILON) -> Array:
    """Probability of the right answer among right and wrong ones."""
    return right / (right + wrong.sum(axis=-1) + epsilon)


def eq25_probability(right: Array, wrong: Array, epsilon: float = EPSILON) -> Array:
    """Equation (25) of the ReRULE paper to the letter: no right answer below the line, so it may exceed 1."""
    return right / (wrong.sum(axis=-1) + epsilon)


def probabilities(set_name: str, right: Array, wrong: Array, epsilon: float = EPSILON) -> dict[str, Array]:
    """The quantities "prob" and, on sets with options, "eq25_prob"."""
    if set_name not in OPTIONS:
        return {"prob": right}
    return {
        "prob": option_probability(right, wrong, epsilon),
        "eq25_prob": eq25_probability(right, wrong, epsilon),
    }


def ratios(right_loss: Array, wrong_losses: Array, epsilon: float = EPSILON) -> dict[str, Array]:
    """The quantities of the truth ratio: "truth_ratio", "arithmetic_truth_ratio", "true_share"."""
    return {
        "truth_ratio": truth_ratio(right_loss, wrong_losses, epsilon),
        "arithmetic_truth_ratio": arithmetic_truth_ratio(right_loss, wrong_losses, epsilon),
        "true_share": true_share(right_loss, wrong_losses, epsilon),
    }


# Over probes: the last axis.


def mean(values: Array) -> Array:
    """Plain mean."""
    return values.mean(axis=-1)


def closeness(ratios: Array, epsilon: float = EPSILON) -> Array:
    """Mean of min(R, 1/R): 1 where right and wrong answers are equally likely (forget)."""
    return np.minimum(ratios, 1 / (ratios + epsilon)).mean(axis=-1)


def distance(ratios: Array, epsilon: float = EPSILON) -> Array:
    """Mean of 1 - min(R, 1/R), which some papers put into model utility."""
    return 1 - closeness(ratios, epsilon)


def truthfulness(ratios: Array) -> Array:
    """Mean of max(0, 1 - R): 1 where wrong answers are out of the question."""
    return np.maximum(0, 1 - ratios).mean(axis=-1)


def harmonic_mean(values: Sequence[Array]) -> Array:
    """Harmonic mean over the first axis, 0 where any is 0, as scipy.stats.hmean."""
    stacked = np.stack([np.asarray(value, dtype=float) for value in values])
    with np.errstate(divide="ignore"):
        return len(values) / (1 / stacked).sum(axis=0)


@dataclass(frozen=True)
class Part:
    """A metric over one quantity of one question set."""

    set: str
    quantity: str
    aggregate: Callable[[Array], Array]

    def __call__(self, samples: Samples) -> Array:
        return self.aggregate(samples[self.set][self.quantity])


def _prob_name(prefix: str, set_name: str) -> str:
    return f"{prefix}_Q_A_Prob_normalised" if set_name in OPTIONS else f"{prefix}_Q_A_Prob"


FORGET_PARTS = {
    "forget_Q_A_ROUGE": Part("forget", "rouge_l", mean),
    "forget_Q_A_Prob": Part("forget", "prob", mean),
    "forget_truth_ratio": Part("forget", "truth_ratio", closeness),
}
UTILITY_PARTS = {
    name: part
    for set_name, prefix in PREFIXES.items()
    if set_name != "forget"
    for name, part in {
        _prob_name(prefix, set_name): Part(set_name, "prob", mean),
        f"{prefix}_Q_A_ROUGE": Part(set_name, "rouge_l", mean),
        f"{prefix}_Truth_Ratio": Part(set_name, "truth_ratio", truthfulness),
    }.items()
}
"""The nine that model utility is the harmonic mean of."""
PARTS = FORGET_PARTS | UTILITY_PARTS
MEMORISED = {name: Part("forget", name, mean) for name in MEMORISATION}
"""From ranks of the right answers' tokens (`memorised`)."""


@dataclass(frozen=True)
class Utility:
    """Model utility over another reading of its parts.

    Attributes:
        prob: quantity that stands for probability on the sets with options.
        ratio: quantity that stands for the truth ratio.
        aggregate: of the truth ratio.
    """

    prob: str = "prob"
    ratio: str = "truth_ratio"
    aggregate: Callable[[Array], Array] = truthfulness

    def parts(self) -> list[Part]:
        """Its nine parts."""
        return [self._changed(part) for part in UTILITY_PARTS.values()]

    def _changed(self, part: Part) -> Part:
        if part.quantity == "truth_ratio":
            return Part(part.set, self.ratio, self.aggregate)
        if part.quantity == "prob" and part.set in OPTIONS:
            return Part(part.set, self.prob, mean)
        return part

    def __call__(self, samples: Samples) -> Array:
        return harmonic_mean([part(samples) for part in self.parts()])


UTILITIES = {
    "model_utility": Utility(),
    "model_utility_arithmetic": Utility(ratio="arithmetic_truth_ratio"),
    "model_utility_distance": Utility(aggregate=distance),
    "model_utility_ratio": Utility(aggregate=mean),
    "model_utility_true_share": Utility(ratio="true_share", aggregate=mean),
    "model_utility_eq25": Utility(prob="eq25_prob"),
    "model_utility_eq25_eq26": Utility(prob="eq25_prob", aggregate=mean),
}
VARIANT_PARTS = {
    "forget_truth_ratio_arithmetic": Part("forget", "arithmetic_truth_ratio", closeness),
    "forget_truth_ratio_true_share": Part("forget", "true_share", mean),
    **{f"{PREFIXES[name]}_Q_A_Prob_eq25": Part(name, "eq25_prob", mean) for name in OPTIONS},
}
VARIANTS: Mapping[str, Statistic] = VARIANT_PARTS | {
    name: utility for name, utility in UTILITIES.items() if name != "model_utility"
}
"""Readings found in papers and other code; none goes by an official name."""
STATISTICS: Mapping[str, Statistic] = {
    "model_utility": UTILITIES["model_utility"],
    **PARTS,
    "forget_refusal_rate": mean_of("refused", ["forget"]),
    "utility_refusal_rate": mean_of("refused", [name for name in PREFIXES if name != "forget"]),
}


def statistics(samples: Samples) -> dict[str, Statistic]:
    """Those of STATISTICS and MEMORISED whose values are in `samples`: no likelihoods, no truth ratio."""
    known: dict[str, Statistic] = {**STATISTICS, **MEMORISED}
    return {name: statistic for name, statistic in known.items() if _computable(name, samples)}


def _computable(name: str, samples: Samples) -> bool:
    if name == "forget_refusal_rate":
        return "forget" in samples
    if name == "utility_refusal_rate":
        return all(set_name in samples for set_name in PREFIXES)
    single = PARTS | MEMORISED
    parts = [single[name]] if name in single else UTILITIES[name].parts()
    return all(part.quantity in samples.get(part.set, {}) for part in parts)


def forget_quality(ratios: Array, retain_ratios: Array) -> float:
    """p-value of the two-sided Kolmogorov-Smirnov test that both models' truth ratios are alike.

    scipy's choice between the exact and the asymptotic distribution. `retain_ratios` are those of a model
    trained without the forget set, on the same questions.
    """
    # Loading scipy.stats takes about a second.
    from scipy.stats import ks_2samp

    return float(ks_2samp(ratios, retain_ratios).pvalue)
