"""The scripts of examples/: what they remove and overwrite, and the commands that they give.

A `python` that only notes its arguments stands where the scripts look for one. The commands that it notes are
checked as the commands themselves check them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from recipe.rerule.evaluation import tidy
from recipe.rerule.preflight import checks
from recipe.rerule.runs import run_folder
from recipe.rerule.unlearning import presets
from tests.document_programs import HYDRA, composed
from tests.refused.configurations import put_model
from tests.refused.rows import rl, sft, stored

ROOT = Path(__file__).parents[1]
Done = subprocess.CompletedProcess[str]


def bash(script: str, **environment: str) -> Done:
    """Run a script in the project's folder, with this interpreter as `python`."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(["bash", "-c", script], cwd=ROOT, env=settings, capture_output=True, text=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(done: Done, line: str) -> None:
    """It ended with this one line of stderr."""
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {line}")


# What is removed and overwritten.


def test_only_an_unfinished_run_is_removed_and_no_log_is_overwritten(tmp_path: Path) -> None:
    run_folder.begin(tmp_path / "ours", stage=1)
    for name in ("mine/thesis.tex", "a.log", "a.1.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("years of work")
    (tmp_path / "b.log").symlink_to(tmp_path / "nowhere")
    common = f"set -euo pipefail; source examples/common.sh; cd {tmp_path}; "
    done = bash(f"{common} for name in a b c; do new_log $name; done")
    assert done.stdout.split() == ["a.2.log", "b.1.log", "c.log"]
    common = common.replace(f"cd {tmp_path}; ", "")
    done = bash(f"{common} cleared {tmp_path}/none; cleared {tmp_path}/ours; stage1 {tmp_path}/mine tiny m r")
    assert done.returncode == 2
    assert done.stdout == f"removed {tmp_path}/ours, which an interrupted run left unfinished\n"
    assert done.stderr.startswith(f"error: {tmp_path}/mine is unfinished, and no run.json says")
    assert done.stderr.count("\n") == 1
    assert contents(tmp_path) == dict.fromkeys(("mine/thesis.tex", "a.log", "a.1.log"), b"years of work")


OF_THE_QUICKSTART = "stage1 rule rerule evaluation attacks report report.html report.md results.json"


@pytest.mark.parametrize("name", OF_THE_QUICKSTART.split())
def test_the_quickstart_refuses_a_folder_with_a_users_files(name: str, tmp_path: Path) -> None:
    mine = tmp_path / name if "." in name else tmp_path / name / "thesis.tex"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("years of work")
    done = bash("bash examples/quickstart.sh", OUT=str(tmp_path))
    refused(done, f"{tmp_path}/{name} is there, and no quickstart made it: give another OUT")
    assert list(contents(tmp_path).values()) == [b"years of work"]


def test_no_script_removes_or_moves_anything_itself() -> None:
    for script in (ROOT / "examples").glob("*.sh"):
        commands = [line.split("#")[0] for line in script.read_text().splitlines()]
        words = {word for line in commands for word in line.replace("(", " ").replace(";", " ").split()}
        assert not words & {"rm", "mv", "rmdir", "unlink", "truncate", "shred", "--delete"}, script


# The quickstart and the real model.

NOTING = (
    f"""#!/bin/bash
# Notes its arguments and makes the files which tell the script that a step is finished.
[ "$1" != examples/method_files.py ] || exec "{sys.executable}" "$@"
"""
    + r"""
printf '%s\t' "$@" >> "$OUT.notes"; echo >> "$OUT.notes"
[ -n "$FINISHES" ] || exit 0
made() { mkdir -p "$(dirname "$OUT/$1")"; touch "$OUT/$1"; }
case "$*" in
  *"data_prep world"*)
    made world/manifest.json
    case "$*" in *--retain-model*) mkdir -p "$OUT/world/retain_model" ;; esac ;;
  *"data_prep custom"*) made data/manifest.json ;;
  *rerule.sft*) made stage1/model/config.json ;;
  *rerule.unlearn*) made po/model/config.json ;;
  *rerule.main*)
    case "$*" in *replay.enable=false*) run=rule ;; *) run=rerule ;; esac
    made "$run/latest_checkpointed_iteration.txt"
    echo "stage 2 finished: $OUT/$run" ;;
  *"evaluate model"*) made evaluation/results.json ;;
  *"evaluate attack"*) made attacks/attacks.json ;;
  *rerule.report*)
    made report.html
    printf '%s\n' '## Results' '### Paired tests' 'tests' '## What attacks get out' 'said' '### Figure' \
      > "$OUT/report.md" ;;
esac
"""
)


@pytest.fixture(scope="module")
def noting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the python that only notes."""
    python = tmp_path_factory.mktemp("bin") / "python"
    python.write_text(NOTING)
    python.chmod(0o755)
    return python.parent


def noted(out: Path, python: Path, script: str, **variables: str) -> tuple[Done, list[list[str]]]:
    """What a script said, and the words of each command that it gave, in order."""
    notes = out.with_name(f"{out.name}.notes")
    notes.write_text("")
    settings = {"OUT": str(out), "FINISHES": "", **variables}
    done = bash(f'PATH="{python}:$PATH"; bash examples/{script}.sh', **settings)
    return done, [line.split("\t")[:-1] for line in notes.read_text().splitlines()]


def test_the_quickstart_attacks_what_it_has_made(noting: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done, commands = noted(out, noting, "quickstart", FINISHES="1")
    assert done.returncode == 0, done.stderr
    world = f"-m data_prep world --out {out}/world --retain-model"
    assert " ".join(commands[0]) == world
    assert " ".join(commands[-2]) == (
        f"-m recipe.rerule.evaluate attack --model original={out}/world/model --model rule={out}/rule "
        f"--model rerule={out}/rerule --control {out}/world/retain_model --attacks prefill samples "
        f"quantise_4 relearn_forget_half --platform cpu --probes {out}/world/probes.parquet --train "
        f"{out}/world/train.parquet --out {out}/attacks"
    )
    assert f"--results {out}/evaluation --attacks {out}/attacks --run rule={out}/rule" in " ".join(
        commands[-1]
    )
    done, commands = noted(out, noting, "quickstart", FINISHES="1")
    assert [" ".join(words) for words in commands] == [world]
    assert "## Results\n## What attacks get out\nsaid\n" in done.stdout


@pytest.mark.parametrize("smoke", ["0", "1"])
def test_the_real_models_commands_take_their_settings_and_are_not_repeated(
    smoke: str, noting: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done, commands = noted(out, noting, "run_real", FINISHES="1", SMOKE=smoke)
    assert done.returncode == 0, done.stderr
    started = [words[words[0] == "-m"].removeprefix("recipe.rerule.") for words in commands]
    steps = "examples/real_model.py data_prep sft main main unlearn evaluate evaluate report"
    assert started == [*steps.split(), "examples/before_after.py"]
    for words in commands:
        if words[1] in HYDRA:
            assert composed(words[1], tuple(words[2:])).platform.name == "cpu"
    shown = f"--model original={out}/model --model rule={out}/rule --model rerule={out}/rerule"
    assert shown in " ".join(commands[7])
    _, commands = noted(out, noting, "run_real", FINISHES="1", SMOKE=smoke)
    assert [words[0] for words in commands] == ["examples/real_model.py", "examples/before_after.py"]
    other = {"SMOKE": smoke, "MODEL": "mine"}
    line = f"{out} was not made by this script with these settings: give another OUT, or delete {out}\n"
    refused(noted(out, noting, "run_real", **other)[0], line)


def test_four_answers_before_and_after(tmp_path: Path) -> None:
    def row(model: str, probe: int, side: str, rouge_l: float) -> dict[str, Any]:
        texts = {"prompt": f"Question {probe}?", "response": f"{model}\nsays {probe}"}
        return {"model": model, "probe": probe, "side": side, "rouge_l": rouge_l, **texts}

    sides = {9: "retain", 1: "forget", 2: "forget", 3: "forget", 4: "forget", 7: "retain"}
    rows = [
        row(name, probe, side, probe != 2) for name in ("base", "rerule") for probe, side in sides.items()
    ]
    tidy.from_rows(rows).to_parquet(tmp_path / tidy.FILE)
    done = bash(f"python examples/before_after.py {tmp_path} base rerule")
    assert done.returncode == 0, done.stderr
    shown = [
        f"Question {index}?  [{sides[index]}]\n  base    base says {index}\n  rerule  rerule says {index}\n"
        for index in (1, 3, 7, 9)
    ]
    assert done.stdout == "\n" + "\n".join(shown)


# The benchmarks.

TARGET = "10_Ada,_Duke_of_Quill"
"""The one target of RWKU, with a comma as one of the published targets has."""
SIZES: dict[tuple[str, int, int], tuple[int, int, int]] = {
    ("rwku", 1, 1): (1, 2, 16),
    ("rwku", 8, 2): (8, 1, 16),
    ("rwku", 8, 4): (8, 1, 8),  # not the paper's 16: 32 devices have 8 rows each
    ("muse_books", 2, 1): (2, 2, 16),
    ("muse_news", 16, 1): (8, 1, 16),
    ("tofu", 4, 1): (4, 2, 8),
    ("tofu", 8, 4): (8, 1, 8),
}
"""Benchmark, devices a node, nodes: ranks and micro-batch of stage 1, micro-batch of log-probs; by hand."""
UNLEARN = {
    "rwku": (8, 3, 1e-6),
    "muse_books": (32, 10, 1e-5),
    "muse_news": (32, 10, 1e-5),
    "tofu": (8, 10, 1e-5),
}
"""Rows a step, epochs and learning rate of a method; by hand."""
READ = {
    "ga": ["forget_gold"],
    "npo_gdr": ["forget_gold", "retain"],
    "dpo_rt": ["forget_gold", "alternate", "retain"],
    "po": ["alternate", "retain"],
    "mismatch": ["forget_gold", "retain"],
    "llmu": ["forget_gold", "retain"],
    "flat": ["forget_gold", "alternate"],
    "whp": ["forget_gold"],
    "rejection_steering": ["alternate"],
    "retain_model": ["retain"],
}
"""Files that a method reads; by hand."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and the rows of all stages."""
    folder = tmp_path_factory.mktemp("made")
    put_model(folder / "model")
    (folder / "data").mkdir()
    (folder / "data" / "manifest.json").write_text("{}")
    files = {"train": rl(count=96), "val": rl("val", 200, "When", 8)}
    for name in ("sft", "forget_gold", "retain", "alternate"):
        files[name] = sft(count=40)
        for number, row in enumerate(files[name]):
            row["messages"][1]["content"] = f"Answer {number} of {name}."
    for name, rows in files.items():
        (folder / "data" / f"{name}.parquet").write_bytes(stored(rows))
    return folder


@pytest.fixture
def script(noting: Path, made: Path, tmp_path: Path) -> Any:
    """script(benchmark, **variables): what it said, and module and arguments of each command of python -m."""

    def run(benchmark: str, data: Path = made / "data", **variables: str) -> tuple[Done, list[list[str]]]:
        out = tmp_path / "out"
        if not out.exists():
            out.mkdir()
            if benchmark == "rwku":  # with a folder for each target
                (out / "data").mkdir()
                (out / "data" / "manifest.json").write_text("{}")
            (out / "data" / TARGET if benchmark == "rwku" else out / "data").symlink_to(data)
        usual = {"MODEL": str(made / "model"), "DATA": "unused"}
        done, commands = noted(out, noting, f"run_{benchmark}", **usual | variables)
        return done, [words[1:] for words in commands if words[0] == "-m"]

    return run


def checked(words: list[str], model: Path | None = None) -> DictConfig:
    """The settings of a command, which its checks accept; `model` stands for one that is not made.

    Hydra composes once an experiment, which takes a second; sizes are resolved when they are read.
    """
    program, *overrides = words
    groups = [override for override in overrides if "." not in override.split("=")[0]]
    config = OmegaConf.create(OmegaConf.to_container(composed(program, tuple(groups))))
    assert isinstance(config, DictConfig)
    others = [override for override in overrides if override not in groups]
    for override in OverridesParser.create().parse_overrides(others):
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=override.is_add())
    OmegaConf.resolve(config)
    key = "actor_rollout_ref.model.path" if program == "recipe.rerule.main" else "model.path"
    for place in {key, "reinforced.path"}:
        path = Path(OmegaConf.select(config, place) or ROOT)
        if model is not None and not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.symlink_to(model)
    names = {"main": checks.stage2, "sft": checks.stage1, "unlearn": checks.unlearn}
    checks.require(checks.findings(names[program.rpartition(".")[2]], config))
    return config


