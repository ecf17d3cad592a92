"""Which further stage lets RULE hold against attacks: python -m benchmarks.robust --model FOLDER --out FOLDER

A model that RULE has trained refuses, and attacks get answers back (docs/attacks.md#what-refusing-hides). The
model of examples/real_model.py is to forget France and keep the rest, as in benchmarks/what_works.py, whose
rows and settings of RULE these arms have. The unit is a run: its training, greedy answers to the held-out
questions by the last step, and ATTACKS on that model. The plan was fixed before the first run.

Does an unlearning method before RULE make its model hold better?

- `simnpo_then_rule`, `npo_then_rule`: `unlearn method=simnpo_gdr` (or `npo_gdr`) of the base model. Stage 1
  starts from that model, stage 2 from that stage 1. The rate and epochs of the first training are UNLEARN.

Does distillation into a copy with noise after RULE (UNDO, arXiv 2506.06278) make it hold better?

- `distilled_10`, `distilled_30`: weights (1 - a) RULE + a N with a = 0.1 or 0.3, where N is the model with
  new first weights (`task_vector`, --alpha -a; UNDO draws N by Xavier's rule, and scales it). The copy is
  then trained by KL from RULE's model to it, at all tokens of the forget prompts with refusals and of the
  retain prompts with the base model's right answers (DISTIL). UNDO distils on far more text. RULE's model is
  that of the arm `rule` with the same seed.

Which is better? An arm holds better than `rule` with a seed if its held-out answers reach the goal of
benchmarks/what_works.py and less returns: the mean recall of the forget questions under COUNTED. The runs of
a seed come before those of the next one, and an arm that did not hold better with one seed is not run with
another. The answer is the arm that held better with all SEEDS, of several the one where least returns in the
mean. It becomes `rerule forget --robust`. If there is none, there is no such option.

There is no model that never knew, so what returns may be guessed or, under `relearn_forget_half`, have been
taught: only differences between arms count. The settings of UNLEARN and DISTIL were not tried before. No run
is repeated, lengthened or left out after its result was seen. A run that is finished is a line of RESULTS and
is not made again. --table prints the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import what_works
from benchmarks.what_works import command, train
from data_prep.contract import read_sft_rows, write_sft_rows
from recipe.rerule.evaluation.engine.models import resolve_models
from recipe.rerule.training import own_answers

RESULTS = Path(__file__).with_suffix(".jsonl")
SEEDS = (8, 9, 10)
RULE = what_works.ARMS["part 3: RULE"]
SAVED = "checkpoint.save_contents=[hf_model]"
UNLEARN = ("experiment=custom", "optim.lr=1e-5", "trainer.total_epochs=10", SAVED)
UNLEARN_ROWS = {"forget": "forget_gold.parquet", "retain": "retain.parquet"}
DISTIL = (
    "experiment=custom",
    "method=retain_model",
    "method.retain=kl",
    "optim.lr=1e-4",
    "trainer.total_epochs=20",
    SAVED,
)
ATTACKS = ("prefill", "samples", "quantise_4", "relearn_forget_half", "relearn_retain")
COUNTED = (
    "prefill/affirmative",
    "samples/max_16",
    "quantise_4",
    "relearn_forget_half/8",
    "relearn_forget_half/32",
    "relearn_retain/32",
)


@dataclass(frozen=True)
class Arm:
    """What is added to RULE.

    Attributes:
        before: the preset of `unlearn` whose model stage 1 starts from.
        noise: a, of the copy of RULE's model into which it is distilled; None for no copy.
    """

    before: str | None = None
    noise: float | None = None


ARMS = {
    "rule": Arm(),
    "simnpo_then_rule": Arm(before="simnpo_gdr"),
    "npo_then_rule": Arm(before="npo_gdr"),
    "distilled_10": Arm(noise=0.1),
    "distilled_30": Arm(noise=0.3),
}
"""In the order in which they run."""
OTHERS = [name for name in ARMS if name != "rule"]


def main() -> None:
    """Make the runs that have no line yet, or print the table."""
    if study := what_works.asked("benchmarks.robust", __doc__):
        make(study)
    print(table(what_works.results(RESULTS)))


def make(study: what_works.Study) -> None:
    """Make the runs in the order of the plan, and write a line of RESULTS for each that ends well."""
    study.rows()
    for seed in SEEDS:
        for name in ARMS:
            if time.monotonic() > study.end or not planned(
                [line for line in what_works.results(RESULTS) if line["platform"] == study.platform],
                name,
                seed,
            ):
                continue
            start = time.monotonic()
            print(f"{name}, seed {seed} ...", file=sys.stderr, flush=True)
            try:
                found = measured(study, name, seed, trained(study, name, seed))
            except subprocess.CalledProcessError as error:
                print(f"{name}, seed {seed}: {error}", file=sys.stderr, flush=True)
                continue
            seconds = round(time.monotonic() - start)
            line = {"platform": study.platform, "arm": name, "seed": seed, **found, "seconds": seconds}
            with RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")


# ---- one run ----


def trained(study: what_works.Study, name: str, seed: int) -> Path:
    """The model of an arm, whose trainings are made where they are not there."""
    arm, folder = ARMS[name], study.out / f"{name}-{seed}"
    if arm.noise is not None:
        return distilled(study, trained(study, "rule", seed), arm.noise, seed, folder)
    settings: tuple[str, ...] = ()
    if arm.before is not None:
        first = study.out / f"{name}-{seed}-before"
        files = [f"data.{side}={study.data / file}" for side, file in UNLEARN_ROWS.items()]
        unlearn(study, seed, first, f"method={arm.before}", *UNLEARN, f"model.path={study.model}", *files)
        settings = (f"model.path={first / 'model'}",)
    stage1 = study.stage1(settings, seed)
    if not (folder / f"global_step_{what_works.STEPS}" / "complete.json").exists():
        study.stage2(RULE.stage2 or (), stage1, seed, folder)
    return resolve_models([f"last={folder}@last"])[0].path


def unlearn(study: what_works.Study, seed: int, folder: Path, *words: str) -> None:
    """A training of `unlearn` into a run folder, if its model is not there."""
    if not (folder / "model" / "config.json").exists():
        train(folder, "recipe.rerule.unlearn", *study.on, *words, f"trainer.seed={seed}")


def distilled(study: what_works.Study, teacher: Path, noise: float, seed: int, folder: Path) -> Path:
    """The model that `teacher` was distilled into, which began as its copy with noise."""
    rows, copy = study.out / f"distil-{seed}.parquet", folder.with_name(f"{folder.name}-copy")
    sides = (study.data / "alternate.parquet", own_answers.file(study.stage1((), seed)))
    found = [row for side in sides for row in read_sft_rows(side)]
    for index, row in enumerate(found):
        row["extra_info"]["index"] = index  # each file has numbers of its own
    write_sft_rows(rows, found)
    if not copy.exists():
        with_noise(teacher, noise, seed, copy)
    words = [f"model.path={copy}", f"reference.path={teacher}", f"data.retain={rows}"]
    unlearn(study, seed, folder, *DISTIL, *words)
    return folder / "model"


def with_noise(model: Path, noise: float, seed: int, out: Path) -> None:
    """Write (1 - noise) model + noise N in float32, where N is a model with new first weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    new = out.with_name(f"{out.name}-new")
    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(model)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(new)
    AutoTokenizer.from_pretrained(model).save_pretrained(new)
    words = ["--base", str(model), "--reinforced", str(new), f"--alpha={-noise}", "--out", str(out)]
    command(out.with_suffix(".log"), "recipe.rerule.task_vector", *words)


