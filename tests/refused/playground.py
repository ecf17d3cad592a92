"""A folder with what users have: outputs of our commands, and files of their own around and inside them."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from matplotlib import pyplot as plt

from data_prep.__main__ import main as data_prep
from recipe.rerule import evaluate, export, forget, report, task_vector, tune
from recipe.rerule.evaluation import model_command
from recipe.rerule.evaluation.engine.requests import Answer
from recipe.rerule.replay import __main__ as inspect
from recipe.rerule.reporting import style
from tests.data_prep.raw_files import put_muse, put_news, put_rtofu, put_rwku, put_tofu
from tests.made_models import put_model
from tests.refused.rows import TABLE

WEB_APP = json.dumps({"name": "My web app", "icons": [], "start_url": "/"})
OWN = {
    "own/manifest.json": WEB_APP,
    "own/meta.json": '{"benchmark": "mine"}',
    "own/naturalness.json": "{}",
    "own/contents.json": '{"contents": []}',
    "own/config.yaml": "mine: true\n",
    "own/mine.html": "<html><head></head></html>",
    "own/mine.md": "# mine\n",
    "own/mine/replay.png": "a photo",
    "own/stage1/model/config.json": "{}",
    "own/global_step_3/notes.txt": "mine",
    "own/latest_checkpointed_iteration.txt": "3",
    "own/records/metrics.jsonl": "mine",
    "own/train.parquet": "mine",
    "around.txt": "mine",
}
"""Files that no command of ours wrote, under names that commands of ours use."""
COMMANDS: Mapping[str, Callable[[list[str]], int]] = {
    "data_prep": data_prep,
    "evaluate": evaluate.main,
    "report": report.main,
    "export": export.main,
    "forget": forget.main,
    "inspect": inspect.main,
    "task_vector": task_vector.main,
    "tune": tune.main,
}


def stub_slow_parts(patch: pytest.MonkeyPatch) -> None:
    """Every model gives one answer to every request, without vLLM, and figures are not rendered."""

    def run(models, requests, decoding, store):
        return {model.name: {request.id: Answer("Paris") for request in requests} for model in models}

    def png(canvas):
        plt.close(canvas)
        return b"drawn"

    patch.setattr(model_command, "run", run)
    patch.setattr(model_command, "select", lambda name: None)
    patch.setattr(style, "png", png)


def build(root: Path) -> Path:
    """What our commands write: data, evaluation and report.html with their inputs; then the links."""
    root.mkdir(exist_ok=True)
    (root / "mine.csv").write_bytes(TABLE)
    put_model(root / "model")
    put_tofu(root / "tofu")
    put_rtofu(root / "rtofu")
    put_rwku(root / "targets")
    put_muse(root / "muse")
    put_news(root / "news")
    assert call("data_prep", root, "custom --source mine.csv --out data") == 0
    two = "model --model base=model --model rule=model --probes data/probes.parquet --out evaluation"
    assert call("evaluate", root, two) == 0
    assert call("report", root, "--results evaluation --out report.html") == 0
    plant(root, OWN)
    (root / "link").symlink_to(root / "own")
    (root / "link_to_data").symlink_to(root / "data")
    (root / "dangling").symlink_to(root / "nowhere")
    return root


def copy(template: Path, root: Path) -> Path:
    """The same elsewhere, links leading into the copy."""
    shutil.copytree(template, root, symlinks=True)
    for name, target in (("link", "own"), ("link_to_data", "data"), ("dangling", "nowhere")):
        (root / name).unlink()
        (root / name).symlink_to(root / target)
    return root


def plant(root: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files of the user's."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)


def snapshot(root: Path, names: Sequence[str]) -> dict[Path, tuple[bytes, int]]:
    """Bytes and time of change of these files."""
    return {root / name: ((root / name).read_bytes(), (root / name).stat().st_mtime_ns) for name in names}


def call(command: str, root: Path, arguments: str | Sequence[str]) -> int:
    """A command in the folder `root`; its exit code."""
    given = arguments.split() if isinstance(arguments, str) else list(arguments)
    before = Path.cwd()
    os.chdir(root)
    try:
        return COMMANDS[command](given)
    except SystemExit as ended:  # what argparse refuses
        return int(ended.code or 0)
    finally:
        os.chdir(before)
