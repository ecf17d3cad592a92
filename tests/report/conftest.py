"""Synthetic run folders and results in the trainer's and the evaluator's formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot as plt

from recipe.rerule.evaluation import tidy
from recipe.rerule.reporting import style

Lines = list[dict[str, Any]]

RESULTS = {
    "base": {
        "forget/recall": 0.9,
        "forget/aa/role_play/recall": 0.75,
        "forget/refusal_rate": 0.0,
        "retain/recall": 0.95,
        "retain/refusal_rate": 0.0,
    },
    "rule <b>": {
        "forget/recall": 0.1234,
        "forget/refusal_rate": 0.9,
        "retain/recall": 0.85,
        "retain/refusal_rate": 0.05,
    },
}
ANCHORS = {"always refuses": {"forget/recall": 0.0625, "forget/refusal_rate": 1.0, "retain/recall": 0.03}}


@pytest.fixture
def results_folder(tmp_path: Path) -> Path:
    """A folder as `recipe.rerule.evaluate` writes it."""
    folder = tmp_path / "evaluation"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(RESULTS))
    (folder / "anchors.json").write_text(json.dumps(ANCHORS))
    meta = {
        "command": "python -m recipe.rerule.evaluate model --out evaluation",
        "models": {"base": {"path": "models/base", "global_step": None}},
        "probes": {"file": "world/probes.parquet"},
        "rouge_l_convention": "recall",
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


WriteEvaluation = Callable[..., Path]


@pytest.fixture
def write_evaluation(tmp_path: Path) -> WriteEvaluation:
    """write_evaluation(name, {file name: JSON value}, responses) -> the folder; "meta" gets a benchmark."""

    def write(name: str, responses: Lines | None = None, **files: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for stem, value in files.items():
            (folder / f"{stem}.json").write_text(json.dumps(value))
        if responses is not None:
            tidy.write(folder, tidy.from_rows(responses))
        return folder

    return write


def response(model: str, probe: int, text: str, **changes: Any) -> dict[str, Any]:
    """A row of the tidy table."""
    record = {
        "model": model,
        "probe": probe,
        "side": "forget",
        "kind": "qa",
        "fact": f"probe {probe}",
        "sample": 0,
        "family": "direct",
        "subject": "Ada Quill",
        "prompt": f"Question {probe}?",
        "golds": ["Paris"],
        "response": text,
        "rouge_l": float(text == "Paris"),
        "refused": text.startswith("I don't"),
    }
    return record | changes


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list]:
    """The canvases filled during the test, wide and narrow, kept open for inspection and not rendered."""
    canvases: list = []

    def keep(canvas) -> bytes:
        canvases.append(canvas)
        return b""

    monkeypatch.setattr(style, "png", keep)
    yield canvases
    plt.close("all")
