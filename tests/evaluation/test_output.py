from __future__ import annotations

import json

import pytest

from recipe.rerule.evaluation.output import check_free, json_lines, json_text, write_folder


def test_a_folder_is_written_whole_and_replaced_whole(tmp_path):
    folder = tmp_path / "new" / "evaluation"
    write_folder(folder, {"meta.json": "1", "old.json": "2"})
    write_folder(folder, {"meta.json": "3"})
    assert {file.name: file.read_text() for file in folder.iterdir()} == {"meta.json": "3"}
    assert [path.name for path in folder.parent.iterdir()] == ["evaluation"]


def test_a_file_may_be_in_a_folder_of_its_own(tmp_path):
    write_folder(tmp_path / "new", {"meta.json": "1", "logs/a b/LOG.json": "2"})
    assert (tmp_path / "new" / "logs" / "a b" / "LOG.json").read_text() == "2"


def test_a_failed_write_leaves_what_was_there(tmp_path):
    folder = tmp_path / "evaluation"
    write_folder(folder, {"meta.json": "1"})
    with pytest.raises(OSError, match="taken"):
        write_folder(folder, {"meta.json": "2", "taken": "", "taken/file.json": "3"})
    assert (folder / "meta.json").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation"]


def test_only_an_earlier_evaluation_is_overwritten_and_only_when_asked(tmp_path):
    check_free(tmp_path / "new", overwrite=False)
    write_folder(tmp_path / "earlier", {"meta.json": "{}"})
    check_free(tmp_path / "earlier", overwrite=True)
    with pytest.raises(ValueError, match="earlier exists already"):
        check_free(tmp_path / "earlier", overwrite=False)
    (tmp_path / "thesis").mkdir()
    with pytest.raises(ValueError, match=r"thesis holds no meta\.json"):
        check_free(tmp_path / "thesis", overwrite=True)


def test_json_is_read_back_and_refuses_what_is_no_json():
    assert json.loads(json_text({"ä": [0.1, None]})) == {"ä": [0.1, None]}
    assert [json.loads(line) for line in json_lines([{"a": "x\ny"}, {"a": 2}]).splitlines()] == [
        {"a": "x\ny"},
        {"a": 2},
    ]
    with pytest.raises(ValueError, match="JSON"):
        json_text({"a": float("nan")})
