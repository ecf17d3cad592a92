"""MUSE's two corpora as rows for a base model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from data_prep.contract import normalise, read_rows, read_sft_rows
from reward import is_refusal
from reward.score import compute_score
from tests.data_prep.raw_files import (
    error_of,
    parquet_rows,
    prep,
    put_array,
    put_muse,
    put_news,
    queries,
    side,
)
from tests.data_prep.real_data import DATA, needs_data, put_real_muse

MUSE = DATA / "muse_books"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return put_muse(tmp_path / "raw")


def sent(folder: Path, name: str) -> list[str]:
    return [row["prompt"][0]["content"] for row in parquet_rows(folder, name)]


def example_block(name: str) -> str:
    """MUSE's prefix of the made-up examples, written out."""
    return "".join(f"Question: {name} example {n}?\nAnswer: {name} {n}\n\n" for n in range(10))


def test_rows_of_both_sides(raw: Path, tmp_path: Path) -> None:
    assert prep("muse-books", "--source", raw, "--out", tmp_path / "out") == 0
    train = read_rows(tmp_path / "out/train.parquet")
    assert [side(row) for row in train] == ["forget"] * 3 + ["retain"] * 3
    assert train[0]["reward_model"]["ground_truth"] == {
        "type": "forget",
        "golds": ["He read 0 books."],
        "keyword": "Harry Potter",
    }
    assert train[5]["reward_model"]["ground_truth"] == {
        "type": "retain",
        "golds": ["He saw 2 birds."],
        "keyword": "",
    }
    assert queries(train)[::5] == ["What did Harry Potter do on day 0?", "What did Darwin do in year 2?"]
    assert {row["data_source"] for row in train} == {"rerule/muse_books"}
    for name in ("train", "val", "probes", "sft"):
        assert {row["extra_info"]["raw"] for row in parquet_rows(tmp_path / "out", name)} == {True}
    rows = train + read_rows(tmp_path / "out/probes.parquet")
    assert len({row["extra_info"]["index"] for row in rows}) == len(rows) == 10
    answers = [row["messages"][1]["content"] for row in read_sft_rows(tmp_path / "out/sft.parquet")]
    assert len(answers) == 3
    assert all("Harry Potter" in answer and is_refusal(answer) for answer in answers)


def prefixes(folder: Path, name: str = "train") -> dict[str, set[str]]:
    """What stands before the question, by side."""
    found: dict[str, set[str]] = {}
    for row in parquet_rows(folder, name):
        tail = f"Question: {row['extra_info']['query']}\nAnswer: "
        text = row["prompt"][0]["content"]
        assert text.endswith(tail)
        found.setdefault(side(row), set()).add(text.removesuffix(tail))
    return found


def test_the_neutral_prefix_is_the_same_on_both_sides(raw: Path, tmp_path: Path) -> None:
    assert prep("muse-books", "--source", raw, "--out", tmp_path / "out") == 0
    found = prefixes(tmp_path / "out")
    assert found["forget"] == found["retain"] == prefixes(tmp_path / "out", "val")["forget"]
    (prefix,) = found["forget"]
    assert re.fullmatch(r"(Question: [^\n]+\?\nAnswer: [^\n]+\n\n){10}", prefix)
    assert "example" not in prefix
    stage1 = read_sft_rows(tmp_path / "out/sft.parquet")
    assert [row["messages"][0]["content"] for row in stage1] == sent(tmp_path / "out", "train")[:3]


@pytest.mark.parametrize("examples", ["neutral", "none", "label_dependent"])
def test_probes_are_asked_as_muse_asks_them(raw: Path, tmp_path: Path, examples: str) -> None:
    """Ten pairs "Question: q\\nAnswer: a\\n\\n", then "Question: q\\nAnswer: " with a space at the end."""
    assert prep("muse-books", "--source", raw, "--out", tmp_path / "out", "--examples", examples) == 0
    assert sent(tmp_path / "out", "probes") == [
        f"{example_block(name)}Question: {name} probe {n}?\nAnswer: "
        for name in ("forget", "retain")
        for n in range(2)
    ]
    told = {"none": ("", ""), "label_dependent": (example_block("forget"), example_block("retain"))}
    if examples in told:
        forget, retain = told[examples]
        assert prefixes(tmp_path / "out") == {"forget": {forget}, "retain": {retain}}


