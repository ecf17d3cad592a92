"""A benchmark at the paper's settings, from its files to a report: bash examples/run_NAME.sh [--dry-run]

Settings are environment variables:

ARM, ARMS: what is trained: one arm (default: rerule), or several, such as "rule rerule npo_gdr", with one
    report and paired tests. rule: RULE; rerule: the paper's replay; random: random storage; default: the
    default replay (docs/method.md); tau_X, warmup_N: the paper's replay with the threshold X, such as
    tau_0.6, or with replay from step N + 1; rule_ppo, rule_reinforce_plus_plus: RULE with another estimator
    of advantages; or a method of `python -m recipe.rerule.unlearn --list`
MODEL: the model that is to forget: a Hugging Face folder or name
DATA: the benchmark's files: a folder, or a name on the Hugging Face Hub
TARGETS: of RWKU: names, one a line (default: the paper's ten; with SMOKE=1 its first two), or all, those with
    training rows; they count when OUT/data is made
OUT: where everything goes
N_GPUS, NNODES: devices a node (default: 4), and nodes of a Ray cluster that is already running (default: 1);
    together 1, 2, 4, 8, 16 or 32
PREPARE_OPTIONS: of data_prep, such as "--gold FILE"; they count when OUT/data is made
STAGE1_OPTIONS, STAGE2_OPTIONS, UNLEARN_OPTIONS: Hydra overrides of stage 1, of every stage 2 and of every
    method of `unlearn`, such as "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true"
METHOD_ROWS: what methods of `unlearn` train on: answers (default), or texts, the benchmark's whole texts
BASE_URL: of a server with OpenAI's protocol: with GENERATOR_MODEL, a model there writes the rows that the
    benchmark lacks (PREPARE_OPTIONS="--prompt boundary=paper" chooses prompts); with JUDGE_MODEL, one scores
    answers
EVALUATE_OPTIONS: of recipe.rerule.evaluate model, such as "--prompts llama-2"
RETAIN_LOG: of TOFU: TOFU_EVAL.json of a model retained for forget01, for forget quality (docs/evaluation.md)
SMOKE=1: the same on a laptop: few rows, three steps, and without MODEL a small untrained one
DRY_RUN=1: as --dry-run: the commands are printed, with what they take as far as known, and nothing is run

What is already done in OUT is reused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import environ
from pathlib import Path

from data_prep import rwku
from examples import method_files, stages
from recipe.rerule import chain, io
from recipe.rerule.chain import Part
from recipe.rerule.runs import run_folder
from recipe.rerule.unlearning import presets

PAPER = (
    "1_Stephen_King", "2_Confucius", "3_Bruce_Lee", "4_Warren_Buffett", "5_Christina_Aguilera",
    "6_Cindy_Crawford", "7_Marie_Osmond", "8_Paris_Hilton", "9_Justin_Bieber",
    "10_Prince_Harry,_Duke_of_Sussex",
)  # fmt: skip
"""The targets of the two papers."""
ARMS = {
    "rule": ["replay.enable=false"],
    "rule_ppo": ["replay.enable=false", "algorithm.adv_estimator=gae"],
    "rule_reinforce_plus_plus": ["replay.enable=false", "algorithm.adv_estimator=reinforce_plus_plus"],
    "rerule": [],
    "default": [],
    "random": ["replay.admission=random"],
}
"""Arms of stage 2, with what they set; `default` is not at the paper's settings."""
NUMBERED = {
    "tau_": (r"0?\.\d+|1(\.0*)?", "replay.threshold", "tau_X with X from 0 to 1, such as tau_0.6"),
    "warmup_": (r"0|[1-9]\d*", "replay.warmup_steps", "warmup_N with a step N, such as warmup_10"),
}
DEVICES = (1, 2, 4, 8, 16, 32)
"""Others cannot share the 256 responses and 32 replayed groups of a step evenly."""
ON_CPU = ["platform=cpu", "trainer.n_gpus_per_node=1"]
TRY_STAGE2 = [
    "trainer.total_training_steps=3", "data.train_batch_size=4", "data.max_response_length=16",
    "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.rollout.max_num_seqs=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.optim.lr=1e-4",
    "replay.min_groups=2", "replay.warmup_steps=1", "replay.groups_per_update=2",
]  # fmt: skip
TRY_UNLEARN = [
    "trainer.total_training_steps=3", "data.train_batch_size=4", "optim.lr=1e-4", "optim.lr_warmup_steps=0",
]  # fmt: skip
"""What SMOKE=1 sets."""
OF_ROWS = {"DATA": "", "SMOKE": "0", "PREPARE_OPTIONS": "", "GENERATOR_MODEL": ""}
OF_MODELS = {"MODEL": "", "METHOD_ROWS": "answers"}
"""Variables that shape the rows, and what arms share, with their defaults: OUT is of one value of each."""


