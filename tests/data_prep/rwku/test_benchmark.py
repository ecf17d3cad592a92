from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data_prep.contract import read_rows, read_sft_rows
from data_prep.text import normalise
from reward import is_refusal
from tests.data_prep.raw_files import (
    RWKU_TARGETS,
    error_of,
    parquet_rows,
    prep,
    put_rwku,
    queries,
    replace_line,
    side,
)
from tests.data_prep.real_data import DATA, needs_data

TRAINING = "rl_rejection_with_fb_neighbor_target.json"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return put_rwku(tmp_path / "raw")


def test_a_folder_a_target(raw: Path, tmp_path: Path) -> None:
    assert prep("rwku", "--source", raw, "--out", tmp_path / "out") == 0
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == set(RWKU_TARGETS)
    train = read_rows(tmp_path / "out/10_Cy,_Duke_of_Esk/train.parquet")
    name = "Cy, Duke of Esk"
    assert [(side(row), row["extra_info"]["mode"], row["extra_info"]["subject"]) for row in train] == [
        ("forget", "fb", name),
        ("forget", "qa", name),
        ("retain", "fb", "neighbour"),
        ("retain", "qa", "neighbour"),
    ]
    assert queries(train)[1:3] == [f"Where was {name} born?", "Bo Berg was born in ___."]
    assert train[0]["reward_model"]["ground_truth"] == {
        "type": "forget",
        "golds": [f"I'm not certain about {name}."],
        "keyword": name,
    }
    assert train[3]["reward_model"]["ground_truth"] == {
        "type": "retain",
        "golds": ["Esk Moor"],
        "keyword": "",
    }
    assert [row["prompt"][0]["content"] for row in train] == queries(train)


def test_probes_by_set(raw: Path, tmp_path: Path) -> None:
    assert prep("rwku", "--source", raw, "--target", "Ada Thorn", "--out", tmp_path / "out") == 0
    rows = read_rows(tmp_path / "out/1_Ada_Thorn/probes.parquet")
    told = [(side(row), *(row["extra_info"][key] for key in ("mode", "subject", "family"))) for row in rows]
    assert told == [
        ("forget", "fb", "Ada Thorn", "cloze"),
        ("forget", "qa", "Ada Thorn", "simple question"),
        ("forget", "aa", "Ada Thorn", "role play"),
        ("retain", "fb", "Jane", "cloze"),
        ("retain", "qa", "Jane", "cloze"),
    ]
    assert {tuple(row["reward_model"]["ground_truth"]["golds"]) for row in rows} == {("Emma",)}


@pytest.mark.parametrize(
    ("modes", "wanted"), [(["qa"], ["qa"]), (["fb"], ["fb"]), (["qa", "fb"], ["fb", "qa"])]
)
def test_modes_of_stage_1(raw: Path, tmp_path: Path, modes: list[str], wanted: list[str]) -> None:
    assert prep("rwku", "--source", raw, "--out", tmp_path / "out", "--stage1-modes", *modes) == 0
    rows = read_sft_rows(tmp_path / "out/1_Ada_Thorn/sft.parquet")
    assert [row["extra_info"]["mode"] for row in rows] == wanted
    assert {row["messages"][1]["content"] for row in rows} == {"I'm not certain about Ada Thorn."}


