"""R-TOFU: TOFU for models that reason, whose answers and chains of thought are scored apart.

Source: "R-TOFU: Unlearning in Large Reasoning Models", arXiv 2505.15214, and github.com/AI-ISL/R-TOFU.
A chain of thought is compared with that of the probe by ROUGE-L recall (the code's `rouge_cot_forget_score`),
and sentence by sentence (its `average_all_pair_rougeL_recall`). Cosine similarity, entailment and the judge
need other models, so that the summaries that hold them (MU, AFE, CFE) are not computed. Likelihoods
are TOFU's, of answers behind a thought that is closed already.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from recipe.rerule.evaluation.engine.requests import Answers, Generation, Request
from recipe.rerule.evaluation.registry import Column, Option, PublishedFigures, Row
from recipe.rerule.evaluation.summary import Samples, Statistic, mean_of
from recipe.rerule.evaluation.tasks.tofu import PREFIXES, Tofu
from recipe.rerule.process import positive

if TYPE_CHECKING:
    from recipe.rerule.evaluation.probes import Probe

OPEN = "<think>\n"
MODES = {
    "default_think": OPEN,
    "zero_think": "<think>\n\n</think>\n\n",
    "less_think": "<think>\nOkay, the user asked this, I can answer it without thinking much.\n</think>\n\n",
}
"""How the response begins, by R-TOFU's name: the model writes its thought, has none, or a given one."""
MAX_TOKENS = 2048
_QUANTITIES = {
    "trace_rouge_l": "trace_ROUGE",
    "trace_step_rouge_l": "trace_step_ROUGE",
    "answered": "answered_rate",
}
"""Column of the table, and how its metrics' names end."""


def step_recall(thought: str, trace: str) -> float:
    """Mean over the sentences of `trace` of the ROUGE-L recall in the closest sentence of `thought`."""
    # Of rouge_score's requirements; without a trained model, as in R-TOFU's code.
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    from reward.rouge import rouge_l

    sentences = PunktSentenceTokenizer().tokenize
    said = sentences(thought)
    return fmean(max((rouge_l(one, step, "tofu") for one in said), default=0.0) for step in sentences(trace))


class RTofu(Tofu):
    """TOFU's questions; what is compared with TOFU's answers is what follows the chain of thought."""

    name = "rtofu"
    title = "R-TOFU"
    columns = (
        Column("forget_Q_A_ROUGE", "forget", "answer", "low", 1.0, ".4f"),
        Column("forget_trace_ROUGE", "forget", "trace", "low", 1.0, ".4f"),
        Column("forget_trace_step_ROUGE", "forget", "steps", "low", 1.0, ".4f"),
        Column("forget_truth_ratio", "forget", "TR", "high", 1.0, ".4f"),
        Column("forget_answered_rate", "forget", "answered", "", 1.0, ".4f"),
        Column("model_utility", "retain", "utility", "high", 1.0, ".4f"),
        Column("retain_trace_ROUGE", "retain", "trace", "high", 1.0, ".4f"),
    )
    legend = (
        "answer, trace: ROUGE-L recall of the answer and of the chain of thought; steps: of each sentence of "
        "the chain of thought, in the closest one of the response; TR: truth ratio, mean of min(R, 1/R); "
        "answered: share of responses with an answer behind the thought; utility: TOFU's model utility. "
        "Fractions of 1."
    )
    score_legend = ""
    options = (
        Option("prompts", choices=tuple(MODES)),
        Option("max_tokens", f"default {MAX_TOKENS}, thoughts included", positive, "N"),
    )
    log_file = ""
    published = PublishedFigures()
    fractions = rf"{Tofu.fractions}|.*_answered_rate"
    model_example = """\
  python -m recipe.rerule.evaluate model --probes data/rtofu/probes.parquet \\
      --model rerule=outputs/rtofu/rerule --prompts less_think --out outputs/rtofu_less
      R-TOFU with a given short thought; the other ways are default_think and zero_think
"""
    score_example = ""
    max_tokens = MAX_TOKENS
    begun = OPEN

    def choose(self, options: argparse.Namespace) -> None:
        """As --prompts and --max-tokens say."""
        self.begun = MODES[options.prompts]
        self.max_tokens = options.max_tokens or MAX_TOKENS
        self.settings = {"prompts": options.prompts, "max_tokens": self.max_tokens}

    def requests(self, probes: Sequence[Probe]) -> list[Request]:
        """TOFU's, behind the beginning of a response. Likelihoods are measured behind a closed thought."""
        closed = MODES["zero_think"] if self.begun == OPEN else self.begun
        found: list[Request] = []
        for one in super().requests(probes):
            suffix = self.begun if isinstance(one, Generation) else closed
            found.append(replace(one, prompt=replace(one.prompt, suffix=suffix)))
        return found

    def records(self, probes: Sequence[Probe], answers: Answers, folder: Path) -> list[Row]:
        """A thought that was begun for the model belongs to its response: one without an end is no answer."""
        if self.begun == OPEN:
            asked = map(self.request_id, probes)
            answers = answers | {one: replace(answers[one], text=OPEN + answers[one].text) for one in asked}
        return super().records(probes, answers, folder)

    def anchor_answers(self, probes: Sequence[Probe], text: str) -> Answers:
        """The answer behind an empty thought."""
        return super().anchor_answers(probes, f"</think>\n\n{text}" if self.begun == OPEN else text)

    def scores(self, response: str, probe: Probe) -> dict[str, Any]:
        """TOFU's scores of the answer, and those of a chain of thought that the model itself had to begin."""
        from reward.rouge import rouge_l
        from reward.thoughts import split_thought

        thought, answer = split_thought(response)
        found = super().scores(answer, probe) | {"answered": bool(answer)}
        if probe.trace and self.begun == OPEN:
            found["trace_rouge_l"] = rouge_l(thought, probe.trace, "tofu")
            found["trace_step_rouge_l"] = step_recall(thought, probe.trace)
        return found

    def statistics(self, samples: Samples) -> dict[str, Statistic]:
        """TOFU's of the answers, those of the chains of thought if there are any, and shares of answers."""
        found = dict(super().statistics(samples))
        for (name, prefix), (quantity, ending) in product(PREFIXES.items(), _QUANTITIES.items()):
            if quantity in samples.get(name, {}):
                found[f"{prefix}_{ending}"] = mean_of(quantity, [name])
        return found


BENCHMARKS = (RTofu(),)
