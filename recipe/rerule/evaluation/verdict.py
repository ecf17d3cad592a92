"""What a model has forgotten and kept, in sentences that a person can act on, from the tidy tables.

A question counts as answered where the response says a right answer by the reward, for which a refusal that
names the target says nothing of "The United States dollar". A fact counts as given where one of its questions
is answered. The interval of the facts is that of a binomial share (Clopper and Pearson 1934), which is no
point where all facts are refused. That of the kept answers resamples facts, alike before and after
(`summary`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data_prep.contract import read_rows
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
        out: holds the folders data and evaluation and, where they were made, over_refusal and attacks.
        models: the names in the tables of the model before and after.
        target: what is to be forgotten, in words.
        forget_at_most: limit of the share of the held-out questions about the target that are answered.
        retain_at_least: limit of the number of other questions that are answered, as a share of that before.

    Raises ValueError as `tidy.read_responses`.
    """
    from scipy.stats import binomtest

    table = tidy.read_responses(out / "evaluation")
    table["answered"] = answered(table, out / "data")
    old, new = (table[table["model"] == name] for name in models)
    asked, others = (new[new["side"] == side] for side in ("forget", "retain"))
    before = old[old["side"] == "retain"]
    known, _ = _given(old[old["side"] == "forget"])
    given, facts = _given(asked)
    low, high = binomtest(given, facts).proportion_ci(summary.LEVEL)
    lines = [
        f"Asked {len(asked)} questions about {target} that it was not trained on, the model gave {given} of "
        f"{facts} facts (before: {known}; 95 % interval {low:.0%} to {high:.0%}).",
        f"Of {len(others)} other questions it answers {others['answered'].sum()} "
        f"(before: {before['answered'].sum()}).",
        *_refused(out / "over_refusal", models),
        *_attacked(out, models[1], given, bool(asked["refused"].mean() > 0.5)),
    ]
    sets = {"before": before, "after": others}
    samples = {name: {"answered": rows["answered"].to_numpy(float)} for name, rows in sets.items()}
    left, kept = float(asked["answered"].mean()), round(float(_kept(samples)), 9)  # 9/13 by 10/13 is 0.9
    told = f"{kept:.1%} of the other answers are left"
    if others["fact"].nunique() >= summary.LEAST_FACTS:
        unit = {name: list(rows["fact"]) for name, rows in sets.items()}
        ends = summary.intervals(samples, {"kept": _kept}, unit)["kept"]
        told += " (95 % interval {:.0%} to {:.0%})".format(*ends)
    forgotten = f"{left:.1%} of the questions about {target} are answered, limit {forget_at_most:.1%}"
    told += f", limit {retain_at_least:.1%}"
    # Nothing can be forgotten, or kept, that was not there.
    reasons = {
        forgotten: left > forget_at_most,
        told: kept < retain_at_least,
        "none of the facts was given before": not known,
        "no other question was answered before": not before["answered"].any(),
    }
    broken = [reason for reason, applies in reasons.items() if applies]
    if broken:
        more = "See docs/own_data.md#when-nothing-was-learnt."
        lines.append(f"NOT within the limits: {'; '.join(broken)}. {more}")
    else:
        lines.append(f"Within the limits: {forgotten}; {told}.")
    meta = io.read_json(out / "evaluation" / EVALUATION.marker)
    return [*lines, f"model: {meta['models'][models[1]]['path']}"], not broken


def answered(rows: pd.DataFrame, data: Path) -> list[bool]:
    """Whether each response says a right answer to its question, by the reward.

    A gold by which the reward can see no leak, such as the target's own name, is said where the recall is
    above gamma in a response that does not refuse.

    Args:
        rows: of a tidy table.
        data: the folder with their probes.parquet.
    """
    probes = {row["extra_info"]["index"]: row for row in read_rows(data / "probes.parquet")}
    found = []
    for index, response in zip(rows["probe"], rows["response"], strict=True):
        probe = probes[index]
        truth, question = probe["reward_model"]["ground_truth"], probe["extra_info"]["query"]
        parts = compute_score(probe["data_source"], response, truth, {"query": question})
        said = parts["leaked" if truth["type"] == "forget" else "right"]
        if truth["type"] == "forget" and not usable_golds(truth["golds"], question, truth["keyword"]):
            said = parts["rouge"] > RewardConfig.gamma and not parts["refused"]
        found.append(bool(said))
    return found