def variable(name: str, default: str = "") -> str:
    return environ.get(name) or default


def words(name: str) -> list[str]:
    return variable(name).split()


@dataclass
class Settings:
    """What the environment says, checked.

    Attributes:
        arms: names, and what an arm of stage 2 sets; None for a method of `unlearn`.
        prepare, stage1, stage2, unlearn, evaluate: words of these commands.
    """

    benchmark: str
    smoke: bool = False
    arms: dict[str, list[str] | None] = field(default_factory=dict)
    prepare: list[str] = field(default_factory=list)
    stage1: list[str] = field(default_factory=list)
    stage2: list[str] = field(default_factory=list)
    unlearn: list[str] = field(default_factory=list)
    evaluate: list[str] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return Path(variable("OUT", f"outputs/{self.benchmark}"))

    @property
    def methods(self) -> list[str]:
        return [arm for arm, sets in self.arms.items() if sets is None]

    @property
    def name(self) -> str:
        """In names of files: the arms, joined."""
        return "-".join(self.arms)

    @property
    def rows(self) -> str:
        return variable("METHOD_ROWS", "answers")


def read_settings(benchmark: str) -> Settings:
    """Raises ValueError naming a variable that is wrong."""
    found = Settings(benchmark, smoke=stages.switched_on("SMOKE"))
    gpus, nodes = (variable(name, default) for name, default in (("N_GPUS", "4"), ("NNODES", "1")))
    for name, number in (("N_GPUS", gpus), ("NNODES", nodes)):
        if not (found.smoke or re.fullmatch(r"[1-9]\d{0,2}", number)):
            raise ValueError(f"{name} is {number}; give a whole number above 0")
    if not found.smoke and int(gpus) * int(nodes) not in DEVICES:
        raise ValueError(
            f"N_GPUS x NNODES is {int(gpus) * int(nodes)}; give 1, 2, 4, 8, 16 or 32 devices: others cannot "
            "share the 256 responses and 32 replayed groups of a step evenly"
        )
    if variable("ARM") and variable("ARMS"):
        raise ValueError(f"ARM is {variable('ARM')} and ARMS is {variable('ARMS')}; give one of them")
    if variable("ARMS") and not words("ARMS"):
        raise ValueError('ARMS names no arm; give names such as "rule rerule npo_gdr"')
    says = "ARMS names" if variable("ARMS") else "ARM is"
    for arm in words("ARMS") or [variable("ARM", "rerule")]:
        if arm in found.arms:
            raise ValueError(f"ARMS names {arm} twice; name each arm once")
        found.arms[arm] = sets(arm, says)
    for model in ("GENERATOR_MODEL", "JUDGE_MODEL"):
        if variable(model) and not variable("BASE_URL"):
            raise ValueError("BASE_URL is not set: GENERATOR_MODEL and JUDGE_MODEL are models of that server")
    if not (found.smoke or variable("MODEL")):
        raise ValueError("MODEL is not set: give the model that is to forget, or SMOKE=1")
    if not variable("DATA"):
        raise ValueError("DATA is not set: give the folder of the benchmark's files, or its name on the Hub")
    if found.smoke:
        length = 1024 if variable("MODEL") else 512  # of prompt and response; the small model has no more
        found.prepare = ["--limit", "16", "--val-rows", "8"]
        found.stage1 = [*ON_CPU, "optim.lr=1e-3", "trainer.total_epochs=1"]
        found.stage2 = [*ON_CPU, *TRY_STAGE2, f"data.max_prompt_length={length - 32}"]
        found.stage2 += [f"actor_rollout_ref.rollout.max_model_len={length}"]
        found.unlearn = [*ON_CPU, *TRY_UNLEARN]
    else:
        of_stage1 = f"trainer.n_gpus_per_node={min(int(gpus), 8)}"  # on the first node, in batches of 8 rows
        found.stage1, found.unlearn = [of_stage1], [of_stage1]
        found.stage2 = [f"trainer.n_gpus_per_node={gpus}", f"trainer.nnodes={nodes}"]
        found.stage2 += [] if nodes == "1" else ["+ray_kwargs.ray_init.address=auto"]
    found.stage2 += ["trainer.resume_mode=auto"]
    found.unlearn += ["checkpoint.save_contents=[hf_model]"]  # a method that was killed starts again
    found.prepare += words("PREPARE_OPTIONS")
    if generator := variable("GENERATOR_MODEL"):
        found.prepare += ["--base-url", variable("BASE_URL"), "--model", generator]
    found.stage1 += words("STAGE1_OPTIONS")
    found.stage2 += words("STAGE2_OPTIONS")
    found.unlearn += words("UNLEARN_OPTIONS")
    found.evaluate = words("EVALUATE_OPTIONS")
    if benchmark == "tofu" and variable("RETAIN_LOG"):
        found.evaluate += ["--retain-log", variable("RETAIN_LOG")]
    return found


