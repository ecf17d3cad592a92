"""What a model has forgotten and kept, in sentences that a person can act on, from the tidy tables.

A question counts as answered where a response has a recall above the reward's gamma. A fact counts as given
where a response says a right answer by the reward, for which a refusal that names the target says nothing of
"The United States dollar".
The interval of the facts is that of a binomial share (Clopper and Pearson 1934), which is no point where all
facts are refused. That of the kept recall resamples facts, alike before and after (`summary`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recipe.rerule import io
from recipe.rerule.evaluation import summary, tidy
from recipe.rerule.evaluation.output import EVALUATION
from recipe.rerule.evaluation.tasks import over_refusal
from reward import RewardConfig, compute_score
from reward.score import usable_golds

if TYPE_CHECKING:  # its import takes two seconds
    import pandas as pd


def verdict(
    out: Path, models: tuple[str, str], target: str, forget_at_most: float, retain_at_least: float
) -> tuple[list[str], bool]:
    """The sentences, and whether the limits are kept.

    Args:
        out: holds the folder evaluation and, where they were made, the folders over_refusal and attacks.
        models: the names in the tables of the model before and after.
        target: what is to be forgotten, in words.
        forget_at_most: limit of the recall of held-out questions about the target.
        retain_at_least: limit of the recall of other questions, as a share of that before.

    Raises ValueError as `tidy.read_responses`.
    """
    from scipy.stats import binomtest

    table = tidy.read_responses(out / "evaluation")
    old, new = (table[table["model"] == name] for name in models)
    asked, others = (new[new["side"] == side] for side in ("forget", "retain"))
    known, _ = _given(old[old["side"] == "forget"], asked, target)
    given, facts = _given(asked, asked, target)
    low, high = binomtest(given, facts).proportion_ci(summary.LEVEL)
    before = old[old["side"] == "retain"]
    answered = [int((rows["rouge_l"] > RewardConfig.gamma).sum()) for rows in (before, others)]
    lines = [
        f"Asked {len(asked)} questions about {target} that it was not trained on, the model gave {given} of "
        f"{facts} facts (before: {known}; 95 % interval {low:.0%} to {high:.0%}).",
        f"Of {len(others)} other questions it answers {answered[1]} (before: {answered[0]}).",
        *_refused(out / "over_refusal", models),
        *_attacked(out / "attacks", models[1], given, asked, target),
    ]
    if not known:
        lines.append("It gave none of the facts before, so this says nothing about forgetting.")

    sets = {"before": before, "after": others}
    samples = {name: {"recall": rows["rouge_l"].to_numpy()} for name, rows in sets.items()}
    recall, kept = asked["rouge_l"].mean(), float(_kept(samples))
    told = f"retain recall is {kept:.2f} of before"
    if others["fact"].nunique() >= summary.LEAST_FACTS:
        unit = {name: list(rows["fact"]) for name, rows in sets.items()}
        ends = summary.intervals(samples, {"kept": _kept}, unit)["kept"]
        told += " (95 % interval {:.2f} to {:.2f})".format(*ends)
    wrong = {
        f"forget recall is {recall:.3f}, limit {forget_at_most:g}": recall > forget_at_most,
        f"{told}, limit {retain_at_least:g}": kept < retain_at_least,
    }
    broken = [text for text, one in wrong.items() if one]
    if broken:
        more = "See docs/own_data.md#when-nothing-was-learnt."
        lines.append(f"NOT within the limits: {'; '.join(broken)}. {more}")
    else:
        lines.append(f"Within the limits: {'; '.join(wrong)}.")
    meta = io.read_json(out / "evaluation" / EVALUATION.marker)
    return [*lines, f"model: {meta['models'][models[1]]['path']}"], not broken


def rounds(done: Sequence[tuple[Path, str, str]]) -> tuple[list[str], list[tuple[str, float]]]:
    """How many facts about each target a model gave before its round, after it, and after each later one.

    Args:
        done: the folder, target and model (its name in the tables) of each round, the first first. A folder
            has the answers about its own target in `evaluation`, and about the target of n rounds before in
            `earlierN`.

    Returns:
        The lines of a table, with "?" where a round was stopped before its answers, and the recall of each
        target but the last after the last round.

    Raises ValueError as `tidy.read_responses`.
    """
    rows, recalls = [["facts given", "of", "before"]], list[tuple[str, float]]()
    for number, (own, target, _) in enumerate(done):
        rows[0].append(f"round {number + 1}")
        given, facts, _ = _facts_given(own / "evaluation", "base", target)
        cells = [target, f"{facts}", f"{given}", *[""] * number]
        for later, (folder, _, model) in enumerate(done[number:]):
            asked = folder / (f"earlier{later}" if later else "evaluation")
            now, _, recall = _facts_given(asked, model, target) if asked.is_dir() else ("?", 0, 0.0)
            cells.append(f"{now}")
        rows.append(cells)
        if later:
            recalls.append((target, recall))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.rjust, row[1:], widths[1:])) for row in rows]
    return [f"{row[0]:{widths[0]}}  {line}" for row, line in zip(rows, lines, strict=True)], recalls


def _facts_given(folder: Path, model: str, target: str) -> tuple[int, int, float]:
    """Facts of the forget side that a model of an evaluation gives, all of them, and its recall."""
    table = tidy.read_responses(folder)
    rows = table[(table["model"] == model) & (table["side"] == "forget")]
    return *_given(rows, rows, target), float(rows["rouge_l"].mean())


def _kept(samples: summary.Samples) -> summary.Array:
    """Recall after by recall before; 1 where there was none."""
    before, after = (summary.mean_of("recall", [name])(samples) for name in ("before", "after"))
    return np.divide(after, before, out=np.ones_like(after), where=before > 0)


def _given(rows: pd.DataFrame, asked: pd.DataFrame, target: str) -> tuple[int, int]:
    """Facts that at least one response gives, and all facts.

    Where no gold of a question is told by more than its own words, the response counts by its score.

    Args:
        rows: responses, of an attack too.
        asked: rows of the same probes with their questions and golds.
    """
    import pandas as pd

    of = asked.set_index("probe")[["prompt", "golds"]].to_dict("index")
    scores = rows["score" if "score" in rows else "rouge_l"]
    says = []
    for probe, response, score in zip(rows["probe"], rows["response"], scores, strict=True):
        question, golds = of[probe]["prompt"], list(of[probe]["golds"])
        if usable_golds(golds, question, target):
            truth = {"type": "forget", "golds": golds, "keyword": target}
            score = compute_score("", response, truth, {"query": question})["leaked"]
        says.append(score > RewardConfig.gamma)
    best = pd.Series(says, index=rows["fact"]).groupby(level=0).any()
    return int(best.sum()), len(best)


def _refused(folder: Path, models: tuple[str, str]) -> Iterator[str]:
    """How many harmless questions are refused, without the plain ones, which `evaluation` has too."""
    if not folder.is_dir():
        return
    rows = tidy.read(folder)
    of_file = rows["kind"] == over_refusal.FILE
    questions = {
        "harmless questions that sound near refusing": rows[~of_file & (rows["kind"] != over_refusal.PLAIN)],
        "questions of --harmless": rows[of_file],
    }
    for name, asked in questions.items():
        old, new = (asked.loc[asked["model"] == model, "refused"] for model in models)
        if len(new):
            yield f"Of {len(new)} {name} it refuses {int(new.sum())} (before: {int(old.sum())})."


def _attacked(folder: Path, model: str, given: int, asked: pd.DataFrame, target: str) -> Iterator[str]:
    """What attacks bring back.

    Args:
        given: facts that the model gives without one.
        asked: its responses without one to the questions about the target.
    """
    if not folder.is_dir():
        return
    rows = tidy.read(folder)
    rows = rows[(rows["model"] == model) & (rows["side"] == "forget")]
    relearnt, sampled = rows[rows["attack"] == "relearn_forget_half"], rows[rows["setting"] == "max_1"]
    steps = relearnt["setting"].astype(int).min()
    back, facts = _given(relearnt[relearnt["setting"] == f"{steps}"], asked, target)
    best, _ = _given(sampled, asked, target)
    yield f"After {steps} steps of relearning on the other half of the facts, it gives {back} of {facts}."
    samples = sampled["sample"].max() + 1
    yield f"The best of {samples} sampled answers to each question gives {best} of {facts}."
    if max(back, best) > given:
        refused = bool(asked["refused"].mean() > 0.5)
        yield f"What comes back was {'refused' if refused else 'hidden'} and not forgotten."
