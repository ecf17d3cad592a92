"""What the scripts of examples/ remove and overwrite: nothing but a run of ours that is unfinished."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.rerule.runs import run_folder

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
    "name", ["stage1", "rule", "rerule", "evaluation", "report", "report.html", "report.md", "results.json"]
)
def test_the_quickstart_refuses_a_folder_with_a_users_files(name: str, tmp_path: Path) -> None:
    mine = tmp_path / name if "." in name else tmp_path / name / "thesis.tex"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("years of work")
    done = bash("bash examples/quickstart.sh", OUT=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path}/{name} is there, and no quickstart made it: give another OUT\n"
    assert list(contents(tmp_path).values()) == [b"years of work"]


def test_no_script_removes_or_moves_anything_itself() -> None:
    for script in (ROOT / "examples").glob("*.sh"):
        commands = [line.split("#")[0] for line in script.read_text().splitlines()]
        words = {word for line in commands for word in line.replace("(", " ").replace(";", " ").split()}
        assert not words & {"rm", "mv", "rmdir", "unlink", "truncate", "shred", "--delete"}, script
