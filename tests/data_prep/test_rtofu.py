"""R-TOFU: chains of thought stand before answers and refusals; tests/refused tries wrong files."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipe.rerule.preflight.unlearning import read
from recipe.rerule.unlearning.presets import load
from reward import RewardConfig
from tests.data_prep.raw_files import TOFU_AUTHORS, manifest, parquet_rows, prep, put_rtofu, side

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
    assert "--refusal-traces" in manifest(out)["sources"]
