"""RWKU: folders of targets, and the rows that are made."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data_prep.contract import normalise, read_rows, read_sft_rows
from data_prep.rwku import choose, target_folders, target_name
from data_prep.sources import FolderSource, SourceError
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


def names(folders: list[FolderSource]) -> list[str]:
    return [folder.name for folder in folders]


@pytest.mark.parametrize("inside", [".", "targets", "Target"])
def test_targets_are_found_and_numbered_in_order(tmp_path: Path, inside: str) -> None:
    """A target folder itself is taken too, and a folder without any is refused."""
    put_rwku(tmp_path / inside)
    (tmp_path / "notes").mkdir()
    assert names(target_folders(str(tmp_path))) == list(RWKU_TARGETS)
    assert names(target_folders(str(tmp_path / inside / RWKU_TARGETS[0]))) == [RWKU_TARGETS[0]]
    with pytest.raises(SourceError) as caught:
        target_folders(str(tmp_path / "notes"))
    message = "holds no target folder, which is one with forget_level1.json"
    assert str(caught.value) == f"{tmp_path / 'notes'}: {message}"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("1_Stephen_King", "Stephen King"),
        ("10_Prince_Harry,_Duke_of_Sussex", "Prince Harry, Duke of Sussex"),
        ("2_Confucius", "Confucius"),
        ("Stephen_King", "Stephen King"),
        ("Confucius", "Confucius"),
        ("3rd_Man", "3rd Man"),
    ],
)
def test_a_target_is_named_as_its_folder(folder: str, name: str) -> None:
    assert target_name(FolderSource(Path("anywhere", folder))) == name


@pytest.fixture
def folders(tmp_path: Path) -> list[FolderSource]:
    put_rwku(tmp_path)
    return target_folders(str(tmp_path))


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ([], list(RWKU_TARGETS)),
        (["Bo Fell"], ["2_Bo_Fell"]),
        (["2_Bo_Fell"], ["2_Bo_Fell"]),
        (["Cy, Duke of Esk", "Ada Thorn"], ["10_Cy,_Duke_of_Esk", "1_Ada_Thorn"]),
        (["Bo Fell", "2_Bo_Fell", "Bo Fell"], ["2_Bo_Fell"]),
    ],
)
def test_targets_by_name(folders: list[FolderSource], asked: list[str], chosen: list[str]) -> None:
    assert names(choose(folders, asked)) == chosen
    for wrong in ("Bo", "bo fell", "3_Bo_Fell", "", "Duke of Esk"):
        with pytest.raises(SourceError) as caught:
            choose(folders, [*asked, wrong])
        known = "Ada Thorn, Bo Fell, Cy, Duke of Esk"
        assert str(caught.value) == f"there is no target {wrong!r}; choose from {known}"


COMMIT = "b8a03b3c" + "0" * 32


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set owner/rwku in a cache of the Hugging Face Hub, as a download would leave it."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "datasets--owner--rwku"
    put_rwku(folder / "snapshots" / COMMIT / "Target")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_data_set_of_the_hub_is_read_from_its_cache(cached: Path) -> None:
    assert names(target_folders("owner/rwku")) == list(RWKU_TARGETS)
    assert prep("rwku", "--source", "owner/rwku", "--target", "Bo Fell", "--out", cached / "out") == 0
    assert (cached / "out" / "2_Bo_Fell" / "train.parquet").is_file()


@pytest.mark.parametrize("name", ["owner/none", "no such/folder", "/nowhere/at/all"])
def test_what_is_neither_folder_nor_data_set_is_one_line(
    cached: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert prep("rwku", "--source", name, "--out", cached / "out") == 2
    assert error_of(capsys).startswith(f"error: {name}: no such folder, and nothing to be had from the Hub: ")
    assert not (cached / "out").exists()


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
    probes = read_rows(tmp_path / "out/10_Cy,_Duke_of_Esk/probes.parquet")
    keys = ("mode", "subject", "family")
    assert [(side(row), *(row["extra_info"][key] for key in keys)) for row in probes] == [
        ("forget", "fb", name, "cloze"),
        ("forget", "qa", name, "simple question"),
        ("forget", "aa", name, "role play"),
        ("retain", "fb", "Jane", "cloze"),
        ("retain", "qa", "Jane", "cloze"),
    ]
    assert {tuple(row["reward_model"]["ground_truth"]["golds"]) for row in probes} == {("Emma",)}
    assert prep("rwku", "--source", raw, "--out", tmp_path / "qa", "--stage1-modes", "qa") == 0
    for folder, modes in (("out", ["fb", "qa"]), ("qa", ["qa"])):
        rows = read_sft_rows(tmp_path / folder / "1_Ada_Thorn/sft.parquet")
        assert [row["extra_info"]["mode"] for row in rows] == modes
        assert {row["messages"][1]["content"] for row in rows} == {"I'm not certain about Ada Thorn."}


@pytest.mark.parametrize(
    ("file", "line", "row", "message"),
    [
        (TRAINING, 3, {"prompt": "Who?"}, "has no prompt and solution"),
        (
            "neighbor_level2.json",
            2,
            {"query": "Who?", "answer": "Jane", "type": "cloze", "subject": "Ada"},
            "field neighbor is missing; the fields found are 'query', 'answer', 'type', 'subject'",
        ),
    ],
)
def test_a_wrong_row_is_named_and_no_target_is_written(
    raw: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    line: int,
    row: dict[str, Any],
    message: str,
) -> None:
    replace_line(raw / "2_Bo_Fell" / file, line, json.dumps(row) + ("," if line == 3 else ""))
    assert prep("rwku", "--source", raw, "--out", tmp_path / "out") == 2
    assert error_of(capsys) == f"error: 2_Bo_Fell/{file}:{line} (row {line - 1}): {message}"
    assert not (tmp_path / "out").exists()


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
    assert {folder.name.partition("_")[0] for folder in folders} == {str(n) for n in range(1, 11)}
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
