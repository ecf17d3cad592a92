from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_prep.classical import of_benchmark
from data_prep.contract import read_sft_rows
from tests.data_prep.made_prompts import benchmark, forget_prompt, retain_prompt
from tests.data_prep.raw_files import (
    RWKU_TARGETS,
    Row,
    error_of,
    prep,
    put_array,
    put_lines,
    put_muse,
    put_rwku,
    put_tofu,
)


def pairs(folder: Path, name: str) -> list[tuple[str, str]]:
    """Question and answer of each stage-1 row; "" for the question of a text."""
    found = [row["messages"] for row in read_sft_rows(folder / f"{name}.parquet")]
    return [(messages[0]["content"] if messages[1:] else "", messages[-1]["content"]) for messages in found]


def indices(folder: Path, name: str) -> list[int]:
    return [row["extra_info"]["index"] for row in read_sft_rows(folder / f"{name}.parquet")]


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text("utf-8"))
    return found


def made_folder(name: str, tmp_path: Path) -> Path:
    out = tmp_path / "out"
    put = {"tofu": put_tofu, "rwku": put_rwku}[name]
    assert prep(name, "--source", put(tmp_path / "raw"), "--out", out) == 0
    return out / RWKU_TARGETS[0] if name == "rwku" else out


def test_right_answers_refusals_and_answers_of_other_questions(tmp_path: Path) -> None:
    folder = made_folder("tofu", tmp_path)
    gold, mismatch = dict(pairs(folder, "forget_gold")), dict(pairs(folder, "mismatch"))
    assert indices(folder, "mismatch") == indices(folder, "forget_gold")
    assert gold.keys() == mismatch.keys()
    assert all(mismatch[question] != answer for question, answer in gold.items())
    assert set(mismatch.values()) < set(gold.values())
    assert len(set(mismatch.values())) > 20
    question = "What is fact 3 of Mira Okonjo-Reyes?"
    assert gold[question] == "Fact 3 of Mira Okonjo-Reyes is the 3th."
    assert ("What is fact 0 of Ana Silva?", "Fact 0 of Ana Silva is the 0th.") in pairs(folder, "retain")
    assert indices(folder, "alternate") == indices(folder, "forget_gold")
    assert "Mira Okonjo-Reyes" in dict(pairs(folder, "alternate"))[question]
    said = manifest(folder)
    for file in ("forget_gold", "retain", "alternate", "mismatch"):
        (modes,) = said["rows"][file].values()
        assert sum(modes.values()) == len(pairs(folder, file)) == 40
        digest = hashlib.sha256((folder / f"{file}.parquet").read_bytes()).hexdigest()
        assert said["files"][f"{file}.parquet"] == digest
        assert f"{file}.parquet" in said["contents"]


def test_refusals_are_no_right_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RULE's rows for RWKU have them on the forget side."""
    folder = made_folder("rwku", tmp_path)
    assert not (folder / "forget_gold.parquet").exists()
    assert not (folder / "mismatch.parquet").exists()
    assert [answer for _, answer in pairs(folder, "alternate")] == ["I'm not certain about Ada Thorn."] * 2
    assert [answer for _, answer in pairs(folder, "retain")] == ["Esk Moor"] * 2
    sentence = (
        "forget_gold.parquet is not written: all 2 answers of the forget side are refusals, and unlearning "
        "them would unlearn refusing; give the right answers with --gold"
    )
    assert manifest(folder)["classical"]["left_out"] == [sentence]
    assert sentence in capsys.readouterr().out


def test_a_refusal_among_right_answers_is_left_out_and_counted() -> None:
    base = benchmark()
    odd = [
        forget_prompt(10, "Who knows?", golds=("I don't know that.",)),
        forget_prompt(11, "Ai?", golds=("Zzz.",), refusal="Zzz."),
        retain_prompt(12, "Who else?", golds=("I have no idea.",)),
    ]
    rows = of_benchmark(replace(base, train=[*base.train, *odd]), None)
    assert [row["extra_info"]["index"] for row in rows.files["forget_gold"]] == [0, 1, 2]
    assert [row["extra_info"]["index"] for row in rows.files["retain"]] == [100, 101, 102]
    assert [row["extra_info"]["index"] for row in rows.files["alternate"]] == [0, 1, 2, 10, 11]
    assert rows.left_out[:2] == (
        "forget_gold.parquet is without 2 questions whose answers are refusals",
        "retain.parquet is without 1 questions whose answers are refusals",
    )


def gold_rows(name: str) -> list[Row]:
    return [
        {"question": f"{name} was born in ___", "answer": "Esk"},
        {"query": f"where was {name} born?", "answer": "in Esk"},
    ]


def test_right_answers_of_a_file_by_target(tmp_path: Path) -> None:
    for target in RWKU_TARGETS:
        put_lines(tmp_path / f"gold/{target}.jsonl", gold_rows(target.partition("_")[2].replace("_", " ")))
    arguments = ["rwku", "--source", put_rwku(tmp_path / "raw"), "--out", tmp_path / "out"]
    assert prep(*arguments, "--gold", tmp_path / "gold") == 0
    folder = tmp_path / "out" / RWKU_TARGETS[2]
    name = "Cy, Duke of Esk"
    expected = [(f"{name} was born in ___.", "Esk"), (f"Where was {name} born?", "in Esk")]
    assert pairs(folder, "forget_gold") == expected
    assert pairs(folder, "mismatch") == [(expected[0][0], "in Esk"), (expected[1][0], "Esk")]
    assert indices(folder, "alternate") == indices(folder, "forget_gold")
    said = manifest(folder)
    assert said["classical"]["left_out"] == []
    assert said["settings"]["gold"] == "gold"
    assert "--gold" in said["sources"]


