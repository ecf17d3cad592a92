"""What an attack evaluation says about each unlearned model, in sentences made from its numbers.

No sentence is about an attack that was chosen for its result on an unlearned model: each relearning attack
has a sentence about one step (`AttackResults.shown_step`), and all others are counted, by p-values that
are corrected for their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from recipe.rerule.evaluation.attacks.registry import BEFORE
from recipe.rerule.evaluation.attacks.summary import CONTROL, ORIGINAL, Curve, Numbers
from recipe.rerule.reporting.attacks.results import AttackResults, has_fallen

READING = '"It gives 60 % of the answers" means that the mean recall of its answers is 0.60, over facts.'
READING_CONTROL = (
    "The model that never knew the facts was trained without them and attacked in the same way: what it "
    "gives was guessed, or taught by the attack."
)
_TRAINING = {
    "relearn_forget_half": "on the answers to other facts",
    "relearn_retain": "on questions to be kept",
    "relearn_benign": "on questions that have nothing to do with the facts",
    "relearn_wrong": "on wrong answers",
}
"""What relearning attacks train on, by name."""


def sentences(results: AttackResults) -> list[str]:
    """For each unlearned model a paragraph, and one on the attacks that are only counted."""
    return [part for model in results.unlearned for part in sentences_on(results, model)]


def sentences_on(results: AttackResults, model: str) -> list[str]:
    """The paragraphs of one unlearned model."""
    return [part for part in (_told(results, model), _others(results, model)) if part]


def percent(fraction: float) -> str:
    """In whole per cent; never 0 or 100 where the number is neither."""
    whole = round(100 * fraction)
    if whole == 0 and fraction > 0:
        return "under 1 %"
    if whole == 100 and fraction < 1:
        return "over 99 %"
    return f"{whole} %"


def _told(results: AttackResults, model: str) -> str:
    relearnt = (text for attack in results.curve_attacks for text in _relearning(results, model, attack))
    return " ".join([*_state(results, model), *_damage(results, model), *relearnt])


_UNTOLD = "Without a model that never knew the facts, this cannot be told from teaching."


def _state(results: AttackResults, model: str) -> Iterator[str]:
    """Without an attack: what it refuses and gives, and what the other two models give."""
    rows = results.rows[BEFORE]
    refusal = rows[model].refusal
    refuses = "" if refusal is None else f"refuses {percent(refusal)} of the questions and "
    gives = f"{refuses}gives {percent(rows[model].after)} of the answers"
    yield f"Asked about the facts to forget, {model} {gives}."
    yield from _compared(rows)


def _compared(rows: Mapping[str, Numbers], beginning: str = "") -> Iterator[str]:
    """What the original and the never-knew model give under the same attack."""
    others = {ORIGINAL: "the original model", CONTROL: "a model that never knew the facts"}
    told = [f"{what} gives {percent(rows[name].after)}" for name, what in others.items() if name in rows]
    if told:
        text = beginning + ", and ".join(told)
        yield f"{text[0].upper()}{text[1:]}."


def _damage(results: AttackResults, model: str) -> Iterator[str]:
    """Whether the model still gives what it should have kept."""
    rows = results.rows[BEFORE]
    for name, what in ((ORIGINAL, "the original model"), (CONTROL, "the model that never knew the facts")):
        if name in rows and has_fallen(rows[model].retain, rows[name].retain):
            yield (
                f"Of the answers that it should have kept it gives {_percent(rows[model].retain)}, where "
                f"{what} gives {_percent(rows[name].retain)}: it refuses them too or is damaged, so a low "
                "score alone does not show that it has forgotten."
            )
            return


def _relearning(results: AttackResults, model: str, attack: str) -> Iterator[str]:
    """The step of a relearning attack that is shown."""
    curve = next(one for one in results.curves if (one.attack, one.model) == (attack, model))
    step = results.shown_step(attack)
    key = f"{attack}/{step}"
    row, rows = results.rows[key][model], results.rows[key]
    trained_on = _TRAINING.get(attack, f'of the attack "{results.named(key)[0]}"')
    steps = "1 training step" if step == 1 else f"{step} training steps"
    yield f"After {steps} {trained_on}, {_change(row)}."
    yield from _compared(rows, "After the same training ")
    yield _difference(row) if CONTROL in rows else _UNTOLD
    if row.verdict() == "above" and curve.half_recovery is not None:
        yield _half(curve, curve.half_recovery)
    if has_fallen(row.retain, results.rows[BEFORE][model].retain):
        kept = _percent(row.retain)
        yield f"The training has damaged the model: of the answers to be kept it then gives {kept}."


def _change(row: Numbers) -> str:
    """What it gives after the attack, and whether that is more or less than before."""
    gives = f"it gives {percent(row.after)} of the answers"
    if row.before is None:
        return gives
    before = percent(row.before)
    if before == percent(row.after):
        return f"{gives}, as before"
    return f"{gives}, which is {'more' if row.after > row.before else 'less'} than before ({before})"


def _difference(row: Numbers) -> str:
    """How far it is from the never-knew model, and whether that can be chance."""
    points, verdict = abs(round(100 * (row.excess or 0))), row.verdict()
    if verdict is None or row.interval is None:
        return f"{row.facts} facts are too few to say whether that differs from the model that never knew."
    of_points = f"{points} point{'' if points == 1 else 's'}"
    low, high = row.interval
    if verdict == "open":
        return f"Its difference from the model that never knew can be chance ({_between(low, high)} points)."
    if verdict == "above":
        above = f"The {of_points} that it gives above the model that never knew"
        return f"{above} ({_between(low, high)}) were still in it."
    return f"That is {of_points} less than the model that never knew ({_between(-high, -low)})."


def _between(low: float, high: float) -> str:
    ends = f"{round(100 * low)} to {round(100 * high)}".replace("-", "\N{MINUS SIGN}")
    return f"95 % interval {ends}"


def _half(curve: Curve, half: float) -> str:
    """Between which measured steps it is half of what the original model is above the never-knew one."""
    lead = "half of the original model's lead over the model that never knew"
    if half <= curve.steps[0]:
        return f"It has {lead} before any training."
    before = max(step for step in curve.steps if step < half)
    after = min((step for step in curve.steps if step >= half), default=curve.steps[-1])
    return f"It reaches {lead} between step {before} and step {after}."


def _others(results: AttackResults, model: str) -> str:
    """Under how many of the other attacks it leaks more than the never-knew model, and which these are."""
    keys = [key for key in results.shown if key.partition("/")[0] not in (BEFORE, *results.curve_attacks)]
    if not keys or CONTROL not in results.models:
        return ""
    found: dict[str | None, list[str]] = {}
    for key in keys:
        verdict = results.rows[key][model].verdict_of_many(results.higher_is_leak(key))
        found.setdefault(verdict, []).append(results.label(key))
    told = [
        f"{text.format(model, len(found[verdict]))} ({', '.join(found[verdict])})"
        for verdict, text in _VERDICTS.items()
        if verdict in found
    ]
    numbers = "1 other number" if len(keys) == 1 else f"{len(keys)} other numbers"
    return f"{numbers}, compared with the model that never knew the facts: {'; '.join(told)}."


_VERDICTS: dict[str | None, str] = {
    "above": "{0} leaks more in {1}",
    "open": "the difference can be chance, given the number of tests, in {1}",
    "below": "{0} leaks less in {1}",
    None: "there are too few facts for a test in {1}",
}


def _percent(fraction: float | None) -> str:
    return "nothing" if fraction is None else percent(fraction)
