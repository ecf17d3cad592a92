"""Does replay of hard groups help on a real model? python -m benchmarks.evidence --model FOLDER --out FOLDER

The plan was fixed before the first run that it counts.

The world. The model of examples/real_model.py is to forget France. Every retain row for training gets a
second row, which names France and asks about something else (ROWS): a hard boundary, since the name no longer
tells the sides apart. Stage 1 is the paper's, refusals alone (STEERING). Runs of RULE alone on an H100, with
rows sorted by length, chose this world. They are the lines of RESULTS whose arm begins with "world": `start`
is the model of stage 1, all answers are to the questions for validation, and `hard` is the share of groups
with a mean reward below 0.6, the paper's tau, in steps 7 to 10 and in the last ten. Wanted was the paper's
regime: a third of the retain side refused at the start, half of the groups hard when replay begins, and a
fifth to a half at the end. The runs of this stage 1 had .32, .67 to .89, and .19 to .57. Those with own
answers beside the refusals had .00 and .29, .47 to .70, and .21 to .41. (Seeds 30 and 31 of the first share a
stage-1 model, since stage 1 without own answers did not follow its seed then.)

The unit is a stage-1 model, of the seeds SEEDS. RULE makes 30 steps of what_works' sizes, eight optimiser
steps each. The other arms have these settings too, and what ARMS adds:

- `equal_updates`: the extra update on as many of the step's own groups, from the same step on as `paper`.
- `paper`: tau, B_min (as a share of the groups until T_warm) and the draw of the paper's RWKU.
- `random` stores as many groups as are hard, chosen at random. It takes the rate of `paper`.
- `default`: the default replay.
- METHODS use no reinforcement. They train the base model, with its own answers to the retain rows. They and
  `random` have the first FEW seeds. Their models do not depend on a stage 1. (`altpo` was added because it
  kept the sides apart best in benchmarks.methods.)

Rates. Every arm is trained once with each of its RATES, from a stage-1 model of the seed TUNING, and takes
the rate with the highest score on the questions for validation; of equal scores the smallest.

The score of a run is the mean of 1 - forget recall, retain recall, and 1 - the share refused of the retain
questions in the words "This is not about France. ...", of greedy answers of the last step's model to the
held-out questions. These words are in no training row.

Counted models are also attacked (ATTACKS): the recall of the forget questions behind an answer's beginning,
of the best of 16 samples, and after 8 and 32 steps of relearning on the other half of the facts. Nothing is
tested there. No model never knew France, so that only differences count.

1. Primary: is `paper` better than `equal_updates`? An exact test flips the signs of the differences of
   the models (two-sided). Six models reach p = 0.031, and only where all differences have one sign. So the
   seeds after the first FEW are run only while every earlier seed has a difference, and all differences of
   them, of both platforms, have one sign: else the answer is no.
2. The same of `default` and `equal_updates`, then of `paper` and `rule`. Each is tested at 0.05 if those
   before it were shown, so no correction is due. All other differences are described and not tested.
3. Why: `metrics` of a line has the means of what the run logs of replay over its last REWARD_STEPS steps.

If 1 is yes, `rerule forget --method rerule` takes the paper's replay. If 1 is no and `equal_updates` has a
higher mean than both replays, the documents say that equal updates are the better use of the same work.

A run is a line of RESULTS and is not made again, lengthened or left out after its result was seen. Another
machine may train another stage-1 model, which is another unit: `stage1` says which. All arms of a seed, and
all tuning runs of an arm, have one stage-1 model. Where a machine left them unfinished and the model of
another one differs, that one begins them anew, and what was finished counts as one more model. A run that
fails is tried again by the next command. An arm has no counted run before all of its tuning runs have ended
well, and the tables say which arms have none.
--table prints the tables.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from benchmarks import what_works
from benchmarks.what_works import RATE, REWARD_STEPS, STEPS, UPDATE_PROMPTS, Study, train
from recipe.rerule.training import own_answers
from recipe.rerule.unlearning import presets

RESULTS = Path(__file__).with_suffix(".jsonl")
ROWS = (*what_works.ROWS, "--keyword", "France", "--named-share", "1")
STEERING = ("data.retain_share=0",)
TAU = 0.6
TUNING, SEEDS, FEW = 20, (21, 22, 23, 24, 25, 26), 3
_PAPER = (
    "replay.enable=true",
    "replay.threshold_rule=fixed",
    f"replay.threshold={TAU}",
    "replay.require_signal=false",
    "replay.sampling=uniform",
    "replay.warmup_steps=8",
    "replay.min_groups=27",  # a fifth of the 128 groups of 8 steps
)
ARMS = {
    "rule": ("replay.enable=false",),
    "equal_updates": (*_PAPER, "replay.update=on_policy"),
    "paper": _PAPER,
    "default": ("replay.enable=true",),
    "random": (*_PAPER, "replay.admission=random"),
}
FULL = ("rule", "equal_updates", "paper", "default")
"""With all seeds; each has its own rate."""
METHODS = ("po", "altpo", "npo_gdr", "simnpo_gdr", "ga_gdr", "dpo_gdr")
RATES = {**dict.fromkeys(FULL, (1e-5, 2e-5, 4e-5)), **dict.fromkeys(METHODS, (1e-5, 3e-5))}
ATTACKS = ("prefill", "samples", "relearn_forget_half")
SHOWN = ("prefill/affirmative", "samples/max_16", "relearn_forget_half/8", "relearn_forget_half/32")
"""Of the attacks, in the tables."""
METHOD = (
    "experiment=custom",
    "data.train_batch_size=8",
    "trainer.total_epochs=20",
    "checkpoint.save_contents=[hf_model]",
)
STAGE1 = "stage 1"
CONTRASTS = (("paper", "equal_updates"), ("default", "equal_updates"), ("paper", "rule"))
"""In the order of their tests; the primary one first."""
_UNIT = ["seed", "stage1", "platform"]


def main() -> None:
    """Make the runs that have no line yet, or print the tables."""
    study = what_works.asked("benchmarks.evidence", __doc__, ROWS)
    failed = make(study) if study else set[str]()
    print("\n".join(tables(what_works.results(RESULTS))))
    if failed:
        sys.exit(f"failed, and tried again by the same command: {', '.join(sorted(failed))}")


def planned(lines: list[dict[str, Any]], every: list[dict[str, Any]]) -> Iterator[tuple[str, float, int]]:
    """(arm, rate, seed) of the runs in their order; those after tuning, once the rate of the arm is chosen.

    Args:
        lines: of the runs that need not be made here.
        every: of all runs, which the rule of stopping looks at.
    """
    for arm, rates in RATES.items():
        yield from ((arm, rate, TUNING) for rate in rates)
    have_rate = tuned(lines)
    for number, seed in enumerate(SEEDS):
        before = differences([line for line in every if line["seed"] < seed], *CONTRASTS[0])
        seeds = {of for of, *_ in before.index}
        if number >= FEW and (len(seeds) < number or before.min() <= 0 <= before.max()):
            return
        for arm in arms_of(seed):
            if arm == STAGE1:
                yield arm, 0.0, seed
            elif rated(arm) in have_rate:
                yield arm, chosen(lines, arm), seed


def tuned(lines: list[dict[str, Any]]) -> set[str]:
    """The arms all of whose tuning runs have ended well."""
    runs = {(line["arm"], line["rate"]) for line in lines if line["seed"] == TUNING}
    return {arm for arm, rates in RATES.items() if {(arm, rate) for rate in rates} <= runs}


def rated(arm: str) -> str:
    """The arm whose rate an arm has."""
    return "paper" if arm == "random" else arm


def arms_of(seed: int) -> list[str]:
    """The arms of a counted seed, in their order."""
    few = seed in SEEDS[:FEW]
    return [STAGE1, *(arm for arm in [*ARMS, *METHODS] if few or arm in FULL)]


def usable(lines: list[dict[str, Any]], study: Study) -> list[dict[str, Any]]:
    """The lines whose runs need not be made here: those of this platform that need no further run of theirs.

    The further runs of a line are those that must have its stage-1 model: of its seed or, in tuning, its arm.
    They may be missing where that model is here.
    """
    own = [line for line in lines if line["platform"] == study.platform]

    def together(line: dict[str, Any]) -> tuple[Any, ...]:
        return (line["stage1"], line["seed"], line["arm"] if line["seed"] == TUNING else "")

    runs = defaultdict[tuple[Any, ...], set[Any]](set)
    for line in own:
        runs[together(line)].add(line["rate"] if line["seed"] == TUNING else line["arm"])
    found = []
    for line in own:
        arm, seed = line["arm"], line["seed"]
        wanted = {*RATES.get(arm, ())} if seed == TUNING else {*arms_of(seed)} - {*METHODS}
        here = study.stage1_folder(STEERING, seed)
        if (
            arm in METHODS
            or wanted <= runs[together(line)]
            or ((here / "model" / "config.json").exists() and what_works.weights_hash(here) == line["stage1"])
        ):
            found.append(line)
    return found


def chosen(lines: list[dict[str, Any]], arm: str) -> float:
    """The rate of an arm with the highest score of the tuning runs, of several the smallest."""
    scores = {
        line["rate"]: round(score(line), 9)
        for line in lines
        if line["seed"] == TUNING and line["arm"] == rated(arm)
    }
    return max(sorted(scores), key=lambda rate: scores[rate])


def score(line: dict[str, Any], model: str = "last") -> float:
    """The score of a run, 0 to 1."""
    shares, refused = line["held_out"][model], line["over_refusal"][model]["named"]
    return float((1 - shares["forget recall"] + shares["retain recall"] + 1 - refused) / 3)


# ---- the runs ----


def make(study: Study) -> set[str]:
    """Make the runs that have no line, one at a time, and write a line for each that ends well.

    Returns those that failed.
    """
    study.rows()
    failed = dict[tuple[str, float, int], str]()
    while time.monotonic() < study.end:
        lines = usable(every := what_works.results(RESULTS), study)
        done = {(line["arm"], line["rate"], line["seed"]) for line in lines}
        run = next((one for one in planned(lines, every) if one not in {*done, *failed}), None)
        if run is None:
            break
        arm, rate, seed = run
        start = time.monotonic()
        print(f"{arm}, rate {rate:g}, seed {seed} ...", file=sys.stderr, flush=True)
        try:
            first = study.stage1_folder(STEERING, seed)
            if arm not in METHODS and not (first / "model" / "config.json").exists():
                study.stage1(STEERING, seed)
                continue  # lines of another machine count where this is their model
            line = made(study, *run)
        except subprocess.CalledProcessError as error:
            print(error, file=sys.stderr, flush=True)
            failed[run] = f"{arm} of rate {rate:g} and seed {seed}"
            continue
        with RESULTS.open("a") as file:
            file.write(json.dumps({**line, "seconds": round(time.monotonic() - start)}) + "\n")
    return {*failed.values()}


def made(study: Study, arm: str, rate: float, seed: int) -> dict[str, Any]:
    """The line of a run, without its seconds. Raises CalledProcessError where a command fails."""
    first = study.stage1((), TUNING) if arm in METHODS else study.stage1(STEERING, seed)
    folder = study.out / f"{arm}-{rate:g}-{seed}".replace(" ", "_")
    model, metrics = f"last={first / 'model'}", dict[str, float]()
    if arm in METHODS:
        rows = {side: study.data / file for side, file in presets.answer_files(arm).items()}
        rows["retain"] = own_answers.file(first)
        files = [f"data.{side}={file}" for side, file in rows.items()]
        words = [f"method={arm}", *METHOD, *files, f"model.path={study.model}", f"optim.lr={rate}"]
        train(folder, "recipe.rerule.unlearn", *study.on, *words, f"trainer.seed={seed}")
        model = f"last={folder / 'model'}"
    elif arm != STAGE1:
        study.stage2((*ARMS[arm], f"{UPDATE_PROMPTS}=2", f"{RATE}={rate}"), first, seed, folder)
        model, metrics = f"last={folder}@last", of_replay(folder)
    rows_of = "val" if seed == TUNING else "probes"
    asked = study.evaluation(folder.name, [model], rows_of)
    refused = study.over_refusal(folder.name, [model], rows_of)
    attacked = {} if seed == TUNING else study.attacks(folder.name, model, ATTACKS)
    for weights in (*folder.glob("global_step_*"), *([folder / "model"] if arm in METHODS else [])):
        shutil.rmtree(weights)
    return {
        "platform": study.platform,
        "arm": arm,
        "rate": rate,
        "seed": seed,
        "stage1": what_works.weights_hash(first),
        "held_out": what_works.held_out(asked / "responses.parquet"),
        "over_refusal": refused,
        "attacks": attacked,
        "reward": what_works.reward(folder) if arm in ARMS else None,
        "hard": hard(folder) if arm in ARMS else None,
        "metrics": metrics,
    }


def hard(run: Path) -> dict[str, float]:
    """The share of groups whose mean reward is below tau, when replay begins and at the end."""
    groups = pd.DataFrame(
        (line["step"], sum(group["rewards"]) / len(group["rewards"]) < TAU)
        for line in map(json.loads, (run / "records" / "prompts.jsonl").open())
        for group in line["prompts"]
    )
    when = {"when replay begins": (7, 10), "last steps": (STEPS - REWARD_STEPS + 1, STEPS)}
    return {name: round(groups[1][groups[0].between(*of)].mean(), 4) for name, of in when.items()}


def of_replay(run: Path) -> dict[str, float]:
    """Means of what was logged about replay, KL, clips and tokens, over the last REWARD_STEPS steps."""
    lines = [json.loads(line)["data"] for line in (run / "records" / "metrics.jsonl").open()]
    steps = pd.DataFrame([line for line in lines if "reward/forget/mean" in line][-REWARD_STEPS:])
    wanted = steps.filter(
        regex=r"^(replay/(?!seconds|evicted)|actor/(ppo_kl|kl_loss|pg_clipfrac)|perf/total_num_tokens)"
    )
    return {name: round(mean, 5) for name, mean in wanted.mean().items()}


# ---- what the lines say ----


def tables(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: the tuning runs, each arm over its models, the tests, and every counted run."""
    if worlds := [_world(line) for line in lines if line["arm"].startswith("world")]:
        yield from markdown(pd.DataFrame(worlds), 2)
    yield "\n| arm | rate | score on validation questions |\n|---|---:|---:|"
    for line in lines:
        if line["seed"] == TUNING:
            yield f"| {line['arm']} | {line['rate']:g} | {score(line):.3f} |"
    if untuned := [arm for arm in RATES if arm not in tuned(lines)]:
        yield f"\nwithout a rate, and therefore without a counted run: {', '.join(untuned)}"
    shares = pd.DataFrame([_cells(line) for line in lines if line["seed"] in SEEDS])
    if shares.empty:
        return
    means = shares.drop(columns=["seed", "stage1", "platform"]).groupby("arm", sort=False).mean()
    yield from markdown(means.reset_index(), 3)
    shown = True
    for one, other in CONTRASTS:
        if (found := differences(lines, one, other)).empty:
            shown = False
            continue
        told, p_value = "described and not tested", flips(found)
        if shown:
            told, shown = f"p = {p_value:.4f}", p_value < 0.05
        models = " ".join(f"{seed}: {of:+.3f}" for (seed, *_), of in found.items())
        yield f"\n{one} - {other}: {found.mean():+.3f} ({models}), {told}, {len(found)} models"
    yield from markdown(shares, 2)


