"""The benchmarks' own files, which the project does not carry."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"benchmark data not found at {DATA}")


def put_real_muse(folder: Path) -> Path:
    """MUSE-Books from the parts of RULE's files that are here, under RULE's names.

    400 of the questions to forget, 300 of their neighbours, KnowMem, and RULE's 100 refusals.
    """
    parts = DATA / "muse_books"
    shutil.copytree(parts / "knowmem", folder / "knowmem")
    shutil.copy(parts / "idk_target.json", folder)

    def read(name: str) -> list[Any]:
        return json.loads((parts / f"{name}.json").read_text(encoding="utf-8"))

    def put(name: str, rows: list[tuple[str, list[str]]]) -> None:
        made = [{"prompt": asked, "solution": str(entries), "mode": "qa"} for asked, entries in rows]
        (folder / f"{name}.json").write_text(json.dumps(made), encoding="utf-8")

    forget, retain = read("forget_train_qa400"), read("boundary_neighbor_qa_sample300")
    rows = [(row["question"], ["<reject>", row["answer"], "books"]) for row in forget]
    put("rl_rejection_with_neighbor", rows + [(row["prompt"], ["<normal>", row["gold"]]) for row in retain])
    asked = [(row, "<reject>") for row in read("knowmem/forget_qa")]
    asked += [(row, "<normal>") for row in read("knowmem/retain_qa")]
    put(
        "rl_rejection_eval_target", [(row["question"], [mark, row["answer"], "books"]) for row, mark in asked]
    )
    refusals = read("idk_target")
    stage1 = [
        {"instruction": row["question"], "output": refusals[n % 100], "org_answer": row["answer"]}
        for n, row in enumerate(forget)
    ]
    (folder / "reject_target_0.5.json").write_text(json.dumps(stage1), encoding="utf-8")
    return folder