def sets(arm: str, says: str) -> list[str] | None:
    """What an arm of stage 2 sets; None for a method of `unlearn`. Raises ValueError for another name."""
    if arm in ARMS:
        return ARMS[arm]
    for begins, (pattern, key, told) in NUMBERED.items():
        if arm.startswith(begins):
            if not re.fullmatch(pattern, arm.removeprefix(begins)):
                raise ValueError(f"{says} {arm}; give {told}")
            return [f"{key}={arm.removeprefix(begins)}"]
    if arm not in presets.names():
        raise ValueError(
            f"{says} {arm}; choose rule, rerule, random, default, tau_X, warmup_N, rule_ppo or "
            "rule_reinforce_plus_plus, or a method of python -m recipe.rerule.unlearn --list"
        )
    return None


# ---- the parts ----


def targets(given: Settings) -> list[str]:
    """Folders of RWKU's targets, as they are made already or as TARGETS says; "" for another benchmark."""
    made = given.out / "data" / "manifest.json"
    if given.benchmark != "rwku":
        return [""]
    if made.is_file():
        return list(io.read_json(made)["targets"])
    asked = variable("TARGETS", "\n".join(PAPER[: 2 if given.smoke else None]))
    names = [] if asked == "all" else list(filter(None, asked.split("\n")))
    written = "--base-url" in given.prepare
    return [one.name for one in rwku.choose(rwku.target_folders(variable("DATA")), names, written=written)]


def check(given: Settings, names: Sequence[str], dry: bool) -> None:
    """Before any work: raises ValueError where a method lacks rows, or texts to make them of.

    A dry run does not ask the Hub for texts.
    """
    data, source = given.out / "data", variable("DATA")
    if (data / "manifest.json").exists():
        for method in given.methods:
            for name in names:
                method_files.check(method, data / name, given.rows)
    elif given.methods and (not dry or Path(source).is_dir()):
        method_files.check_source(given.rows, given.benchmark, source, given.methods, names)


def plan(given: Settings, names: Sequence[str]) -> list[Part]:
    """All parts: rows, those of each target, and of several targets one report together."""
    check(given, names, dry=True)
    out, benchmark = given.out, given.benchmark
    data, reports, parts = out / "data", list[Path](), list[Part]()
    rows: list[object] = ["data_prep", benchmark.replace("_", "-"), "--source", variable("DATA")]
    rows += ["--rouge", "rwku", "--out", data]
    if benchmark == "rwku":
        rows += [word for name in names for word in ("--target", name)]
    made = (data / "manifest.json").exists()
    parts += [stages.part("data", "rows", [*rows, *given.prepare], made)]
    together: list[object] = []
    for name in names:
        parts += _of_target(given, name)
        reports.append(out / name / f"report_{given.name}.html")
        together += _reported(given, name)
    if benchmark == "rwku":
        page = out / f"report_{given.name}.html"
        words = ["recipe.rerule.report", *together, "--data", data, "--out", page, "--overwrite"]
        done = page.exists() and all(
            one.exists() and one.stat().st_mtime <= page.stat().st_mtime for one in reports
        )
        parts += [stages.part("report", "report of all targets together", words, done)]
    return parts


def _reported(given: Settings, name: str) -> list[object]:
    """What a report has of a target: its evaluation, its runs of stage 2, and what a judge says."""
    of = given.out / name
    runs = [f"{arm}={of / arm}" for arm in given.arms if arm not in given.methods]
    judged = ["--naturalness", of / f"naturalness_{given.name}"] if variable("JUDGE_MODEL") else []
    results = ["--results", of / f"evaluation_{given.name}"]
    return [*results, *(word for run in runs for word in ("--run", run)), *judged]


