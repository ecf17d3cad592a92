"""TOFU: what it asks of a model about each probe, its definitions, and the scores of its logs.

The definitions are open-unlearning's, and so are the metrics' names; docs/evaluation.md gives each with its
variants. ROUGE-L is recall with the stemmer (convention "tofu" of reward.rouge). "loss" is the mean negative
log-likelihood a token of an answer, end-of-sequence included; exp(-loss) is the answer's probability.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from recipe.rerule.evaluation.engine.requests import Answers, Generation, Likelihood, PromptText, Request
from recipe.rerule.evaluation.logs import (
    MEANS_OF_SCORES,
    Computations,
    Log,
    MissingError,
    check_retained,
    golds_of_log,
    golds_of_probes,
    means,
    metric_entry,
    rouge_entry,
    score_entry,
)
from recipe.rerule.evaluation.metrics import EPSILON, MEMORISATION, memorised
from recipe.rerule.evaluation.probes import Probe, told_file
from recipe.rerule.evaluation.registry import (
    PAPER,
    Benchmark,
    Column,
    Option,
    Published,
    PublishedFigures,
    Row,
    published_cost,
)
from recipe.rerule.evaluation.summary import Array, Metrics, Samples, Statistic, mean_of

PREFIXES = {"forget": "forget", "retain": "retain", "real_authors": "ra", "world_facts": "wf"}
"""TOFU's question sets, and what open-unlearning's metric names call them."""
OPTIONS = ("real_authors", "world_facts")
"""Sets of short answers: the right one is weighed against the wrong ones, and has no paraphrase."""
PROMPTS: Mapping[str, str | None] = {
    "chat": None,
    "llama-2": "[INST] {query} [/INST]",
    "phi": "Question: {query}\nAnswer: ",
}
"""Prompt by name: through the chat template, as trained; or TOFU's own raw text for a base family."""
MAX_TOKENS = 200
LIKELIHOODS = (
    "prob", "avg_loss", "paraphrased_loss", "truth_ratio", "closeness", "truthfulness", "perturbed_losses",
)  # fmt: skip
"""Columns that are made from the likelihoods of answers."""


def question_set(row: Mapping[str, Any]) -> str:
    """The question set of a row. Raises ValueError where it is none of TOFU's."""
    name = "forget" if row["side"] == "forget" else row["family"]
    if name not in PREFIXES:
        known = ", ".join(PREFIXES)
        raise ValueError(f"probe {row['probe']}: family {name!r} is none of TOFU's sets ({known})")
    return str(name)


# Definitions. Losses and probabilities of one answer have shape (probes,), of several (probes, answers).


def probability(set_name: str, right: Any, wrong: Any) -> Any:
    """The quantity "prob", which on sets with options is among right and wrong answers."""
    return right / (right + wrong.sum(axis=-1) + EPSILON) if set_name in OPTIONS else right


def ratios(right_loss: Any, wrong_losses: Any) -> dict[str, Any]:
    """The truth ratio R, and what the metrics average of it.

    truth_ratio: geometric mean of the wrong answers' probabilities over the right (paraphrased) answer's.
    closeness: min(R, 1/R), 1 where right and wrong answers are equally likely (forget). truthfulness:
    max(0, 1 - R), 1 where wrong answers are out of the question.
    """
    ratio = np.exp(-wrong_losses.mean(axis=-1)) / (np.exp(-right_loss) + EPSILON)
    return {
        "truth_ratio": ratio,
        "closeness": np.minimum(ratio, 1 / (ratio + EPSILON)),
        "truthfulness": np.maximum(0, 1 - ratio),
    }


def forget_quality(ratios: Sequence[float] | Array, retain_ratios: Sequence[float]) -> float:
    """p-value of the two-sided Kolmogorov-Smirnov test that both models' truth ratios are alike.

    scipy's choice between the exact and the asymptotic distribution. `retain_ratios` are those of a model
    trained without the forget set, on the same questions.
    """
    # Loading scipy.stats takes seconds.
    from scipy.stats import ks_2samp

    return float(ks_2samp(ratios, retain_ratios).pvalue)