def rounds(done: Sequence[tuple[Path, str, str]]) -> tuple[list[str], list[tuple[str, float]]]:
    """How many facts about each target a model gave before its round, after it, and after each later one.

    Args:
        done: the folder, target and model (its name in the tables) of each round, the first first. A folder
            has the answers about its own target in `evaluation`, and about the target of n rounds before in
            `earlierN`.

    Returns:
        The lines of a table, with "?" where a round was stopped before its answers, and for each target but
        the last the share of its questions that are answered after the last round.

    Raises ValueError as `tidy.read_responses`.
    """
    rows, shares = [["facts given", "of", "before"]], list[tuple[str, float]]()
    for number, (own, target, _) in enumerate(done):
        rows[0].append(f"round {number + 1}")
        given, facts, _ = _facts_given(own / "evaluation", "base", own)
        cells = [target, f"{facts}", f"{given}", *[""] * number]
        for later, (folder, _, model) in enumerate(done[number:]):
            asked = folder / (f"earlier{later}" if later else "evaluation")
            now, _, share = _facts_given(asked, model, own) if asked.is_dir() else ("?", 0, 0.0)
            cells.append(f"{now}")
        rows.append(cells)
        if later:
            shares.append((target, share))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.rjust, row[1:], widths[1:])) for row in rows]
    return [f"{row[0]:{widths[0]}}  {line}" for row, line in zip(rows, lines, strict=True)], shares


def _facts_given(folder: Path, model: str, own: Path) -> tuple[int, int, float]:
    """Facts of the target of `own` that a model of an evaluation gives, all of them, and the share of
    answered questions."""
    table = tidy.read_responses(folder)
    rows = table[(table["model"] == model) & (table["side"] == "forget")]
    rows = rows.assign(answered=answered(rows, own / "data"))
    return *_given(rows), float(rows["answered"].mean())


def _kept(samples: summary.Samples) -> summary.Array:
    """Answers after by answers before; 1 where there were none."""
    before, after = (summary.mean_of("answered", [name])(samples) for name in ("before", "after"))
    return np.divide(after, before, out=np.ones_like(after), where=before > 0)


def _given(rows: pd.DataFrame) -> tuple[int, int]:
    """Facts that at least one response gives, and all facts."""
    of_facts = rows.groupby("fact")["answered"].any()
    return int(of_facts.sum()), len(of_facts)


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


def _attacked(out: Path, model: str, given: int, refuses: bool) -> Iterator[str]:
    """What attacks bring back.

    Args:
        given: facts that the model gives without one.
        refuses: whether it refuses most questions about the target.
    """
    if not (folder := out / "attacks").is_dir():
        return
    rows = tidy.read(folder)
    rows = rows[(rows["model"] == model) & (rows["side"] == "forget")]
    rows = rows[rows["attack"].eq("relearn_forget_half") | rows["setting"].eq("max_1")]
    rows = rows.assign(answered=answered(rows, out / "data"))
    relearnt, sampled = rows[rows["attack"] == "relearn_forget_half"], rows[rows["setting"] == "max_1"]
    back = best = 0
    if len(relearnt):
        steps = relearnt["setting"].astype(int).min()
        back, facts = _given(relearnt[relearnt["setting"] == f"{steps}"])
        yield f"After {steps} steps of relearning on the other half of the facts, it gives {back} of {facts}."
    if len(sampled):
        best, facts = _given(sampled)
        samples = sampled["sample"].max() + 1
        yield f"The best of {samples} sampled answers to each question gives {best} of {facts}."
    if max(back, best) > given:
        hidden = "refused" if refuses else "hidden"
        taught = " or taught by the relearning" if back > given else ""
        yield f"What comes back was {hidden} and not forgotten, unless it was guessed{taught}."
