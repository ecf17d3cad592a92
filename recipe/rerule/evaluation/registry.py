"""What a benchmark is, and the benchmarks that evaluation and report know.

All that is one benchmark's stands in `tasks/NAME.py`, as a subclass of `Benchmark` and one object of it.
Other packages register theirs through the entry-point group `rerule.benchmarks`; one of them that cannot be
used is left out, with a warning.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from recipe.rerule import io
from recipe.rerule.evaluation.engine.requests import Answer, Answers, Generation, PromptText, Request
from recipe.rerule.evaluation.logs import Computations, Log, read_log, retained_metrics
from recipe.rerule.evaluation.metrics import memorised, text_scores, texts_of, whole_text

if TYPE_CHECKING:  # what only some commands need
    from recipe.rerule.evaluation.probes import Probe
    from recipe.rerule.evaluation.summary import Metrics, Samples, Statistic
    from reward.refusal import RefusalPhrases

Row = dict[str, Any]
"""A row of the tidy table of one model: the keys of `tidy.ROW` but for "model", and its metrics."""

MODULES = ("world", "rwku", "muse", "tofu", "rtofu", "over_refusal", "wmdp")
"""Modules of `tasks`; each has BENCHMARKS."""
UNSTATED = "world"
"""The benchmark of an evaluation that does not say its own."""
OWN_DATA = "custom"
"""The benchmark of probes whose data_source names none."""
GROUP = "rerule.benchmarks"
RETAINED = "retained (log)"
"""The row of a model trained without the forget set, whose log `--retain-log` gives."""
_PREFIX = "rerule/"
_NAME = re.compile(r"\w{1,60}")  # files of the report are named after it

ANCHORS = {
    "always refuses, naming the target": "I'm not certain about {subject}.",
    "always refuses, unnamed": "I don't know.",
}
"""Anchors: answers that are the same whatever is asked, with no model at all; {subject} is the name of whom
the probe is about.

They say how much of a low forget score is refusing and how much of it is left to explain. Where the target's
own name is a gold answer, naming it in the refusal scores above 0.
"""


@dataclass(frozen=True)
class Column:
    """A metric in the table of results.

    Attributes:
        metric: its key in results.json.
        group: heading over the section's columns.
        label: short heading.
        aim: what unlearning tries for; "zero" is as close to 0 as can be, from either side, "" is not said.
        scale: what the number is multiplied by to be shown: 100 where per cent is customary.
        spec: format of the number shown, as `format` takes it.
    """

    metric: str
    group: str
    label: str
    aim: Literal["low", "high", "zero", ""]
    scale: float = 1.0
    spec: str = ".3f"


PERCENT = (100.0, ".1f")
"""`scale` and `spec` of a fraction that is customarily shown in per cent."""


@dataclass(frozen=True)
class Option:
    """An option of one benchmark; those of one name are one option of the command.

    Attributes:
        name: as "retain_log", which the command line spells --retain-log. A value that is a `Path` is an
            input, from which --out has to stay apart.
        help: what it means for the benchmark.
        type: of its value.
        metavar: stands for its value in the help.
        choices: the values that the benchmark has; the first is its default, which `evaluator` sets.
    """

    name: str
    help: str = ""
    type: Callable[[str], Any] = str
    metavar: str = "NAME"
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def told(self) -> str:
        """`help` and the choices."""
        values = f"{', '.join(self.choices)} (default: {self.choices[0]})" if self.choices else ""
        return "; ".join(filter(None, (self.help, values)))


PAPER = "ReRULE paper"
CAUTION = (
    "Published rows are single runs of others, without seeds or error bars and with their own prompts and "
    "decoding: for orientation only."
)
UNKNOWN_JUDGE = "Prompt, scale and judge are not published, so that these cannot be compared with ours."
"""Note of the scores of a judge."""


@dataclass(frozen=True)
class Published:
    """A row that a paper published: a single run without seed or error bar, with its own prompts and
    decoding.

    Attributes:
        name: of the model or method, as it stands in the table.
        source: paper and table.
        values: {metric key of results.json, or a key of the table: fraction of 1 where the metric is one}.
        note: what is wrong with it or to be known, "" for nothing.
    """

    name: str
    source: str
    values: dict[str, float]
    note: str = ""


@dataclass(frozen=True)
class PublishedFigures:
    """The published rows of one benchmark, by the table of the report that shows them.

    Attributes:
        results: metrics of the benchmark.
        naturalness: scores of a judge.
        storage: what replay stores, by metrics.
        tau: the threshold of replay, by metrics.
        hard_share: {"tau", "share"}, the share of hard groups.
        tokens: # Tokens, by `token_shares`.
        cost: wall time and what replay adds to it, by `published_cost`.
    """

    results: tuple[Published, ...] = ()
    naturalness: tuple[Published, ...] = ()
    storage: tuple[Published, ...] = ()
    tau: tuple[Published, ...] = ()
    hard_share: tuple[Published, ...] = ()
    tokens: tuple[Published, ...] = ()
    cost: tuple[Published, ...] = ()


def per_cent(keys: Sequence[str], numbers: Sequence[float]) -> dict[str, float]:
    """Numbers published in per cent as fractions of 1, by metric."""
    return {key: number / 100 for key, number in zip(keys, numbers, strict=True)}


def token_shares(forget: float, retain: float) -> dict[str, float]:
    """Cells of the tokens table, from per cent of the benchmark's forget and retain data."""
    return per_cent(("forget of the texts", "retain of the texts"), (forget, retain))


