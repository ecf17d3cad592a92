"""WMDP: questions as lm-eval asks them, of tables of every form, and texts of the corpora of both sides."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.data_prep.raw_files import manifest, parquet_rows, prep, put_lines

BIO = [
    {"question": " Which one? ", "choices": ["this", "that ", "both", "none"], "answer": 2},
    {"question": "Who?", "choices": ["Ada", "Ben", "Cleo", "Dan"], "answer": 0},
]
CYBER = [{"question": "How, {x}?", "choices": ["so", "thus", "1", "2"], "answer": 3}]
MMLU = [{"question": "2 + 2?", "subject": "high_school_maths", "choices": ["1", "2", "3", "4"], "answer": 3}]
ASKED = """\
The following are multiple choice questions (with answers) about biology.

Which one?
A. this
B. that 
C. both
D. none
Answer:"""
"""What lm-eval 0.4.13 makes of the first question (tasks wmdp_bio): description, then doc_to_text."""


def put(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    path, table = folder / name, pd.DataFrame(rows)
    if path.suffix == ".parquet":
        table.to_parquet(path)
    elif path.suffix == ".csv":
        table.assign(choices=table["choices"].map(json.dumps)).to_csv(path, index=False)
    else:
        put_lines(path, rows)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_questions_become_probes_with_letters(suffix: str, tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    put(raw, f"wmdp-bio{suffix}", BIO)
    put(raw, f"wmdp-cyber{suffix}", CYBER)
    assert prep("wmdp", "--source", raw, "--out", out) == 0
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "probes.parquet"]
    rows = parquet_rows(out, "probes")
    assert [row["reward_model"]["ground_truth"]["golds"] for row in rows] == [["C"], ["A"], ["D"]]
    assert [row["reference"]["perturbed"] for row in rows] == [[*"ABD"], [*"BCD"], [*"ABC"]]
    assert [row["extra_info"]["family"] for row in rows] == ["bio", "bio", "cyber"]
    assert {row["extra_info"]["section"] for row in rows} == {"forget"}
    assert all(row["extra_info"]["raw"] for row in rows)
    assert rows[0]["prompt"][0]["content"] == ASKED
    assert "(with answers) about cybersecurity.\n\nHow, {x}?\nA. so\n" in rows[2]["prompt"][0]["content"]
    assert manifest(out)["rows"] == {"probes": {"forget": {"qa": 3}}}


def test_questions_to_keep_and_texts(tmp_path: Path, capsys: Any) -> None:
    raw = put(tmp_path / "raw", "wmdp-bio.jsonl", BIO).parent
    put(raw, "wmdp-cyber.jsonl", CYBER)
    keep, texts = put(tmp_path / "mmlu", "test.parquet", MMLU), tmp_path / "texts"
    put(texts, "bio-retain-corpus.jsonl", [{"text": "Cells divide.", "title": "x"}])
    put(texts, "cyber-forget-corpus.jsonl", [{"text": "word " * 1001}, {"text": ""}, {"text": "Two."}])
    put(texts, "cyber-retain-corpus.jsonl", [{"text": "Three."}])
    out = tmp_path / "out"
    arguments = ("--corpora", texts, "--retain-questions", keep, "--out", out)
    assert prep("wmdp", "--source", raw, *arguments) == 0
    said = capsys.readouterr().out
    assert "texts: bio-forget-corpus is not there, so forget_text.parquet is without bio\n" in said
    kept = parquet_rows(out, "probes")[-1]
    assert (kept["extra_info"]["section"], kept["reward_model"]["ground_truth"]["golds"]) == ("retain", ["D"])
    assert kept["prompt"][0]["content"].startswith(
        "The following are multiple choice questions (with answers) about high school maths.\n\n2 + 2?\nA. 1"
    )
    found = {
        name: [row["messages"][0]["content"] for row in parquet_rows(out, name)]
        for name in ("forget_text", "retain_text")
    }
    assert found["forget_text"] == [" ".join(["word"] * 700), " ".join(["word"] * 301), "Two."]
    assert found["retain_text"] == ["Cells divide.", "Three."]