def _of_target(given: Settings, name: str) -> list[Part]:
    """Each arm, and one evaluation and report of all of them; all finished where the report is there."""
    out, of = given.out, f"{name}/" if name else ""
    data, page = out / "data" / name, out / name / f"report_{given.name}.html"
    about, model, parts = f"{name}: " if name else "", variable("MODEL"), list[Part]()
    experiment = f"experiment={given.benchmark}"
    if not model:
        model = f"{out / name / 'model'}"
        made = ["examples.small_model", "--data", data, "--out", model]
        parts += [stages.part(f"{of}model", f"{about}a small model", made, Path(model).exists())]
    start, asked = out / name / "stage1" / "model", {"base": model}
    if len(given.methods) < len(given.arms):
        words = [experiment, *given.stage1]
        parts += [
            stages.stage1(out, f"{of}stage1", model, data / "sft.parquet", words, about + stages.STAGE1)
        ]
        asked["stage1"] = f"{start}"
    for arm, its in given.arms.items():
        if its is None:
            parts += _by_method(given, name, arm, model)
            asked[arm] = f"{out / name / arm / 'model'}"
            continue
        of_paper = experiment if arm == "default" else f"experiment=paper/{given.benchmark}"
        does = f"{about}stage 2, {arm}: refusal boundary optimisation"
        words = [of_paper, *given.stage2, *its]
        parts += [stages.stage2(out, f"{of}{arm}", does, start, data, words)]
        asked[arm] = f"{out / name / arm}"
    asking = [*stages.models(**asked), "--most-compared", f"{len(asked)}", *given.evaluate]
    platform = "cpu" if given.smoke else "gpu"
    evaluated, judged = f"evaluation_{given.name}", f"naturalness_{given.name}"
    parts += [stages.evaluation(out, f"{of}{evaluated}", platform, data, asking, about)]
    if judge := variable("JUDGE_MODEL"):
        judging: list[object] = ["recipe.rerule.evaluate", "judge", "--results", out / name / evaluated]
        judging += ["--base-url", variable("BASE_URL"), "--judge-model", judge, "--out", out / name / judged]
        does = f"{about}naturalness, by a judge"
        parts += [stages.part(f"{of}{judged}", does, judging, (out / name / judged).exists())]
    report = ["recipe.rerule.report", *_reported(given, name), "--data", data, "--overwrite", "--out", page]
    parts += [stages.part(f"{of}report_{given.name}", f"{about}report", report, False)]
    whole = page.exists() and (not judge or (out / name / judged).exists())
    return [replace(one, finished=True) for one in parts] if whole else parts


def _by_method(given: Settings, name: str, method: str, model: str) -> list[Part]:
    """OUT/TARGET/METHOD, by a method that is not reinforcement; WHP has a model that is reinforced first."""
    out, of, experiment = given.out, f"{name}/" if name else "", f"experiment={given.benchmark}"
    files: dict[str, object] = {"model.path": model}
    files |= method_files.files(method, out / "data" / name, given.rows)
    does, parts = f"{of.replace('/', ': ')}{method}: unlearning without reinforcement", list[Part]()
    if method == "whp":
        # whp reads one file. Rows of whole texts have up to 700 words.
        words = [experiment, *([] if given.rows == "answers" else ["data.max_length=2048"]), *given.stage1]
        told = f"{does}; the reinforced model, trained further on what is to be forgotten"
        rows = Path(f"{files['data.forget']}")
        parts += [stages.stage1(out, f"{of}reinforced", model, rows, words, told)]
        files["reinforced.path"] = out / name / "reinforced" / "model"
    words = [f"method={method}", experiment, *given.unlearn]
    return [*parts, stages.fine_tuned("recipe.rerule.unlearn", out, f"{of}{method}", does, files, words)]


def script(benchmark: str, dry: bool, doing: list[str]) -> int:
    """Exit code 0, or that of the part that failed. Raises ValueError, OSError."""
    given = read_settings(benchmark)
    rows = given.out / "data" / "manifest.json"
    of = io.read_json(rows).get("benchmark", benchmark) if rows.is_file() else benchmark
    if of != benchmark:
        raise ValueError(f"{rows.parent} has rows of {of}: give another OUT, or delete {given.out}")
    names, kept = targets(given), {key: variable(key, of) for key, of in (OF_ROWS | OF_MODELS).items()}
    # What nothing was made with yet may still be corrected.
    made = {*OF_ROWS} if rows.exists() else set()
    if any(path.is_dir() and path.name != "data" for path in given.out.glob("*")):
        made |= {*OF_MODELS}
    stages.check_kept(given.out, {key: value for key, value in kept.items() if key in made})
    check(given, names, dry)
    if dry:
        parts = plan(given, names)
        print(chain.printed(parts))
        if planned := [one.words for one in parts if not one.finished]:
            from examples import stage_sizes  # with torch

            print("\n".join(stage_sizes.told(benchmark, variable("MODEL"), planned)))
        return 0
    with run_folder.held(given.out, "OUT"):
        stages.keep(given.out, kept)
        if code := stages.follow(lambda: plan(given, names), given.out, doing):
            return code
    page = given.out / f"report_{given.name}.html"
    stages.show(page.with_suffix(".md"))
    print(f"done; open {page}")
    return 0


if __name__ == "__main__":
    stages.main(partial(script, sys.argv.pop(1)))
