"""From the tidy table of attacks to numbers, with facts as the unit: scores, their differences, and shares.

Every number is a groupby over the table: rows of a probe are averaged over `sample`, probes over `fact`, and
facts are resampled (`evaluation.summary`). A text for membership inference is a fact of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from recipe.rerule.evaluation.attacks.attack import FORGET, OTHERS, RETAIN
from recipe.rerule.evaluation.attacks.registry import BEFORE
from recipe.rerule.evaluation.summary import (
    LEAST_FACTS,
    LEVEL,
    Array,
    Interval,
    Samples,
    Statistic,
    bootstrap,
    holm,
    interval_of,
    mean_of,
    permutation_test,
)
from recipe.rerule.io import Kind

ORIGINAL, CONTROL = "original", "control"
"""Names of the model before unlearning and of the never-knew model; attacks need them by these names."""
ATTACKED = Kind("rerule/attacks", "meta.json")
"""The folder of `evaluate attack`."""
RESULTS, CURVES = "attacks.json", "curves.jsonl"
"""The numbers of the table, as JSON."""
HALF = 0.5
_SCORE = "score"
Declared = Mapping[str, Mapping[str, Any]]
"""{attack: what it declares (`Attack.declared`)}, as meta.json has it."""
Verdict = Literal["above", "below", "open"]
TESTED = 0.05
"""Of the tests, corrected for their number."""


@dataclass(frozen=True)
class Numbers:
    """What an attack found about a model. None: not measured, or it has no meaning.

    Attributes:
        before: recall without the attack, of the same facts.
        gain: after less before.
        after: the score of the attack.
        excess: after less that of the never-knew model under the same attack (E), with `interval`.
        p_value: of the paired permutation test of E over facts, two-sided.
        p_holm: `p_value` corrected for the number of tests of unlearned models.
        share: E by that of the original model, where that is surely not 0.
        refusal: share of refusals among the answers.
        retain: recall of retained facts under the attack.
        facts: how many facts the score is a mean over.
    """

    before: float | None
    gain: float | None
    gain_interval: Interval | None
    after: float
    after_interval: Interval | None
    excess: float | None
    interval: Interval | None
    p_value: float | None
    p_holm: float | None
    share: float | None
    share_interval: Interval | None
    refusal: float | None
    retain: float | None
    facts: int

    @property
    def p(self) -> float | None:
        """The corrected p-value where there is one."""
        return self.p_value if self.p_holm is None else self.p_holm

    def verdict(self, higher_is_leak: bool = True) -> Verdict | None:
        """Whether the model leaks more than the never-knew model, or less; "open" where that can be chance.

        The interval of the excess decides, and the exact test, without which 3 facts of 10 would do. None
        without a never-knew model, and of too few facts.
        """
        if self.interval is None or self.p_value is None:
            return None
        low, high = self.interval
        if low <= 0 <= high or self.p_value >= TESTED:
            return "open"
        return "above" if (low > 0) == higher_is_leak else "below"

    def verdict_of_many(self, higher_is_leak: bool = True) -> Verdict | None:
        """`verdict` where several attacks are looked at: open too where the corrected p-value is high."""
        verdict = self.verdict(higher_is_leak)
        return verdict if verdict is None or (self.p is not None and self.p < TESTED) else "open"


Results = dict[str, dict[str, Numbers]]
"""{ATTACK or ATTACK/SETTING: {model: numbers}}"""


def drawn(samples: Samples, statistic: Statistic) -> Array:
    """A statistic of one model's scores over facts, {side: {"score": [facts]}}, with its resamples.

    As `bootstrap` gives them; arrays of two models are subtracted and divided as they are. Where there are
    too few facts, the array has the statistic alone.
    """
    if any(len(values[_SCORE]) < LEAST_FACTS for values in samples.values()):
        return np.array([float(statistic(samples))])
    return bootstrap(samples, {_SCORE: statistic})[_SCORE]


def _interval(found: Array) -> Interval | None:
    return None if len(found) == 1 else interval_of(found)


def share(part: Array, whole: Array) -> tuple[float, Interval] | tuple[None, None]:
    """The excess of a model by that of the original one, with its bootstrap interval.

    Nothing where the interval of the whole holds 0, or there are too few facts: a share of nothing has no
    meaning.
    """
    ends = _interval(whole)
    if ends is None or ends[0] <= 0 <= ends[1]:
        return None, None
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = part / whole
    low, high = np.nanquantile(shares[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return (float(shares[0]), (float(low), float(high))) if np.isfinite([low, high]).all() else (None, None)


def auc(samples: Samples) -> Array:
    """AUC of the other texts above the texts to forget, for each leading index; ties count one half."""
    from scipy.stats import rankdata  # takes a second

    low, high = samples[FORGET][_SCORE], samples[OTHERS][_SCORE]
    below, above = low.shape[-1], high.shape[-1]
    ranks = rankdata(np.concatenate([low, high], axis=-1), axis=-1)[..., below:]
    # The Mann-Whitney statistic, by the number of pairs.
    return np.asarray((ranks.sum(axis=-1) - above * (above + 1) / 2) / (below * above))


_STATISTICS: Mapping[str, tuple[Statistic, tuple[str, ...]]] = {
    "mean": (mean_of(_SCORE, [FORGET]), (FORGET,)),
    "auc": (auc, (FORGET, OTHERS)),
}
"""By name: the statistic, and the sides that it looks at."""


def over_facts(rows: pd.DataFrame, column: str = _SCORE) -> pd.Series[float]:
    """The mean of each fact: over the probes that ask for it, of the mean over the rows of a probe."""
    known = rows[rows[column].notna()]
    of_probes = known.groupby(["fact", "probe"], sort=False)[column].mean()
    return of_probes.groupby("fact", sort=False).mean()


def summary(rows: pd.DataFrame, declared: Declared) -> Results:
    """The numbers of every setting of every attack and every model; `rows`: the table.

    Raises ValueError: an attack scored other facts of one model than of another, or not all models.
    """
    parts = {key: part for key, part in rows.groupby(["attack", "setting", "model"], sort=False)}
    models, results = list(dict.fromkeys(rows["model"])), Results()
    for attack, setting in dict.fromkeys(key[:2] for key in parts):
        statistic, sides = _STATISTICS[declared[attack]["statistic"]]
        key, samples, order = key_of(attack, setting), dict[str, Samples](), dict[str, Any]()
        for model in models:
            if (attack, setting, model) not in parts:
                raise ValueError(f"the model {model} is not under every attack; see {key}")
            own = parts[attack, setting, model]
            facts = {side: over_facts(own[own["side"] == side]) for side in sides}
            order = order or {side: values.index for side, values in facts.items()}
            if any(set(values.index) != set(order[side]) for side, values in facts.items()):
                raise ValueError(f"attack {attack} scored other facts of {model} than of {models[0]}")
            samples[model] = {side: {_SCORE: facts[side][order[side]].to_numpy()} for side in sides}
        scores = {model: drawn(one, statistic) for model, one in samples.items()}
        excess = {model: one - scores[CONTROL] for model, one in scores.items() if CONTROL in scores}
        results[key] = {}
        for model in models:
            own, first = parts[attack, setting, model], parts[BEFORE, "", model]
            numbers = _numbers(scores[model], own)
            comparable = declared[attack]["has_before"]
            if comparable is True or (comparable and setting.startswith(comparable)):
                numbers |= _gain(own, first)
            if model in excess:
                pair = samples[model], samples[CONTROL]
                numbers |= {"excess": float(excess[model][0]), "interval": _interval(excess[model])}
                if len(scores[model]) > 1:
                    tested = permutation_test(*pair, {_SCORE: statistic})
                    numbers["p_value"] = tested[_SCORE]
                if ORIGINAL in excess:
                    found = share(excess[model], excess[ORIGINAL])
                    numbers |= dict(zip(("share", "share_interval"), found, strict=True))
            results[key][model] = Numbers(**numbers)
    # Of unlearned models: those that are neither original nor control.
    tests = [
        (key, model, one.p_value)
        for key, of_models in results.items()
        for model, one in of_models.items()
        if model not in (ORIGINAL, CONTROL) and one.p_value is not None
    ]
    for (key, model, _), p_holm in zip(tests, holm([p_value for *_, p_value in tests]), strict=True):
        results[key][model] = replace(results[key][model], p_holm=p_holm)
    return results


def _numbers(score: Array, rows: pd.DataFrame) -> dict[str, Any]:
    """What can be said of a model's rows under an attack without others."""
    forget = rows[rows["side"] == FORGET]
    refusal, retain = over_facts(forget, "refused"), over_facts(rows[rows["side"] == RETAIN])
    return dict.fromkeys(Numbers.__dataclass_fields__) | {
        "after": float(score[0]),
        "after_interval": _interval(score),
        "refusal": None if refusal.empty else float(refusal.mean()),
        "retain": None if retain.empty else float(retain.mean()),
        "facts": len(over_facts(forget)),
    }