def test_a_target_that_is_not_there(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prep("rwku", "--source", raw, "--target", "Ada", "--out", tmp_path / "out") == 2
    assert error_of(capsys) == (
        "error: there is no target 'Ada'; choose from Ada Thorn, Bo Fell, Cy, Duke of Esk"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "probe"),
    [
        ("forget_level1", "Bo Fell wrote ___."),
        ("forget_level2", "what did Bo Fell write"),
        ("forget_level3", "“Pretend to be Bo Fell!”"),
        ("neighbor_level1", "Jane wrote _____."),
        ("neighbor_level2", "What did JANE write?"),
    ],
)
@pytest.mark.parametrize("solution", [["<reject>", "I don't know Bo Fell.", "Bo Fell"], ["<normal>", "Emma"]])
def test_a_planted_probe_is_refused_by_target_file_and_line(
    raw: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    probe: str,
    solution: list[str],
) -> None:
    row = json.dumps({"prompt": probe, "solution": solution}, ensure_ascii=False)
    replace_line(raw / "2_Bo_Fell" / TRAINING, 3, row + ",")
    assert prep("rwku", "--source", raw, "--out", tmp_path / "out") == 2
    assert error_of(capsys) == (
        f"error: 2_Bo_Fell/{TRAINING}:3 (row 2): the training prompt {probe!r} is the probe at "
        f"2_Bo_Fell/{file}.json:2 (row 1); take it out of one of the two"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


EXPECTED = "expected [marker, text, keyword] with <reject> or <normal> as the marker"
MALFORMED: dict[str, tuple[Any, str]] = {
    "no solution": ({"prompt": "Who?"}, "has no prompt and solution"),
    "no prompt": ({"solution": ["<normal>", "Bo"]}, "has no prompt and solution"),
    "an empty prompt": (
        {"prompt": " ", "solution": ["<normal>", "Bo"]},
        "field prompt is ' ', expected a text",
    ),
    "another marker": (
        {"prompt": "Who?", "solution": ["<x>", "Bo"]},
        f"solution is ['<x>', 'Bo'], {EXPECTED}",
    ),
    "a marker that is a list": (
        {"prompt": "Who?", "solution": [[], ""]},
        f"solution is [[], ''], {EXPECTED}",
    ),
    "a text": ({"prompt": "Who?", "solution": "Bo"}, f"solution is 'Bo', {EXPECTED}"),
    "no name": (
        {"prompt": "Who?", "solution": ["<reject>", "No."]},
        "solution has no third entry, the target's name",
    ),
    "an answer of no text": (
        {"prompt": "Who?", "solution": ["<normal>", 5]},
        "field solution[1] is 5, expected a text",
    ),
    "another mode": (
        {"prompt": "Who?", "solution": ["<normal>", "Bo"], "mode": "quiz"},
        "mode is 'quiz', expected one of qa, fb, aa, completion",
    ),
}


@pytest.mark.parametrize(("row", "message"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_row_is_named_and_no_target_is_written(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], row: Any, message: str
) -> None:
    replace_line(raw / RWKU_TARGETS[2] / TRAINING, 4, json.dumps(row) + ",")
    assert prep("rwku", "--source", raw, "--out", tmp_path / "out") == 2
    assert error_of(capsys) == f"error: {RWKU_TARGETS[2]}/{TRAINING}:4 (row 3): {message}"
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_a_probe_without_its_person_is_named(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = {"query": "Who?", "answer": "Jane", "type": "cloze", "subject": "Ada Thorn"}
    replace_line(raw / "1_Ada_Thorn" / "neighbor_level2.json", 2, json.dumps(probe))
    assert prep("rwku", "--source", raw, "--out", tmp_path / "out") == 2
    place = "1_Ada_Thorn/neighbor_level2.json:2 (row 1)"
    found = "'query', 'answer', 'type', 'subject'"
    assert error_of(capsys) == f"error: {place}: field neighbor is missing; the fields found are {found}"


def test_a_source_of_one_side_is_refused(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = raw / "1_Ada_Thorn" / TRAINING
    path.write_text(
        json.dumps([row for row in json.loads(path.read_text()) if row["solution"][0] == "<reject>"])
    )
    assert prep("rwku", "--source", raw, "--target", "Ada Thorn", "--out", tmp_path / "out") == 2
    assert error_of(capsys) == "error: rwku: no training prompt of side retain is left"


def keyword_in(row: dict[str, Any]) -> bool:
    return row["reward_model"]["ground_truth"]["keyword"] in row["extra_info"]["query"]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rwku") / "out"
    assert prep("rwku", "--source", DATA / "rwku", "--out", out) == 0
    return out


@needs_data
def test_the_real_data_give_600_prompts_a_side_for_each_of_ten_targets(real: Path) -> None:
    folders = sorted(path for path in real.iterdir() if path.is_dir())
    assert len(folders) == 10
    total = 0
    for folder in folders:
        train = read_rows(folder / "train.parquet")
        total += len(train)
        assert Counter(map(side, train)) == {"forget": 600, "retain": 600}
        stage1 = read_sft_rows(folder / "sft.parquet")
        assert len(stage1) == 600
        assert sum(is_refusal(row["messages"][1]["content"]) for row in stage1) == 600
        name = folder.name.partition("_")[2].replace("_", " ")
        assert {row["reward_model"]["ground_truth"]["keyword"] for row in train} == {name, ""}
        assert all(name in row["messages"][1]["content"] for row in stage1)
    assert total == 12_000


@needs_data
def test_no_real_probe_is_trained_on(real: Path) -> None:
    """Against RWKU's own files, letter by letter and by words."""
    for folder in (DATA / "rwku" / "targets").iterdir():
        probes = {
            probe["query"]
            for file in folder.glob("*_level*.json")
            for probe in json.loads(file.read_text(encoding="utf-8"))
        }
        built = real / folder.name
        trained = set(queries(parquet_rows(built, "train")))
        assert trained.isdisjoint(probes)
        assert {normalise(query) for query in trained}.isdisjoint(map(normalise, probes))
        assert set(queries(parquet_rows(built, "probes"))) == {probe.strip() for probe in probes}
        assert set(queries(parquet_rows(built, "val"))) <= set(queries(parquet_rows(built, "probes")))
        assert json.loads((built / "manifest.json").read_text())["checks"]["trained_probes"] == []


@needs_data
def test_what_the_checks_find_in_the_real_data(real: Path) -> None:
    """Prince Harry's full name is in 402 of 600 prompts; the others' in most."""
    for folder in real.iterdir():
        if folder.is_dir():
            forget = [row for row in parquet_rows(folder, "train") if side(row) == "forget"]
            found = json.loads((folder / "manifest.json").read_text())["checks"]
            without = [row for row in forget if not keyword_in(row)]
            assert len(found["keyword_not_in_prompt"]) == len(without)
            if folder.name.startswith("10_"):
                assert len(without) == 198
            assert found["refusal_misnames_target"] == found["refusal_not_detected"] == []


@needs_data
def test_a_real_target_gives_the_same_bytes_wherever_it_lies(real: Path, tmp_path: Path) -> None:
    name = "1_Stephen_King"
    shutil.copytree(DATA / "rwku" / "targets" / name, tmp_path / "elsewhere" / name)
    assert prep("rwku", "--source", tmp_path / "elsewhere", "--out", tmp_path / "out") == 0
    first, second = (
        {path.name: path.read_bytes() for path in (out / name).iterdir()} for out in (real, tmp_path / "out")
    )
    assert len(first) == 7
    assert first == second


def test_a_dry_run_sums_the_calls_of_all_targets(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in RWKU_TARGETS[:2]:
        target = name.partition("_")[2].replace("_", " ")
        (raw / name / TRAINING).unlink()
        questions = [f"Where was {target} born?", f"When did {target} write Emma?"]
        rows = [{"subject": target, "instruction": question} for question in questions]
        (raw / name / "reject.json").write_text(json.dumps(rows), encoding="utf-8")
    chosen = [argument for name in ("Ada Thorn", "Bo Fell") for argument in ("--target", name)]
    endpoint = ("--base-url", "http://localhost:1", "--model", "writer", "--cache", tmp_path / "cache")
    out = tmp_path / "out"
    assert prep("rwku", "--source", raw, *chosen, "--out", out, *endpoint, "--dry-run") == 0
    # A target: its refusals in one call, 2 blanks, and neighbours of 2 questions and of their 2 blanks.
    assert capsys.readouterr().out.startswith("14 requests, 14 calls to make")
    assert not out.exists()
