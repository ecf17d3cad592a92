"""Forget two people and keep everyone else, on a laptop: bash examples/quickstart.sh

World, stage 1, RULE, ReRULE, evaluation, attacks, report (docs/quickstart.md). What is already built in OUT
(default: outputs/quickstart) is reused; delete that folder to start anew.
"""

from __future__ import annotations

from os import environ
from pathlib import Path

from examples import stages
from recipe.rerule import chain, io
from recipe.rerule.chain import Part
from recipe.rerule.runs import run_folder

BUILT = "built_from.json"
"""In OUT: the manifest of the world that what is there was built from."""
MADE = ("stage1", "rule", "rerule", "evaluation", "attacks", "report.html", "report.md", "report")
ATTACKS = ("prefill", "samples", "quantise_4", "relearn_forget_half")


def plan(out: Path) -> list[Part]:
    """All parts."""
    world, start, page = out / "world", out / "stage1" / "model", out / "report.html"
    second = ["experiment=tiny", "trainer.logger=[file]", "trainer.resume_mode=auto"]
    unlearned = stages.models(rule=out / "rule", rerule=out / "rerule")
    asked = [*stages.models(base=world / "model", stage1=start), *unlearned]
    attacked = [*stages.models(original=world / "model"), *unlearned, "--control", world / "retain_model"]
    report = ["recipe.rerule.report", "--results", out / "evaluation", "--attacks", out / "attacks"]
    report += ["--run", f"rule={out / 'rule'}", "--run", f"rerule={out / 'rerule'}", "--data", world]
    newer = page.exists() and all(
        (out / of).exists() and (out / of).stat().st_mtime <= page.stat().st_mtime
        for of in ("evaluation/results.json", "attacks")
    )
    does = "the world: fictional people, a small model trained from scratch to know them, and one that never "
    does += "knew two"
    rule = "stage 2, RULE: refusal boundary optimisation with GRPO"
    rerule = "stage 2, ReRULE: the same with replay of hard rollout groups"
    return [
        stages.part("world", does, ["data_prep", "world", "--out", world, "--retain-model"], False),
        stages.stage1(out, "stage1", world / "model", world / "sft.parquet", ["experiment=tiny"]),
        stages.stage2(out, "rule", rule, start, world, [*second, "replay.enable=false"]),
        stages.stage2(out, "rerule", rerule, start, world, second),
        stages.evaluation(out, "evaluation", "cpu", world, asked),
        stages.attacks(out, "cpu", world, [*attacked, "--attacks", *ATTACKS]),
        stages.part("report", "report", [*report, "--out", page, "--overwrite"], newer),
    ]


def script(dry: bool, doing: list[str]) -> int:
    """Exit code 0, or that of the part that failed. Raises ValueError, OSError."""
    out = Path(environ.get("OUT") or "outputs/quickstart")
    if dry:
        print(chain.printed(plan(out)))
        return 0
    if not (out / BUILT).exists():
        for name in MADE:
            if (out / name).exists() or (out / name).is_symlink():
                raise ValueError(f"{out / name} is there, and no quickstart made it: give another OUT")
    environ["HF_HUB_OFFLINE"] = "1"
    with run_folder.held(out, "OUT"):
        for part, code in chain.followed(lambda: plan(out), out, doing):
            if code:
                return code
            if part.name == "world":
                check_world(out)
    stages.show(out / "report.md")
    print(f"done; open {out / 'report.html'}")
    return 0


def check_world(out: Path) -> None:
    """Raises ValueError where what is in `out` was built from another world than the one there now."""
    manifest = (out / "world" / "manifest.json").read_bytes()
    if not (out / BUILT).exists():
        io.write(out / BUILT, manifest)
    if (out / BUILT).read_bytes() != manifest:
        told = f"what is in {out} was built from another world than {out / 'world'}"
        raise ValueError(f"{told}: give another OUT, or delete {out}")


if __name__ == "__main__":
    stages.main(script)