def published_cost(name: str, rule: float, rerule: float) -> tuple[Published, Published]:
    """Rows of the cost table, from the hours that RULE and ReRULE took on the paper's 4 GPUs."""
    source = f"{PAPER}, 4 A800"
    plain, replayed = (
        {"hours with validation": hours, "device hours with validation": 4 * hours}
        for hours in (rule, rerule)
    )
    replayed["added with validation"] = rerule / rule - 1
    note = "The reference script validates at every step, which makes the share of replay look smaller."
    return (
        Published(f"{name}, RULE", source, plain),
        Published(f"{name}, ReRULE", source, replayed, note),
    )


class Texts:
    """Whole texts that are measured in addition to the probes, by the same engine.

    Each token of a text is given those before it and BOS. So a text is the answer to the empty raw prompt,
    which is BOS alone (a tokenizer that adds none cannot be asked this way), and the end-of-sequence token
    that a `Likelihood` measures too does not count. Tokenizers made with sentencepiece put a space before a
    text and not before an answer, so that with them the first token may be another one than elsewhere.

    Args:
        files: of texts, by set: "forget" and another one; none by default.

    Raises ValueError: a file is missing or wrong.
    """

    def __init__(self, files: Mapping[str, Path] | None = None) -> None:
        self.sets: dict[str, list[str]] = {name: texts_of(file) for name, file in (files or {}).items()}

    def requests(self) -> list[Request]:
        """What every model is asked."""
        return [
            whole_text(f"text/{name}/{number}", text)
            for name, members in self.sets.items()
            for number, text in enumerate(members)
        ]

    def records(self, answers: Answers) -> list[Row]:
        """The `text_scores` of each text with its set and index in it, for texts.jsonl."""
        return [  # without the log-probability of the end of the text
            {"set": name, "index": n, **text_scores(text, answers[f"text/{name}/{n}"].log_probs[:-1])}
            for name, members in self.sets.items()
            for n, text in enumerate(members)
        ]

    def metrics(self, records: Sequence[Row]) -> Metrics:
        """What comes of the records."""
        return {}


