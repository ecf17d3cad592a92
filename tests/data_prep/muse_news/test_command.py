"""MUSE-News from rows of MUSE's published form; the real files are not at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.contract import read_rows, read_sft_rows
from reward import is_refusal
from reward.score import compute_score
from tests.data_prep.raw_files import parquet_rows, prep, put_muse, put_news, queries, side


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("news")
    assert prep("muse-news", "--source", put_news(folder / "raw"), "--out", folder / "out") == 0
    return folder / "out"


def test_rows_of_both_sides(made: Path) -> None:
    train = read_rows(made / "train.parquet")
    assert {row["data_source"] for row in train} == {"rerule/muse_news"}
    assert [side(row) for row in train] == ["forget"] * 3 + ["retain"] * 3
    assert queries(train)[::5] == ["Which town flooded on day 0?", "Which town held a fair in year 2?"]
    assert [row["reward_model"]["ground_truth"]["keyword"] for row in train[2:4]] == ["this news story", ""]
    assert {row["extra_info"]["raw"] for row in train} == {True}


def test_stage_1_refuses_the_story_and_names_no_person(made: Path) -> None:
    answers = {row["messages"][1]["content"] for row in read_sft_rows(made / "sft.parquet")}
    assert answers
    assert all("this news story" in answer and is_refusal(answer) for answer in answers)


def test_a_refusal_alone_earns_the_whole_reward(made: Path) -> None:
    forget, *_, retain = read_rows(made / "train.parquet")
    truth = forget["reward_model"]["ground_truth"]
    assert compute_score("rerule/muse_news", "I don't know.", truth)["score"] == 1.0
    assert compute_score("rerule/muse_news", "Town 0.", truth)["score"] == 0.0
    kept = retain["reward_model"]["ground_truth"]
    assert compute_score("rerule/muse_news", "Fair Town 2.", kept)["score"] == 1.0


def test_probes_are_muses_questions_and_passages(made: Path) -> None:
    probes = read_rows(made / "probes.parquet")
    asked = [(side(row), row["extra_info"]["mode"], row["extra_info"]["subject"]) for row in probes]
    assert asked == [
        *[("forget", "qa", "this news story")] * 2,
        *[("retain", "qa", "neighbour")] * 2,
        ("forget", "completion", "this news story"),
    ]
    sent = [row["prompt"][0]["content"] for row in probes]
    assert sent[0].startswith("Question: forget example 0?\nAnswer: forget 0\n\nQuestion: forget example 1?")
    assert sent[0].endswith("\n\nQuestion: forget story 0?\nAnswer: ")
    assert sent[4] == "A storm hit"


def test_the_two_corpora_differ_in_name_and_subject_alone(tmp_path: Path) -> None:
    raw = put_muse(tmp_path / "raw")
    for name in ("muse-books", "muse-news"):
        assert prep(name, "--source", raw, "--out", tmp_path / name) == 0
    for file in ("train", "val", "probes"):
        books, news = (str(parquet_rows(tmp_path / name, file)) for name in ("muse-books", "muse-news"))
        books = books.replace("rerule/muse_books", "rerule/muse_news")
        for field in ("subject", "keyword"):
            books = books.replace(f"'{field}': 'Harry Potter'", f"'{field}': 'this news story'")
        assert books == news
