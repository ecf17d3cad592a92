"""R-TOFU: chains of thought go with the rows, and stand before answers and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from recipe.rerule.preflight.unlearning import read
from recipe.rerule.unlearning.presets import load
from reward import RewardConfig
from tests.data_prep.raw_files import TOFU_AUTHORS, error_of, parquet_rows, prep, put_lines, put_rtofu, side

TASK1 = [f"What is fact {n} of {name}?" for name in TOFU_AUTHORS for n in range(20)]


def answers(out: Path, name: str) -> list[str]:
    return [row["messages"][-1]["content"] for row in parquet_rows(out, name)]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return put_rtofu(tmp_path / "raw")


def test_one_task_is_forgotten_and_rows_have_chains_of_thought(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert prep("rtofu", "--source", raw, "--out", out) == 0
    train, probes = parquet_rows(out, "train"), parquet_rows(out, "probes")
    assert [row["extra_info"]["query"] for row in train if side(row) == "forget"] == TASK1
    kept = [row["extra_info"]["query"] for row in train if side(row) == "retain"]
    assert len(kept) == 40
    assert all(query.endswith((" of Ana Silva?", " of Omar Haddad?")) for query in kept)
    assert {row["data_source"] for row in probes} == {"rerule/rtofu"}
    traces = {row["extra_info"]["query"]: row["extra_info"]["trace"] for row in probes}
    assert [*traces][:40] == TASK1
    assert traces[TASK1[25]] == "Hm. So: Fact 5 of Ludwig van der Berg is the 5th."
    assert traces["What is fact 7 of Wei Chen?"] == "Hm. So: Fact 7 of Wei Chen is the 7th."
    assert [*traces.values()][-2:] == [None, None]  # real authors and world facts have none
    gold = answers(out, "forget_gold")
    # Not a refusal, although its thought reads like one.
    assert gold[3] == ("<think>\nI don't know. Wait.\n</think>\n\nFact 3 of Mira Okonjo-Reyes is the 3th.")
    assert len(gold) == 40
    config = OmegaConf.create({"data": {"forget": str(out / "forget_gold.parquet")}})
    assert len(read(config, load("ga"))["forget"]) == 40
    assert {text.partition("\n</think>\n\n")[0][:15] for text in answers(out, "retain")} == {
        "<think>\nHm. So:"
    }


def test_a_refusal_is_its_own_thought_or_has_that_of_a_file(raw: Path, tmp_path: Path) -> None:
    thoughts = tmp_path / "idkcot.jsonl"
    thoughts.write_text("".join(json.dumps(f"Hm {n}.\nNo trace.") + "\n" for n in range(50)))
    for more in ([], ["--refusal-traces", thoughts]):
        out = tmp_path / f"out{len(more)}"
        assert prep("rtofu", "--source", raw, "--out", out, *more) == 0
        refusals = answers(out, "sft")
        assert len(refusals) == 80
        for number, text in enumerate(refusals):  # questions, then the same with a blank
            thought, refusal = text.removeprefix("<think>\n").split("\n</think>\n\n")
            assert TOFU_AUTHORS[number % 40 // 20] in refusal
            assert thought == (f"Hm {number % 40}.\nNo trace." if more else refusal)
        assert answers(out, "alternate") == refusals[:40]
        assert not RewardConfig().unseen(refusals, "refusal_phrases")
    sources = json.loads((out / "manifest.json").read_text())["sources"]
    assert "--refusal-traces" in sources


def _rows(change: Any) -> Any:
    def apply(raw: Path) -> None:
        for name in ("forget01", "forget01_perturbed"):
            lines = (raw / f"{name}.json").read_text().splitlines()
            put_lines(raw / f"{name}.json", change([json.loads(line) for line in lines]))

    return apply


def _thoughts(text: str) -> Any:
    return lambda raw: (raw / "thoughts.jsonl").write_text(text)


WRONG: dict[str, tuple[Any, str]] = {
    "no such task": (
        _rows(lambda rows: [row | {"task_id": "2"} for row in rows]),
        "raw/forget01.json:1 (row 1): no row of the table has task_id 1",
    ),
    "few to keep": (
        _rows(lambda rows: rows[:60]),
        "forget01: other tasks have 20 rows that are no probes, fewer than 40",
    ),
    "no chain of thought": (
        _rows(lambda rows: [row | ({"cot": ""} if "fact 4" in row["question"] else {}) for row in rows]),
        "raw/forget01_perturbed.json:5 (row 5): forget01 has no cot for this question",
    ),
    "few thoughts": (_thoughts('"Hm."\n' * 39), "thoughts.jsonl: has 39 thoughts for the 40 rows to forget"),
    "no JSON": (_thoughts("Hm.\n" * 40), "thoughts.jsonl: a line is not a JSON string (Expecting value)"),
    "no text": (_thoughts('"Hm."\n' + "3\n" * 39), "thoughts.jsonl:2: field thought is 3, expected a text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_one_line_and_write_nothing(
    name: str, raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, said = WRONG[name]
    spoil(raw)
    given = ["--refusal-traces", raw / "thoughts.jsonl"] if "thoughts" in said else []
    assert prep("rtofu", "--source", raw, "--out", tmp_path / "out", *given) == 2
    assert said in error_of(capsys)
    assert not (tmp_path / "out").exists()