class Benchmark:
    """A benchmark: what it asks of a model about each probe, and which numbers come of the answers.

    The base class asks each probe once, as it is in its file, for at most `max_tokens` tokens. A subclass
    says in `scores` what a response is worth, in `sets` and `statistics` which means there are, and in the
    attributes how they are shown. Its module is imported by every command, so what takes long to import
    belongs into the methods.

    Attributes:
        name: in data_source ("rerule/NAME"), in meta.json and as --benchmark; letters, digits and "_".
        title: in headings.
        columns: of the table of results.
        legend: what the columns mean.
        score_legend: what the metrics mean, below the numbers of `evaluate score`; `legend` where it is "".
        options: of `evaluate model` for this benchmark; several benchmarks may share one.
        log_file: name of its log in open-unlearning's format, which `evaluate score` takes too; "" for none.
        constant_baselines: answers that are the same whatever is asked, by name.
        recovered: the metric of a row by which attacks score it: how much of the right answer is in the
            response, from 0 to 1.
        pair: metrics of the report's scatter plot, forgetting across and keeping up; None for no plot.
        published: figures of papers.
        fractions: regular expression of the metrics that lie between 0 and 1; the report refuses others.
        units: what the metrics are that are no fractions of 1, by the first part of their names.
        model_example: lines for the help of `evaluate model`.
        score_example: lines for the help of `evaluate score`.
        convention: of its ROUGE-L, as in reward.rouge.
        settings: how it asks, for meta.json.
        max_tokens: most new tokens a response.
        raw_stop: strings that end the response to a raw prompt.
        texts: whole texts that are measured in addition to the probes.
        phrases: of --refusal-phrases, which extend the refusal detector; None where no file is given.
        retained: the log of the option retain_log, of a model trained without the forget set.
    """

    name: str
    title: str
    columns: tuple[Column, ...] = ()
    legend: str = ""
    score_legend: str = ""
    options: tuple[Option, ...] = ()
    log_file: str = ""
    constant_baselines: Mapping[str, str] = ANCHORS
    recovered: str = "rouge_l"
    pair: tuple[str, str] | None = None
    published: PublishedFigures = PublishedFigures()
    fractions: str = ""
    units: Mapping[str, str] = {}
    model_example: str = ""
    score_example: str = ""
    convention: str = "none"
    settings: Mapping[str, Any] = {}
    max_tokens: int = 32
    raw_stop: tuple[str, ...] = ()
    texts: Texts = Texts()
    phrases: RefusalPhrases | None = None
    retained: Log | None = None

    def check(self) -> None:
        """Raises ValueError where something declared cannot be."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"its name is {self.name!r}; 1 to 60 letters, digits and _ are allowed")
        known = {column.metric for column in self.columns}
        if unknown := [metric for metric in self.pair or () if metric not in known]:
            raise ValueError(f"its pair names {unknown[0]}, which is none of its columns")
        re.compile(self.fractions)

    def evaluator(self, options: argparse.Namespace) -> Self:
        """The benchmark as the command's options say. Raises ValueError where one of them is wrong."""
        options = copy.copy(options)
        for one in self.options:
            if not one.choices:
                continue
            value = getattr(options, one.name) or one.choices[0]
            if value not in one.choices:
                raise ValueError(f"{one.flag} is {value}; {self.name} has {', '.join(one.choices)}")
            setattr(options, one.name, value)
        chosen = self.with_phrases(getattr(options, "refusal_phrases", None))
        if (file := getattr(options, "retain_log", None)) is not None:
            chosen.retained = read_log(file)  # once: the file may change meanwhile
        chosen.choose(options)
        return chosen

    def with_phrases(self, file: Path | None) -> Self:
        """A copy that judges refusals with the phrases of a file. Raises ValueError where it is wrong."""
        chosen = copy.copy(self)
        if file is not None:
            from reward.refusal import load_phrases

            chosen.phrases = load_phrases(file)
        return chosen

    def choose(self, options: argparse.Namespace) -> None:
        """Set this object up as the options say, whose values are among their choices. Raises ValueError.

        `evaluator` calls it on a copy.
        """

    # From probes to rows.

    def requests(self, probes: Sequence[Probe]) -> list[Request]:
        """What every model is asked. Raises ValueError for probes that are not the benchmark's."""
        return [
            Generation(
                self.request_id(probe),
                PromptText(tuple(probe.messages), probe.raw),
                self.max_tokens,
                self.raw_stop if probe.raw else (),
            )
            for probe in probes
        ]

    def request_id(self, probe: Probe) -> str:
        return f"{probe.index}/generation"

    def records(self, probes: Sequence[Probe], answers: Answers, folder: Path) -> list[Row]:
        """The rows of one model, one a probe in order, with MEMORISATION where "INDEX/answer" was measured.

        Args:
            answers: by request id; an answer that constant responses have not is missing.
            folder: that the tokenizer is taken from.
        """
        found = []
        for probe in probes:
            response = answers[self.request_id(probe)].text
            scores = self.scores(response, probe) | memorised(answers.get(f"{probe.index}/answer"))
            found.append(self.row(probe, response, scores))
        return found

    def row(self, probe: Probe, response: str, scores: Mapping[str, Any]) -> Row:
        """A row of the table from its parts; numbers and truth values of `scores` become metrics."""
        return {
            **probe.labels,
            "sample": 0,
            "prompt": probe.query or probe.messages[-1]["content"],
            "golds": list(probe.golds),
            "response": response,
            **scores,
        }

    def scores(self, response: str, probe: Probe) -> dict[str, Any]:
        """The metrics of one response, by column."""
        raise NotImplementedError(f"{self.name} does not say what a response is worth")

    def refuses(self, response: str) -> bool:
        """Whether a response refuses behind its thought, by the detector of the reward and `phrases`."""
        from reward.thoughts import split_thought

        return _refuses(split_thought(response)[1].strip(), self.phrases)

    def anchor_answers(self, probes: Sequence[Probe], text: str) -> Answers:
        """The same answer to every probe; {subject} in it is the name of whom the probe is about."""
        return {self.request_id(probe): Answer(text.replace("{subject}", probe.subject)) for probe in probes}

    # From rows to numbers.

    def fact(self, row: Mapping[str, Any]) -> Hashable:
        """What a row asks for: the unit of intervals and tests, where the row of the data does not say it."""
        return row.get("fact", row["probe"])

    def sets(self, row: Mapping[str, Any]) -> Sequence[str]:
        """The names of the sets that a row is in. Raises ValueError where it is none of this benchmark's."""
        return [row["side"]]

    def counts(self, row: Mapping[str, Any]) -> bool:
        """Whether attacks count a row of the forget side.

        They leave out what a model without the knowledge answers too: choices among given values, and
        questions whose answer is in the prompt.
        """
        return True

    def statistics(self, samples: Samples) -> Mapping[str, Statistic]:
        """The metrics that the values of the sets allow."""
        raise NotImplementedError(f"{self.name} has no metrics")

    def extra_metrics(self, samples: Samples) -> Metrics:
        """Metrics that are no statistic of the probes: no interval, no paired test."""
        return {}

    # Logs in open-unlearning's format, of a benchmark with a `log_file`.

    def references(self) -> dict[str, Metrics]:
        """Rows of models that are not asked: those metrics of `retained` that are also computed from answers.

        Raises ValueError where the log is wrong.
        """
        if self.retained is None:
            return {}
        own = self.log_computations(self.retained, None)
        return {RETAINED: retained_metrics(own, self.retained)}

    def log_metrics(self, rows: Sequence[Row], texts: Sequence[Row] = ()) -> dict[str, Any]:
        """The rows of one model as the metrics of its log; `texts`: the records of whole texts."""
        raise NotImplementedError(f"{self.name} has no logs")

    def log_computations(self, log: Log, retain_log: Log | None) -> Computations:
        """The metrics of a log; `retain_log` is a retained model's.

        Raises ValueError where the two logs are of other questions.
        """
        raise NotImplementedError(f"{self.name} has no logs")


