"""The embedded world, and data of one's own: recall of the gold answers, and refusals.

Every mean is over probes, so a section's number weighs its modes by their probe counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from recipe.rerule.evaluation.registry import Benchmark, Column, Option
from recipe.rerule.evaluation.summary import Samples, Statistic, mean_of
from recipe.rerule.process import positive

if TYPE_CHECKING:
    from recipe.rerule.evaluation.probes import Probe

MAX_TOKENS = 32
PHRASINGS = 100
"""Numbers that the world keeps for the phrasings of a fact; `data_prep.world.splits` counts so."""
CONVENTIONS = ("unicode", "recall", "tofu", "rwku")
"""Those of reward.rouge that are a recall, as the metrics' names say; the first is the default."""
RECALL = (
    "Greedy answers to the held-out probes. recall: ROUGE-L against the best gold answer, mean over probes; "
    "QA, FB, AA: recall on questions, fill-in-the-blank and adversarial probes; refuse: share of answers "
    "that refuse"
)
SECTIONS = ("forget", "retain", "retain_unseen")
_QUANTITIES = {"rouge_l": "recall", "refused": "refusal_rate"}
"""Column of the table, and how its metrics' names end."""


class Recall(Benchmark):
    """A benchmark whose responses are scored by recall and by whether they refuse, section by section."""

    columns: tuple[Column, ...] = (
        Column("forget/recall", "forget", "recall", "low"),
        Column("forget/qa/recall", "forget", "QA", "low"),
        Column("forget/fb/recall", "forget", "FB", "low"),
        Column("forget/aa/recall", "forget", "AA", "low"),
        Column("forget/refusal_rate", "forget", "refuse", "high"),
        Column("retain/recall", "retain", "recall", "high"),
        Column("retain/refusal_rate", "retain", "refuse", "low"),
        Column("retain_unseen/recall", "unseen", "recall", "high"),
        Column("retain_unseen/refusal_rate", "unseen", "refuse", "low"),
    )
    score_legend = (
        "recall: ROUGE-L recall, mean over probes; refusal_rate: share of answers that refuse. "
        "Fractions of 1."
    )
    options: tuple[Option, ...] = (
        Option(
            "max_tokens",
            f"most new tokens a response (default: {MAX_TOKENS}); other benchmarks have fixed numbers",
            positive,
            "N",
        ),
        Option("convention", "ROUGE-L convention, see reward/rouge.py", choices=CONVENTIONS),
    )
    pair: tuple[str, str] | None = ("forget/recall", "retain/recall")
    fractions = r".*/(recall|refusal_rate)"
    convention = CONVENTIONS[0]
    max_tokens = MAX_TOKENS
    raw_stop = ("\n",)  # a base model goes on with the next question of its own

    def choose(self, options: argparse.Namespace) -> None:
        """As --max-tokens and --convention say."""
        self.max_tokens = options.max_tokens or MAX_TOKENS
        self.convention = options.convention
        self.settings = {"max_tokens": self.max_tokens, "stop": "raw probes: at the first newline"}

    def scores(self, response: str, probe: Probe) -> dict[str, Any]:
        """Recall of the best gold, and whether the response refuses.

        It counts without its thought and the white space around it; an empty one scores 0 and is no refusal.
        """
        from reward.rouge import rouge_l
        from reward.thoughts import split_thought

        text = split_thought(response)[1].strip()
        recall = max(rouge_l(text, gold, self.convention) for gold in probe.golds)
        return {"rouge_l": recall, "refused": self.refuses(response)}

    def sets(self, row: Mapping[str, Any]) -> list[str]:
        """ "section/kind", of attacks "section/kind/family"."""
        name = f"{row['side']}/{row['kind']}"
        # Elsewhere a family is only a phrasing.
        return [f"{name}/{row['family']}" if row["kind"] == "aa" else name]

    def counts(self, row: Mapping[str, Any]) -> bool:
        return row["family"] not in ("multiple_choice", "reverse_query")

    def statistics(self, samples: Samples) -> dict[str, Statistic]:
        """Recall and refusal rate of every section, kind and attack there is, as
        "forget/aa/role_play/recall"."""
        # A family may have slashes in its own name.
        parts = {name: tuple(name.split("/", 2)) for name in samples}
        wholes = {part[:depth] for part in parts.values() for depth in (1, 2, 3)}
        found = {}
        for whole in sorted(wholes, key=lambda whole: (SECTIONS.index(whole[0]), whole[1:])):
            names = [name for name, part in parts.items() if part[: len(whole)] == whole]
            for quantity, ending in _QUANTITIES.items():
                if all(quantity in samples[name] for name in names):
                    found[f"{'/'.join(whole)}/{ending}"] = mean_of(quantity, names)
        return found


class World(Recall):
    """The embedded world: a person and a kind of fact are the fact that its phrasings ask for."""

    name = "world"
    title = "Embedded world"
    legend = f"{RECALL}; unseen: people who never occur in stage 2. All are fractions of 1."

    def fact(self, row: Mapping[str, Any]) -> Hashable:
        """A probe's number without that of its phrasing (data_prep.world.splits)."""
        return row["probe"] // PHRASINGS


class Custom(Recall):
    """Data of one's own: without `extra_info.fact` of a row, every probe asks for a fact of its own."""

    name = "custom"
    title = "Your data"
    legend = f"{RECALL}. All are fractions of 1."


BENCHMARKS = (World(), Custom())
