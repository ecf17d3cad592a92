"""RULE's repository as it is: RWKU's and MUSE-Books' folders under its `data`, with its own file names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_prep.contract import read_rows, read_sft_rows
from data_prep.muse import STAGE1_FILES
from data_prep.prompts import rule_prompt
from data_prep.sources import Record, SourceError
from tests.data_prep.raw_files import (
    RWKU_TARGETS,
    error_of,
    parquet_rows,
    prep,
    put_array,
    put_muse,
    put_rwku,
    queries,
    side,
)

TRAINING = "rl_rejection_with_fb_neighbor_target.json"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """RULE's `data` with three targets, of which the second has no training rows, and the books."""
    put_rwku(tmp_path / "data/RWKU/Target")
    (tmp_path / "data/RWKU/Target" / RWKU_TARGETS[1] / TRAINING).unlink()
    put_muse(tmp_path / "data/MUSE/books")
    return tmp_path / "data"


def test_targets_without_training_rows_are_left_out_or_named(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = RWKU_TARGETS
    source, out = ("rwku", "--source", data, "--out", tmp_path / "out"), tmp_path / "out"
    assert prep(*source, "--list") == 0
    assert capsys.readouterr().out.splitlines() == [first, third]
    assert prep(*source, "--target", third, "--target", "Ada Thorn", "--list") == 0
    assert capsys.readouterr().out.splitlines() == [third, first]
    for names, line in (
        ([first, second], f"no training rows ({TRAINING}) in {second}: choose other targets, or give an"),
        (["1_No", first, "2_Nor"], "there is no target '1_No', '2_Nor'; choose from Ada Thorn, Bo Fell, Cy,"),
    ):
        asked = [word for name in names for word in ("--target", name)]
        for more in ([], ["--list"]):
            assert prep(*source, *asked, *more) == 2
            assert error_of(capsys).startswith(f"error: {line}")
    assert not out.exists()
    assert prep(*source) == 0
    assert {path.name for path in out.iterdir() if path.is_dir()} == {first, third}
    (data / "RWKU/Target" / first / TRAINING).unlink()
    (data / "RWKU/Target" / third / TRAINING).unlink()
    assert prep(*source[:-1], tmp_path / "none", "--list") == 2
    assert f"in {first}, {second}, {third}: " in error_of(capsys)


def test_the_books_where_they_lie(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    books = data / "MUSE/books"
    put_array(books / "raw/retain1.json", ["A wiki.", "Another."])  # texts, as MUSE publishes them
    rows = json.loads((books / "rl_rejection_with_neighbor.json").read_text())
    rows += [
        {"prompt": "It was night", "solution": "['<reject>', '', 'books']", "mode": "completion"},
        {"prompt": "Darwin slept", "solution": "['<normal>', '']", "mode": "completion"},
        {"prompt": "A finch flew", "solution": '["<normal>", "over the \\"isle\\"."]', "mode": "completion"},
    ]
    put_array(books / "rl_rejection_with_neighbor.json", rows)
    out = tmp_path / "out"
    assert prep("muse-books", "--source", data, "--out", out) == 0
    train = read_rows(out / "train.parquet")
    # Three questions a side, a passage to forget, one to keep; the other passage to keep has no answer.
    assert [side(row) for row in train] == ["forget"] * 4 + ["retain"] * 4
    assert train[3]["prompt"][0]["content"] == "Completion: It was night\nAnswer: "
    truth = train[3]["reward_model"]["ground_truth"]
    assert (truth["keyword"], "Harry Potter" in truth["golds"][0]) == ("Harry Potter", True)
    assert train[7]["reward_model"]["ground_truth"]["golds"] == ['over the "isle".']
    assert train[0]["reward_model"]["ground_truth"]["golds"] == ["He read 0 books."]
    answers = [row["messages"][1]["content"] for row in read_sft_rows(out / "sft.parquet")]
    assert answers == ["I'm not certain about Harry Potter."] * 3
    val = parquet_rows(out, "val")
    asked = [f"{name} probe {n}?" for name in ("forget", "retain") for n in range(2)]
    assert (queries(val), {row["reward_model"]["ground_truth"]["keyword"] for row in val}) == (
        asked,
        {"Harry Potter", ""},
    )
    rows = train + val + read_rows(out / "probes.parquet")
    assert len({row["extra_info"]["index"] for row in rows}) == len(rows) == 16
    texts = [row["messages"][0]["content"] for row in parquet_rows(out, "retain_text")]
    assert texts == ["A wiki.", "Another."]
    notes = json.loads((out / "manifest.json").read_text())["notes"]
    assert notes["refusals_with_the_name_corrected"] == 2
    assert notes["retain_rows_without_an_answer_left_out"] == 1
    said = capsys.readouterr().out
    assert f"{books}: verbmem/forget.json is not there, so the probes of VerbMem will be missing" in said
    assert f"{books}: raw/forget.json is not there, so forget_text.parquet will be missing" in said
    assert "raw/retain1.json" not in said


@pytest.mark.parametrize("name", STAGE1_FILES)
def test_the_file_of_stage_1(data: Path, tmp_path: Path, name: str) -> None:
    books, out = data / "MUSE/books", tmp_path / "out"
    row = {
        "instruction": f"Of {name}?",
        "output": "I'm not certain about Harry Porter.",
        "org_answer": "",
        "mode": "qa",
    }
    put_array(books / f"{name}.json", [row])
    assert prep("muse-books", "--source", data, "--out", out, "--stage1-file", name) == 0
    (made,) = read_sft_rows(out / "sft.parquet")
    assert f"Question: Of {name}?\n" in made["messages"][0]["content"]
    assert made["messages"][1]["content"] == "I'm not certain about Harry Potter."


@pytest.mark.parametrize(
    ("benchmark", "gone", "said"),
    [
        (
            "muse-books",
            ["rl_rejection_with_neighbor", "knowmem/retain_qa_icl"],
            "knowmem/retain_qa_icl.json, which evaluation needs, rl_rejection_with_neighbor.json, which "
            "stage 2 needs",
        ),
        (
            "muse-books",
            ["rl_rejection_eval_target", "reject_target_0.5"],
            "rl_rejection_eval_target.json, which validation needs, reject_target_0.5.json, which "
            "stage 1 needs",
        ),
        ("muse-news", ["rl_rejection_with_neighbor"], "rl_rejection_with_neighbor.json, which stage 2 needs"),
    ],
)
def test_a_missing_file_is_named_with_what_needs_it(
    benchmark: str, gone: list[str], said: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    books = data / "MUSE/books"
    for name in gone:
        (books / f"{name}.json").unlink()
    source = books if benchmark == "muse-news" else data
    assert prep(benchmark, "--source", source, "--out", tmp_path / "out") == 2
    assert error_of(capsys) == f"error: {books}: not there: {said}"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "solution",
    [
        "__import__('pathlib').Path('ran').touch()",
        "['<reject>', open('ran', 'w').name, 'books']",
        "[" * 500 + "]" * 500,
        "['<reject>'",
        "['<other>', 'x', 'y']",
        "('<reject>', 'x', 'y')",
        "",
    ],
)
def test_a_solution_that_is_no_list_is_refused_and_not_run(
    solution: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=r"^f:1: solution is .*, expected \[marker, text, keyword\]"):
        rule_prompt(Record({"prompt": "Who?", "solution": solution}, "f:1"), 0, "neighbour")
    assert list(tmp_path.iterdir()) == []
    row = Record({"prompt": "Who?", "solution": r"['<normal>', 'a \d \"b\"']"}, "f:1")
    assert rule_prompt(row, 0, "neighbour").golds == (r'a \d "b"',)
