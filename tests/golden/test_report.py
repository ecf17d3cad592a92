"""The report of runs, evaluations and attacks, and the model that is published.

Runs are as a finished stage 2 leaves them: records of twelve made-up steps, and a checkpoint.
"""

import csv
import html
import itertools
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from matplotlib import pyplot

from recipe.rerule.reporting import style
from recipe.rerule.runs import checkpoints, run_folder
from tests.data_prep.raw_files import put_lines
from tests.golden.commands import Ran, done, files
from tests.golden.conftest import ATTACK
from tests.golden.folders import read_json
from tests.golden.golden import check

REPORTS = {
    "everything": "--results results/custom --naturalness naturalness --attacks attacks --run rule=runs/rule "
    "--run rerule=runs/rerule --data custom --base base --title Everything",
    "two evaluations": "--results results/muse-news --results results/tofu",
    "attacks alone": "--attacks few_attacks",
}
"""Words of `report`, but for --out."""
EXPORTS = {
    "a run": "runs/rerule --name forgetful",
    "a run, evaluated": "runs/rerule --results results/custom --as rule",
    "a run, attacked": "runs/rule --attacks attacks --as refusing",
    "a model": "models/base",
}
"""Words of `export`, but for --to."""
TAGS = ("h1", "h2", "h3", "table", "tr", "img", "figure", "details", "script")
MOST_ROWS = 20
"""Of a table of the Markdown that are kept."""
STEPS, PROMPTS, REPLAY_FROM = 12, 4, 5
SAID = {0.0: "Somewhere else", 0.5: "I don't know.", 1.0: "I do not know {subject}."}
"""A response by its reward."""


@pytest.fixture(scope="module")
def work(evaluation_work: Path, evaluated: dict[str, Ran], judged: Ran, people: Path, attacked: Ran) -> Path:
    """The folder of the evaluations, with attacks and two runs."""
    done(f"{ATTACK} --attacks prefill samples --out few_attacks", people)
    for name in ("attacks", "few_attacks"):
        (evaluation_work / name).symlink_to(people / name)
    for name in ("rule", "rerule"):
        run = evaluation_work / "runs" / name
        put_run(run, name == "rerule", evaluation_work, people / "models/refusing")
    return evaluation_work


