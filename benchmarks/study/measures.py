"""What the arms of the study are measured and compared by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.study.runs import StudyRun
from recipe.rerule.reporting.document import Heading

REACHED = 0.9
"""Reward of the early-hard prompts from which on they count as solved."""


@dataclass(frozen=True)
class Measure:
    """A number a run ends with: its name among `StudyRun.final`, heading, what is better, and decimals."""

    name: str
    heading: Heading
    decimals: int = 3


OVERALL = "overall"
"""Mean of 1 - forget recall, retain recall and unseen recall. A run trades them for each other as it goes, so
that each of them varies more between seeds than their mean, by which arms are compared first."""
ON_THE_WAY = "overall_on_the_way"
"""Mean of OVERALL at all validations of a run: how soon, where it is still learning at its last step."""
REFUSED = "forget/refused"
"""Share of greedy answers to the forget probes that refuse, at the end."""
REFUSED_SAMPLED = "forget/refused/sampled"
"""Share of sampled answers to forget prompts of stage 2 that refuse, in a run's last quarter of steps."""
Start = tuple[int, str]
"""Seed and stage-1 model of a run: runs that share both are compared with each other."""
SECTIONS = ("forget", "retain", "retain_unseen")
OUTCOMES = (
    Measure(OVERALL, Heading("mean score", "", "high")),
    Measure(ON_THE_WAY, Heading("mean over training", "", "high")),
    Measure("forget/recall", Heading("recall", "forget", "low")),
    Measure(REFUSED, Heading("refused", "forget", "high")),
    Measure(REFUSED_SAMPLED, Heading("refused, sampled", "forget", "high")),
    Measure("retain/recall", Heading("recall", "retain", "high")),
    Measure("retain/refused", Heading("refused", "retain", "low")),
    Measure("retain_unseen/recall", Heading("recall", "unseen", "high")),
    Measure("retain_unseen/refused", Heading("refused", "unseen", "low")),
)
PROCESS = (
    Measure("early_hard/retain", Heading("reward at the end", "early-hard retain", "high")),
    Measure("solved_at", Heading("step it reaches 0.9", "early-hard retain", "low"), 1),
    Measure("hard_share/all", Heading("hard", "share of groups")),
    Measure("signal_share/all", Heading("with signal", "share of groups")),
    Measure("replay/signal_share", Heading("with signal", "replayed groups")),
    Measure("replay/effective_sample_size", Heading("effective sample size", "replayed groups")),
    Measure("steps", Heading("steps", "cost"), 0),
    Measure("compute", Heading("compute, M tokens", "cost"), 2),
    Measure("seconds", Heading("seconds", "cost"), 0),
)
PRIMARY = (OVERALL, ON_THE_WAY, "retain_unseen/recall", "retain/recall", "forget/recall")
"""What arms are compared by. The first decides; the others say where a difference lies."""


def value_of(run: StudyRun, name: str) -> float | None:
    """A measure of a run, None where it has none; compute in millions."""
    if name == "solved_at":
        return solved_at(run)
    if name == OVERALL:
        return overall(run.final)
    if name == ON_THE_WAY:
        return on_the_way(run)
    if name == REFUSED_SAMPLED:
        return refused_sampled(run)
    value = run.final.get(name)
    return value / 1e6 if value is not None and name == "compute" else value


def overall(measured: Mapping[str, float]) -> float | None:
    """OVERALL, where its parts were measured."""
    parts = [measured[name] for section in SECTIONS if (name := f"{section}/recall") in measured]
    return (1 - parts[0] + sum(parts[1:])) / 3 if len(parts) == len(SECTIONS) else None


def on_the_way(run: StudyRun) -> float | None:
    """ON_THE_WAY of a run that was validated."""
    return overall({name: mean(values) for name, values in run.curves.items() if values})


def validated_scores(run: StudyRun) -> list[float]:
    """OVERALL at each validation of a run that was validated."""
    recalls = (run.curves[f"{section}/recall"] for section in SECTIONS)
    return [(1 - forget + retain + unseen) / 3 for forget, retain, unseen in zip(*recalls, strict=True)]


def refused_sampled(run: StudyRun) -> float | None:
    """REFUSED_SAMPLED: the reward of forget prompts, where that is for a refusal and nothing else."""
    only_refusals = run.settings.get("reward", {}).get("lambda_forget") == 1.0
    return run.final.get("reward/forget/last") if only_refusals else None


def solved_at(run: StudyRun) -> float | None:
    """First validated step where the early-hard retain prompts reach REACHED; the run's length if never."""
    rewards, steps = run.curves.get("early_hard/retain"), run.curves.get("validated_at", [])
    if not rewards:
        return None
    # Those before the prompts were chosen have no reward.
    known = zip(steps[-len(rewards) :], rewards, strict=True)
    return next((step for step, reward in known if reward >= REACHED), run.final["steps"])


def seed_values(runs: Sequence[StudyRun], arm: str, measure: str) -> dict[Start, float]:
    """A measure of an arm by where its runs start, of those that have it."""
    return {
        (run.seed, run.model): value
        for run in runs
        if run.arm == arm and (value := value_of(run, measure)) is not None
    }
