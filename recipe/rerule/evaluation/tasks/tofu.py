"""TOFU: what it asks of a model about each probe, its definitions, and the scores of its logs.

The definitions are open-unlearning's, and so are the metrics' names; docs/evaluation.md gives each with its
variants. ROUGE-L is recall with the stemmer (convention "tofu" of reward.rouge). "loss" is the mean negative
log-likelihood a token of an answer, end-of-sequence included; exp(-loss) is the answer's probability.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe.rerule.evaluation.engine.requests import Answers, Generation, Likelihood, PromptText, Request
from recipe.rerule.evaluation.logs import (
    MEANS_OF_SCORES,
    Log,
    LogError,
    MissingError,
    Scored,
    Values,
    check_retained,
    common,
    compute,
    difference,
    extra_computations,
    log_text,
    mean_score,
    metric_entry,
    numbered_golds,
    own_aggregates,
    read_log,
    rouge_entry,
    score_entry,
)
from recipe.rerule.evaluation.metrics import EPSILON, MEMORISATION, memorised
from recipe.rerule.evaluation.registry import (
    PAPER,
    RETAINED,
    VALIDATED,
    Benchmark,
    Column,
    Option,
    Published,
    PublishedFigures,
    Row,
    one_of,
)
from recipe.rerule.evaluation.summary import Array, Metrics, Samples, Statistic, mean_of

if TYPE_CHECKING:
    from recipe.rerule.evaluation.probes import Probe

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


def question_set(row: Mapping[str, Any]) -> str:
    """The question set of a row. Raises ValueError where it is none of TOFU's."""
    name = "forget" if row["side"] == "forget" else row["family"]
    if name not in PREFIXES:
        known = ", ".join(PREFIXES)
        raise ValueError(f"probe {row['probe']}: family {name!r} is none of TOFU's sets ({known})")
    return str(name)


# Definitions. Losses and probabilities of one answer have shape (probes,), of several (probes, answers).


def probabilities(set_name: str, right: Any, wrong: Any, epsilon: float = EPSILON) -> dict[str, Any]:
    """The quantity "prob", which on sets with options is among right and wrong answers.

    There "eq25_prob" is equation (25) of the ReRULE paper to the letter: no right answer below the line, so
    it may exceed 1.
    """
    if set_name not in OPTIONS:
        return {"prob": right}
    sum_wrong = wrong.sum(axis=-1)
    return {"prob": right / (right + sum_wrong + epsilon), "eq25_prob": right / (sum_wrong + epsilon)}


def ratios(right_loss: Any, wrong_losses: Any, epsilon: float = EPSILON) -> dict[str, Any]:
    """The truth ratio R in its readings, and what the metrics average of each.

    truth_ratio: geometric mean of the wrong answers' probabilities over the right (paraphrased) answer's;
    arithmetic_truth_ratio: with the arithmetic mean, as the TOFU paper prints it; true_share: true / (true +
    false), open-unlearning's aggregator prob_mean, false being the geometric mean. `closeness` and
    `truthfulness` below.
    """
    right, wrong = np.exp(-right_loss), np.exp(-wrong_losses.mean(axis=-1))
    ratio = wrong / (right + epsilon)
    arithmetic = np.exp(-wrong_losses).mean(axis=-1) / (right + epsilon)
    return {
        **of_ratio(ratio),
        **{f"arithmetic_{name}": values for name, values in of_ratio(arithmetic).items()},
        "true_share": right / (right + wrong + epsilon),
    }


def of_ratio(ratio: Any) -> dict[str, Any]:
    """What is averaged of a truth ratio R.

    closeness: min(R, 1/R), 1 where right and wrong answers are equally likely (forget); distance: 1 less
    that, which some papers put into model utility; truthfulness: max(0, 1 - R), 1 where wrong answers are out
    of the question.
    """
    closeness = np.minimum(ratio, 1 / (ratio + EPSILON))
    return {
        "truth_ratio": ratio,
        "closeness": closeness,
        "distance": 1 - closeness,
        "truthfulness": np.maximum(0, 1 - ratio),
    }