def markdown(frame: pd.DataFrame, digits: int) -> Iterator[str]:
    """The lines of a table, after an empty one; numbers that are no whole ones have `digits` decimals."""
    yield f"\n| {' | '.join(frame)} |"
    yield f"|{'---|' * len(frame.columns)}"
    for row in frame.itertuples(index=False):
        cells = [f"{cell:.{digits}f}" if isinstance(cell, float) else str(cell) for cell in row]
        yield f"| {' | '.join(cells)} |"


def differences(lines: list[dict[str, Any]], one: str, other: str) -> pd.Series:
    """Score of an arm minus that of another, by (seed, stage-1 model, platform), of the counted runs."""
    scores = pd.DataFrame(
        {**{name: line[name] for name in ("arm", *_UNIT)}, "score": score(line)}
        for line in lines
        if line["seed"] in SEEDS and line["arm"] in (one, other)
    )
    if scores.empty:
        return pd.Series(dtype=float)
    scores = scores.drop_duplicates(["arm", *_UNIT])
    wide = scores.pivot(index=_UNIT, columns="arm", values="score").reindex(columns=[one, other])
    return (wide[one] - wide[other]).dropna().round(9)  # equal shares have no sign


def flips(found: pd.Series) -> float:
    """The two-sided p-value of an exact test that flips the signs of differences; 1 of a single one."""
    if len(found) < 2:
        return 1.0
    test = stats.permutation_test(
        (found,), lambda of, axis: of.mean(axis=axis), permutation_type="samples", n_resamples=10**6
    )
    return float(test.pvalue)


def _world(line: dict[str, Any]) -> dict[str, Any]:
    cells = {"arm": line["arm"], "rate": f"{line['rate']:g}", "seed": line["seed"]}
    for name in ("start", "last"):
        cells |= {f"{name}: {of}": line["held_out"][name][of] for of in ("forget recall", "retain refused")}
    return cells | {f"hard {when}": share for when, share in line["hard"].items()}


def _cells(line: dict[str, Any]) -> dict[str, Any]:
    refused = {f"{kind} refused": share for kind, share in line["over_refusal"]["last"].items()}
    return {
        "arm": line["arm"],
        "seed": line["seed"],
        "stage1": line["stage1"],
        "platform": line["platform"],
        "score": score(line),
        **line["held_out"]["last"],
        **refused,
        **{attack: line["attacks"][attack]["last"] for attack in SHOWN},
        "minutes": line["seconds"] / 60,
    }


if __name__ == "__main__":
    main()