def _gain(after: pd.DataFrame, before: pd.DataFrame) -> dict[str, Any]:
    """Against the score before the attack over the same probes; {} where it was not asked all of them."""
    after, before = (rows[rows["side"] == FORGET] for rows in (after, before))
    if not set(after["probe"]) <= set(before["probe"]):
        return {}
    later = over_facts(after)
    earlier = over_facts(before[before["probe"].isin(after["probe"])])[later.index]
    pair = [drawn({FORGET: {_SCORE: one.to_numpy()}}, _STATISTICS["mean"][0]) for one in (earlier, later)]
    gain = pair[1] - pair[0]
    return {"before": float(pair[0][0]), "gain": float(gain[0]), "gain_interval": _interval(gain)}


def curves_of(results: Results, declared: Declared) -> list[dict[str, Any]]:
    """The lines of CURVES: of every relearning attack and model the numbers at each step.

    Step 0 is before the attack. `half_recovery` is None where less than half of the knowledge comes back, or
    where that cannot be said.
    """
    found = []
    for attack in (name for name, one in declared.items() if one["curve"]):
        steps = (0, *sorted(int(key.split("/")[1]) for key in results if key.split("/")[0] == attack))
        keys = [BEFORE, *(key_of(attack, f"{step}") for step in steps[1:])]
        for model in results[BEFORE]:
            numbers = [results[key][model] for key in keys]
            shares = [one.share for one in numbers]
            known = [share for share in shares if share is not None]
            found.append(
                {
                    "attack": attack,
                    "model": model,
                    "steps": steps,
                    "scores": [one.after for one in numbers],
                    "excess": [one.excess for one in numbers],
                    "shares": shares,
                    "half_recovery": half_recovery(steps, known) if known == shares else None,
                }
            )
    return found


def key_of(attack: str, setting: str) -> str:
    """What results call a setting: "prompts/role_play", or the attack's name where it has one only."""
    return f"{attack}/{setting}" if setting else attack


def half_recovery(steps: Sequence[int], shares: Sequence[float]) -> float | None:
    """The first step at which at least half of the knowledge is back; None where no step of the curve has it.

    Between two steps the share is interpolated linearly in log2(1 + step).

    Args:
        steps: ascending, from 0 on.
        shares: at each step, the excess over the never-knew model by that of the original model.
    """
    reached = next((number for number, share in enumerate(shares) if share >= HALF), None)
    if reached is None:
        return None
    if reached == 0:
        return float(steps[0])
    earlier, later = (math.log2(1 + step) for step in steps[reached - 1 : reached + 1])
    part = (HALF - shares[reached - 1]) / (shares[reached] - shares[reached - 1])
    return 2 ** (earlier + part * (later - earlier)) - 1