def add_phrases_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --refusal-phrases, which every command that judges refusals has."""
    parser.add_argument(
        "--refusal-phrases", type=Path, metavar="FILE",
        help="phrases that extend the refusal detector, one a line: the file that the reward was given as "
        "refusal_phrases (docs/rewards.md)",
    )  # fmt: skip


@lru_cache(maxsize=1 << 14)  # anchors and collapsed models give the same text again and again
def _refuses(text: str, phrases: RefusalPhrases | None) -> bool:
    from reward.refusal import is_refusal

    return is_refusal(text, phrases)


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """All benchmarks by name: the built-in ones in their order, then those of other packages."""
    found = {
        one.name: one
        for module in MODULES
        for one in importlib.import_module(f"{__package__}.tasks.{module}").BENCHMARKS
    }
    for entry in entry_points(group=GROUP):
        try:
            declared = entry.load()
            if not isinstance(declared, Benchmark):
                raise ValueError(f"it is no object of a subclass of {__name__}.Benchmark")
            declared.check()
            if declared.name in found:
                raise ValueError(f"there is a benchmark {declared.name} already")
            types = {option.name: option.type for one in found.values() for option in one.options}
            if odd := [one.flag for one in declared.options if types.get(one.name, one.type) != one.type]:
                raise ValueError(f"its option {odd[0]} has another type than that of others")
        # Whatever a package of others does: the rest goes on.
        except (Exception, SystemExit) as error:
            reason = io.describe(error)
            io.warn(f"benchmark {entry.name} ({entry.value}) is left out: {reason}")
        else:
            found[declared.name] = declared
    return found


def name_of(text: str) -> str:
    """A benchmark's name, as an option's type: data_prep writes names with a hyphen."""
    return text.replace("-", "_")


def published(benchmark: str) -> PublishedFigures:
    """The published figures of a benchmark; none where it has none, or is not known."""
    declared = benchmarks().get(benchmark)
    return PublishedFigures() if declared is None else declared.published


def benchmark_of(probes: Sequence[Probe]) -> str:
    """The benchmark that the probes' data_source names; that of data of one's own for any other.

    Raises ValueError where they name several.
    """
    names = sorted({probe.data_source.removeprefix(_PREFIX) for probe in probes})
    if len(names) > 1:
        raise ValueError(f"the probes are of {', '.join(names)}; evaluate one benchmark at a time")
    return names[0] if names[0] in benchmarks() else OWN_DATA
