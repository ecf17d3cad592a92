"""What the scripts of examples/ remove and overwrite: nothing but a run of ours that is unfinished."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation import tidy
from recipe.rerule.runs import run_folder
from tests.document_programs import HYDRA, composed

ROOT = Path(__file__).parents[1]


def bash(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in the project's folder, with this interpreter as `python`."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(["bash", "-c", script], cwd=ROOT, env=settings, capture_output=True, text=True)


def common(script: str) -> subprocess.CompletedProcess[str]:
    """The same with the functions of common.sh."""
    return bash(f"set -euo pipefail; source examples/common.sh; {script}")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_unfinished_run_is_removed_and_a_users_folder_is_not(tmp_path: Path) -> None:
    run_folder.begin(tmp_path / "ours", stage=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    done = common(
        f"cleared {tmp_path}/none; cleared {tmp_path}/ours; cleared {tmp_path}/mine; echo not reached"
    )
    assert done.returncode == 2
    assert done.stdout == f"removed {tmp_path}/ours, which an interrupted run left unfinished\n"
    assert done.stderr.startswith(f"error: {tmp_path}/mine is unfinished, and no run.json says")
    assert done.stderr.count("\n") == 1
    assert contents(tmp_path) == {"mine/thesis.tex": b"years of work"}


def test_a_users_folder_ends_a_stage_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "stage1").mkdir()
    (tmp_path / "stage1" / "thesis.tex").write_text("years of work")
    done = common(f"stage1 {tmp_path}/stage1 tiny model rows; echo not reached")
    assert (done.returncode, done.stdout) == (2, "")
    assert contents(tmp_path) == {"stage1/thesis.tex": b"years of work"}


def test_no_log_is_overwritten(tmp_path: Path) -> None:
    for name in ("a.log", "a.1.log"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "b.log").symlink_to(tmp_path / "nowhere")
    done = common(f"new_log {tmp_path}/a; new_log {tmp_path}/b; new_log {tmp_path}/c")
    assert done.stdout.split() == [f"{tmp_path}/{name}" for name in ("a.2.log", "b.1.log", "c.log")]


@pytest.mark.parametrize(
    "name",
    [
        "stage1",
        "rule",
        "rerule",
        "evaluation",
        "attacks",
        "report",
        "report.html",
        "report.md",
        "results.json",
    ],
)
def test_the_quickstart_refuses_a_folder_with_a_users_files(name: str, tmp_path: Path) -> None:
    mine = tmp_path / name if "." in name else tmp_path / name / "thesis.tex"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("years of work")
    done = bash("bash examples/quickstart.sh", OUT=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path}/{name} is there, and no quickstart made it: give another OUT\n"
    assert list(contents(tmp_path).values()) == [b"years of work"]


NOTING = r"""#!/bin/bash
# In place of python: notes its arguments and makes the file that tells the script that a step is finished.
echo "$*" >> "$NOTES"
case "$*" in
  *"data_prep world"*)
    mkdir -p "$OUT/world"; touch "$OUT/world/manifest.json"
    case "$*" in *--retain-model*) mkdir -p "$OUT/world/retain_model" ;; esac ;;
  *"data_prep custom"*) mkdir -p "$OUT/data"; touch "$OUT/data/manifest.json" ;;
  *rerule.sft*) mkdir -p "$OUT/stage1/model"; touch "$OUT/stage1/model/config.json" ;;
  *rerule.unlearn*) mkdir -p "$OUT/po/model"; touch "$OUT/po/model/config.json" ;;
  *rerule.main*)
    case "$*" in *replay.enable=false*) run=rule ;; *) run=rerule ;; esac
    mkdir -p "$OUT/$run"; touch "$OUT/$run/latest_checkpointed_iteration.txt"
    echo "stage 2 finished: $OUT/$run" ;;
  *"evaluate model"*) mkdir -p "$OUT/evaluation"; touch "$OUT/evaluation/results.json" ;;
  *"evaluate attack"*) mkdir -p "$OUT/attacks"; touch "$OUT/attacks/attacks.json" ;;
  *rerule.report*)
    touch "$OUT/report.html"
    printf '%s\n' '## Results' '### Paired tests' 'tests' '## What attacks get out' 'said' '### Figure' \
      > "$OUT/report.md" ;;
