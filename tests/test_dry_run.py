"""--dry-run of the run scripts, and the targets that run_rwku.sh takes, on a small tree of RULE's files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data_prep.raw_files import put_rwku_target

ROOT = Path(__file__).resolve().parents[1]
TEN = [
    "1_Stephen_King",
    "2_Confucius",
    "3_Bruce_Lee",
    "4_Warren_Buffett",
    "5_Christina_Aguilera",
    "6_Cindy_Crawford",
    "7_Marie_Osmond",
    "8_Paris_Hilton",
    "9_Justin_Bieber",
    "10_Prince_Harry,_Duke_of_Sussex",
]
"""The targets of the two papers."""
BARE, LAST = "11_Bo_Fell", "12_Cy_Esk"
STAND_IN = f"""#!/usr/bin/env bash
# Notes its words; what only names targets or files is run.
case "$*" in *--list* | *method_files.py*) exec "{sys.executable}" "$@" ;; esac
printf '%s\\t' "$@" >> "$CALLS"
echo "offline=${{HF_HUB_OFFLINE:-0}}" >> "$CALLS"
[[ "$*" != *recipe.rerule.report* ]] || touch "$OUT/report.md"
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RULE's `data` with twelve targets; the eleventh has no training rows, as fifty of RULE's hundred."""
    data = tmp_path_factory.mktemp("rule") / "data"
    for name in [*TEN, BARE, LAST]:
        put_rwku_target(data / "RWKU/Target" / name)
    (data / "RWKU/Target" / BARE / "rl_rejection_with_fb_neighbor_target.json").unlink()
    return data


def run(folder: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command of bash with the stand-in for python, and an OUT whose name has to be quoted."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin/python").write_text(STAND_IN)
    (folder / "bin/python").chmod(0o755)
    settings = {"OUT": f"{folder}/my run", "CALLS": f"{folder}/calls", "MODEL": "owner/it's a model"}
    path = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    env = {**{"HOME": str(folder)}, **path, **settings, **variables}
    return subprocess.run(["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True)


def called(folder: Path) -> str:
    text = (folder / "calls").read_text()
    (folder / "calls").unlink()
    return text


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("script", "smoke"),
    [("rwku", "0"), ("muse_books", "1"), ("muse_news", "0"), ("tofu", "1"), ("real", "0")],
)
def test_what_is_printed_and_pasted_is_what_the_script_runs(
    script: str, smoke: str, data: Path, tmp_path: Path
) -> None:
    settings = {"DATA": str(data), "SMOKE": smoke, "TARGETS": f"{TEN[0]}\n{TEN[-1]}"}
    settings |= {} if script == "real" else {"ARMS": "rule rerule random", "STAGE1_OPTIONS": "optim.lr=1e-7"}
    command = f"bash examples/run_{script}.sh"
    dry = run(tmp_path, f"{command} --dry-run", **settings)
    assert dry.returncode == 0, dry.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]  # no call, and nothing written
    assert run(tmp_path, command, DRY_RUN="1", **settings).stdout == dry.stdout
    assert run(tmp_path, dry.stdout, **settings).returncode == 0
    pasted, written = called(tmp_path), contents(tmp_path / "my run")
    shutil.rmtree(tmp_path / "my run")
    done = run(tmp_path, command, **settings)
    assert done.returncode == 0, done.stderr
    assert pasted == called(tmp_path)
    assert written == contents(tmp_path / "my run")
    assert pasted.count("recipe.rerule.main\t") == {"rwku": 6, "real": 2}.get(script, 3)


@pytest.mark.parametrize("made", [False, True])
def test_methods_are_printed_before_their_rows_are_made(made: bool, data: Path, tmp_path: Path) -> None:
    if made:  # without the rows that the method reads
        (tmp_path / "my run/data").mkdir(parents=True)
        (tmp_path / "my run/data/manifest.json").write_text("{}")
    done = run(tmp_path, "bash examples/run_tofu.sh --dry-run", DATA=str(data), ARM="npo_gdr")
    if made:
        assert done.returncode == 2
        assert "forget_gold.parquet, which is not there" in done.stderr
    else:
        (line,) = [line for line in done.stdout.splitlines() if "recipe.rerule.unlearn" in line]
        assert re.findall(r"(data\.\w+)=\S*?my\\ run/data/(\w+)\.parquet", line) == [
            ("data.forget", "forget_gold"),
            ("data.retain", "retain"),
        ]


def test_another_option_is_refused(data: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "bash examples/run_tofu.sh --dryrun", DATA=str(data))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: the one option is --dry-run, not --dryrun; settings are environment variables\n"
    )


@pytest.mark.parametrize(
    ("variables", "targets"),
    [
        ({}, TEN),
        ({"SMOKE": "1"}, TEN[:2]),
        ({"TARGETS": "all"}, [*TEN, LAST]),
        ({"TARGETS": f"Cy Esk\n\n{TEN[9]}\n"}, [LAST, TEN[9]]),
        ({"inside": "RWKU/Target", "TARGETS": "Confucius"}, TEN[1:2]),
    ],
)
def test_targets(variables: dict[str, str], targets: list[str], data: Path, tmp_path: Path) -> None:
    source = data / variables.pop("inside", "") if "inside" in variables else data
    done = run(tmp_path, "bash examples/run_rwku.sh --dry-run", DATA=str(source), **variables)
    assert done.returncode == 0, done.stderr
    assert re.findall("^# == (.+)$", done.stdout, re.MULTILINE) == targets


@pytest.mark.parametrize(
    ("targets", "line"),
    [
        (
            f"{TEN[0]}\n{BARE}",
            f"no training rows (rl_rejection_with_fb_neighbor_target.json) in {BARE}: choose ",
        ),
        (f"{TEN[0]}\n13_No", "there is no target '13_No'; choose from Stephen King, Confucius, "),
    ],
)
def test_a_target_that_cannot_be_made_is_named_before_any_work(
    targets: str, line: str, data: Path, tmp_path: Path
) -> None:
    for command in ("bash examples/run_rwku.sh", "bash examples/run_rwku.sh --dry-run"):
        done = run(tmp_path, command, DATA=str(data), TARGETS=targets)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {line}")
        assert done.stderr.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_a_paper_target_that_is_missing_is_named(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    for name in TEN[2:]:
        shutil.rmtree(tmp_path / "data/RWKU/Target" / name)
    done = run(tmp_path, "bash examples/run_rwku.sh", DATA=str(tmp_path / "data"))
    missing = ", ".join(repr(name) for name in TEN[2:])
    assert done.stderr.startswith(f"error: there is no target {missing}; choose from Stephen King, ")
    assert (done.returncode, (tmp_path / "my run").exists()) == (2, False)