Part = tuple[str, str]
"""Question set and quantity whose mean is a metric."""
FORGET_PARTS: Mapping[str, Part] = {
    "forget_Q_A_ROUGE": ("forget", "rouge_l"),
    "forget_Q_A_Prob": ("forget", "prob"),
    "forget_truth_ratio": ("forget", "closeness"),
}
UTILITY_PARTS: Mapping[str, Part] = {
    name: (set_name, quantity)
    for set_name, prefix in PREFIXES.items()
    if set_name != "forget"
    for name, quantity in {
        f"{prefix}_Q_A_Prob{'_normalised' if set_name in OPTIONS else ''}": "prob",
        f"{prefix}_Q_A_ROUGE": "rouge_l",
        f"{prefix}_Truth_Ratio": "truthfulness",
    }.items()
}
"""The nine that model utility is the harmonic mean of."""
PARTS = {**FORGET_PARTS, **UTILITY_PARTS}
TRUTH_RATIO: Part = ("forget", "truth_ratio")
"""Whose values forget quality compares."""


def utility(samples: Samples) -> Array:
    """Model utility: the harmonic mean of its nine parts."""
    return harmonic_mean([part(place)(samples) for place in UTILITY_PARTS.values()])


def harmonic_mean(parts: Sequence[Any]) -> Array:
    """Over `parts`, numbers or arrays of one shape; 0 where any is 0, as scipy.stats.hmean."""
    means = np.stack(parts)
    with np.errstate(divide="ignore"):
        return np.asarray(len(means) / (1 / means).sum(axis=0))


def part(place: Part) -> Statistic:
    """The mean of a part."""
    return mean_of(place[1], [place[0]])


_KEYS = ("forget_quality", "model_utility", "forget_Q_A_ROUGE")
_TABLE = f"{PAPER}, TOFU forget01 table"
_REFUSAL_SCORE = (
    '0.1322 is what saying only "I\'m not certain about <author>." scores on all 40 forget questions.'
)
_UNEQUAL_SETS = (
    "The p-value compares 300 truth ratios with 40; like for like (40 with 40) open-unlearning reports "
    "1.27e-03."
)


def _row(name: str, numbers: Sequence[float], note: str = "") -> Published:
    return Published(name, _TABLE, dict(zip(_KEYS, numbers, strict=True)), note)