esac
"""


def noting(tmp_path: Path, script: str) -> Callable[..., tuple[str, list[str]]]:
    """run(): the script without what it runs, with `out` as OUT; its output, and the commands it gave."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(NOTING)
    python.chmod(0o755)

    def run(**variables: str) -> tuple[str, list[str]]:
        notes = tmp_path / "notes"
        notes.write_text("")
        settings = {"OUT": str(tmp_path / "out"), "NOTES": str(notes), **variables}
        done = bash(f'PATH="{python.parent}:$PATH"; bash examples/{script}', **settings)
        assert done.returncode == 0, done.stderr
        return done.stdout, notes.read_text().splitlines()

    return run


@pytest.fixture
def quickstart(tmp_path: Path) -> Callable[..., tuple[str, list[str]]]:
    return noting(tmp_path, "quickstart.sh")


def test_the_quickstart_attacks_what_it_has_made(quickstart, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _, commands = quickstart()
    assert commands[0] == f"-m data_prep world --out {out}/world --retain-model"
    assert commands[-2] == (
        f"-m recipe.rerule.evaluate attack --model original={out}/world/model --model rule={out}/rule "
        f"--model rerule={out}/rerule --control {out}/world/retain_model --attacks prefill samples "
        f"quantise_4 relearn_forget_half --platform cpu --probes {out}/world/probes.parquet --train "
        f"{out}/world/train.parquet --out {out}/attacks"
    )
    assert f"--results {out}/evaluation --attacks {out}/attacks --run rule={out}/rule" in commands[-1]
    printed, commands = quickstart()
    assert commands == [f"-m data_prep world --out {out}/world --retain-model"]
    assert "## Results\n## What attacks get out\nsaid\n" in printed


@pytest.mark.parametrize("smoke", ["0", "1"])
def test_the_real_model_s_commands_take_their_settings_and_are_not_repeated(
    smoke: str, tmp_path: Path
) -> None:
    run, out = noting(tmp_path, "run_real.sh"), tmp_path / "out"
    _, commands = run(SMOKE=smoke)
    started = [line.removeprefix("-m ").split()[0] for line in commands]
    assert started == [
        "examples/real_model.py",
        "data_prep",
        "recipe.rerule.sft",
        "recipe.rerule.main",
        "recipe.rerule.main",
        "recipe.rerule.unlearn",
        "recipe.rerule.evaluate",
        "recipe.rerule.evaluate",
        "recipe.rerule.report",
        "examples/before_after.py",
    ]
    for program, line in zip(started, commands, strict=True):
        if program in HYDRA:
            config = composed(program, tuple(line.split()[2:]))
            assert config.platform.name == "cpu"
    assert f"--model original={out}/model --model rule={out}/rule --model rerule={out}/rerule" in commands[7]
    _, commands = run(SMOKE=smoke)
    assert [line.split()[0] for line in commands] == ["examples/real_model.py", "examples/before_after.py"]


def test_the_real_model_s_results_are_of_one_set_of_settings(tmp_path: Path) -> None:
    noting(tmp_path, "run_real.sh")(SMOKE="1")
    for variables in ({}, {"SMOKE": "1", "MODEL": "mine"}):
        done = bash("bash examples/run_real.sh", OUT=str(tmp_path / "out"), **variables)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"error: {tmp_path}/out was not made by this script with these settings: give another OUT, or "
            f"delete {tmp_path}/out\n"
        )


def test_four_answers_before_and_after(tmp_path: Path) -> None:
    def row(model: str, probe: int, side: str, rouge_l: float) -> dict[str, Any]:
        texts = {"prompt": f"Question {probe}?", "response": f"{model}\nsays {probe}"}
        return {"model": model, "probe": probe, "side": side, "rouge_l": rouge_l, **texts}

    sides = {9: "retain", 1: "forget", 2: "forget", 3: "forget", 4: "forget", 7: "retain"}
    rows = [
        row(name, probe, side, probe != 2) for name in ("base", "rerule") for probe, side in sides.items()
    ]
    tidy.from_rows(rows).to_parquet(tmp_path / tidy.FILE)
    done = bash(
        'python "examples/$SCRIPT" "$FOLDER" base rerule', SCRIPT="before_after.py", FOLDER=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    shown = [
        f"Question {index}?  [{sides[index]}]\n  base    base says {index}\n  rerule  rerule says {index}\n"
        for index in (1, 3, 7, 9)
    ]
    assert done.stdout == "\n" + "\n".join(shown)


def test_no_script_removes_or_moves_anything_itself() -> None:
    for script in (ROOT / "examples").glob("*.sh"):
        commands = [line.split("#")[0] for line in script.read_text().splitlines()]
        words = {word for line in commands for word in line.replace("(", " ").replace(";", " ").split()}
        assert not words & {"rm", "mv", "rmdir", "unlink", "truncate", "shred", "--delete"}, script
