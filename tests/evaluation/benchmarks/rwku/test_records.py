from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation.benchmarks.rwku.benchmark import read_records, samples
from recipe.rerule.evaluation.logs.records import by_model

OFFICIAL = {
    "query": "Who wrote it?",
    "answer": "Ada Quill",
    "level": "3",
    "type": "role play",
    "subject": "Ada Quill",
    "prediction": "It was Ada, I think",
}
OURS = {
    "model": "unlearned",
    "index": 30,
    "section": "retain",
    "mode": "qa",
    "family": "simple question",
    "target": "Ada Quill",
    "subject": "Ben Orr",
    "prompt": "Who was it?",
    "golds": ["Ben Orr"],
    "response": "Ben Orr",
    "rouge_l": 0.123,
    "refused": True,
}


def written(tmp_path: Path, value: Any, name: str = "records.json") -> Path:
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_a_record_of_rwku(tmp_path: Path):
    (found,) = read_records(written(tmp_path, [OFFICIAL]))
    # "Ada," is not "Ada": punctuation counts.
    assert found == {
        "index": 0,
        "model": "",
        "section": "forget",
        "mode": "aa",
        "family": "role play",
        "target": "Ada Quill",
        "subject": "Ada Quill",
        "prompt": "Who wrote it?",
        "golds": ["Ada Quill"],
        "response": "It was Ada, I think",
        "rouge_l": 0.0,
        "refused": False,
    }


def test_neighbours_are_told_by_their_name(tmp_path: Path):
    row = OFFICIAL | {"level": "1", "neighbor": "Ben Orr", "prediction": "Quill"}
    (found,) = read_records(written(tmp_path, [row]))
    assert (found["section"], found["mode"], found["target"], found["subject"]) == (
        "retain",
        "fb",
        "Ada Quill",
        "Ben Orr",
    )
    assert found["rouge_l"] == 0.5


def test_our_record_is_scored_anew(tmp_path: Path):
    (found,) = read_records(written(tmp_path, [OURS]))
    assert found == OURS | {"rouge_l": 1.0, "refused": False}


@pytest.mark.parametrize("form", ["array", "lines", "results", "object"])
def test_forms_of_a_file(tmp_path: Path, form: str):
    rows = [OFFICIAL, OFFICIAL | {"level": 2, "prediction": "one\u2028line"}]
    text = {
        "array": json.dumps(rows),
        "lines": "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n",
        # RWKU's aggregates beside the records are wrong here, and not read.
        "results": json.dumps({"level_1_rouge_l_r": 0.9, "results": rows}),
        "object": json.dumps(rows[0]),
    }[form]
    found = read_records(written(tmp_path, text))
    assert [row["mode"] for row in found] == (["aa"] if form == "object" else ["aa", "qa"])


def test_records_without_an_index_are_numbered_by_target_and_mode(tmp_path: Path):
    rows = [OFFICIAL, OFFICIAL | {"level": "1"}, OFFICIAL, OFFICIAL | {"subject": "Ben Orr"}]
    assert [row["index"] for row in read_records(written(tmp_path, rows))] == [0, 0, 1, 0]


def test_a_question_that_the_data_repeat_counts_each_time(tmp_path: Path):
    rows = [OFFICIAL | {"prediction": "Ada Quill"}, OFFICIAL | {"prediction": "Ada Quill"}, OFFICIAL]
    values = samples(read_records(written(tmp_path, rows)))["forget/aa@Ada Quill"]["rouge_l"]
    assert values.tolist() == [1.0, 1.0, 0.0]


def test_the_same_file_twice_is_refused(tmp_path: Path):
    path = written(tmp_path, [OFFICIAL])
    with pytest.raises(ValueError, match="two records of one probe"):
        samples([*read_records(path), *read_records(path)])


def test_several_targets_in_several_files(tmp_path: Path):
    first = written(tmp_path, [OFFICIAL], "a.json")
    second = written(tmp_path, [OFFICIAL | {"subject": "Ben Orr"}], "b.json")
    assert list(samples(read_records(first, second))) == [
        "forget/aa@Ada Quill",
        "forget/aa/role play@Ada Quill",
        "forget/aa@Ben Orr",
        "forget/aa/role play@Ben Orr",
    ]


def test_models_of_one_file(tmp_path: Path):
    rows = [OURS, OURS | {"model": "original"}, OURS | {"index": 31}]
    found = by_model(read_records(written(tmp_path, rows)))
    assert {name: len(records) for name, records in found.items()} == {"unlearned": 2, "original": 1}


@pytest.mark.parametrize("text", ["", " \n", "."])
def test_empty_answers_score_nothing_and_are_no_refusals(tmp_path: Path, text: str):
    (found,) = read_records(written(tmp_path, [OFFICIAL | {"prediction": text}]))
    assert (found["rouge_l"], found["refused"]) == (0.0, False)


def without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (OFFICIAL | {"prediction": float("nan")}, "prediction is nan, expected text"),
        (OFFICIAL | {"prediction": None}, "prediction is None, expected text"),
        (OFFICIAL | {"answer": float("nan")}, "answer is nan, expected text"),
        (OFFICIAL | {"answer": " "}, "answer is ' ', expected text"),
        (OFFICIAL | {"predict": "x"}, "has prediction and predict; exactly one of"),
        (without(OFFICIAL, "prediction"), "has no answer; exactly one of response, prediction, predict"),
        (without(OFFICIAL, "answer"), "answer is missing"),
        (without(OFFICIAL, "subject"), "subject is missing"),
        (without(OFFICIAL, "level"), "level is None, expected one of 1, 2, 3"),
        (OFFICIAL | {"level": "4"}, "level is '4', expected one of 1, 2, 3"),
        (OFFICIAL | {"neighbor": "Ben Orr"}, "RWKU has no retain/aa probes"),
        (without(OURS, "target"), "target is missing"),
        (OURS | {"section": "retain_unseen"}, "RWKU has no retain_unseen/qa probes"),
        (OURS | {"golds": []}, "golds is [], expected a list of right answers"),
        (OURS | {"golds": [""]}, "golds is '', expected text"),
        (OURS | {"index": "30"}, "index is '30', expected a whole number"),
        (OURS | {"model": 3}, "model is 3, expected text"),
        ("text", "is not an object"),
    ],
)
def test_a_wrong_record_is_named(tmp_path: Path, row: Any, message: str):
    path = written(tmp_path, [OFFICIAL, row])
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_records(path)
    assert str(caught.value).startswith(f"{path}: record 2")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "no records"),
        ("", "no records"),
        ("3", "neither records"),
        ('{"a": 1}\n{"b"', "line 2 is not complete JSON: it is cut off"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str):
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=message):
        read_records(path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"gone\.json does not exist"):
        read_records(tmp_path / "gone.json")
