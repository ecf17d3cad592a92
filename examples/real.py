"""A language model of 135 million parameters forgets France and keeps the rest: bash examples/run_real.sh

On two processor cores: model, rows, stage 1, RULE, ReRULE, preference optimisation (PO), evaluation, attacks,
report (docs/real_model.md). What is already built in OUT is reused; delete that folder to start anew.

OUT      where everything goes (default: outputs/real)
MODEL    a folder of the model, where it is not to be fetched
SMOKE=1  a try: few rows, two steps a stage, one attack
--dry-run, or DRY_RUN=1: the commands are printed, and nothing is run or written
"""

from __future__ import annotations

from collections.abc import Sequence
from os import environ
from pathlib import Path

import pandas as pd

from examples import stages
from recipe.rerule import chain, io
from recipe.rerule.chain import Part
from recipe.rerule.runs import run_folder

ROWS = Path("examples/france.csv")
# In addition to experiment=custom and, for stage 2, experiment=forget. RULE and ReRULE are validated here,
# and the best checkpoints are compared.
CPU = ["platform=cpu", "platform.bf16=auto"]
PREPARE = ["--probe-share", "0.25", "--val-share", "0.2"]
STAGE2 = [
    *("trainer.logger=[file]", "trainer.total_training_steps=30", "trainer.test_freq=5"),
    *("trainer.val_before_train=true", "save.best=true", "save.minutes=null"),
]
PO = [
    *("optim.lr=3e-5", "data.train_batch_size=8", "trainer.total_epochs=20"),
    "checkpoint.save_contents=[hf_model]",
]
ATTACKS = ["prefill", "samples", "relearn_forget_half"]
# What SMOKE=1 adds.
TRY = {
    "prepare": ["--limit", "12", "--val-rows", "4"],
    "stage 1": ["trainer.total_training_steps=2"],
    "stage 2": ["data.train_batch_size=4", "trainer.total_training_steps=2", "trainer.test_freq=1"],
    "replay": [
        *("replay.admission=all", "replay.require_signal=false", "replay.min_groups=2"),
        *("replay.warmup_steps=1", "replay.groups_per_update=2"),
    ],
    "po": ["trainer.total_training_steps=2"],
}


def plan(out: Path, model: str, smoke: bool) -> list[Part]:
    """All parts, the model's where it is to be fetched."""
    data, tried, parts = out / "data", TRY if smoke else {key: list[str]() for key in TRY}, list[Part]()
    if not model:
        model = f"{out / 'model'}"
        parts += [stages.part("model", "the model", ["examples.real_model", "--out", model], False)]
    words = ["data_prep", "custom", "--source", ROWS, "--out", data, *PREPARE, *tried["prepare"]]
    does = "the rows: questions about France, which is to be forgotten, and about everything else"
    parts += [stages.part("data", does, words, (data / "manifest.json").exists())]
    first = ["experiment=custom", *CPU, *tried["stage 1"]]
    second = ["experiment=forget", *CPU, *STAGE2, *tried["stage 2"]]
    compared = ["method=po", "experiment=custom", *CPU, *PO, *tried["po"]]
    start = out / "stage1" / "model"
    files: dict[str, object] = {"model.path": model, "data.alternate": data / "alternate.parquet"}
    files["data.retain"] = out / "stage1" / "records" / "own_answers.parquet"
    unlearned = stages.models(rule=out / "rule", rerule=out / "rerule", po=out / "po" / "model")
    report = ["recipe.rerule.report", "--title", "France", "--results", out / "evaluation"]
    report += ["--attacks", out / "attacks", "--run", f"rule={out / 'rule'}"]
    report += ["--run", f"rerule={out / 'rerule'}", "--data", data, "--out", out / "report.html"]
    rule = "stage 2, RULE: GRPO with a reward for refusals about France and for right answers elsewhere"
    rerule = "stage 2, ReRULE: the same with replay of hard rollout groups"
    po = "PO, to compare with: fine-tuning on refusals and on the model's own right answers"
    asked = [*stages.models(base=model, stage1=start), *unlearned]
    attacked = [*stages.models(original=model), *unlearned, "--attacks", *(ATTACKS[:1] if smoke else ATTACKS)]
    return [
        *parts,
        stages.stage1(out, "stage1", model, data / "sft.parquet", first),
        stages.stage2(out, "rule", rule, start, data, [*second, "replay.enable=false"]),
        stages.stage2(out, "rerule", rerule, start, data, [*second, *tried["replay"]]),
        stages.fine_tuned("recipe.rerule.unlearn", out, "po", po, files, compared),
        stages.evaluation(out, "evaluation", "cpu", data, asked),
        stages.attacks(out, "cpu", data, attacked),
        stages.part("report", "report", report, (out / "report.html").exists()),
    ]


def script(dry: bool, doing: list[str]) -> int:
    """Exit code 0, or that of the part that failed. Raises ValueError, OSError."""
    out, model = Path(environ.get("OUT") or "outputs/real"), environ.get("MODEL", "")
    smoke = stages.switched_on("SMOKE")
    shaping = (CPU, PREPARE, STAGE2, PO, ATTACKS, TRY if smoke else None)
    rows = io.file_sha256(ROWS)
    kept = {"MODEL": model, "settings": f"{shaping}", "rows": rows}
    if out.is_dir() and any(out.iterdir()) and not (out / stages.SETTINGS).exists():
        raise ValueError(f"{out} was not made by this script: give another OUT, or delete {out}")
    stages.check_kept(out, kept)
    if dry:
        print(chain.printed(plan(out, model, smoke)))
        return 0
    with run_folder.held(out, "OUT"):
        stages.keep(out, kept)
        for part, code in chain.followed(lambda: plan(out, model, smoke), out, doing):
            if code:
                return code
            if part.name in ("model", "data"):
                environ["HF_HUB_OFFLINE"] = "1"
    stages.show(out / "report.md")
    show_answers(out / "evaluation", ["base", "rule", "rerule"])
    print(f"done; open {out / 'report.html'}")
    return 0


def show_answers(folder: Path, models: Sequence[str]) -> None:
    """Print the first two probes of each side of which the first model gave the whole right answer.

    `folder`: of `evaluate model`.
    """
    rows = pd.read_parquet(folder / "responses.parquet")
    asked = rows[rows["model"] == models[0]].sort_values("probe")
    answers = rows.set_index(["model", "probe"])["response"]
    width = max(map(len, models))
    for probe in asked[asked["rouge_l"] == 1].groupby("side").head(2).itertuples():
        print(f"\n{probe.prompt}  [{probe.side}]")
        for model in models:
            print(f"  {model:{width}}  {' '.join(answers[model, probe.probe].split())}")


if __name__ == "__main__":
    stages.main(script)
