"""Readers of others' files, each file damaged in every way: finite numbers, or one line and exit code 2.

RERULE_EVERY=1 tries all of it, which takes minutes; otherwise a share that differs from file to file.
"""

from __future__ import annotations

import io
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from recipe.rerule import evaluate, report
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.probes import file_sha256
from recipe.rerule.replay import Replay, ReplayConfig, save
from recipe.rerule.replay.__main__ import main as inspect
from tests.evaluation.made_logs import tofu_log
from tests.made_runs import stage2_run
from tests.refused import playground
from tests.refused.damage import damaged, written
from tests.refused.table import told
from tests.replay.groups import make_group

EVERY = int(os.environ.get("RERULE_EVERY", "61"))
REPORTS_EVERY = 1 if EVERY == 1 else 3 * EVERY
UNREADABLE = ("Errno", "Traceback", "object has no", "indices must be", "not supported between", "unhashable")
MUSE_SAMPLE = {"rougeL_f1": 0.5, "rougeL_recall": 0.5, "generation": "x", "ground_truth": "y"}
MUSE = {
    f"{name}_ROUGE": {"agg_value": 0.5, "value_by_index": {"0": MUSE_SAMPLE, "1": MUSE_SAMPLE}}
    for name in ("forget_knowmem", "retain_knowmem", "forget_verbmem")
} | {
    "mia_min_k": {
        part: {"value_by_index": {"0": {"score": 0.5}, "1": {"score": 0.25}}}
        for part in ("forget", "holdout")
    }
}
TOFU = tofu_log(1, {"forget": 3, "retain": 2, "ra": 2, "wf": 2})
COMPARISON = {
    "a": "base", "b": "rule", "metric": "forget/all", "difference": 0.25, "low": 0.125, "high": 0.5,
    "p_value": 0.01, "p_holm": 0.02, "probes": 4, "test": "paired",
}  # fmt: skip
ROLLOUT = {
    "index": 4, "step": 1, "side": "forget", "mode": "qa", "prompt": "Where?", "response": "There.",
    "reward": 0.5,
}  # fmt: skip
NATURALNESS = {
    "results": {"base": {"forget/all": 50.0}, "rule": {"forget/all": 75.0}},
    "anchors": {"always refuses": {"forget/all": 25.0}},
    "intervals": {"base": {"forget/all": [25.0, 75.0]}},
    "comparisons": [COMPARISON],
    "counts": {"base": {"forget": {"responses": 1, "scored": 1, "missing": 0, "empty": 0}}},
    "note": "A judge.", "judge": {"model": "j", "temperature": 0.0}, "rubric": {"version": 1, "scale": "s"},
    "responses_sha256": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An evaluation of two models, its scores of naturalness, and a run; figures have no pixels."""
    with pytest.MonkeyPatch.context() as patch:
        playground.stub_slow_parts(patch)
        root = playground.build(tmp_path_factory.mktemp("damaged") / "root")
        two = "model --model base=model --model rule=model --probes data/probes.parquet --out two"
        assert playground.call("evaluate", root, two) == 0
        stage2_run(root / "run", [0.5, 0.25])
        (root / "run" / "records" / "rollouts").mkdir()
        rollouts = [ROLLOUT, ROLLOUT | {"response": "Here.", "reward": 1.0}]
        (root / "run" / "records" / "rollouts" / "1.jsonl").write_text(written(rollouts, True))
        (root / "scores").mkdir()
        judged = NATURALNESS | {"responses_sha256": file_sha256(root / "two" / tidy.FILE)}
        (root / "scores" / "naturalness.json").write_text(json.dumps(judged))
        yield root


class Sweep:
    """Runs commands on damaged files and gathers how they broke the rule."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.broken: list[str] = []
        self.tried = 0

    def run(
        self, name: str, command: Callable[[list[str]], int], *arguments: object, code: int | None = None
    ) -> None:
        """One command; `score` prints an object of numbers on its last line.

        code: with which it has to end.
        """
        self.tried += 1
        given = [str(argument) for argument in arguments]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)  # they would be further lines on stderr
                ended = command(given)
            out, err = self._capsys.readouterr()
            problem = _problem(ended, out, err, score="score" in given)
            problem = problem or (f"ended with {ended}: {err}" if code not in (None, ended) else "")
        except Exception as error:
            self._capsys.readouterr()
            problem = f"{type(error).__name__}: {error}"[:300]
        if problem:
            self.broken.append(f"{name}: {problem}")

    def end(self) -> None:
        assert self.tried > 3
        assert not self.broken, f"{len(self.broken)} of {self.tried}:\n" + "\n".join(self.broken[:40])