@pytest.mark.parametrize("layout", SIZES, ids=lambda layout: "-".join(map(str, layout)))
def test_what_a_script_passes_is_accepted(layout: tuple[str, int, int], made: Path, script: Any) -> None:
    benchmark, gpus, nodes = layout
    ranks, micro_batch, log_probs = SIZES[layout]
    done, commands = script(benchmark, N_GPUS=str(gpus), NNODES=str(nodes), ARMS="rerule dpo_gdr")
    assert done.returncode == 0, done.stderr
    stage1, stage2, method = (checked(words, made / "model") for words in commands[:3])
    assert (stage1.trainer.n_gpus_per_node, stage1.data.micro_batch_size_per_gpu) == (ranks, micro_batch)
    assert (stage2.trainer.n_gpus_per_node, stage2.trainer.nnodes) == (gpus, nodes)
    assert stage2.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu == log_probs
    assert stage2.actor_rollout_ref.rollout.max_model_len == (768 if benchmark == "tofu" else 1536)
    batch, epochs, rate = UNLEARN[benchmark]
    assert (method.data.train_batch_size, method.trainer.total_epochs, method.optim.lr) == (
        batch,
        epochs,
        rate,
    )
    assert (method.trainer.n_gpus_per_node, method.trainer.nnodes) == (ranks, 1)
    assert method.data.micro_batch_size_per_gpu == (2 if batch == 32 else micro_batch)
    assert (method.method.name, method.model.path) == ("dpo_gdr", str(made / "model"))


