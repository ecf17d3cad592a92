"""Readers of others' files, each file damaged in every way: finite numbers, or one line and exit code 2.

RERULE_EVERY=1 tries all of it, which takes minutes; otherwise a share that differs from file to file.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot as plt

from recipe.rerule import evaluate, report
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.probes import file_sha256
from recipe.rerule.replay import Replay, ReplayConfig, save
from recipe.rerule.replay.__main__ import main as inspect
from recipe.rerule.reporting import style
from tests.evaluation.made_logs import tofu_log
from tests.refused.damage import damaged, written
from tests.refused.table import told
from tests.replay.groups import make_group

EVERY = int(os.environ.get("RERULE_EVERY", "61"))
REPORTS_EVERY = 1 if EVERY == 1 else 3 * EVERY
UNREADABLE = ("Errno", "Traceback", "object has no", "indices must be", "not supported between", "unhashable")
RECORD = {
    "model": "base", "probe": 3, "side": "forget", "kind": "qa", "fact": "a", "sample": 0, "family": "direct",
    "subject": "Ada", "prompt": "Where?", "golds": ["Paris"], "response": "In Paris.", "rouge_l": 1.0,
    "refused": 0.0,
}  # fmt: skip
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
RESULTS = {"base": {"forget/recall": 0.5, "retain/recall": 0.75}, "rule": {"forget/recall": 0.25}}
COMPARISON = {
    "a": "base", "b": "rule", "metric": "forget/recall", "difference": 0.25, "low": 0.125, "high": 0.5,
    "p_value": 0.01, "p_holm": 0.02, "probes": 4, "test": "paired",
}  # fmt: skip
META = {
    "benchmark": "world", "command": "python", "models": {"base": {"path": "m", "global_step": 3}},
    "probes": {"file": "p.parquet", "sha256": "ab", "rows": {"forget": 1}}, "rouge_l_convention": "recall",
    "benchmark_settings": {"max_tokens": 32},
}  # fmt: skip
EVALUATION: dict[str, Any] = {
    "results.json": RESULTS,
    "anchors.json": {"always refuses": {"forget/recall": 0.0}},
    "intervals.json": {"base": {"forget/recall": [0.25, 0.75]}},
    "comparisons.json": [COMPARISON],
    "meta.json": META,
}
ROWS = [RECORD, RECORD | {"model": "rule", "response": "No."}]
GROUP = {
    "index": 4, "type": "forget", "mode": "qa", "subject": "Ada", "rewards": [0.0, 1.0], "prompt_tokens": 3,
    "response_tokens": [2, 4],
}  # fmt: skip
ROLLOUT = {
    "index": 4, "step": 1, "side": "forget", "mode": "qa", "prompt": "Where?", "response": "There.",
    "reward": 0.5,
}  # fmt: skip
RUN: dict[str, Any] = {
    "records/metrics.jsonl": [
        {
            "step": step,
            "data": {"reward/forget/mean": 0.5, "replay/updates": 1, "val-core/x/reward/mean@1": 0.5},
        }
        for step in (1, 2)
    ],
    "records/prompts.jsonl": [{"step": step, "prompts": [GROUP]} for step in (1, 2)],
    "records/rollouts/1.jsonl": [ROLLOUT, ROLLOUT | {"response": "Here.", "reward": 1.0}],
    "config.yaml": {"replay": {"enable": True, "admission": "hard", "threshold": 0.6}},
}
NATURALNESS = {
    "results": {"base": {"forget/all": 50.0}, "rule": {"forget/all": 75.0}},
    "anchors": {"always refuses": {"forget/all": 25.0}},
    "intervals": {"base": {"forget/all": [25.0, 75.0]}},
    "comparisons": [COMPARISON | {"metric": "forget/all"}],
    "counts": {"base": {"forget": {"responses": 1, "scored": 1, "missing": 0, "empty": 0}}},
    "note": "A judge.", "judge": {"model": "j", "temperature": 0.0}, "rubric": {"version": 1, "scale": "s"},
    "responses_sha256": "",
}  # fmt: skip


def put(folder: Path, files: dict[str, Any]) -> Path:
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written(value, name.endswith("l") and not name.endswith("yaml")))
    return folder


@pytest.fixture(autouse=True)
def _no_pixels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Figures are put together, but not rendered."""
    monkeypatch.setattr(style, "png", lambda canvas: plt.close("all") or b"")
    yield
    plt.close("all")