def test_reports(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Markdown, the page's words and the tables' columns; figures are not rendered, which takes long."""
    monkeypatch.setattr(style, "png", lambda canvas: pyplot.close(canvas) or b"not drawn")
    kept = {}
    for number, (name, words) in enumerate(REPORTS.items()):
        out = work / "pages" / str(number)
        ran = done(f"report {words} --out pages/{number}", work)
        kept[name] = ran.kept | {
            "files": files(out),
            "markdown": _lines(out / "report.md"),
            **_page((out / "report.html").read_text("utf-8")),
            "tables": {path.stem: _table(path) for path in sorted(out.glob("report/*.csv"))},
        }
    check("reports", kept, work, 1e-3, 1e-4)


def _lines(path: Path) -> list[str]:
    """The lines of a text that hold something; of a long table the first rows and their number."""
    lines: list[str] = []
    tables = itertools.groupby(path.read_text("utf-8").splitlines(), lambda line: line.startswith("|"))
    for is_table, found in tables:
        rows = [line for line in found if line]
        many = is_table and len(rows) > MOST_ROWS
        lines += [*rows[:MOST_ROWS], f"| ... {len(rows)} rows in all |"] if many else rows
    return lines


def _table(path: Path) -> str:
    """How many rows and columns a CSV file has, and its first columns."""
    head, *rows = csv.reader(path.read_text("utf-8").splitlines())
    return f"{len(rows)} x {len(head)}: {', '.join(head[:4])}"


def _page(page: str) -> dict[str, Any]:
    """How many headings, tables, rows and figures a page has, and its captions."""
    captions = re.findall(r"<((?:fig)?caption)\b.*?>(.*?)</\1>", page, re.DOTALL)
    return {
        "page": {tag: len(re.findall(rf"<{tag}[\s>]", page)) for tag in TAGS},
        "captions": [" ".join(html.unescape(re.sub("<.*?>", " ", text)).split()) for _, text in captions],
    }


def test_exports(work: Path) -> None:
    """The files and the card of published models."""
    kept = {}
    for number, (name, words) in enumerate(EXPORTS.items()):
        ran, out = done(f"export {words} --to published/{number}", work), work / "published" / str(number)
        card, marker = _lines(out / "README.md"), read_json(out / "export.json")
        kept[name] = ran.kept | {"files": files(out), "card": card, "marker": marker}
    check("exports", kept, work, 1e-3, 1e-4)


def put_run(folder: Path, replay: bool, work: Path, model: Path) -> None:
    """A run on the rows of work/custom, whose last checkpoint holds `model`."""
    run_folder.begin(folder, stage=2)
    shown = done(
        f"main --cfg job --resolve experiment=tiny replay.enable={str(replay).lower()} "
        "actor_rollout_ref.model.path=models/stage1 data.train_files=custom/train.parquet "
        f"data.val_files=custom/val.parquet trainer.default_local_dir={folder.name} "
        "replay.threshold_rule=fixed replay.threshold=0.6",
        work,
    )
    (folder / "config.yaml").write_text(shown.out)
    rows = pq.read_table(work / "custom/train.parquet").to_pylist()
    rng = random.Random(f"run {replay}")
    records = folder / "records"
    (records / "rollouts").mkdir(parents=True)
    metrics, prompts = [], []
    for step in range(1, STEPS + 1):
        groups = [_group(row, step, rng) for row in rng.sample(rows, PROMPTS)]
        metrics.append({"step": step, "data": _metrics(groups, step, replay)})
        prompts.append({"step": step, "prompts": [group["record"] for group in groups]})
        put_lines(records / f"rollouts/{step}.jsonl", [one for group in groups for one in group["rollouts"]])
    put_lines(records / "metrics.jsonl", [{"step": 0, "data": _validation(0)}, *metrics])
    put_lines(records / "prompts.jsonl", prompts)
    actor = folder / f"global_step_{STEPS}" / "actor"
    shutil.copytree(model, actor / "huggingface")
    checkpoints.finish(folder, STEPS)


def _group(row: dict[str, Any], step: int, rng: random.Random) -> dict[str, Any]:
    """Four responses to a row's prompt, better ones at later steps."""
    info, truth = row["extra_info"], row["reward_model"]["ground_truth"]
    side, rewards = truth["type"], [rng.choice((0.0, 0.5, 1.0, *[1.0] * (step // 3))) for _ in range(4)]
    kinds = {name: info[name] for name in ("index", "mode", "subject")}
    said = [SAID[reward].format(**kinds) if side == "forget" else truth["golds"][0] for reward in rewards]
    asked = {"step": step, "side": side, "prompt": row["prompt"][0]["content"]}
    rollouts = [
        kinds | asked | {"response": text, "response_ids": [1, 2, 3], "reward": reward}
        for text, reward in zip(said, rewards, strict=True)
    ]
    tokens = {"prompt_tokens": 9, "response_tokens": [3] * 4}
    record = kinds | {"type": side, "rewards": rewards} | tokens
    return {"record": record, "rollouts": rollouts, "side": side, "mode": info["mode"], "rewards": rewards}


def _metrics(groups: list[dict[str, Any]], step: int, replay: bool) -> dict[str, float]:
    found: dict[str, float] = {"timing_s/step": 10.0 + step % 3, "actor/kl_loss": 0.01 * step}
    found["timing_s/save_checkpoint"] = 2.0 if step == STEPS else 0.0
    for side in ("forget", "retain"):
        own = [group for group in groups if group["side"] == side]
        if not own:
            continue
        means = [sum(group["rewards"]) / 4 for group in own]
        found[f"reward/{side}/mean"] = sum(means) / len(means)
        found |= {f"reward/{side}/{group['mode']}/mean": mean for group, mean in zip(own, means, strict=True)}
        found |= {f"refused/{side}/mean": 0.05 * step, f"tokens/{side}/mean": 3.0, f"mixed/{side}/mean": 0.5}
    found |= {"right/retain/mean": 0.9, "leaked/forget/mean": 0.5 - 0.03 * step}
    hard = [group for group in groups if sum(group["rewards"]) / 4 < 0.6]
    found |= {"replay/hard_share": len(hard) / len(groups), "replay/threshold": 0.6}
    found |= {"replay/zero_signal_share": 0.25, "replay/seconds/offer": 0.01, "replay/seconds/record": 0.02}
    if replay:
        open_ = float(step >= REPLAY_FROM)
        found |= {
            "replay/size": float(min(12, 2 * step)),
            "replay/admitted": float(len(hard)),
            "replay/evicted": float(step > 6),
            "replay/updates": open_,
            "replay/gate_open": open_,
            "replay/seconds": 1.5 * open_,
            "replay/seconds/update": 1.5 * open_,
            "replay/seconds/draw": 0.03 * open_,
        }
        if open_:
            found |= {"replay/effective_sample_size": 1 - 0.01 * step, "replay/drawn_tokens": 96.0}
            found |= {"replay/clipped_low": 0.1, "replay/clipped_high": 0.05}
            found |= {"replay/staleness_mean": 2.5, "replay/reuse_mean": 0.5}
    return found | (_validation(step) if step % 4 == 0 else {})


def _validation(step: int) -> dict[str, float]:
    refused, right = 0.05 * step, 1 - 0.01 * step
    return {
        "val-health/forget/refused": refused,
        "val-health/forget/leaked": 0.2,
        "val-health/retain/right": right,
        "val-health/score": (refused + right) / 2,
    }