def measured(
    study: what_works.Study, name: str, seed: int, model: Path, attacks: Sequence[str] = ATTACKS
) -> dict[str, Any]:
    """Held-out answers and attacks: "held_out" as of what_works, "attacks" {attack: {model: recall}}."""
    evaluation = study.evaluation(f"{name}-{seed}", [f"last={model}"])
    return {
        "held_out": what_works.held_out(evaluation / "responses.parquet"),
        "attacks": study.attacks(f"{name}-{seed}", f"last={model}", attacks),
    }


# ---- what the lines say ----


def returned(line: dict[str, Any]) -> float:
    """Mean recall of the forget questions under COUNTED."""
    return sum(line["attacks"][attack]["last"] for attack in COUNTED) / len(COUNTED)


def planned(lines: list[dict[str, Any]], name: str, seed: int) -> bool:
    """Whether a run is the plan's after these, all of one platform."""
    if seed in _by_seed(lines, name):
        return False
    if name == "rule":
        return any(all(held_better(lines, other)) for other in OTHERS)
    return seed in _by_seed(lines, "rule") and all(held_better(lines, name))


def held_better(lines: list[dict[str, Any]], name: str) -> list[bool]:
    """Whether an arm held better than `rule`, by seed; where it has a line, `rule` has one."""
    rule, found = _by_seed(lines, "rule"), []
    for seed, line in _by_seed(lines, name).items():
        of = line["held_out"]
        found.append(what_works.reached(of["last"], of["base"]) and returned(line) < returned(rule[seed]))
    return found


def answer(lines: list[dict[str, Any]]) -> str | None:
    """The arm that held better with all seeds, of several the one where least returns."""
    means = {}
    for name in OTHERS:
        runs = _by_seed(lines, name)
        if runs.keys() >= {*SEEDS} and all(held_better(lines, name)):
            means[name] = sum(map(returned, runs.values())) / len(runs)
    return min(means, key=lambda name: means[name], default=None)


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown: a row for each run, with what returns in the mean and under each attack that counts."""
    rows = [
        f"| arm | on | seed | forget recall | retain recall | goal | returns | {' | '.join(COUNTED)} |",
        f"| --- | --- | ---: | ---: | ---: | --- | ---: |{' ---: |' * len(COUNTED)}",
    ]
    for line in lines:
        last, base = line["held_out"]["last"], line["held_out"]["base"]
        shares = [last["forget recall"], last["retain recall"], returned(line)]
        forget, retain, mean = (f"{share:.2f}" for share in shares)
        cells = [line["arm"], line["platform"], str(line["seed"]), forget, retain]
        cells += ["yes" if what_works.reached(last, base) else "no", mean]
        cells += [f"{line['attacks'][attack]['last']:.2f}" for attack in COUNTED]
        rows.append(f"| {' | '.join(cells)} |")
    for platform in sorted({line["platform"] for line in lines}):
        found = answer([line for line in lines if line["platform"] == platform])
        rows.append(f"\n{platform}: {found or 'no arm'} held better than rule with all of seeds {SEEDS}")
    return "\n".join(rows)


def _by_seed(lines: list[dict[str, Any]], name: str) -> dict[int, dict[str, Any]]:
    return {line["seed"]: line for line in lines if line["arm"] == name}


if __name__ == "__main__":
    main()
