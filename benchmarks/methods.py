"""What each unlearning method does to a real model: python -m benchmarks.methods --model FOLDER --out FOLDER

The model of examples/real_model.py is to forget France, with the rows of benchmarks/what_works.py. Each of
METHODS is trained by `unlearn` at each of RATES, for EPOCHS epochs of the forget rows. Where a method reads
retain rows, they are the model's own right answers. The rate is the one that `rerule tune` takes: it has the
highest retain recall minus forget recall on the questions for validation; of equal ones it is the smallest.
That model is asked the held-out questions, and attacked with ATTACKS. All other settings are the presets',
several of which were made for models of 7 B parameters.

A method has one run at its rate. The table says what a method does here, and not that it is better than
another: benchmarks/evidence.py compares. The plan was fixed before the first run, and no run is repeated,
lengthened or left out after its result was seen. A method that is finished is a line of RESULTS and is not
made again. --table prints the table.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import robust, what_works
from benchmarks.what_works import Study
from recipe.rerule import tune
from recipe.rerule.training import own_answers
from recipe.rerule.unlearning import presets

RESULTS = Path(__file__).with_suffix(".jsonl")
SEED, EPOCHS, RATES = 40, 10, (1e-5, 3e-5, 1e-4)
METHODS = (
    "ga_gdr", "wga_gdr", "satimp_gdr", "npo_gdr", "simnpo_gdr", "dpo_gdr", "altpo", "undial_gdr", "ceu_gdr",
    "pdu", "rmu", "po", "mismatch", "llmu", "sga", "flat", "whp", "rejection_steering",
)  # fmt: skip
"""In their forms with retain rows, where they have one."""
ATTACKS = ("samples", "relearn_forget_half")
SHOWN = ("samples/max_16", "relearn_forget_half/8")
SETTINGS = ("experiment=custom", f"trainer.total_epochs={EPOCHS}", "checkpoint.save_contents=[hf_model]")


def main() -> None:
    """Make the lines that are missing, or print the table."""
    if study := what_works.asked("benchmarks.methods", __doc__):
        make(study)
    print(table(what_works.results(RESULTS)))


def make(study: Study) -> None:
    """Make the methods that have no line, one at a time, and write a line for each that ends well."""
    study.rows()
    done = {line["method"] for line in what_works.results(RESULTS)}
    for method in METHODS:
        if method in done or time.monotonic() > study.end:
            continue
        start = time.monotonic()
        print(f"{method} ...", file=sys.stderr, flush=True)
        try:
            line = made(study, method)
        except subprocess.CalledProcessError as error:
            print(f"{method}: {error}", file=sys.stderr, flush=True)
            continue
        line |= {"platform": study.platform, "seconds": round(time.monotonic() - start)}
        with RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")


def made(study: Study, method: str) -> dict[str, Any]:
    """The line of a method, without its seconds. Raises CalledProcessError where a command fails."""
    rows = {side: study.data / file for side, file in presets.answer_files(method).items()}
    kept = own_answers.file(study.stage1((), SEED))
    rows |= {"retain": kept} if "retain" in rows else {}
    words = [f"method={method}", *SETTINGS, f"model.path={study.model}"]
    words += [f"data.{side}={file}" for side, file in rows.items()]
    if method == "whp":
        more = [*SETTINGS, f"model.path={study.model}", f"data.retain={rows['forget']}"]
        further = study.out / "reinforced"
        robust.unlearn(study, SEED, further, "method=retain_model", *more, "optim.lr=3e-5")
        words.append(f"reinforced.path={further / 'model'}")
    folders = {rate: study.out / f"{method}-{rate:g}" for rate in RATES}
    for rate, folder in folders.items():
        robust.unlearn(study, SEED, folder, *words, f"optim.lr={rate}")
    models = [f"{rate:g}={folder / 'model'}" for rate, folder in folders.items()]
    tuned = study.out / f"evaluation-tune-{method}"
    if not tuned.exists():
        study.evaluation(f"tune-{method}", models, "val")
    validation = what_works.held_out(tuned / "responses.parquet")
    rate = tune.best_rate(validation, RATES)
    line = {"method": method, "rate": rate, "validation": validation}
    line |= robust.measured(study, method, SEED, folders[rate] / "model", ATTACKS)
    for folder in folders.values():
        shutil.rmtree(folder)
    return line


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown: a row for each finished method, and the base model before them."""
    columns = ("forget recall", "forget refused", "retain recall", "retain refused")
    found = [
        f"| method | rate | {' | '.join(columns)} | best of 16 samples | after 8 steps of relearning |",
        f"|---|---:|{'---:|' * (len(columns) + len(SHOWN))}",
    ]
    for line in lines:
        for of in ("base", "last")[line is not lines[0] :]:
            shares = [line["held_out"][of][column] for column in columns]
            shares += [line["attacks"][attack]["original" if of == "base" else of] for attack in SHOWN]
            name, rate = ("base model", "") if of == "base" else (f"`{line['method']}`", f"{line['rate']:g}")
            found.append(f"| {name} | {rate} | {' | '.join(f'{share:.2f}' for share in shares)} |")
    return "\n".join(found)


if __name__ == "__main__":
    main()
