"""Folders as `recipe.rerule.evaluate model` writes them, and figures that are filled and not rendered."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot as plt

from recipe.rerule.evaluation import tidy
from recipe.rerule.reporting import style


@pytest.fixture
def write_evaluation(tmp_path: Path) -> Callable[..., Path]:
    """write_evaluation(name, rows of the tidy table or None, {file name: JSON value}) -> the folder."""

    def write(name: str, responses: list[dict[str, Any]] | None = None, **files: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for stem, value in files.items():
            (folder / f"{stem}.json").write_text(json.dumps(value))
        if responses is not None:
            tidy.write(folder, tidy.from_rows(responses))
        return folder

    return write


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list]:
    """The canvases filled during the test, which are not rendered."""
    canvases: list = []

    def keep(canvas) -> bytes:
        canvases.append(canvas)
        return b"not drawn"

    monkeypatch.setattr(style, "png", keep)
    yield canvases
    plt.close("all")
