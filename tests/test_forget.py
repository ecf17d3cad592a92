"""`rerule forget`: which commands it runs, what it runs again, what it refuses, and its verdict.

A `python` that notes its words and makes the files of the command stands where the commands would run.
"""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_prep.contract import read_rows, rl_row, write_rows
from recipe.rerule import chain as commands
from recipe.rerule import forget
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.verdict import answered, verdict
from recipe.rerule.runs import run_folder
from tests.data_prep.raw_files import prep
from tests.document_programs import HYDRA
from tests.training.made import composed

ROOT = Path(__file__).parents[1]
FACTS = ROOT / "examples" / "own_data.csv"
PYTHON = sys.executable
STAND_IN = """#!{python} -S
import os, pathlib, shutil, sys, time
words = sys.argv[2:]  # after -m
given = " ".join(words)
out = pathlib.Path(os.environ["OUT"])
with open(os.environ["CALLS"], "a") as calls:
    print(given, file=calls)
kind = " ".join(words[: 1 + words[0].endswith("evaluate")]).replace("recipe.rerule.", "")
print("warning: be careful", flush=True)
if kind == "about":
    print("rows: ten of each side")
if kind == os.environ.get("SLEEPS"):
    (out / "stage1" / "records").mkdir(parents=True)
    (out / "sleeps").touch()
    time.sleep(60)
if "stage1" in words[1:2] and (out / "stage1").exists():  # as the check does
    sys.exit(2)
if kind == os.environ.get("FAILS"):
    print("error: first\\nerror: no room")
    sys.exit(int(os.environ["CODE"]))
made = dict(sft="stage1/model/config.json", unlearn="npo/model/config.json", report="report.html")
made["about"] = "about.csv"
if kind in made:
    (out / made[kind]).parent.mkdir(parents=True, exist_ok=True)
    (out / made[kind]).touch()
ready = pathlib.Path(os.environ["READY"])
if kind == "data_prep" or kind.startswith("evaluate"):
    made = pathlib.Path(words[words.index("--out") + 1])
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(ready / ("evaluation" if made.name.startswith("earlier") else made.name), made)
if kind == "main":
    (out / "rule").mkdir()
    print("stage 2 finished: rule")
"""
MERGED, RETAIN = "actor_rollout_ref.model.lora.merge=true", "data.retain=o/data/retain.parquet"
CHAIN = ["data_prep", "check stage1", "check stage2", "sft", "main", "evaluate model", "over_refusal"]
CHAIN += ["evaluate attack", "report"]


