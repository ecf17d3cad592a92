"""MUSE, which has two corpora: what a model still knows of one (KnowMem), and can recite of it (VerbMem).

knowmem_f, knowmem_r (MUSE's utility) and verbmem_f are MUSE's own numbers: ROUGE-L F1 without a stemmer, mean
over questions or passages. The metrics under open-unlearning's names use the stemmer. All are fractions of 1.
Extraction strength and exact memorisation are of the right answers' tokens, and of the first REFERENCE_TOKENS
of a passage's continuation. PrivLeak is of whole texts, forgotten and held out, each scored from its
beginning.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from recipe.rerule.evaluation.engine.requests import Answers, Generation, PromptText, Request
from recipe.rerule.evaluation.logs import (
    MEANS_OF_SCORES,
    Computations,
    Log,
    MissingError,
    check_retained,
    golds_of_log,
    golds_of_probes,
    mean_score,
    min_k_auc,
    rouge_entry,
    score_entry,
)
from recipe.rerule.evaluation.metrics import (
    MEMORISATION,
    UNTRAINED_AUC,
    auc,
    memorised,
    privleak,
    right_answer,
)
from recipe.rerule.evaluation.probes import Probe, told_file
from recipe.rerule.evaluation.registry import (
    PAPER,
    PERCENT,
    UNKNOWN_JUDGE,
    Benchmark,
    Column,
    Option,
    Published,
    PublishedFigures,
    Row,
    Texts,
    per_cent,
    published_cost,
    token_shares,
)
from recipe.rerule.evaluation.summary import Metrics, Samples, Statistic, mean_of

SETS = {"knowmem_f": ("forget", "qa"), "knowmem_r": ("retain", "qa"), "verbmem_f": ("forget", "completion")}
"""MUSE's metric, and side and kind of its probes."""
OPEN_UNLEARNING_NAMES = {
    "knowmem_f": "forget_knowmem_ROUGE",
    "knowmem_r": "retain_knowmem_ROUGE",
    "verbmem_f": "forget_verbmem_ROUGE",
}
COMPARED = {name: OPEN_UNLEARNING_NAMES[name] for name in ("knowmem_f", "knowmem_r")}
"""Those whose right answers tell two logs' questions apart: a passage is cut by the model's tokenizer."""
REFERENCE_TOKENS = 128
"""Tokens of a passage's continuation that VerbMem compares with, the tokenizer's BOS counted among them."""
_REFERENCE_WORDS = re.compile(rf"(?:\s*\S+){{1,{REFERENCE_TOKENS}}}")


@dataclass(frozen=True)
class Convention:
    """How a kind of probe is asked and cut.

    Attributes:
        max_tokens: most new tokens.
        stop: strings that end the answer.
        template: of the text sent, with the place {prompt}.
    """

    max_tokens: int
    stop: tuple[str, ...] = ()
    template: str = "{prompt}"


CONVENTIONS: Mapping[str, Mapping[str, Convention]] = {
    "muse": {"qa": Convention(32, ("\n\n", "\nQuestion", "Question:")), "completion": Convention(128)},
    "rule": {
        "qa": Convention(32, ("\n",)),
        "completion": Convention(128, ("\n",), "Completion: {prompt}\nAnswer: "),
    },
}
"""MUSE's own; and what RULE asks during training, which gives an answer that begins with a newline 0."""


def probe_set(row: Mapping[str, Any]) -> str:
    """The metric that a row counts in. Raises ValueError where it is none of MUSE's."""
    place = row["side"], row["kind"]
    for name, known in SETS.items():
        if place == known:
            return name
    raise ValueError(f"probe {row['probe']}: MUSE has no {place[0]} probes of mode {place[1]!r}")


def cut(text: str, stop: Sequence[str]) -> str:
    """`text` up to the first of the stop strings, as MUSE cuts what was generated."""
    for word in stop:
        text = text.split(word)[0]
    return text


def measured(probe: Probe) -> str:
    """The text whose tokens are ranked: of a passage not much more than counts, since each token costs.

    Line ends before it are left out: some tokenizers would join them with the end of the prompt.
    """
    answer = probe.golds[0]
    if "\n" in answer[: len(answer) - len(answer.lstrip())]:
        answer = answer.lstrip()
    if probe.mode != "completion":
        return answer
    # A token holds hardly ever more than one word.
    found = _REFERENCE_WORDS.match(answer)
    return found[0] if found else ""