def test_passages_are_continued_as_muse_asks_for_it(raw: Path, tmp_path: Path) -> None:
    passages = [{"prompt": f" Passage {n}, it\n", "gt": f"goes on {n}. "} for n in range(3)]
    put_array(raw / "verbmem/forget.json", passages)
    assert prep("muse-books", "--source", raw, "--out", tmp_path / "out") == 0
    probes = read_rows(tmp_path / "out/probes.parquet")
    continued = [row for row in probes if row["extra_info"]["mode"] == "completion"]
    assert [row["prompt"][0]["content"] for row in continued] == [f" Passage {n}, it\n" for n in range(3)]
    assert [row["reward_model"]["ground_truth"]["golds"] for row in continued] == [
        [f"goes on {n}. "] for n in range(3)
    ]
    assert {row["extra_info"]["family"] for row in continued} == {"verbmem"}
    assert {(side(row), row["extra_info"]["raw"]) for row in continued} == {("forget", True)}
    assert len(probes) == 7


def test_a_probed_passage_is_not_trained_on(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passage = " ".join(f"word{n}" for n in range(100))
    (tmp_path / "passages.json").write_text(json.dumps([passage]))
    probe = {"prompt": " ".join(passage.split()[:50]), "gt": "what follows"}
    put_array(raw / "verbmem/forget.json", [probe])
    arguments = ("--source", raw, "--passages", tmp_path / "passages.json", "--out", tmp_path / "out")
    assert prep("muse-books", *arguments) == 2
    assert "verbmem/forget.json:2 (row 1)" in error_of(capsys)


def test_a_misspelt_name_in_given_refusals_is_put_right(raw: Path, tmp_path: Path) -> None:
    texts = [
        "I'm not certain about Harry Porter.",
        "I don't know Harry Potter.",
        "Harry Poter? I don't know.",
    ]
    given = tmp_path / "refusals.txt"
    given.write_text("\n".join(texts))
    assert prep("muse-books", "--source", raw, "--out", tmp_path / "out", "--refusals", given) == 0
    answers = {row["messages"][1]["content"] for row in parquet_rows(tmp_path / "out", "sft")}
    assert answers <= {
        "I'm not certain about Harry Potter.",
        "I don't know Harry Potter.",
        "Harry Potter? I don't know.",
    }
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["notes"]["refusals_with_the_name_corrected"] == 2
    assert manifest["checks"]["refusal_misnames_target"] == []


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("muse")
    out, raw = folder / "out", put_real_muse(folder / "raw")
    arguments = ("--source", raw, "--out", out, "--refusals", raw / "idk_target.json")
    assert prep("muse-books", *arguments) == 0
    return out


def questions(name: str) -> list[dict[str, str]]:
    return json.loads((MUSE / "knowmem" / f"{name}.json").read_text(encoding="utf-8"))


@needs_data
def test_the_real_data(real: Path) -> None:
    train = read_rows(real / "train.parquet")
    assert [side(row) for row in train] == ["forget"] * 400 + ["retain"] * 300
    assert len(read_rows(real / "probes.parquet")) == 200
    trained = {normalise(query) for query in queries(train)}
    probes = {normalise(row["question"]) for name in ("forget_qa", "retain_qa") for row in questions(name)}
    assert trained.isdisjoint(probes)
    wanted = []
    for name in ("forget_qa", "retain_qa"):
        rows = questions(f"{name}_icl")
        assert len(rows) == 10
        shots = "".join(f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in rows)
        wanted += [f"{shots}Question: {row['question']}\nAnswer: " for row in questions(name)]
    assert sent(real, "probes") == wanted


@needs_data
def test_the_neutral_prefix_knows_nothing_of_the_benchmark(real: Path) -> None:
    """No probe, no example of MUSE, and no name or title that any question or answer mentions."""
    ((prefix,), (other,)) = prefixes(real).values()
    assert prefix == other
    rows = [row for file in ("forget_qa", "retain_qa") for row in questions(file) + questions(f"{file}_icl")]
    assert not [row for row in rows if normalise(row["question"]) in normalise(prefix)]
    text = " . ".join(f"{row['question']} . {row['answer']}" for row in rows)
    # Capitalised words that do not begin a question or an answer.
    names = set(re.findall(r"(?<![.?!] )\b[A-Z][a-z]{2,}", text)) - {"What"}
    assert len(names) > 150
    assert {"Harry", "Potter", "Hogwarts", "Hermione"} <= names
    assert names.isdisjoint(re.findall(r"[A-Za-z]+", prefix))
    answers = {normalise(row["answer"]) for row in rows}
    assert answers.isdisjoint(normalise(line.removeprefix("Answer: ")) for line in prefix.splitlines())


@needs_data
def test_harry_porter_is_put_right_in_99_of_100_refusals(real: Path) -> None:
    texts = json.loads((MUSE / "idk_target.json").read_text(encoding="utf-8"))
    assert sum("Harry Porter" in text for text in texts) == 99
    manifest = json.loads((real / "manifest.json").read_text())
    assert manifest["notes"]["refusals_with_the_name_corrected"] == 99
    answers = {row["messages"][1]["content"] for row in parquet_rows(real, "sft")}
    assert answers <= {text.replace("Harry Porter", "Harry Potter").strip() for text in texts}
    assert len(answers) > 80
    assert manifest["checks"]["refusal_misnames_target"] == []


@needs_data
def test_an_example_that_is_a_probe_is_listed(tmp_path: Path) -> None:
    """One of MUSE's retain examples is also one of its questions, which is there twice."""
    asked = [row["question"] for row in questions("retain_qa")]
    assert [asked.count(row["question"]) for row in questions("retain_qa_icl")].count(2) == 1
    raw, out = put_real_muse(tmp_path / "raw"), tmp_path / "out"
    assert prep("muse-books", "--source", raw, "--out", out, "--examples", "label_dependent") == 0
    listed = json.loads((out / "manifest.json").read_text())["checks"]["probes_in_examples"]
    places = [number for number, question in enumerate(asked, start=1) if "Malfoy eventually" in question]
    assert listed == [f"raw/knowmem/retain_qa.json:1 (row {number})" for number in places]
    assert len(listed) == 2


# ---- MUSE-News from rows of MUSE's published form; the real files are not at hand ----


@pytest.fixture(scope="module")
def news(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("news")
    assert prep("muse-news", "--source", put_news(folder / "raw"), "--out", folder / "out") == 0
    return folder / "out"


def test_rows_of_news(news: Path) -> None:
    train = read_rows(news / "train.parquet")
    assert {row["data_source"] for row in train} == {"rerule/muse_news"}
    assert [side(row) for row in train] == ["forget"] * 3 + ["retain"] * 3
    assert queries(train)[::5] == ["Which town flooded on day 0?", "Which town held a fair in year 2?"]
    assert [row["reward_model"]["ground_truth"]["keyword"] for row in train[2:4]] == ["this news story", ""]
    assert {row["extra_info"]["raw"] for row in train} == {True}
    answers = {row["messages"][1]["content"] for row in read_sft_rows(news / "sft.parquet")}
    assert answers
    assert all("this news story" in answer and is_refusal(answer) for answer in answers)


def test_a_refusal_alone_earns_the_whole_reward(news: Path) -> None:
    forget, *_, retain = read_rows(news / "train.parquet")
    truth = forget["reward_model"]["ground_truth"]
    assert compute_score("rerule/muse_news", "I don't know.", truth)["score"] == 1.0
    assert compute_score("rerule/muse_news", "Town 0.", truth)["score"] == 0.0
    kept = retain["reward_model"]["ground_truth"]
    assert compute_score("rerule/muse_news", "Fair Town 2.", kept)["score"] == 1.0