def _problem(code: int, out: str, err: str, *, score: bool) -> str:
    """How a command broke the rule, "" where it kept it."""
    lines = told(err)
    if code == 0:
        if not all(line.startswith(("note: ", "warning: ")) for line in lines):
            return f"exit code 0 and {err[:300]!r}"
        values = json.loads(out.splitlines()[-1]).values() if score else ()
        return "" if all(value is None or math.isfinite(value) for value in values) else out[:300]
    one = code == 2 and len(lines) == 1 and lines[0].startswith("error: ")
    readable = not any(word in err for word in UNREADABLE) and len(lines[0] if lines else "") < 600
    return "" if one and readable else err[:300]


def put_damaged(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(("benchmark", "value"), [("tofu", TOFU), ("muse-books", MUSE)])
def test_a_log_to_score(
    benchmark: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, whole = tmp_path / "log.json", tmp_path / "whole.json"
    whole.write_text(json.dumps(value))
    sweep, score = Sweep(capsys), ("score", "--benchmark", benchmark, "--json", "--log")
    sweep.run("whole", evaluate.main, *score, whole, code=0)
    for name, text in damaged(value, every=EVERY):
        put_damaged(file, text)
        sweep.run(name, evaluate.main, *score, file)
        sweep.run(f"retained: {name}", evaluate.main, *score, whole, "--retain-log", file)
    sweep.end()


READ_BY_THE_REPORT = [
    *(f"two/{name}.json" for name in ("results", "anchors", "intervals", "comparisons", "meta")),
    *("run/records/metrics.jsonl", "run/records/prompts.jsonl", "run/records/rollouts/1.jsonl"),
    *("run/config.yaml", "scores/naturalness.json"),
]


@pytest.mark.parametrize("name", READ_BY_THE_REPORT)
def test_an_input_of_the_report(
    name: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--results", root / "two", "--run", f"rule={root / 'run'}", "--naturalness", root / "scores"]
    given += ["--overwrite", "--out", tmp_path / "out"]
    sweep, content, lines = Sweep(capsys), (root / name).read_text(), name.endswith(".jsonl")
    value = [json.loads(line) for line in content.splitlines()] if lines else yaml.safe_load(content)
    sweep.run("whole", report.main, *given, code=0)
    for damage, text in damaged(value, lines=lines, every=REPORTS_EVERY):
        put_damaged(root / name, text)
        sweep.run(damage, report.main, *given)
    (root / name).write_text(content)
    sweep.end()


def damaged_tables(content: bytes) -> Iterator[tuple[str, bytes]]:
    """A table that is cut off, that lacks a column, or has one with values of another type."""
    whole = pd.read_parquet(io.BytesIO(content))
    for share in (0, 1, 2, 3):
        yield f"cut at {share} quarters", content[: share * len(content) // 4]
    for column in whole.columns:
        yield f"without {column}", whole.drop(columns=column).to_parquet()
        for value in (None, "x", 0.5, ["x"], float("nan")):
            yield f"{column} of {value}", whole.assign(**{column: [value] * len(whole)}).to_parquet()
    yield "no rows", whole.head(0).to_parquet()


def test_the_table_of_responses(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = root / "two" / tidy.FILE
    judge = ("judge", "--results", root / "two", "--base-url", "http://localhost:1/v1", "--judge-model", "j")
    score = ("score", "--benchmark", "world", "--json", "--model", "base", "--log", table)
    page = ("--results", root / "two", "--overwrite", "--out", tmp_path / "out")
    sweep, content = Sweep(capsys), table.read_bytes()
    for name, damage in damaged_tables(content):
        table.write_bytes(damage)
        sweep.run(f"judge, {name}", evaluate.main, *judge, "--dry-run")
        sweep.run(f"score, {name}", evaluate.main, *score)
        sweep.run(f"report, {name}", report.main, *page)
    table.write_bytes(content)
    sweep.end()


def test_a_saved_replay_buffer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replay = Replay(ReplayConfig(admission="all"))
    replay.offer([make_group(5, step=1, rewards=[0.0, 1.0]), make_group(6, step=1)], step=1)
    save(replay, tmp_path, {"rollout.n": 2})
    state, sweep = tmp_path / "state.json", Sweep(capsys)
    for name, text in damaged(json.loads(state.read_text()), every=EVERY):
        put_damaged(state, text)
        sweep.run(name, inspect, "inspect", tmp_path, "--groups", "--json")
    sweep.end()
