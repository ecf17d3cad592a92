from __future__ import annotations

import json

from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.output import EVALUATION, write_folder


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