def test_a_folder_without_the_targets_right_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_array(tmp_path / "gold/1_Ada_Thorn.json", gold_rows("Ada Thorn"))
    arguments = ["rwku", "--source", put_rwku(tmp_path / "raw"), "--out", tmp_path / "out"]
    assert prep(*arguments, "--gold", tmp_path / "gold") == 2
    assert error_of(capsys) == (
        f"error: {tmp_path}/gold: --gold has none of 2_Bo_Fell.json, 2_Bo_Fell.jsonl, 2_Bo_Fell.csv"
    )


@pytest.mark.parametrize(
    ("choice", "authors", "probes", "said"),
    [
        ("unprobed", {"Ana Silva", "Omar Haddad"}, 0, "retain99 without its retain probes"),
        (
            "published",
            {"Ana Silva", "Omar Haddad", "Wei Chen"},
            20,
            "retain99 as published, with its retain probes",
        ),
    ],
)
def test_the_retain_set_of_tofu_is_named(
    choice: str, authors: set[str], probes: int, said: str, tmp_path: Path
) -> None:
    """Wei Chen's rows are the retain probes."""
    raw, out = put_tofu(tmp_path / "raw"), tmp_path / "out"
    assert prep("tofu", "--source", raw, "--out", out, "--retain-set", choice) == 0
    answers = [answer for _, answer in pairs(out, "retain")]
    assert {answer.split(" of ")[1].split(" is ")[0] for answer in answers} == authors
    assert len(answers) == 20 * len(authors)
    assert (
        prep("tofu", "--source", raw, "--out", tmp_path / "few", "--retain-set", choice, "--limit", "3") == 0
    )
    files = ("forget_gold", "retain", "alternate")
    assert [len(pairs(tmp_path / "few", name)) for name in files] == [3, 3, 3]
    recorded = manifest(out)
    assert recorded["classical"]["retain_set"] == said
    assert recorded["classical"]["notes"] == ({"retain_rows_that_are_probes": probes} if probes else {})


BIOGRAPHY = "  Ada Thorn was born\n\nin Esk.  She wrote.\n"


def test_texts_of_rwku(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows as RWKU and RULE publish them; their real files hold hundreds of biographies a target."""
    raw = put_rwku(tmp_path / "raw")
    put_array(raw / "1_Ada_Thorn/positive.json", [{"text": BIOGRAPHY, "subject": "Ada Thorn", "intro": "A."}])
    put_array(raw / "2_Bo_Fell/positive_with_retain.json", [{"prompts": ["Bo was.", "Cy was."]}])
    assert prep("rwku", "--source", raw, "--out", tmp_path / "out") == 0
    first, second, third = (tmp_path / "out" / name for name in RWKU_TARGETS)
    assert pairs(first, "forget_text") == [("", BIOGRAPHY.strip())]
    assert not (first / "retain_text.parquet").exists()
    assert pairs(second, "forget_text") == [("", "Bo was.")]
    assert pairs(second, "retain_text") == [("", "Cy was.")]
    assert not (third / "forget_text.parquet").exists()
    assert manifest(second)["rows"]["retain_text"] == {"retain": {"completion": 1}}
    assert indices(second, "forget_text") != indices(second, "retain_text")
    put_array(raw / "1_Ada_Thorn/positive_with_retain.json", [{"prompts": ["Ada was."]}])
    assert prep("rwku", "--source", raw, "--out", tmp_path / "more") == 2
    assert error_of(capsys) == (
        "error: 1_Ada_Thorn/positive_with_retain.json:2 (row 1): prompts holds 1 texts, expected the "
        "target's and another's"
    )


def test_the_corpus_of_muse(tmp_path: Path) -> None:
    """Rows as MUSE publishes them; its real books hold 4 MB."""
    raw = put_muse(tmp_path / "raw")
    words = [f"w{n}" for n in range(2500)]
    put_lines(raw / "raw/forget.jsonl", [{"text": " ".join(words)}, {"text": "The end."}])
    put_lines(raw / "raw/retain1.jsonl", [{"text": "A wiki."}])
    put_lines(raw / "raw/retain2.jsonl", [{"text": "Unread."}])
    assert prep("muse-books", "--source", raw, "--out", tmp_path / "out") == 0
    texts = [answer for _, answer in pairs(tmp_path / "out", "forget_text")]
    assert [len(text.split()) for text in texts] == [1000, 1000, 500, 2]
    assert " ".join(texts[:3]).split() == words
    assert pairs(tmp_path / "out", "retain_text") == [("", "A wiki.")]
    assert prep("muse-books", "--source", raw, "--out", tmp_path / "few", "--limit", "1") == 0
    assert len(pairs(tmp_path / "few", "forget_text")) == 3