class PrivLeakTexts(Texts):
    """forget and holdout texts of MUSE's folder `privleak`; `reference` is the retained model's AUC."""

    def __init__(self, folder: Path, reference: float) -> None:
        super().__init__({part: folder / f"{part}.json" for part in ("forget", "holdout")})
        self.reference = reference

    def metrics(self, records: Sequence[Row]) -> Metrics:
        scores = _min_k(records)
        return {"privleak": privleak(auc(scores["forget"], scores["holdout"]), self.reference)}


def _min_k(records: Sequence[Row]) -> dict[str, list[float]]:
    """The Min-40 % scores of the texts by set."""
    return {
        part: [text["min_40"] for text in records if text["set"] == part] for part in ("forget", "holdout")
    }


class Muse(Benchmark):
    """A corpus of MUSE.

    Attributes:
        retrained_auc: the Min-40 % AUC of its retrained model, as `metrics.auc` counts.
    """

    columns = (
        Column("verbmem_f", "forget", "VerbMem", "low", *PERCENT),
        Column("knowmem_f", "forget", "KnowMem", "low", *PERCENT),
        Column("knowmem_r", "retain", "KnowMem", "high", *PERCENT),
        # In per cent by definition.
        Column("privleak", "privacy", "PrivLeak", "zero", 1.0, ".1f"),
    )
    legend = (
        "In per cent. VerbMem: ROUGE-L F1 of continued passages; KnowMem: of answers to questions, "
        "on retained text the utility; PrivLeak: how far membership inference tells forgotten text apart, "
        "against a retrained model."
    )
    score_legend = (
        "knowmem_f, knowmem_r, verbmem_f: ROUGE-L F1 of rouge_score without the stemmer, as MUSE defines "
        "them. ..._ROUGE: the same with the stemmer, open-unlearning's. All are fractions of 1; privleak is "
        "in percent."
    )
    options = (
        Option("prompts", choices=tuple(CONVENTIONS)),
        Option(
            "retain_log",
            "MUSE_EVAL.json of a retained model, which becomes a row of the table; with --texts for PrivLeak "
            "(default: MUSE's own constant)",
            Path,
            "FILE",
        ),
        Option("texts", "MUSE's folder privleak (forget.json, holdout.json)", Path, "DIR"),
    )
    log_file = "MUSE_EVAL.json"
    pair = ("knowmem_f", "knowmem_r")
    fractions = (
        r"(knowmem|verbmem)_[fr]|.*_ROUGE|.*_refusal_rate|.*extraction_strength.*|.*exact_memorization"
    )
    units: Mapping[str, str] = {"privleak": "PrivLeak: per cent."}
    convention = "muse"
    retrained_auc: float
    asked: Mapping[str, Convention] = CONVENTIONS["muse"]

    def choose(self, options: argparse.Namespace) -> None:
        """As --prompts, --retain-log and --texts say. Raises ValueError where the log cannot serve."""
        self.asked = CONVENTIONS[options.prompts]
        self.settings = {
            "prompts": options.prompts,
            "retain_log": options.retain_log and told_file(options.retain_log),
        }
        if options.texts is not None:
            given = self.retrained_auc if self.retained is None else min_k_auc(self.retained)
            self.texts = PrivLeakTexts(options.texts, given)

    def requests(self, probes: Sequence[Probe]) -> list[Request]:
        """A generation and the ranks of the right answer a probe. Its raw prompt carries MUSE's examples
        already.

        Raises ValueError for a probe that is none of MUSE's, or a log of other questions.
        """
        found: list[Request] = []
        for probe in probes:
            probe_set(probe.labels)
            convention = self.asked[probe.mode]
            text = convention.template.replace("{prompt}", probe.messages[-1]["content"])
            prompt = PromptText(({"role": "user", "content": text},), raw=True)
            found.append(Generation(self.request_id(probe), prompt, convention.max_tokens, convention.stop))
            if answer := measured(probe):
                found.append(right_answer(f"{probe.index}/answer", prompt, answer))
        if self.retained is not None:
            check_retained(self.retained, golds_of_probes(probes, probe_set, COMPARED), "the probes")
        return found

    def records(self, probes: Sequence[Probe], answers: Answers, folder: Path) -> list[Row]:
        """A passage's continuation is compared up to its first REFERENCE_TOKENS tokens."""
        from reward.rouge import rouge_l

        tokenizer: Any = None
        if any(probe.mode == "completion" for probe in probes):
            from transformers import AutoTokenizer  # takes seconds

            tokenizer = AutoTokenizer.from_pretrained(folder)
        found = []
        for probe in probes:
            response = cut(answers[self.request_id(probe)].text, self.asked[probe.mode].stop)
            gold = probe.golds[0]
            if probe.mode == "completion":
                ids = tokenizer(gold).input_ids[:REFERENCE_TOKENS]  # special tokens are counted
                gold = str(tokenizer.decode(ids, skip_special_tokens=True))
            measured = answers.get(f"{probe.index}/answer")
            scores = {
                "rouge_l": rouge_l(response, gold, "muse"),
                "rouge_l_stemmed": rouge_l(response, gold, "muse-open-unlearning"),
                "refused": self.refuses(response),
            }
            row = self.row(probe, response, scores | memorised(measured, REFERENCE_TOKENS))
            found.append(row | {"prompt": probe.messages[-1]["content"], "golds": [gold]})
        return found

    def fact(self, row: Mapping[str, Any]) -> Hashable:
        """MUSE repeats some questions; a passage is asked once."""
        return row["side"], row["kind"], row["prompt"]

    def sets(self, row: Mapping[str, Any]) -> list[str]:
        return [probe_set(row)]

    def counts(self, row: Mapping[str, Any]) -> bool:
        """Questions alone: what follows a passage is long, and partly guessed from the passage."""
        return bool(row["kind"] == "qa")

    def statistics(self, samples: Samples) -> dict[str, Statistic]:
        """Those that `samples` allow: without passages, and without ranks, some are left out."""
        quantities = {
            **{name: (name, "rouge_l") for name in SETS},
            **{OPEN_UNLEARNING_NAMES[name]: (name, "rouge_l_stemmed") for name in SETS},
            **{f"{name}_refusal_rate": (name, "refused") for name in SETS},
            # open-unlearning's names are those of the passages.
            **{
                quantity if name == "verbmem_f" else f"{name}_{quantity}": (name, quantity)
                for name in SETS
                for quantity in MEMORISATION
            },
        }
        return {
            metric: mean_of(quantity, [name])
            for metric, (name, quantity) in quantities.items()
            if quantity in samples.get(name, {})
        }

    def log_metrics(self, rows: Sequence[Row], texts: Sequence[Row] = ()) -> dict[str, Any]:
        """PrivLeak is against chance, as open-unlearning's is without a retained model's log."""
        metrics: dict[str, Any] = {}
        for name, theirs in OPEN_UNLEARNING_NAMES.items():
            members = sorted((row for row in rows if probe_set(row) == name), key=lambda row: row["probe"])
            if members:
                metrics[theirs] = rouge_entry(members, "rougeL_f1")
            if members and name == "verbmem_f":
                known = [quantity for quantity in MEANS_OF_SCORES if all(quantity in row for row in members)]
                metrics |= {quantity: score_entry([row[quantity] for row in members]) for quantity in known}
        if texts:
            scores = _min_k(texts)
            value = auc(scores["forget"], scores["holdout"])
            parts = {part: score_entry(of_part) for part, of_part in scores.items()}
            metrics["mia_min_k"] = parts | {"auc": value, "agg_value": value}
            metrics["privleak"] = {"agg_value": privleak(value, UNTRAINED_AUC)}
        return metrics

    def log_computations(self, log: Log, retain_log: Log | None) -> Computations:
        """Metrics under open-unlearning's and under MUSE's names; logs do not say of which corpus they are.

        With the stemmer, from the log's rougeL_f1, under open-unlearning's names; without, computed again
        from its texts, under MUSE's. Those texts are stripped, which changes neither.
        """
        if retain_log is not None:
            check_retained(retain_log, golds_of_log(log, COMPARED.values()), log.name)
        stemmed = {
            name: partial(mean_score, log, name, "rougeL_f1") for name in OPEN_UNLEARNING_NAMES.values()
        }
        return {**stemmed, **{name: partial(_from_texts, log, name) for name in SETS}}