def test_a_try_has_one_device_and_three_steps_whatever_is_said(made: Path, script: Any) -> None:
    _, commands = script("tofu", SMOKE="1", N_GPUS="3", ARMS="rerule whp")
    found = {f"{one[0]} {Path(one[-1]).name}": one for one in commands}
    assert [words[0].rpartition(".")[2] for words in commands][:4] == ["sft", "main", "sft", "unlearn"], found
    stage1, stage2, reinforced, method = (checked(words, made / "model") for words in commands[:4])
    assert (stage1.trainer.n_gpus_per_node, stage1.data.micro_batch_size_per_gpu) == (1, 2)
    actor, rollout = stage2.actor_rollout_ref.actor, stage2.actor_rollout_ref.rollout
    assert (actor.ppo_micro_batch_size_per_gpu, rollout.log_prob_micro_batch_size_per_gpu) == (4, 8)
    assert rollout.max_model_len == 512
    assert (method.trainer.n_gpus_per_node, method.trainer.total_training_steps) == (1, 3)
    assert (method.platform.name, method.data.train_batch_size) == ("cpu", 4)
    # WHP has a model that is reinforced by the answers to forget.
    assert Path(reinforced.data.train_files).name == "forget_gold.parquet"
    assert method.model.path == reinforced.model.path
    assert method.reinforced.path == f"{reinforced.trainer.default_local_dir}/model"