class Tofu(Benchmark):
    """A generation, and the likelihoods of right, paraphrased and wrong answers, about each probe."""

    name = "tofu"
    title = "TOFU"
    columns: tuple[Column, ...] = (
        Column("forget_quality", "forget", "FQ", "high", 1.0, ".2e"),
        Column("forget_Q_A_ROUGE", "forget", "F-RL", "low", 1.0, ".4f"),
        Column("forget_truth_ratio", "forget", "TR", "high", 1.0, ".4f"),
        Column("model_utility", "retain", "MU", "high", 1.0, ".4f"),
    )
    legend = (
        "FQ, forget quality: p-value of a Kolmogorov-Smirnov test that the truth ratios are those of a "
        "retained model; F-RL: ROUGE-L recall on forget questions; TR: truth ratio on them, mean of "
        "min(R, 1/R); MU, model utility: harmonic mean of its nine parts. Fractions of 1."
    )
    score_legend = (
        "ROUGE: ROUGE-L recall of rouge_score with the stemmer. Prob: exp(-loss), loss the mean negative "
        "log-likelihood a token, end-of-sequence counted; normalised: among right and wrong answers. "
        "Truth ratio: geometric mean of the wrong answers' probabilities over the right one's. "
        "All are fractions of 1; privleak is in percent."
    )
    options = (
        Option("prompts", choices=tuple(PROMPTS)),
        Option(
            "retain_log",
            "TOFU_EVAL.json of a retained model, which becomes a row of the table; for forget quality",
            Path,
            "FILE",
        ),
    )
    log_file = "TOFU_EVAL.json"
    pair = ("forget_Q_A_ROUGE", "model_utility")
    published = PublishedFigures(
        results=(
            _row("original", (4.4883e-06, 0.6239, 0.9851), _UNEQUAL_SETS),
            _row("retained", (1.0, 0.6267, 0.4080)),
            _row("GA / SGA (r = 0)", (0.0068, 0.5990, 0.4817)),
            _row("KL", (0.0030, 0.5994, 0.4922)),
            _row("GD", (0.0068, 0.5998, 0.4869)),
            _row("LLMU", (0.0030, 0.5999, 0.4891)),
            _row("PO", (0.0030, 0.6323, 0.1752)),
            _row("DPO-RT", (0.0068, 0.6322, 0.2595)),
            _row("NPO-RT", (0.0030, 0.5994, 0.5049)),
            _row("FLAT (Pearson)", (0.0030, 0.6304, 0.4825)),
            _row("SGA (r = 0.4)", (0.0068, 0.6027, 0.4792)),
            _row("RULE", (0.1650, 0.6151, 0.1322), _REFUSAL_SCORE),
            _row("ReRULE", (0.1650, 0.6076, 0.1322), _REFUSAL_SCORE),
        ),
        hard_share=(
            Published("TOFU forget01", PAPER, {"tau": 0.4, "share": 0.475}),
            Published("TOFU forget01", PAPER, {"tau": 0.6, "share": 0.543}),
        ),
        cost=published_cost("TOFU forget01", 1.8, 2.0),
    )
    fractions = (
        r".*_ROUGE|.*_Prob|.*_Prob_normalised|.*_[Tt]ruth_[Rr]atio|model_utility|forget_quality"
        r"|.*_refusal_rate|extraction_strength(_definition)?|exact_memorization"
    )
    units: Mapping[str, str] = {"privleak": "PrivLeak: per cent."}
    model_example = """\
  python -m recipe.rerule.evaluate model --probes data/tofu/probes.parquet \\
      --model rerule=outputs/tofu/rerule@all --retain-log RETAIN_EVAL.json --out outputs/tofu_steps
      every checkpoint of a run; forget quality compares with the log of a retained model
"""
    score_example = """\
  python -m recipe.rerule.evaluate score --benchmark tofu --log TOFU_EVAL.json --retain-log RETAIN_EVAL.json
      a log of open-unlearning; forget quality compares with the log of a retained model
"""
    convention = "tofu"
    max_tokens = MAX_TOKENS
    template: str | None = None

    def choose(self, options: argparse.Namespace) -> None:
        """As --prompts and --retain-log say."""
        self.template = PROMPTS[options.prompts]
        self.settings = {
            "prompts": options.prompts,
            "retain_log": options.retain_log and told_file(options.retain_log),
        }

    def requests(self, probes: Sequence[Probe]) -> list[Request]:
        """Raises ValueError for a probe without the answers that TOFU compares, or a log of other
        questions."""
        found: list[Request] = []
        counts: dict[str, int] = {}
        for probe in probes:
            prompt = PromptText(tuple(probe.messages), raw=probe.raw)
            if self.template is not None:
                query = probe.query or probe.messages[-1]["content"]
                # The query may hold braces of its own.
                turn = {"role": "user", "content": self.template.replace("{query}", query)}
                prompt = PromptText((turn,), raw=True)
            set_name, reference = question_set(probe.labels), probe.reference
            if reference is None:
                raise ValueError(
                    f"probe {probe.index} has no wrong answers to compare with; prepare the data again from "
                    "TOFU's *_perturbed tables"
                )
            measured = {"answer": probe.golds[0]}
            if set_name not in OPTIONS:
                if reference.paraphrased is None:
                    raise ValueError(
                        f"probe {probe.index} has no paraphrased answer, which TOFU's truth ratio needs"
                    )
                measured["paraphrased"] = reference.paraphrased
            measured |= {f"perturbed/{number}": text for number, text in enumerate(reference.perturbed)}
            found.append(Generation(self.request_id(probe), prompt, self.max_tokens))
            found += [Likelihood(f"{probe.index}/{name}", prompt, text) for name, text in measured.items()]
            expected = counts.setdefault(set_name, len(measured))
            if len(measured) != expected:
                raise ValueError(
                    f"probe {probe.index} has {len(measured)} answers to compare, where others have "
                    f"{expected}"
                )
        if self.retained is not None:
            logged = len(log_values(self.retained, TRUTH_RATIO))
            forget = sum(question_set(probe.labels) == "forget" for probe in probes)
            if logged != forget:
                raise ValueError(
                    f"--retain-log {self.retained.name} has {logged} forget rows and the probes "
                    f"{forget}; forget quality compares the same rows: evaluate both models on one split"
                )
            rouge = {name: f"{prefix}_Q_A_ROUGE" for name, prefix in PREFIXES.items()}
            check_retained(self.retained, golds_of_probes(probes, question_set, rouge), "the probes")
        return found

    def records(self, probes: Sequence[Probe], answers: Answers, folder: Path) -> list[Row]:
        """Losses and what comes of them are None where their answers are missing, as of constant
        responses."""
        found = []
        for probe in probes:
            response = answers[self.request_id(probe)].text.strip()
            scores = self.scores(response, probe) | self._likelihoods(probe, answers)
            found.append(self.row(probe, response, scores | memorised(answers.get(f"{probe.index}/answer"))))
        return found

    def scores(self, response: str, probe: Probe) -> dict[str, Any]:
        """Recall, and whether the response refuses."""
        from reward.rouge import rouge_l

        return {"rouge_l": rouge_l(response, probe.golds[0], "tofu"), "refused": self.refuses(response)}

    def _likelihoods(self, probe: Probe, answers: Answers) -> dict[str, Any]:
        right = answers.get(f"{probe.index}/answer")
        if right is None or probe.reference is None:
            return dict.fromkeys(LIKELIHOODS)
        set_name, paraphrased = question_set(probe.labels), None
        if set_name not in OPTIONS:
            paraphrased = answers[f"{probe.index}/paraphrased"].avg_loss
        wrong = [
            answers[f"{probe.index}/perturbed/{n}"].avg_loss for n in range(len(probe.reference.perturbed))
        ]
        losses = np.array(wrong)
        compared = ratios(right.avg_loss if paraphrased is None else paraphrased, losses)
        return {
            "prob": float(probability(set_name, math.exp(-right.avg_loss), np.exp(-losses))),
            "avg_loss": right.avg_loss,
            "paraphrased_loss": paraphrased,
            **{name: float(value) for name, value in compared.items()},
            "perturbed_losses": wrong,
        }

    def sets(self, row: Mapping[str, Any]) -> list[str]:
        return [question_set(row)]

    def statistics(self, samples: Samples) -> dict[str, Statistic]:
        """Those whose values are in `samples`: without likelihoods there is no truth ratio."""

        def known(*places: Part) -> bool:
            return all(quantity in samples.get(name, {}) for name, quantity in places)

        others = [name for name in PREFIXES if name != "forget"]
        refused = {"forget_refusal_rate": ["forget"], "utility_refusal_rate": others}
        memorisation = {name: ("forget", name) for name in MEMORISATION}
        found: dict[str, Statistic] = {}
        if known(*UTILITY_PARTS.values()):
            found["model_utility"] = utility
        found |= {name: part(place) for name, place in PARTS.items() if known(place)}
        found |= {
            name: mean_of("refused", sets)
            for name, sets in refused.items()
            if known(*((one, "refused") for one in sets))
        }
        return found | {name: part(place) for name, place in memorisation.items() if known(place)}

    def extra_metrics(self, samples: Samples) -> Metrics:
        """Forget quality, against the log of a retained model."""
        ours = samples.get("forget", {}).get("truth_ratio")
        if ours is None or self.retained is None:
            return {}
        theirs = list(log_values(self.retained, TRUTH_RATIO).values())
        return {"forget_quality": forget_quality(ours, theirs)}

    def references(self) -> dict[str, Metrics]:
        found = super().references()
        # Against itself: no two truth ratios differ.
        return {
            name: row | ({"forget_quality": 1.0} if "forget_truth_ratio" in row else {})
            for name, row in found.items()
        }

    def log_metrics(self, rows: Sequence[Row], texts: Sequence[Row] = ()) -> dict[str, Any]:
        """Samples are numbered from 0 in each question set, by the order of the probes' own indices.

        TOFU's rows are numbered so. forget_quality is not in it, since it is of two models.
        """
        metrics: dict[str, Any] = {}
        for set_name, prefix in PREFIXES.items():
            members = sorted(
                (row for row in rows if question_set(row) == set_name), key=lambda row: row["probe"]
            )
            if not members:
                continue
            metrics[f"{prefix}_Q_A_ROUGE"] = rouge_entry(members, "rougeL_recall")
            options = set_name in OPTIONS
            losses = {"Q_A_Prob": "avg_loss", "Q_A_PERT_Prob": "perturbed_losses"}
            losses |= {} if options else {"Q_A_PARA_Prob": "paraphrased_loss"}
            for name, key in losses.items():
                metrics[f"{prefix}_{name}"] = _probabilities([row[key] for row in members])
            if options:
                normalised = score_entry([row["prob"] for row in members], "prob")
                metrics[f"{prefix}_Q_A_Prob_normalised"] = normalised
            name, averaged = (
                ("Truth_Ratio", "truthfulness") if set_name != "forget" else ("truth_ratio", "closeness")
            )
            entry = score_entry([row["truth_ratio"] for row in members])
            mean = float(np.mean([row[averaged] for row in members]))
            metrics[f"{prefix}_{name}"] = entry | {"agg_value": mean}
            if set_name == "forget":
                known = [name for name in MEANS_OF_SCORES if all(name in row for row in members)]
                metrics |= {name: score_entry([row[name] for row in members]) for name in known}
        with contextlib.suppress(MissingError):
            metrics["model_utility"] = {"agg_value": _log_utility(Log(self.log_file, metrics))}
        return metrics

    def log_computations(self, log: Log, retain_log: Log | None) -> Computations:
        """Metrics under open-unlearning's names."""
        if retain_log is not None:
            check_retained(retain_log, golds_of_log(log, ["forget_Q_A_ROUGE"]), log.name)
        return {
            "model_utility": partial(_log_utility, log),
            "forget_quality": partial(_log_forget_quality, log, retain_log),
            **{name: partial(_log_mean, log, place) for name, place in PARTS.items()},
        }