def _from_texts(log: Log, name: str) -> float:
    from reward.rouge import rouge_l

    metric = OPEN_UNLEARNING_NAMES[name]
    samples = [index for index, entry in log.entries(metric).items() if entry is not None]
    said, golds = log.texts(metric, "generation"), log.texts(metric, "ground_truth")
    if not samples or not {*samples} <= said.keys() & golds.keys():
        raise MissingError(f"{metric} keeps no texts to score again")
    stops = CONVENTIONS["muse"][SETS[name][1]].stop
    return float(np.mean([rouge_l(cut(said[i], stops), golds[i], "muse") for i in samples]))


_KEYS = ("verbmem_f", "knowmem_f", "knowmem_r")
_TABLE = f"{PAPER}, MUSE-Books table"
_BASELINES = {  # VerbMem and KnowMem to forget, utility; readable, helpful, truthful
    "GA": (0.0, 0.0, 0.0, 94.0, 63.0, 77.6),
    "GA + GDR": (0.0, 0.0, 10.9, 94.0, 60.0, 79.6),
    "GA + KLR": (0.0, 0.0, 40.5, 94.0, 61.6, 80.0),
    "NPO": (11.9, 4.7, 5.9, 94.4, 58.6, 80.0),
    "NPO + GDR": (21.1, 32.5, 62.4, 94.0, 58.2, 78.0),
    "NPO + KLR": (8.0, 45.4, 67.3, 94.6, 60.4, 81.4),
    "SimNPO": (0.0, 0.0, 0.0, 93.8, 60.2, 80.6),
    "SimNPO + GDR": (0.6, 23.4, 64.8, 95.2, 59.6, 81.2),
    "SimNPO + KLR": (47.4, 46.2, 67.3, 94.6, 61.2, 82.4),
}
_NATURALNESS_KEYS = ("forget/readability", "forget/helpfulness", "forget/truthfulness")
_STORAGE, _TAU = f"{PAPER}, storage table", f"{PAPER}, tau table"


