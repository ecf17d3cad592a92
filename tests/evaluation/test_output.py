from __future__ import annotations

import json

import pytest

from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.output import EVALUATION, json_text, write_folder
from recipe.rerule.io import check_writable, json_lines


def write(folder, files, overwrite=True, **meta):
    write_folder(folder, EVALUATION, meta, files, overwrite)


def test_a_folder_is_written_whole_and_replaced_whole(tmp_path):
    folder = tmp_path / "new" / "evaluation"
    write(folder, {"old.json": "2"})
    write(folder, {"new.json": "3"}, benchmark="tofu")
    assert {file.name for file in folder.iterdir()} == {"meta.json", "new.json"}
    assert json.loads((folder / "meta.json").read_text()) == {
        "format": "rerule/evaluation",
        "format_version": 2,
        "contents": ["meta.json", "new.json"],
        "benchmark": "tofu",
    }
    assert [path.name for path in folder.parent.iterdir()] == ["evaluation"]


def test_a_file_may_be_in_a_folder_of_its_own_and_the_table_is_one_of_ours(tmp_path):
    table = tidy.from_rows([dict.fromkeys(tidy.ROW, "x") | {"probe": 1, "sample": 0}])
    write_folder(tmp_path / "new", EVALUATION, {}, {"logs/a b/LOG.json": "2"}, True, table)
    assert (tmp_path / "new" / "logs" / "a b" / "LOG.json").read_text() == "2"
    assert json.loads((tmp_path / "new" / "meta.json").read_text())["contents"] == [
        "logs/a b/LOG.json",
        "meta.json",
        "responses.parquet",
    ]
    write(tmp_path / "new", {})


def test_a_failed_write_leaves_what_was_there(tmp_path):
    folder = tmp_path / "evaluation"
    write(folder, {"a.json": "1"})
    with pytest.raises(OSError, match="taken"):
        write(folder, {"a.json": "2", "taken": "", "taken/file.json": "3"})
    assert (folder / "a.json").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation"]


def test_only_an_earlier_evaluation_is_overwritten_and_only_when_asked(tmp_path):
    write(tmp_path / "new", {}, overwrite=False)
    with pytest.raises(ValueError, match="new exists already"):
        write(tmp_path / "new", {}, overwrite=False)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"thesis has no meta\.json"):
        check_writable(tmp_path / "thesis", True, EVALUATION)


def test_json_is_read_back_and_refuses_what_is_no_json():
    assert json.loads(json_text({"ä": [0.1, None]})) == {"ä": [0.1, None]}
    assert [json.loads(line) for line in json_lines([{"a": "x\ny"}, {"a": 2}]).splitlines()] == [
        {"a": "x\ny"},
        {"a": 2},
    ]
    with pytest.raises(ValueError, match="JSON"):
        json_text({"a": float("nan")})