def forget_quality(ratios: Array, retain_ratios: Array) -> float:
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
VARIANT_PARTS: Mapping[str, Part] = {
    "forget_truth_ratio_arithmetic": ("forget", "arithmetic_closeness"),
    "forget_truth_ratio_true_share": ("forget", "true_share"),
    **{f"{PREFIXES[name]}_Q_A_Prob_eq25": (name, "eq25_prob") for name in OPTIONS},
}
UTILITIES: Mapping[str, Mapping[str, str]] = {
    "model_utility": {},
    "model_utility_arithmetic": {"truthfulness": "arithmetic_truthfulness"},
    "model_utility_distance": {"truthfulness": "distance"},
    "model_utility_ratio": {"truthfulness": "truth_ratio"},
    "model_utility_true_share": {"truthfulness": "true_share"},
    "model_utility_eq25": {"prob": "eq25_prob"},
    "model_utility_eq25_eq26": {"prob": "eq25_prob", "truthfulness": "truth_ratio"},
}
"""Model utility, and readings of it found in papers and other code: the quantities that stand for others.
None but the first goes by an official name."""


def utility_parts(changes: Mapping[str, str]) -> list[Part]:
    """The nine parts of a reading of model utility."""
    return [
        (name, quantity if quantity == "prob" and name not in OPTIONS else changes.get(quantity, quantity))
        for name, quantity in UTILITY_PARTS.values()
    ]


def utility(changes: Mapping[str, str]) -> Statistic:
    """A reading of model utility: the harmonic mean of its parts, 0 where any is 0, as scipy.stats.hmean."""

    def harmonic_mean(samples: Samples) -> Array:
        means = np.stack([mean_of(quantity, [name])(samples) for name, quantity in utility_parts(changes)])
        with np.errstate(divide="ignore"):
            return np.asarray(len(means) / (1 / means).sum(axis=0))

    return harmonic_mean


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
_ENDINGS = ("_Q_A_Prob", "_Q_A_ROUGE", "_Q_A_PARA_Prob", "_Q_A_PERT_Prob", "_truth_ratio", "_Truth_Ratio")
"""How names of metrics end that only TOFU's logs hold."""