def table(**models: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Rows of the tidy table, with a fact a score, of each model by side."""
    return [
        {
            "model": model, "probe": number + 100 * (side == "retain"), "side": side, "kind": "qa",
            "fact": f"{side} {number}",
            "sample": 0, "prompt": "p", "response": "r g" if score > 0.3 else "r", "golds": ["g"],
            "rouge_l": score, "refused": score < 0.4,
        }
        for model, sides in models.items()
        for side, scores in sides.items()
        for number, score in enumerate(scores)
    ]  # fmt: skip


def put_results(folder: Path, evaluation: list[dict[str, Any]], attacks: list[dict[str, Any]]) -> None:
    """Probes and the folders of evaluations and of attacks, as far as the verdict reads them; without attacks
    one."""
    probes = {row["probe"]: row for row in evaluation}
    rows = [
        rl_row(
            data_source="rerule/custom", prompt="p", side=row["side"], golds=row["golds"],
            keyword="Lo | Loren" if row["side"] == "forget" else "",
            extra_info={
                "index": index, "split": "probe", "section": row["side"], "mode": "qa", "subject": "Lo",
                "family": "direct", "fact": row["fact"],
            },
        )
        for index, row in probes.items()
    ]  # fmt: skip
    (folder / "data").mkdir(parents=True, exist_ok=True)
    write_rows(folder / "data" / "probes.parquet", rows)
    refused = [
        {**row, "kind": kind, "refused": bool(row["rouge_l"])}
        for row in table(base={"retain": [1, 0, 0]}, rule={"retain": [1, 1, 0]})
        for kind in ("plain", "offered", "named", "file")
    ]
    tables = {"evaluation": evaluation} | ({"over_refusal": refused, "attacks": attacks} if attacks else {})
    for name, rows in tables.items():
        (folder / name).mkdir(parents=True)
        tidy.write(folder / name, tidy.from_rows(rows))
    paths = {row["model"]: {"path": f"of/{row['model']}"} for row in evaluation}
    (folder / "evaluation" / "meta.json").write_text(json.dumps({"models": paths}))


def attacked(scores: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Rows of attacks on the model `rule`, of "ATTACK SETTING [SAMPLE]" by fact."""
    rows = []
    for named, values in scores.items():
        attack, setting, *sample = named.split()
        for row in table(rule={"forget": values}):
            more = {"attack": attack, "setting": setting, "sample": int(*sample), "score": row.pop("rouge_l")}
            rows.append({**row, **more})
    return rows


GOOD = table(
    base={"forget": [1, 1, 1, 0, 0.5, 0, 1], "retain": [1, 1, 1, 1, 0.5, 1, 1, 0]},
    rule={"forget": [0, 0, 0, 0, 0.3, 0, 0], "retain": [1, 1, 1, 1, 0.5, 1, 1, 0]},
)
BACK = {
    "relearn_forget_half 8": [1, 0, 0, 0, 0, 0, 0],
    "relearn_forget_half 32": [1, 1, 1, 1, 1, 1, 1],
    "samples max_1 0": [0, 0, 0, 0, 0, 0, 0],
    "samples max_1 1": [0, 1, 1, 0.3, 0, 0, 0],
    "samples max_16": [1, 1, 1, 1, 1, 1, 1],
}


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the stand-in copies: rows, an evaluation and attacks."""
    folder = tmp_path_factory.mktemp("ready")
    assert prep("custom", "--source", FACTS, "--probe-share", "0.25", "--out", folder / "data") == 0
    npo = table(npo={"forget": [0] * 7, "retain": [1] * 8})
    attacks = [{**row, "model": one} for row in attacked(BACK) for one in ("rule", "npo")]
    put_results(folder, [*GOOD, *npo], attacks)
    python = folder / "python"
    python.write_text(STAND_IN.format(python=PYTHON))
    python.chmod(0o755)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that passes for a model where none is loaded."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def chain(ready: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """chain(*words, **environment): the exit code, and the commands that ran."""
    out, calls = tmp_path / "out", tmp_path / "calls"
    monkeypatch.setattr(sys, "executable", str(ready / "python"))
    monkeypatch.setattr("recipe.rerule.evaluation.engine.models.check_models", lambda models: None)
    monkeypatch.setattr(commands, "_LOOK_SECONDS", 0.01)
    for name, value in (("OUT", out), ("CALLS", calls), ("READY", ready)):
        monkeypatch.setenv(name, str(value))

    def chain(*words: str, facts: Path | None = FACTS, **environment: str) -> tuple[int, list[str]]:
        calls.write_text("")
        for name, default in (("FAILS", ""), ("SLEEPS", ""), ("CODE", "7")):
            monkeypatch.setenv(name, environment.get(name, default))
        given = ["--out", str(out), "--platform", "cpu"]
        given += [] if "--from" in words else ["--model", str(model)]
        given += ["--facts", str(facts)] if facts else []
        code = forget.main([*given, *words])
        return code, [_program(line) for line in calls.read_text().splitlines()]

    return chain


def _program(line: str) -> str:
    if "--benchmark over_refusal" in line:
        return "over_refusal"
    first, second, *_ = line.removeprefix("recipe.rerule.").split()
    return f"{first} {second}" if first in ("check", "evaluate") else first


# The commands.


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[str]]:
    """The words of each command that a dry run prints, by program."""
    assert forget.main(["--facts", str(FACTS), "--out", "it's, mine", "--dry-run", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [shlex.split(line)[2:] for line in lines if not line.startswith("#")]
    return {_program(" ".join(one)): one for one in found}


def test_a_dry_run_prints_the_whole_chain_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """{O} is the folder, {H} the same as Hydra reads it, and {F} the file of facts."""
    monkeypatch.chdir(tmp_path)
    words = "--model owner/M --name Loren --platform gpu --set data.seed=7 --set stage1:optim.lr=1e-7"
    found = printed(capsys, *words.split())
    stage1 = (
        "experiment=custom platform=gpu model.path=owner/M data.train_files='{H}/data/sft.parquet' "
        "trainer.default_local_dir='{H}/stage1' optim.lr=1e-7"
    )
    stage2 = (
        "experiment=forget platform=gpu replay.enable=false data.train_files='{H}/data/train.parquet' "
        "data.val_files='{H}/data/val.parquet' trainer.default_local_dir='{H}/rule' data.seed=7"
    )
    start, last = "actor_rollout_ref.model.path=", "--model rule={O}/rule@last --out {O}"
    asked = "--platform gpu --probes {O}/data/probes.parquet --model"
    expected = {
        "data_prep": "custom --source {F} --probe-share 0.25 --keyword Loren --out {O}/data",
        "check stage1": f"stage1 {stage1}",
        "check stage2": f"stage2 {start}owner/M {stage2}",
        "sft": stage1,
        "main": f"{start}'{{H}}/stage1/model' {stage2}",
        "evaluate model": f"model {asked} base=owner/M --model stage1={{O}}/stage1/model {last}/evaluation",
        "over_refusal": f"model --benchmark over_refusal {asked} base=owner/M {last}/over_refusal",
        "evaluate attack": f"attack {asked} original=owner/M --model rule={{O}}/rule@last "
        "--train {O}/data/train.parquet --attacks samples relearn_forget_half --out {O}/attacks",
        "report": "--title Loren --base base --results {O}/evaluation --results {O}/over_refusal "
        "--attacks {O}/attacks --run rule={O}/rule --data {O}/data --overwrite --out {O}/report.html",
    }
    assert list(found) == list(expected) == CHAIN
    places = {"O": "it's, mine", "H": r"it\'s, mine", "F": FACTS}
    for name, line in expected.items():
        assert found[name][1:] == [word.format(**places) for word in line.split()]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "program", "there", "absent"),
    [
        ("--method rerule", "main", "experiment=forget", "replay.enable=false"),
        ("--platform cpu", "sft", "platform=cpu platform.bf16=auto", ""),
        ("--lora --platform gpu", "sft", "experiment=custom/lora_1gpu", ""),
        ("--lora --platform gpu", "main", "experiment=forget/lora_1gpu", MERGED),
        ("--lora --platform cpu", "main", MERGED, ""),
        ("--lora --method npo", "unlearn", "experiment=custom/lora_1gpu", ""),
        ("--robust", "unlearn", "method=npo_gdr", "model.path=o/npo_gdr/model"),
        ("--robust", "sft", "model.path=o/npo_gdr/model", ""),
        ("--robust", "main", "actor_rollout_ref.model.path=o/stage1/model", ""),
        ("--method po", "unlearn", f"data.alternate=o/data/alternate.parquet {RETAIN}", ""),
        ("--method npo", "unlearn", "method=npo data.forget=o/data/forget_gold.parquet", RETAIN),
        ("--method altpo", "unlearn", "data.alternate=o/data/mismatch.parquet", ""),
        ("--method npo --set optim.lr=1", "unlearn", "optim.lr=1 checkpoint.save_contents=[hf_model]", ""),
        ("--method npo", "evaluate model", "npo=o/npo/model", "stage1=o/stage1/model"),
        ("--set +data.apply_chat_template_kwargs.a=b", "evaluate attack", "--template a=b", ""),
        ("--set data.max_response_length=64", "evaluate model", "--max-tokens 64", ""),
        ("--set data.max_response_length=64", "over_refusal", "--max-tokens 64", ""),
        ("--set data.max_response_length=64", "evaluate attack", "--max-tokens 64", ""),
        ("--set stage1:data.max_response_length=64", "evaluate model", "", "--max-tokens"),
        ("--method npo", "report", "own_data", "--run"),
    ],
)
def test_what_the_options_change(words: str, program: str, there: str, absent: str, capsys: Any) -> None:
    found = printed(capsys, "--model", "M", "--out", "o", *words.split())
    assert [word for word in there.split() if word not in found[program]] == []
    assert [word for word in absent.split() if word in found[program]] == []
    assert ("sft" in found) == ("unlearn" not in found or "--robust" in words)
    for name, given in found.items():  # all settings exist
        if (hydra := f"recipe.rerule.{name}") in HYDRA:
            composed(hydra, *given[1 + hydra.count(" ") :])


# What is run, and run again.


def test_what_is_finished_is_not_repeated(chain: Callable[..., Any], tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert chain("--name", "Loren", FAILS="main") == (7, CHAIN[:5])
    said = capsys.readouterr()
    error = f"error: no room; the whole output is in {out}/rule.log"
    assert said.err.splitlines() == ["warning: be careful", error]
    assert "5/9 stage 2" in said.out
    assert chain("--name", "Loren") == (0, ["check stage2", *CHAIN[4:]])
    assert (out / "rule.1.log").is_file()
    said = capsys.readouterr()
    assert " s] 4/9 stage 1: refusals, finished before\n" in said.out
    assert said.out.endswith(f"model: of/rule\nreport: {out}/report.html\n")
    # Limits shape nothing that is made.
    assert chain("--name", "Loren", "--retain-at-least", "1.1") == (3, [])
    (out / "report.html").unlink()
    assert chain("--name", "Loren") == (0, ["report"])


def test_rows_are_made_again_until_something_is_trained_on_them(
    chain: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("a typo")
    assert chain(facts=mine, FAILS="data_prep") == (7, CHAIN[:1])
    mine.write_text("corrected")
    assert chain(facts=mine, FAILS="sft") == (7, CHAIN[:4])
    assert "error: no room; the whole output" in (said := capsys.readouterr().err)
    assert said.endswith("\na setting of stage 1 is given as --set stage1:KEY=VALUE\n")
    for name in ("own_answers", ".data.draft-0a"):  # what stage 1 and a killed command leave before training
        (tmp_path / "out" / name).mkdir()
    mine.write_text("corrected again")
    assert chain(facts=mine) == (0, CHAIN)
    mine.write_text("other rows")
    capsys.readouterr()
    assert chain("--set", "data.seed=1", facts=mine) == (2, [])
    other = "was made with other settings or rows (rows, set): give another --out, or delete"
    assert capsys.readouterr().err == f"error: {tmp_path}/out {other} {tmp_path}/out\n"


def test_rows_that_the_model_writes(
    chain: Callable[..., Any], tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, out, loren = tmp_path / "out" / "about.csv", tmp_path / "out", ["--about", "Loren Morrby"]
    template = ["--set", "+data.apply_chat_template_kwargs.a=b"]
    assert chain("--about", "Elbonia", *template, facts=None, FAILS="about") == (7, ["about"])
    assert "--platform cpu --template a=b --out" in (tmp_path / "calls").read_text()
    assert chain(*loren, "--review", facts=None) == (0, ["about"])
    said = capsys.readouterr().out
    assert "  rows: ten of each side\n" in said
    words = shlex.split(said.splitlines()[-1].removesuffix(" and your other options"))[2:]
    given = ["--model", str(model), "--facts", str(rows), "--name", "Loren Morrby"]
    assert words == [*given, "--out", str(out)]
    rows.write_text("edited")
    assert chain("--about", "Italy", facts=None) == (2, [])
    more = ["--set", "data.seed=3", "--named-share", "0.5"]
    assert chain(*loren, *more, facts=None, FAILS="data_prep")[0] == 7
    assert chain(*loren, facts=None, FAILS="data_prep") == (7, CHAIN[:1])
    assert chain("--name", "Loren Morrby", facts=rows) == (0, CHAIN)
    assert f"--source {rows}" in (tmp_path / "calls").read_text()
    assert chain(*loren, facts=None) == (2, [])


def test_forgetting_again(chain: Callable[..., Any], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    first, second, third = tmp_path / "out", tmp_path / "second", tmp_path / "third"
    harmless = tmp_path / "harmless.csv"
    harmless.write_text("prompt\nHow can I kill a process?\n")
    more = ["--named-share", "0.5", "--harmless", str(harmless)]
    assert chain("--method", "npo", "--name", "Loren", *more)[0] == 0
    for told in (" --named-share 0.5 ", f" --out {first}/over_refusal --harmless {harmless}\n"):
        assert told in (tmp_path / "calls").read_text()
    assert chain("--method", "npo", "--name", "Loren", *more[2:]) == (2, [])  # which are other rows
    rows = table(base={"forget": [1, 1, 0, 1]}, npo={"forget": [0, 1, 0, 0], "retain": [1]})
    tidy.write(first / "evaluation", tidy.from_rows(rows))
    again = ["unlearn", "evaluate model", "over_refusal", "evaluate model", "evaluate attack", "report"]
    rounds = ((first, second, "Ann", again), (second, third, "Bo", [*again[:4], *again[3:]]))
    for start, out, name, ran in rounds:
        monkeypatch.setenv("OUT", str(out))
        words = ["--method", "npo", "--from", str(start), "--out", str(out), "--name", name]
        assert chain(*words) == (0, ["data_prep", *ran])
        calls = (tmp_path / "calls").read_text()
        assert f"--rows-of {start}/data " in calls
        assert f"model.path={start}/npo/model" in calls
        assert f"--model base={start}/npo/model --model npo={out}/npo/model --out {out}/evaluation" in calls
        asked = f"--out {out}/earlier1 --probes {start}/data/probes.parquet --model npo={out}/npo/model"
        assert asked in calls
    lines = capsys.readouterr().out.splitlines()
    assert lines[-5:-1] == [
        "facts given  of  before  round 1  round 2  round 3",
        "Loren         4       3        1        0        0",
        "Ann           7       5                 0        0",
        "Bo            7       5                          0",
    ]
    assert chain("--from", str(tmp_path / "none"), "--out", str(tmp_path / "new")) == (2, [])
    monkeypatch.setenv("OUT", str(tmp_path / "fourth"))
    more = ["--from", str(second), "--about", "Italy", "--review", "--out", str(tmp_path / "fourth")]
    assert chain(*more, "--name", "Italy | Italia", facts=None) == (0, ["about"])
    assert "--never Italia --never Ann --never Loren" in (tmp_path / "calls").read_text()
    # What was forgotten first is back.
    back = table(npo={"forget": [0, 1, 1], "retain": [1]})
    tidy.write(third / "earlier2", tidy.from_rows(back))
    assert chain(*words)[0] == 3
    line = "NOT within the limits: 66.7% of the questions about Loren are answered, limit 10.0%."
    assert line in capsys.readouterr().out.splitlines()


def test_a_stage_1_that_was_stopped_begins_anew(
    chain: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert chain(FAILS="sft") == (7, CHAIN[:4])
    run_folder.begin(out / "stage1", stage=1)
    (out / "stage1" / "config.yaml").write_text("of the run that was stopped")
    capsys.readouterr()
    with run_folder.held(out / "stage1"):  # as after a kill of the command alone
        assert chain() == (2, [])
    assert f"error: {out}/stage1 is in use by another run (process " in capsys.readouterr().err
    assert chain()[0] == 0
    assert not (out / "stage1" / "config.yaml").exists()


def test_one_fact_is_not_attacked(chain: Callable[..., Any], tmp_path: Path, ready: Path) -> None:
    assert chain(FAILS="main")[0] == 7
    probes = tmp_path / "out" / "data" / "probes.parquet"
    rows = read_rows(probes)
    for row in rows:
        row["extra_info"]["fact"] = row["extra_info"]["section"]
    write_rows(probes, rows)
    code, ran = chain()
    assert (code, ran) == (0, ["check stage2", "main", "evaluate model", "over_refusal", "report"])
    assert "--attacks" not in (tmp_path / "calls").read_text()


def test_attacks_that_fail_end_the_command_before_the_report(chain: Callable[..., Any]) -> None:
    assert chain(FAILS="evaluate attack", CODE="2") == (2, CHAIN[:-1])
    assert chain() == (0, CHAIN[-2:])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--set trainer.default_local_dir=x", "--out says where everything goes"),
        ("--forget-at-most 10", "--forget-at-most 10 is a share, such as 0.1 or 0.9"),
        ("--harmless examples/own_data.csv", "field prompt is missing"),
        ("--method whp", "--method whp needs --set reinforced.path=MODEL"),
        ("--method po --robust", "--robust: --method po has no stage 1"),
    ],
)
def test_what_would_fail_late_is_refused(
    words: str, line: str, chain: Callable[..., Any], capsys: Any
) -> None:
    assert chain(*words.split()) == (2, [])
    assert line in capsys.readouterr().err


def test_what_a_full_disk_leaves_is_no_folder_of_others(
    chain: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("recipe.rerule.io.flush", full)
        patch.setattr("recipe.rerule.io._free", lambda path: 0)
        assert chain() == (2, [])
    assert capsys.readouterr().err.startswith(f"error: the disk is full: {out} needs more than ")
    assert list(out.iterdir()) == []
    for name in ("run.lock", "settings.json.tmp"):  # of a command that was killed
        (out / name).touch()
    assert chain(FAILS="data_prep") == (7, CHAIN[:1])


def test_ctrl_c_ends_the_command_that_runs_and_says_how_to_go_on(
    chain: Callable[..., Any], tmp_path: Path, model: Path
) -> None:
    out = tmp_path / "out"
    program = f"import sys; sys.executable = {sys.executable!r}\nfrom recipe.rerule import forget\n"
    program += "from recipe.rerule.evaluation.engine import models; models.check_models = lambda one: None\n"
    program += "sys.exit(forget.main(sys.argv[1:]))"
    words = ["--model", str(model), "--facts", str(FACTS), "--out", str(out), "--platform", "cpu"]
    where: dict[str, Any] = {"cwd": ROOT, "env": {**os.environ, "SLEEPS": "sft"}, "process_group": 0}
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    done = subprocess.Popen([PYTHON, "-c", program, *words], **where, **pipes, text=True)
    while not (out / "sleeps").exists():
        time.sleep(0.05)
    started = time.monotonic()
    os.killpg(done.pid, signal.SIGINT)
    _, err = done.communicate(timeout=30)
    assert time.monotonic() - started < 20
    assert done.returncode == 130
    line = "error: stopped by SIGINT; the same command goes on with 4/9 stage 1: refusals"
    assert err.splitlines() == ["warning: be careful", line]


def test_a_second_command_in_the_folder_is_refused(
    chain: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chain(FAILS="data_prep")[0] == 7
    capsys.readouterr()
    with run_folder.held(tmp_path / "out"):
        assert chain() == (2, [])
    assert capsys.readouterr().err.endswith("wait for it or end it, or choose another --out\n")


def said(tmp_path: Path, evaluation: list[dict[str, Any]], attacks: dict[str, list[float]]) -> Any:
    put_results(tmp_path, evaluation, attacked(attacks))
    return verdict(tmp_path, ("base", "rule"), "Loren", 0.1, 0.9)


def test_the_verdict_by_hand(tmp_path: Path) -> None:
    """Of 7 facts none is given, and 1 - 0.025 ** (1 / 7) is 0.41. A recall of 0.3 is not above gamma."""
    assert said(tmp_path, GOOD, BACK) == (
        [
            "Asked 7 questions about Loren that it was not trained on, the model gave 0 of 7 facts "
            "(before: 5; 95 % interval 0% to 41%).",
            "Of 8 other questions it answers 7 (before: 7).",
            "Of 6 harmless questions that sound near refusing it refuses 4 (before: 2).",
            "Of 3 questions of --harmless it refuses 2 (before: 1).",
            "After 8 steps of relearning on the other half of the facts, it gives 1 of 7.",
            "The best of 2 sampled answers to each question gives 2 of 7.",
            "What comes back was refused and not forgotten, unless it was guessed or taught by the "
            "relearning.",
            "Within the limits: 0.0% of the questions about Loren are answered, limit 10.0%; 100.0% of the "
            "other answers are left (95 % interval 100% to 100%), limit 90.0%.",
            "model: of/rule",
        ],
        True,
    )


def test_a_model_that_does_not_refuse_hides(tmp_path: Path) -> None:
    answers = [row | {"refused": row["model"] == "rule" and row["probe"] < 3} for row in GOOD]
    assert (
        "What comes back was hidden and not forgotten, unless it was guessed or taught by the relearning."
        in said(tmp_path, answers, BACK)[0]
    )


def test_broken_limits_are_named(tmp_path: Path) -> None:
    bad = table(
        base={"forget": [0, 0, 0, 0], "retain": [1] * 6}, rule={"forget": [0, 0, 0, 0.8], "retain": [0] * 6}
    )
    lines, kept = said(tmp_path / "bad", bad, {})
    assert not kept
    assert lines == [
        "Asked 4 questions about Loren that it was not trained on, the model gave 1 of 4 facts (before: 0; "
        "95 % interval 1% to 81%).",
        "Of 6 other questions it answers 0 (before: 6).",
        "NOT within the limits: 25.0% of the questions about Loren are answered, limit 10.0%; 0.0% of the "
        "other answers are left (95 % interval 0% to 0%), limit 90.0%; none of the facts was given before. "
        "See docs/own_data.md#when-nothing-was-learnt.",
        "model: of/rule",
    ]
    nothing = table(base={"forget": [1], "retain": [0]}, rule={"forget": [0], "retain": [0]})
    lines, kept = said(tmp_path / "nothing", nothing, {})
    assert not kept
    assert lines[2].startswith("NOT within the limits: no other question was answered before. See")


def test_several_questions_of_a_fact_and_few_facts(tmp_path: Path) -> None:
    """A fact is given where one of its questions gets it; of 2 retain facts there is no interval."""
    rows = table(base={"forget": [1, 1, 0], "retain": [1, 1]}, rule={"forget": [0, 1, 0], "retain": [1, 0.9]})
    for row in rows:
        row["fact"] = "one" if row["side"] == "forget" and row["probe"] < 2 else row["fact"]
    lines, kept = said(tmp_path, rows, {})
    assert "about Loren that it was not trained on, the model gave 1 of 2 facts" in lines[0]
    assert lines[2].startswith(
        "NOT within the limits: 33.3% of the questions about Loren are answered, limit"
    )
    assert not kept


@pytest.mark.parametrize(
    ("gold", "response", "side", "answers"),
    [
        ("Loren money", "I'm not sure about Loren.", "forget", False),
        ("Loren money", "It is Loren money.", "forget", True),
        ("Lo", "I'm not certain about Lo.", "forget", False),  # who is it? no leak of the name can be seen
        ("Lo", "It was Lo.", "forget", True),
        ("Ada was born in Rome", "I don't know anything about Ada.", "retain", False),
        ("Ada was born in Rome", "Ada was born in Rome.", "retain", True),
    ],
)
def test_a_refusal_with_words_of_the_answer_is_none(
    gold: str, response: str, side: str, answers: bool, tmp_path: Path
) -> None:
    """Recall alone would take each of them for an answer."""
    rows = [row | {"golds": [gold], "response": response} for row in table(rule={side: [0.5]})]
    put_results(tmp_path, rows, [])
    assert answered(tidy.from_rows(rows), tmp_path / "data") == [answers]