def _row(name: str, source: str, numbers: Sequence[float], note: str = "") -> Published:
    return Published(name, source, per_cent(_KEYS, numbers), note)


class MuseBooks(Muse):
    """A series of books is to be forgotten."""

    name = "muse_books"
    title = "MUSE-Books"
    retrained_auc = 1 - 0.5393
    """A constant in MUSE's own code, which counts it the other way round (see `metrics.privleak`)."""
    published = PublishedFigures(
        results=(
            _row(
                "original",
                _TABLE,
                (58.4, 63.9, 55.2),
                "This row belongs to MUSE-News; the original model of MUSE-Books scores about 99.7, 47.1 and "
                "69.1.",
            ),
            *(_row(name, _TABLE, numbers[:3]) for name, numbers in _BASELINES.items()),
            _row(
                "RULE",
                _TABLE,
                (0.0, 1.4, 46.3),
                "KnowMem 1.4 lies within what constant refusals score (0.1 to 3.7); VerbMem stops at the "
                "first newline.",
            ),
            _row("ReRULE", _TABLE, (0.0, 1.4, 56.2), "As for RULE."),
        ),
        naturalness=tuple(
            Published(name, _TABLE, dict(zip(_NATURALNESS_KEYS, scores, strict=True)), UNKNOWN_JUDGE)
            for name, scores in (
                *((name, numbers[3:]) for name, numbers in _BASELINES.items()),
                ("RULE", (99.2, 38.2, 90.8)),
                ("ReRULE", (98.8, 28.7, 93.0)),
            )
        ),
        tokens=(Published("MUSE-Books, RULE and ReRULE", _TABLE, token_shares(2.9, 2.9)),),
        storage=(
            _row("RULE, no replay", _STORAGE, (0.0, 1.4, 46.3)),
            _row("ReRULE, hard storage", _STORAGE, (0.0, 1.4, 56.2)),
            _row("ReRULE, random storage", _STORAGE, (0.0, 1.5, 46.3)),
        ),
        tau=(
            _row("ReRULE, tau 0.4", _TAU, (0.0, 1.4, 56.2)),
            _row("ReRULE, tau 0.6", _TAU, (6.6, 1.3, 52.3)),
            _row("ReRULE, tau 1.0", _TAU, (4.3, 1.4, 53.7)),
        ),
        hard_share=(Published("MUSE-Books", PAPER, {"tau": 0.4, "share": 0.675}),),
        cost=published_cost("MUSE-Books", 6.8, 7.1),
    )
    score_example = """\
  python -m recipe.rerule.evaluate score --benchmark muse-books --log MUSE_EVAL.json --json
      the last line of the output is one JSON object, for a program
"""


class MuseNews(Muse):
    """News articles are to be forgotten."""

    name = "muse_news"
    title = "MUSE-News"
    retrained_auc = 1 - 0.4772
    """A constant in MUSE's own code, which counts it the other way round (see `metrics.privleak`)."""
    published = PublishedFigures(
        results=(
            _row(
                "original",
                _TABLE,
                (58.4, 63.9, 55.2),
                "The paper prints this row of MUSE-News in its table of MUSE-Books.",
            ),
        )
    )


BENCHMARKS = (MuseBooks(), MuseNews())