class Tofu(Benchmark):
    """A generation, and the likelihoods of right, paraphrased and wrong answers, about each probe."""

    name = "tofu"
    title = "TOFU"
    columns = (
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
        Option("prompts", f"{', '.join(PROMPTS)} (default: the first)", metavar="NAME"),
        Option(
            "retain_log",
            "TOFU_EVAL.json of a retained model, which becomes a row of the table; for forget quality",
            Path,
            "FILE",
        ),
    )
    score_options = ("retain_log", "variants", "allow_unequal")
    pair = ("forget_Q_A_ROUGE", "model_utility")
    published = PublishedFigures(
        results=(
            Published("original", _TABLE, {"forget_quality": 4.4883e-06}, _UNEQUAL_SETS),
            Published("retained", _TABLE, {"model_utility": 0.6267}),
            Published(
                "RULE", _TABLE, dict(zip(_KEYS, (0.1650, 0.6151, 0.1322), strict=True)), _REFUSAL_SCORE
            ),
            Published(
                "ReRULE", _TABLE, dict(zip(_KEYS, (0.1650, 0.6076, 0.1322), strict=True)), _REFUSAL_SCORE
            ),
        ),
        hard_share=(
            Published("TOFU forget01", PAPER, {"tau": 0.4, "share": 0.475}),
            Published("TOFU forget01", PAPER, {"tau": 0.6, "share": 0.543}),
        ),
        cost=(
            Published("TOFU forget01, RULE", f"{PAPER}, 4 A800", {"hours": 1.8}),
            Published("TOFU forget01, ReRULE", f"{PAPER}, 4 A800", {"hours": 2.0, "added": 0.111}, VALIDATED),
        ),
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
    retained: LogReader | None = None

    def choose(self, options: argparse.Namespace) -> None:
        """As --prompts and --retain-log say, whose log is read once: the file may change meanwhile."""
        prompts = one_of(options, "prompts", self.name, tuple(PROMPTS))
        self.template = PROMPTS[prompts]
        self.settings = {"prompts": prompts, "retain_log": options.retain_log and str(options.retain_log)}
        if options.retain_log is not None:
            self.retained = LogReader(as_open_unlearning(read_log(options.retain_log)))

    def requests(self, probes: Sequence[Probe]) -> list[Request]:
        """Raises ValueError for a probe without the answers that TOFU compares, or a log of other
        questions."""
        found: list[Request] = []
        answers: dict[str, int] = {}
        for probe in probes:
            prompt = self._prompt(probe)
            found.append(Generation(self.request_id(probe), prompt, self.max_tokens))
            named = self._measured(probe)
            found += [Likelihood(f"{probe.index}/{name}", prompt, answer) for name, answer in named]
            expected = answers.setdefault(question_set(probe.labels), len(named))
            if len(named) != expected:
                raise ValueError(
                    f"probe {probe.index} has {len(named)} answers to compare, where others have {expected}"
                )
        if self.retained is not None:
            self._check_log(self.retained, probes)
        return found

    def _prompt(self, probe: Probe) -> PromptText:
        if self.template is None:
            return PromptText(tuple(probe.messages), raw=probe.raw)
        query = probe.query or probe.messages[-1]["content"]
        # The query may hold braces of its own.
        return PromptText(({"role": "user", "content": self.template.replace("{query}", query)},), raw=True)

    def _measured(self, probe: Probe) -> list[tuple[str, str]]:
        """(name, answer) of each likelihood that is asked for."""
        reference = probe.reference
        if reference is None or not reference.perturbed:
            raise ValueError(
                f"probe {probe.index} has no wrong answers to compare with; prepare the data again from "
                "TOFU's *_perturbed tables"
            )
        named = [("answer", probe.golds[0])]
        if question_set(probe.labels) not in OPTIONS:
            if reference.paraphrased is None:
                raise ValueError(
                    f"probe {probe.index} has no paraphrased answer, which TOFU's truth ratio needs"
                )
            named.append(("paraphrased", reference.paraphrased))
        return named + [(f"perturbed/{number}", text) for number, text in enumerate(reference.perturbed)]

    def _check_log(self, retained: LogReader, probes: Sequence[Probe]) -> None:
        """Refuse a log that forget quality cannot be computed against, or that is of other questions."""
        logged = len(retained.ratios("forget", "truth_ratio")[1])
        forget = sum(question_set(probe.labels) == "forget" for probe in probes)
        if logged != forget:
            raise ValueError(
                f"--retain-log {retained.log.name} has {logged} forget rows and the probes {forget}; "
                "forget quality compares the same rows: evaluate both models on one split"
            )
        golds = numbered_golds(probes, question_set)
        check_retained(retained.log, {f"{PREFIXES[name]}_Q_A_ROUGE": golds[name] for name in golds})

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
        names = ("prob", "avg_loss", "paraphrased_loss", "truth_ratio", "closeness", "truthfulness")
        found: dict[str, Any] = {**dict.fromkeys(names), "perturbed_losses": None}
        right = answers.get(f"{probe.index}/answer")
        if right is None or probe.reference is None:
            return found
        set_name = question_set(probe.labels)
        loss = right.avg_loss
        wrong = [
            answers[f"{probe.index}/perturbed/{n}"].avg_loss for n in range(len(probe.reference.perturbed))
        ]
        paraphrased = None if set_name in OPTIONS else answers[f"{probe.index}/paraphrased"].avg_loss
        losses = np.array(wrong)
        quantities = {
            **probabilities(set_name, math.exp(-loss), np.exp(-losses)),
            **ratios(loss if paraphrased is None else paraphrased, losses),
        }
        return {
            **found,
            **{name: float(quantities[name]) for name in names if name in quantities},
            "avg_loss": loss,
            "paraphrased_loss": paraphrased,
            "perturbed_losses": wrong,
        }

    def sets(self, row: Mapping[str, Any]) -> list[str]:
        return [question_set(row)]

    def statistics(self, samples: Samples) -> dict[str, Statistic]:
        """Those whose values are in `samples`: without likelihoods there is no truth ratio."""

        def known(places: Sequence[Part]) -> bool:
            return all(quantity in samples.get(name, {}) for name, quantity in places)

        others = [name for name in PREFIXES if name != "forget"]
        refused = {"forget_refusal_rate": ["forget"], "utility_refusal_rate": others}
        single = {**PARTS, **{name: ("forget", name) for name in MEMORISATION}}
        official = {"model_utility": utility({})} if known(utility_parts({})) else {}
        found: dict[str, Statistic] = {
            **official,
            **{name: part(single[name]) for name in PARTS if known([single[name]])},
            **{
                name: mean_of("refused", sets)
                for name, sets in refused.items()
                if known([(one, "refused") for one in sets])
            },
            **{name: part(single[name]) for name in MEMORISATION if known([single[name]])},
        }
        return found

    def extra_metrics(self, samples: Samples) -> Metrics:
        """Forget quality, against the log of a retained model."""
        ours = samples.get("forget", {}).get("truth_ratio")
        if ours is None or self.retained is None:
            return {}
        return {"forget_quality": forget_quality(ours, self.retained.ratios("forget", "truth_ratio")[1])}

    def references(self) -> dict[str, Metrics]:
        """The metrics that a retained model's log has the samples of. Raises LogError where the log is
        wrong."""
        if self.retained is None:
            return {}
        reader, found = self.retained, {}
        for name, place in PARTS.items():
            with suppress(MissingError):
                found[name] = float(part(place)(reader.samples))
        for name in MEANS_OF_SCORES:
            with suppress(MissingError):
                found[name] = mean_score(reader.log, name)
        if set(UTILITY_PARTS) <= set(found):
            found["model_utility"] = _model_utility(reader)
        # Against itself: no two truth ratios differ.
        return {RETAINED: found | ({"forget_quality": 1.0} if "forget_truth_ratio" in found else {})}

    def log(self, rows: Sequence[Row], texts: Sequence[Row]) -> tuple[str, str]:
        return "TOFU_EVAL.json", log_text(log_metrics(rows))

    def holds(self, content: Any) -> bool:
        if not isinstance(content, Mapping):
            return False
        return "eval_log_forget.json" in content or any(str(name).endswith(_ENDINGS) for name in content)

    def score_log(
        self, log: Log, retain_log: Log | None, wanted: Sequence[str] | None, options: argparse.Namespace
    ) -> Scored:
        """Metrics under open-unlearning's names; with --variants other readings as well.

        Raises:
            LogError: see `compute`; part of what model utility needs is missing; a retained model's log that
                does not hold the same questions, without --allow-unequal.
        """
        reader = LogReader(as_open_unlearning(log))
        retain = None if retain_log is None else LogReader(as_open_unlearning(retain_log))
        quality = partial(_forget_quality, reader, retain, options.allow_unequal)
        found = {name: part(place) for name, place in PARTS.items()}
        if options.variants:
            found |= {name: part(place) for name, place in VARIANT_PARTS.items()}
            found |= {name: utility(changes) for name, changes in UTILITIES.items() if changes}
        computations: dict[str, Callable[[], float]] = {
            "model_utility": partial(_model_utility, reader),
            "forget_quality": partial(quality, "truth_ratio"),
            **{name: partial(_number, statistic, reader) for name, statistic in found.items()},
        }
        if options.variants:
            computations["forget_quality_arithmetic"] = partial(quality, "arithmetic_truth_ratio")
        scored = compute(computations, extra_computations(log, retain_log, reader.notes), wanted)
        notes = [*reader.notes, *(retain.notes if retain else []), *scored.notes]
        # What a log itself says against a retained model can be checked only where that model's log is given.
        not_held = () if retain_log else ("forget_quality", "privleak")
        held = {name: value for name, value in scored.metrics.items() if name not in not_held}
        return Scored(scored.metrics, list(dict.fromkeys([*notes, *own_aggregates(log, held)])))


def log_metrics(rows: Sequence[Row]) -> dict[str, Any]:
    """Our rows of one model as the metrics of TOFU_EVAL.json.

    Samples are numbered from 0 in each question set, by the order of the probes' own indices, as TOFU's rows
    are. forget_quality is not in it, since it is of two models.
    """
    metrics: dict[str, Any] = {}
    means: dict[str, float] = {}
    for set_name, prefix in PREFIXES.items():
        members = sorted((row for row in rows if question_set(row) == set_name), key=lambda row: row["probe"])
        if not members:
            continue
        metrics[f"{prefix}_Q_A_ROUGE"] = rouge_entry(members, "rougeL_recall")
        options = set_name in OPTIONS
        if all(row["avg_loss"] is not None for row in members):
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
            metrics[f"{prefix}_{name}"] = entry | {"agg_value": _mean(members, averaged)}
        if set_name == "forget":
            known = [name for name in MEANS_OF_SCORES if all(name in row for row in members)]
            metrics |= {name: score_entry([row[name] for row in members]) for name in known}
        for name, (of_set, quantity) in UTILITY_PARTS.items():
            if of_set == set_name and all(row[quantity] is not None for row in members):
                means[name] = _mean(members, quantity)
    if len(means) == len(UTILITY_PARTS):
        # `Tofu.statistics` has the same number.
        inverse = [1 / mean if mean else math.inf for mean in means.values()]
        metrics["model_utility"] = {"agg_value": len(inverse) / sum(inverse)}
    return metrics


def _mean(rows: Sequence[Row], quantity: str) -> float:
    return float(np.mean([row[quantity] for row in rows]))


def _probabilities(losses: Sequence[Any]) -> dict[str, Any]:
    """A metric of probabilities from the losses of each sample, which is a list for several answers."""
    probs = [np.exp(-np.asarray(loss)) for loss in losses]
    entries = {
        str(place): {"prob": prob.tolist(), "avg_loss": loss}
        for place, (prob, loss) in enumerate(zip(probs, losses, strict=True))
    }
    return metric_entry(float(np.mean([prob.mean() for prob in probs])), entries)


# Logs: open-unlearning's TOFU_EVAL.json, and locuslab/tofu's eval_log_aggregated.json.

LOCUSLAB_FILES = {
    "eval_log_forget.json": "forget",
    "eval_log.json": "retain",
    "eval_real_author_wo_options.json": "real_authors",
    "eval_real_world_wo_options.json": "world_facts",
}
"""Parts of locuslab/tofu's eval_log_aggregated.json, and TOFU's question set in each."""
# bfloat16 keeps 8 bits; float16 has steps of 6e-8 near 0.
_RELATIVE, _ABSOLUTE = 2.0**-8, 1e-7
_NOTABLE = 1e-3


class _Quantities(dict[str, Array]):
    """Quantities of one question set, read from the log when they are asked for."""

    def __init__(self, read: Callable[[str], Array]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, quantity: str) -> Array:
        self[quantity] = self._read(quantity)
        return self[quantity]


class LogReader:
    """A TOFU log as samples; `notes` gathers what a reader of the numbers should know.

    Everything comes from the values of single samples. Quantities of one set may be over different samples,
    since null values are left out metric by metric. Which of a log's values count:

    loss: `avg_loss`; -log(prob) where there is none.
    probability: `prob`, which open-unlearning averages, where it is exp(-avg_loss) up to 16-bit rounding;
        exp(-avg_loss) elsewhere.
    truth ratio, normalised probability: from those; the log's own `score` or `prob` of the derived metric
    only
        where they are missing.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.notes: list[str] = []

    @cached_property
    def samples(self) -> dict[str, _Quantities]:
        """By question set."""
        return {name: _Quantities(partial(self._quantity, name)) for name in PREFIXES}

    def ratios(self, set_name: str, quantity: str) -> tuple[tuple[str, ...], Array]:
        """Truth ratios, or another quantity over the same answers, with the samples they are of."""
        prefix = PREFIXES[set_name]
        paraphrased = f"{prefix}_Q_A_PARA_Prob"
        # locuslab measures short answers a second time as their own paraphrase.
        unparaphrased = set_name in OPTIONS and paraphrased not in self.log.metrics
        right_metric = f"{prefix}_Q_A_Prob" if unparaphrased else paraphrased
        try:
            right, wrong = self._losses(right_metric), self._losses(f"{prefix}_Q_A_PERT_Prob")
        except MissingError:
            own = self._own_ratios(prefix)
            if own is None or quantity not in of_ratio(np.zeros(1)):
                raise
            self.notes.append(
                f"{prefix} truth ratios are the log's own: it has no losses to compute them from"
            )
            return own.index, of_ratio(own.mean())[quantity]
        index = common(self.log, right, wrong, f"{right_metric} and {prefix}_Q_A_PERT_Prob")
        found = ratios(right.at(index).mean(axis=-1), wrong.at(index), self.log.epsilon)
        self._compare(prefix, index, found["truth_ratio"])
        return index, found[quantity]

    def _quantity(self, set_name: str, quantity: str) -> Array:
        prefix = PREFIXES[set_name]
        if quantity == "rouge_l":
            return self.log.numbers(f"{prefix}_Q_A_ROUGE", "rougeL_recall", low=0, high=1).mean()
        if quantity not in ("prob", "eq25_prob"):
            return self.ratios(set_name, quantity)[1]
        if set_name not in OPTIONS:
            return self._probs(f"{prefix}_Q_A_Prob").mean()
        names = f"{prefix}_Q_A_Prob", f"{prefix}_Q_A_PERT_Prob"
        own = f"{prefix}_Q_A_Prob_normalised"
        try:
            right, wrong = self._probs(names[0]), self._probs(names[1])
        except MissingError:
            if own not in self.log.metrics or quantity != "prob":
                raise
            self.notes.append(f"{own} is over the log's own values: it has no {names[0]} and {names[1]}")
            return self.log.numbers(own, "prob", low=0, high=1).mean()
        index = common(self.log, right, wrong, f"{names[0]} and {names[1]}")
        values = probabilities(set_name, right.at(index).mean(axis=-1), wrong.at(index), self.log.epsilon)
        return np.asarray(values[quantity])

    def _losses(self, metric: str) -> Values:
        self._known(metric)
        if self.log.has(metric, "avg_loss"):
            return self.log.numbers(metric, "avg_loss", low=0)
        probs = self.log.numbers(metric, "prob", low=0, high=1)
        if not probs.array.all():
            raise LogError(
                f"{self.log.name}: {metric} has a prob of 0 and no avg_loss to say how unlikely it is"
            )
        return Values(probs.index, -np.log(probs.array), probs.null)

    def _probs(self, metric: str) -> Values:
        self._known(metric)
        if not self.log.has(metric, "avg_loss"):
            return self.log.numbers(metric, "prob", low=0, high=1)
        losses = self._losses(metric)
        from_loss = Values(losses.index, np.exp(-losses.array), losses.null)
        if not self.log.has(metric, "prob"):
            return from_loss
        probs = self.log.numbers(metric, "prob", low=0, high=1)
        index = common(self.log, losses, probs, f"prob and avg_loss of {metric}")
        prob, computed = probs.at(index), from_loss.at(index)
        if prob.shape != computed.shape:
            raise LogError(f"{self.log.name}: {metric} has not as many prob as avg_loss in each sample")
        difference = float(np.abs(prob - computed).max())
        if difference > _NOTABLE:
            self.notes.append(f"{metric}: prob and exp(-avg_loss) differ by up to {difference:.2g}")
        agrees = np.isclose(prob, computed, rtol=_RELATIVE, atol=_ABSOLUTE)
        return Values(index, np.where(agrees, prob, computed), tuple({*losses.null, *probs.null}))

    def _known(self, metric: str) -> None:
        if metric not in self.log.metrics:
            raise MissingError(f"no {metric}", self.log.name)
        if not self.log.has(metric, "avg_loss") and not self.log.has(metric, "prob"):
            raise MissingError(f"{metric} has neither avg_loss nor prob", self.log.name)

    def _own_ratios(self, prefix: str) -> Values | None:
        name = self.log.first(f"{prefix}_truth_ratio", f"{prefix}_Truth_Ratio")
        return None if name is None else self.log.numbers(name, "score", low=0)

    def _compare(self, prefix: str, index: tuple[str, ...], ratio: Array) -> None:
        """Notes where the log's own truth ratios are others: it may follow another definition."""
        try:
            own = self._own_ratios(prefix)
        except LogError:
            return
        if own is None or set(own.index) != set(index):
            return
        if not np.allclose(own.at(index).mean(axis=-1), ratio, rtol=_NOTABLE, atol=1e-6):
            self.notes.append(
                f"{prefix} truth ratios in the log are not those that its losses give; not used"
            )


def as_open_unlearning(log: Log) -> Log:
    """The log itself, or locuslab/tofu's aggregated one under open-unlearning's names.

    locuslab adds nothing to denominators, and has the first 300 questions of the larger sets.
    """
    found = {name: log.metrics[file] for file, name in LOCUSLAB_FILES.items() if file in log.metrics}
    if not found:
        return log
    metrics: dict[str, Any] = {}
    for set_name, content in found.items():
        prefix = PREFIXES[set_name]
        sources = {
            f"{prefix}_Q_A_Prob": ("avg_gt_loss", "avg_loss"),
            f"{prefix}_Q_A_PARA_Prob": ("avg_paraphrased_loss", "avg_loss"),
            f"{prefix}_Q_A_PERT_Prob": ("average_perturb_loss", "avg_loss"),
            f"{prefix}_Q_A_ROUGE": ("rougeL_recall", "rougeL_recall"),
        }
        for metric, (theirs, key) in sources.items():
            values = content.get(theirs) if isinstance(content, Mapping) else None
            if values is None:
                continue
            if not isinstance(values, Mapping):
                raise LogError(f"{log.name}: {theirs} of {prefix} is no object {{index: value}}")
            metrics[metric] = {"value_by_index": {index: {key: value} for index, value in values.items()}}
    return replace(log, metrics=metrics, epsilon=0.0, _cache={})


def _number(statistic: Statistic, reader: LogReader) -> float:
    return float(statistic(reader.samples))


def _model_utility(reader: LogReader) -> float:
    missing = []
    for name, place in UTILITY_PARTS.items():
        try:
            part(place)(reader.samples)
        except MissingError:
            missing.append(name)
    if len(missing) == len(UTILITY_PARTS):
        raise MissingError("none of retain, real authors and world facts", reader.log.name)
    if missing:
        raise LogError(
            f"{reader.log.name}: model_utility is over nine metrics, and nothing gives {', '.join(missing)}; "
            "--metrics NAME,... scores what is there"
        )
    return float(utility({})(reader.samples))


def _forget_quality(reader: LogReader, retain: LogReader | None, allow_unequal: bool, quantity: str) -> float:
    if retain is None:
        raise MissingError("no retained model to compare with; give its log with --retain-log")
    try:
        index, ours = reader.ratios("forget", quantity)
        retain_index, theirs = retain.ratios("forget", quantity)
    except MissingError as error:
        if quantity != "truth_ratio":
            raise
        # Who gives a retained model's log asks for it, so that nothing may be missing.
        raise LogError(f"{error}, which forget_quality compares; --metrics NAME,... leaves it out") from error
    # A question that is null in one log is no question of another split.
    nulls = [
        {i for metric, null in one.log.null.items() if metric.startswith("forget_") for i in null}
        for one in (reader, retain)
    ]
    null = (nulls[0] | nulls[1]) & (set(index) ^ set(retain_index))
    if null:
        reader.notes.append(
            f"forget_quality is over {len({*index, *retain_index} - null)} questions: {len(null)} more are "
            "null in one of the two logs and left out of both"
        )
        ours, theirs = ours[[i not in null for i in index]], theirs[[i not in null for i in retain_index]]
        index = tuple(i for i in index if i not in null)
        retain_index = tuple(i for i in retain_index if i not in null)
    unequal = _unequal(reader.log, index, retain.log, retain_index)
    if unequal and not allow_unequal:
        raise LogError(
            f"forget_quality needs the same questions in both logs: {unequal}; compare with the model "
            "retained for this forget split, or pass --allow-unequal"
        )
    if unequal:
        reader.notes.append(
            f"forget_quality compares {len(index)} questions with {len(retain_index)} others: its p-value "
            "shows the difference of the questions as well, and compares with no other one"
        )
    return forget_quality(ours, theirs)


def _unequal(log: Log, index: Sequence[str], retain: Log, retain_index: Sequence[str]) -> str | None:
    """How the questions to forget of two logs differ, in words; None where nothing shows that they do."""
    if odd := set(index) ^ set(retain_index):
        counts = f"{log.name} has {len(index)}, {retain.name} has {len(retain_index)}"
        return f"{counts}, and {len(odd)} are in one only"
    metric = "forget_Q_A_ROUGE"
    return difference(metric, log.name, log.golds(metric), retain.name, retain.golds(metric))


BENCHMARKS = (Tofu(),)