class Sweep:
    """Runs commands on damaged files and gathers how they broke the rule."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.broken: list[str] = []
        self.tried = 0

    def run(self, name: str, command: Callable[[list[str]], int], *arguments: object) -> None:
        """One command, whose last line is an object of numbers where `--json` is among its arguments."""
        self.tried += 1
        given = [str(argument) for argument in arguments]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)  # they would be further lines on stderr
                code = command(given)
            out, err = self._capsys.readouterr()
            problem = _problem(code, out, err, score="score" in given)
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


LOGS: dict[str, tuple[Any, bool]] = {
    "tofu": (TOFU, False),
    "muse-books": (MUSE, False),
}


@pytest.mark.parametrize("benchmark", LOGS)
def test_a_log_to_score(benchmark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value, lines = LOGS[benchmark]
    file, whole = tmp_path / "log.json", tmp_path / "whole.json"
    whole.write_text(written(value, lines))
    sweep = Sweep(capsys)
    score = ("score", "--benchmark", benchmark, "--json", "--log")
    assert evaluate.main([*score, str(whole)]) == 0
    capsys.readouterr()
    for name, text in damaged(value, lines=lines, every=EVERY):
        put_damaged(file, text)
        sweep.run(name, evaluate.main, *score, file)
        if benchmark in ("tofu", "muse-books"):
            sweep.run(f"retained: {name}", evaluate.main, *score, whole, "--retain-log", file)
    sweep.end()


@pytest.mark.parametrize("name", [*EVALUATION, *RUN, "naturalness.json"])
def test_an_input_of_the_report(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation, run = put(tmp_path / "e", EVALUATION), put(tmp_path / "r", RUN)
    tidy.write(evaluation, tidy.from_rows(ROWS))
    judged = NATURALNESS | {"responses_sha256": file_sha256(evaluation / tidy.FILE)}
    scores = put(tmp_path / "n", {"naturalness.json": judged})
    given = ["--results", evaluation, "--run", f"rule={run}", "--overwrite", "--out", tmp_path / "out"]
    given += ["--naturalness", scores]
    assert report.main(list(map(str, given))) == 0
    capsys.readouterr()
    (place,) = (folder / name for folder in (evaluation, run, scores) if (folder / name).exists())
    value, sweep = (EVALUATION | RUN | {"naturalness.json": judged})[name], Sweep(capsys)
    for damage, text in damaged(value, lines=name.endswith(".jsonl"), every=REPORTS_EVERY):
        put_damaged(place, text)
        sweep.run(damage, report.main, *given)
    sweep.end()


def damaged_tables() -> Iterator[tuple[str, bytes]]:
    """A table that is cut off, that lacks a column, or has one with values of another type."""
    whole = tidy.from_rows(ROWS)
    content = whole.to_parquet()
    for share in (0, 1, 2, 3):
        yield f"cut at {share} quarters", content[: share * len(content) // 4]
    for column in whole.columns:
        yield f"without {column}", whole.drop(columns=column).to_parquet()
        for value in (None, "x", 0.5, ["x"], float("nan")):
            yield f"{column} of {value}", whole.assign(**{column: [value] * len(whole)}).to_parquet()
    yield "no rows", whole.head(0).to_parquet()


def test_the_table_of_responses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = put(tmp_path / "e", EVALUATION)
    judge = ("judge", "--results", folder, "--base-url", "http://localhost:1/v1", "--judge-model", "j")
    score = ("score", "--benchmark", "world", "--json", "--model", "base", "--log", folder / tidy.FILE)
    page = ("--results", folder, "--overwrite", "--out", tmp_path / "out")
    sweep = Sweep(capsys)
    for name, content in damaged_tables():
        (folder / tidy.FILE).write_bytes(content)
        sweep.run(f"judge, {name}", evaluate.main, *judge, "--dry-run")
        sweep.run(f"score, {name}", evaluate.main, *score)
        sweep.run(f"report, {name}", report.main, *page)
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