def test_every_method_is_an_arm_with_the_files_that_it_reads(script: Any) -> None:
    done, commands = script("tofu", ARMS="\n".join(presets.names()))
    assert done.returncode == 0, done.stderr
    runs = {words[1]: words for words in commands if words[0] == "recipe.rerule.unlearn"}
    assert list(runs) == [f"method={name}" for name in presets.names()]
    assert len(runs) >= 22
    for method, files in READ.items():
        given = [part for part in runs[f"method={method}"] if part.startswith("data.")]
        assert [Path(part.rpartition("=")[2].strip("'")).stem for part in given] == files


def test_several_arms_have_one_stage_1_one_evaluation_and_one_report(
    made: Path, script: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = {"STAGE1": "optim.lr=1e-7", "STAGE2": "replay.seed=3", "UNLEARN": "trainer.seed=5"}
    arms = {f"{stage}_OPTIONS": words for stage, words in options.items()}
    arms |= {"ARMS": "rule rerule npo_gdr recommended random po"}
    done, runs = script("tofu", **arms)
    assert done.returncode == 0, done.stderr
    stages = [run[0].rpartition(".")[2] for run in runs]
    assert stages == ["sft", "main", "main", "unlearn", "main", "main", "unlearn", "evaluate", "report"]
    for stage, run in zip(stages, runs, strict=True):
        of = {"sft": "STAGE1", "main": "STAGE2", "unlearn": "UNLEARN"}.get(stage)
        assert [words for words in options.values() if words in run] == ([options[of]] if of else [])
    mains = [run for run in runs if run[0] == "recipe.rerule.main"]
    experiments = [
        "experiment=paper/tofu",
        "experiment=paper/tofu",
        "experiment=tofu",
        "experiment=paper/tofu",
    ]
    assert [run[1] for run in mains] == experiments
    own = {"replay.enable=false", "replay.admission=random"}
    assert [own & set(run) for run in mains] == [
        {"replay.enable=false"}, set(), set(), {"replay.admission=random"},
    ]  # fmt: skip
    asked, name = runs[-2], "rule-rerule-npo_gdr-recommended-random-po"
    assert [asked[place + 1] for place, part in enumerate(asked) if part == "--model"] == [
        f"base={made / 'model'}",
        f"stage1={out}/stage1/model",
        f"rule={out}/rule",
        f"rerule={out}/rerule",
        f"npo_gdr={out}/npo_gdr/model",
        f"recommended={out}/recommended",
        f"random={out}/random",
        f"po={out}/po/model",
    ]
    assert asked[asked.index("--most-compared") + 1] == "8"
    assert asked[asked.index("--out") + 1] == f"{out}/evaluation_{name}"
    page = runs[-1]
    shown = [f"{arm}={out}/{arm}" for arm in ("rule", "rerule", "recommended", "random")]
    assert [page[place + 1] for place, part in enumerate(page) if part == "--run"] == shown
    assert page[-1] == f"{out}/report_{name}.html"


def test_what_is_built_is_not_built_again(script: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in ("stage1", "npo_gdr"):
        (out / name / "model").mkdir(parents=True)
        (out / name / "model" / "config.json").write_text("{}")
    (out / "data").mkdir()
    (out / "data" / "manifest.json").write_text("{}")
    (out / "data" / "forget_gold.parquet").touch()
    (out / "data" / "retain.parquet").touch()
    for name, last in (("rule", "stage 2 finished: x"), ("rerule", "killed")):
        (out / name).mkdir()
        (out / name / "latest_checkpointed_iteration.txt").write_text("3")
        (out / f"{name}.log").write_text("stage 2 finished: an earlier run\n")
        (out / f"{name}.1.log").write_text(f"step 3/3\n{last}\n")
    done, commands = script("tofu", ARMS="rule rerule npo_gdr")
    assert done.returncode == 0, done.stderr
    assert [run[0].rpartition(".")[2] for run in commands] == ["main", "evaluate", "report"]
    assert "replay.enable=false" not in commands[0]
    (out / "report_rule-rerule-npo_gdr.html").write_text("")
    done, commands = script("tofu", ARMS=" rule  rerule npo_gdr ")
    assert (done.returncode, commands) == (0, []), done.stderr


def test_targets_of_rwku_have_a_report_each_and_one_together(script: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done, commands = script("rwku", ARM="rule")
    assert done.returncode == 0, done.stderr
    pages = [words for words in commands if words[0] == "recipe.rerule.report"]
    assert pages[0][-1] == f"{out}/{TARGET}/report_rule.html"
    together = ["--results", f"{out}/{TARGET}/evaluation_rule", "--out", f"{out}/report_rule.html"]
    assert pages[1][1:] == [*together, "--overwrite"]


def test_options_of_the_rows_come_last(script: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    _, commands = script("tofu", SMOKE="1", PREPARE_OPTIONS="--gold mine.csv --limit 8")
    assert commands[0][-6:] == ["--val-rows", "8", "--gold", "mine.csv", "--limit", "8"]


@pytest.mark.parametrize("benchmark", ["rwku", "tofu"])
def test_a_method_without_its_file_ends_the_script_before_any_training(
    benchmark: str, made: Path, script: Any, tmp_path: Path
) -> None:
    rows, out = tmp_path / "rows", tmp_path / "out"
    rows.mkdir()
    for path in (made / "data").iterdir():
        if path.stem not in ("forget_gold", "manifest"):
            (rows / path.name).symlink_to(path)
    reason = "all 40 answers are refusals; give the right ones with --gold"
    said = f"forget_gold.parquet is not written: {reason}"
    (rows / "manifest.json").write_text(json.dumps({"classical": {"left_out": [said]}}))
    done, commands = script(benchmark, data=rows, ARMS="rule po npo_gdr")
    file = out / "data" / (TARGET if benchmark == "rwku" else "") / "forget_gold.parquet"
    assert (done.returncode, commands) == (2, [])
    assert done.stderr == (
        f"error: the method npo_gdr needs {file}, which is not there: {reason} "
        '(PREPARE_OPTIONS="--gold FILE" and another OUT)\n'
    )
    (rows / "manifest.json").write_text("{}")
    done, _ = script(benchmark, data=rows, ARM="ga")
    assert done.stderr == (
        f"error: the method ga needs {file}, which is not there: give another OUT, so that data_prep makes "
        "the rows again\n"
    )


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"ARM": "ga", "ARMS": "npo"}, "ARM is ga and ARMS is npo; give one of them"),
        ({"ARMS": "rule best"}, "ARMS names best; choose rule, rerule, random or recommended, or a method"),
        ({"ARMS": "rule ../method/ga"}, "ARMS names ../method/ga; choose rule, rerule"),
        ({"ARMS": "*"}, "ARMS names *; choose rule, rerule"),
        ({"ARM": "rule rerule"}, "ARM is rule rerule; choose rule, rerule, random or recommended, or a"),
        ({"ARMS": "rule ga rule"}, "ARMS names rule twice; name each arm once"),
        ({"ARMS": " "}, "ARMS names no arm; give names such as"),
        ({"N_GPUS": "3"}, "N_GPUS x NNODES is 3; give 1, 2, 4, 8, 16 or 32 devices: others cannot share the"),
        ({"N_GPUS": "8", "NNODES": "8"}, "N_GPUS x NNODES is 64; give 1, 2, 4, 8, 16 or 32 devices"),
        ({"N_GPUS": "0"}, "N_GPUS is 0; give a whole number above 0"),
        ({"N_GPUS": "four"}, "N_GPUS is four; give a whole number above 0"),
        ({"NNODES": "08"}, "NNODES is 08; give a whole number above 0"),
    ],
)
def test_what_cannot_be_ends_the_script_first(variables: dict[str, str], line: str, script: Any) -> None:
    done, commands = script("muse_books", **variables)
    refused(done, line)
    assert (done.stdout, commands) == ("", [])