def _probabilities(losses: Sequence[Any]) -> dict[str, Any]:
    """A metric of probabilities from the losses of each sample, which is a list for several answers."""
    probs = [np.exp(-np.asarray(loss)) for loss in losses]
    entries = {
        str(place): {"prob": prob.tolist(), "avg_loss": loss}
        for place, (prob, loss) in enumerate(zip(probs, losses, strict=True))
    }
    return metric_entry(float(np.mean([prob.mean() for prob in probs])), entries)


# open-unlearning's TOFU_EVAL.json.


def log_values(log: Log, place: Part) -> dict[str, float]:
    """The values of a part in a log, by sample.

    Everything comes from `rougeL_recall`, `prob` and `avg_loss` of single samples, and nothing from values
    that the log derives of these. Parts of one set may be over different samples, since null values are left
    out metric by metric.

    Raises MissingError, and ValueError for bad values.
    """
    set_name, quantity = place
    prefix, options = PREFIXES[set_name], set_name in OPTIONS
    right, wrong = f"{prefix}_Q_A_Prob", f"{prefix}_Q_A_PERT_Prob"
    if quantity == "rouge_l":
        return means(log.numbers(f"{prefix}_Q_A_ROUGE", "rougeL_recall", low=0, high=1))
    if quantity == "prob" and not options:
        return means(log.numbers(right, "prob", low=0, high=1))
    if quantity == "prob":
        index, ours, theirs = log.pair(right, wrong, "prob", 0, 1)
        values = probability(set_name, ours.mean(axis=-1), theirs)
    else:
        # Short answers have no paraphrase.
        right = right if options else f"{prefix}_Q_A_PARA_Prob"
        index, ours, theirs = log.pair(right, wrong, "avg_loss", 0, math.inf)
        values = ratios(ours.mean(axis=-1), theirs)[quantity]
    return dict(zip(index, values.tolist(), strict=True))


def _log_mean(log: Log, place: Part) -> float:
    return float(np.mean(list(log_values(log, place).values())))


def _log_utility(log: Log) -> float:
    return float(harmonic_mean([_log_mean(log, place) for place in UTILITY_PARTS.values()]))


def _log_forget_quality(ours: Log, theirs: Log | None) -> float:
    if theirs is None:
        raise MissingError("no retained model to compare with; give its log with --retain-log")
    found, listed = [], []
    for log in (ours, theirs):
        try:
            found.append(log_values(log, TRUTH_RATIO))
        except MissingError as error:
            raise MissingError(f"{error} in {log.name}") from error
        listed.append(set(log.entries("forget_Q_A_PERT_Prob")))
    if odd := listed[0] ^ listed[1]:
        raise ValueError(
            f"forget_quality needs the same questions in both logs: {ours.name} has {len(listed[0])}, "
            f"{theirs.name} has {len(listed[1])}, and {len(odd)} are in one only; compare with the model "
            "retained for this forget split, or leave --retain-log out"
        )
    # A question that is null in one log is left out of both.
    both = [index for index in found[0] if index in found[1]]
    return forget_quality(*([values[index] for index in both] for values in found))


BENCHMARKS = (Tofu(),)
