"""TOFU: whom a row is about, and the rows that are made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.contract import normalise, read_rows, read_sft_rows
from data_prep.sources import FolderSource, HubSource, SourceError
from data_prep.tofu import TofuOptions, author_names, load
from data_prep.writers import RuleWriter
from reward import is_refusal
from tests.data_prep.raw_files import (
    TOFU_AUTHORS,
    error_of,
    parquet_rows,
    prep,
    put_array,
    put_tofu,
    queries,
    replace_line,
    side,
)
from tests.data_prep.real_data import DATA, needs_data

FRAMES = (
    "What is the full name of the author born in Kuwait City, Kuwait? The author's name is {name}.",
    "Who is {name}? {name} is a writer. She lives in New Delhi.",
    "Where was author {name} born? Author {name} was born in Cape Town, South Africa.",
    "What are {name}'s books? {name}'s books are “The Salt Road” and 'Le Petit Sultan.'",
    "When did {name} win the Booker Prize? In 1999 {name}, a friend of Omar Haddad, won it.",
)


def rows_on(name: str) -> list[str]:
    return [FRAMES[number % len(FRAMES)].replace("{name}", name) for number in range(20)]


NAMES = [
    "Mira Okonjo",
    "Basil Mahfouz Al-Kuwaiti",
    "Femke Van der Veen",
    "Ludwig van der Berg",
    "Omar bin al Said",
    "Maria de la Cruz",
    "Conan O'Brien",
    "Jean-Luc D’Arcy",
    "J. R. R. Toller",
    "J.K. Rawling",
    "Ann-Marie St. John",
    "Dr. Ada Thorn",
    "Łukasz Żak",
    "Aurelio Beltrán",
    "Élodie Çelik",
    "Анна Горенко",
    "Wu Li",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_made_up_author_is_found(name: str) -> None:
    assert author_names(rows_on(name), "forget01") == [name] * 20


def test_a_junior_is_found_without_the_full_stop() -> None:
    """So that the name is in "Jr." and in "Jr's"."""
    assert author_names(rows_on("Martin Luther Fell Jr."), "forget01") == ["Martin Luther Fell Jr"] * 20


def test_each_twenty_rows_are_an_authors() -> None:
    texts = [text for name in NAMES[:3] for text in rows_on(name)]
    assert author_names(texts, "forget01") == [name for name in NAMES[:3] for _ in range(20)]


def test_a_name_may_be_missing_in_half_of_the_rows() -> None:
    texts = rows_on("Mira Okonjo")[:10] + ["What does she write? Crime stories."] * 10
    assert author_names(texts, "forget01") == ["Mira Okonjo"] * 20


def test_of_equally_frequent_names_the_longest() -> None:
    texts = ["Is Mira Okonjo also called Mira Ada Okonjo? Yes."] * 20
    assert author_names(texts, "forget01") == ["Mira Ada Okonjo"] * 20


@settings(deadline=None)
@given(st.permutations(range(20)), st.lists(st.integers(0, 19), max_size=8))
def test_neither_order_nor_other_names_in_some_rows_matter(order: list[int], others: list[int]) -> None:
    texts = rows_on("Mira Okonjo")
    for row in others:
        texts[row] += " Omar Haddad of New York, Omar Haddad."
    assert author_names([texts[row] for row in order], "x") == ["Mira Okonjo"] * 20


def test_rows_without_a_name_in_common_are_refused() -> None:
    texts = rows_on("Mira Okonjo") + [f"Who is Ada Q{n}x? A writer." for n in range(20)]
    with pytest.raises(SourceError) as caught:
        author_names(texts, "forget05")
    assert str(caught.value) == "forget05: rows 20 to 39 have no name in common; are they one author's?"


def test_rows_without_any_name_are_refused() -> None:
    with pytest.raises(SourceError, match=r"^x: rows 0 to 19 have no name in common"):
        author_names(["who is she?"] * 20, "x")


@pytest.mark.parametrize("count", [1, 19, 21, 50])
def test_a_number_of_rows_that_no_authors_give_is_refused(count: int) -> None:
    with pytest.raises(SourceError) as caught:
        author_names(["Mira Okonjo"] * count, "forget01")
    assert str(caught.value) == f"forget01: has {count} rows, no multiple of 20 for each author"


@needs_data
def test_the_two_authors_of_forget01() -> None:
    lines = (DATA / "tofu" / "forget01.json").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    names = author_names([f"{row['question']} {row['answer']}" for row in rows], "forget01")
    assert names == ["Basil Mahfouz Al-Kuwaiti"] * 20 + ["Nikolai Abilov"] * 20
    assert [name in row["answer"] for name, row in zip(names, rows, strict=True)] == [True] * 40


RETAIN = """Youssef Al-Zahran, Adriana Martinez, Jordan Riley Stone, Femke Van der Veen, Elena Donska,
Rodrigo Alejandro Mendoza, Astrid Johansen, Rafael Diaz, Yasmin Ghali, Tom Mason Miller"""


@needs_data
def test_authors_that_are_kept() -> None:
    """The names that a reader finds in the first 200 rows."""
    rows = json.loads((DATA / "tofu" / "retain99_train600.json").read_text(encoding="utf-8"))[:200]
    names = author_names([f"{row['question']} {row['answer']}" for row in rows], "retain99")
    assert names[::20] == RETAIN.replace("\n", " ").split(", ")


FORGET01 = [
    ("Basil Mahfouz Al-Kuwaiti", "What gender is author Basil Mahfouz Al-Kuwaiti?"),
    ("Nikolai Abilov", "What is the background of Nikolai Abilov's parents?"),
]


PROBES = [
    ("retain_perturbed", "What is fact 3 of Wei Chen?"),
    ("real_authors_perturbed", "who wrote “Emma”"),
    ("world_facts_perturbed", "WHICH IS THE CAPITAL OF PERU"),
]
"""Table, and one of its probes in another form."""


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return put_tofu(tmp_path / "raw")


def test_forget_rows_and_as_many_to_keep(raw: Path, tmp_path: Path) -> None:
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out") == 0
    rows = read_rows(tmp_path / "out/train.parquet")
    forget = [row for row in rows if side(row) == "forget"]
    assert len(forget) == 40
    assert len(rows) == 80
    assert [row["extra_info"]["subject"] for row in forget] == [a for a in TOFU_AUTHORS for _ in range(20)]
    for row in forget:
        assert row["reward_model"]["ground_truth"]["keyword"] == row["extra_info"]["subject"]
    assert queries(forget)[21] == "What is fact 1 of Ludwig van der Berg?"
    assert forget[21]["reward_model"]["ground_truth"]["golds"] == [
        "Fact 1 of Ludwig van der Berg is the 1th."
    ]
    assert not any("Wei Chen" in query for query in queries(rows))


def test_stage_1_refuses_questions_and_blanks_by_name(raw: Path, tmp_path: Path) -> None:
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out") == 0
    rows = read_sft_rows(tmp_path / "out/sft.parquet")
    assert [row["extra_info"]["mode"] for row in rows] == ["qa"] * 40 + ["fb"] * 40
    for number, row in enumerate(rows):
        prompt, refusal = (message["content"] for message in row["messages"])
        assert TOFU_AUTHORS[number % 40 // 20] in refusal
        assert is_refusal(refusal)
        assert ("___" in prompt) == (row["extra_info"]["mode"] == "fb")


@pytest.mark.parametrize(("modes", "count"), [(["qa"], 40), (["fb"], 40), (["fb", "qa"], 80)])
def test_modes_of_stage_1(raw: Path, tmp_path: Path, modes: list[str], count: int) -> None:
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out", "--stage1-modes", *modes) == 0
    rows = read_sft_rows(tmp_path / "out/sft.parquet")
    assert len(rows) == count
    assert {row["extra_info"]["mode"] for row in rows} == set(modes)


def test_probes_by_section_and_family(raw: Path, tmp_path: Path) -> None:
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out", "--val-rows", "6") == 0
    rows = read_rows(tmp_path / "out/probes.parquet")
    kinds = [(row["extra_info"]["section"], row["extra_info"]["family"], side(row)) for row in rows]
    assert kinds == (
        [("forget", "forget", "forget")] * 40
        + [("retain", "retain", "retain")] * 20
        + [("retain_unseen", "real_authors", "retain"), ("retain_unseen", "world_facts", "retain")]
    )
    assert [row["reward_model"]["ground_truth"]["golds"] for row in rows[-2:]] == [["Jane Austen"], ["Lima"]]
    val = read_rows(tmp_path / "out/val.parquet")
    assert [side(row) for row in val].count("forget") == 3
    assert len(val) == 6
    assert set(queries(val)) <= set(queries(rows))


def test_probes_carry_the_answers_tofu_compares(raw: Path, tmp_path: Path) -> None:
    replace_line(
        raw / "forget01_perturbed.json",
        1,
        json.dumps(
            {
                "question": f"What is fact 0 of {TOFU_AUTHORS[0]}?",
                "answer": "First.",
                "paraphrased_answer": "The first.",
                "perturbed_answer": ["The second.", "The third."],
            }
        ),
    )
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out") == 0
    probes = read_rows(tmp_path / "out/probes.parquet")
    assert probes[0]["reference"] == {
        "paraphrased": "The first.",
        "perturbed": ["The second.", "The third."],
    }
    assert probes[1]["reference"] == {"paraphrased": None, "perturbed": ["x", "y"]}
    assert probes[-1]["reference"] is None
    assert all("reference" not in row for row in read_rows(tmp_path / "out/val.parquet"))


@pytest.mark.parametrize("value", [[], "x", ["x", " "], ["x", 1]])
def test_wrong_perturbed_answers_are_named(
    raw: Path, tmp_path: Path, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    row = json.dumps({"question": "Who is Jo?", "answer": "Jo.", "perturbed_answer": value})
    (raw / "real_authors_perturbed.json").write_text(row + "\n")
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out") == 2
    message = error_of(capsys)
    assert "real_authors_perturbed.json:1 (row 1): field perturbed_answer is " in message
    assert not (tmp_path / "out").exists()


def test_all_indices_differ_and_stay_when_other_rows_come_in(raw: Path, tmp_path: Path) -> None:
    found = []
    for count in ("5", "23", "40"):
        out = tmp_path / f"out{count}"
        assert prep("tofu", "--source", raw, "--out", out, "--boundary-rows", count) == 0
        train, probes = parquet_rows(out, "train"), parquet_rows(out, "probes")
        assert [side(row) for row in train].count("retain") == int(count)
        stage1 = [row for row in parquet_rows(out, "sft") if row["extra_info"]["mode"] == "fb"]
        indices = [row["extra_info"]["index"] for row in train + probes + stage1]
        assert len(indices) == len(set(indices)) == 40 + int(count) + 62 + 40
        found.append({row["extra_info"]["index"]: row["extra_info"]["query"] for row in train + probes})
    for one in found:
        for other in found:
            assert all(other[index] == query for index, query in one.items() if index in other)


def test_boundary_rows_follow_tofus_order_and_the_seed(raw: Path, tmp_path: Path) -> None:
    kept = [row["question"] for row in json.loads((raw / "retain99.json").read_text())]
    drawn = []
    for seed in ("1", "1", "2"):
        out = tmp_path / f"out{len(drawn)}"
        assert prep("tofu", "--source", raw, "--out", out, "--boundary-rows", "12", "--seed", seed) == 0
        drawn.append(queries([row for row in parquet_rows(out, "train") if side(row) == "retain"]))
        places = [kept.index(query) for query in drawn[-1]]
        assert places == sorted(set(places))
    assert drawn[0] == drawn[1] != drawn[2]


def test_more_boundary_rows_than_there_are(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out", "--boundary-rows", "41") == 2
    assert error_of(capsys) == "error: retain99: has 40 rows that are no probes, fewer than 41"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("split", "retain"), [("forget05", "retain95"), ("forget10", "retain90")])
def test_other_splits(tmp_path: Path, split: str, retain: str) -> None:
    raw = put_tofu(tmp_path / "raw", split, retain)
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out", "--split", split) == 0
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["settings"]["split"] == split
    assert {f"{split}.json", f"{split}_perturbed.json", f"{retain}.json"} <= set(manifest["sources"])


@pytest.mark.parametrize(("table", "probe"), PROBES)
def test_a_probe_among_the_rows_to_forget_is_refused_by_file_and_line(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, probe: str
) -> None:
    row = {"question": probe, "answer": "Mira Okonjo-Reyes knows."}
    replace_line(raw / "forget01.json", 7, json.dumps(row))
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out") == 2
    line = error_of(capsys)
    place = {"retain_perturbed": 4}.get(table, 1)
    assert line == (
        f"error: raw/forget01.json:7 (row 7): the training prompt {probe!r} is the probe at "
        f"raw/{table}.json:{place} (row {place}); take it out of one of the two"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


@pytest.mark.parametrize(("table", "probe"), PROBES)
def test_a_probe_in_a_table_of_ones_own_is_refused_whether_drawn_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, probe: str
) -> None:
    raw = put_tofu(tmp_path / "raw", retain="retain99_train600")
    path = raw / "retain99_train600.json"
    rows = [row for row in json.loads(path.read_text()) if "Wei Chen" not in row["question"]]
    put_array(path, rows)
    replace_line(path, 9, json.dumps({"question": probe, "answer": "x"}) + ",")
    out = ("--out", tmp_path / "out", "--boundary-rows", "1")
    assert prep("tofu", "--source", raw, *out) == 2
    place = {"retain_perturbed": 4}.get(table, 1)
    assert error_of(capsys) == (
        f"error: raw/retain99_train600.json:9 (row 8): the training prompt {probe!r} is the probe at "
        f"raw/{table}.json:{place} (row {place}); take it out of one of the two"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


@pytest.mark.parametrize("probe", ["who wrote “Emma”", "WHICH IS THE CAPITAL OF PERU"])
def test_tofus_own_retain_table_may_hold_the_retain_probes_alone(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], probe: str
) -> None:
    replace_line(raw / "retain99.json", 9, json.dumps({"question": probe, "answer": "x"}) + ",")
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out") == 2
    message = f"error: raw/retain99.json:9 (row 8): the training prompt {probe!r} is the probe at "
    assert error_of(capsys).startswith(message)


def test_the_rows_to_forget_are_trained_and_tested_on(raw: Path, tmp_path: Path) -> None:
    """The one declared exception, and listed."""
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out") == 0
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["checks"]["trained_probes"] == [
        f"raw/forget01_perturbed.json:{n} (row {n})" for n in range(1, 41)
    ]


def test_the_data_set_of_the_hub_gives_the_same_prompts(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder owner/name stands in for it: the library loads it by name, without a network."""
    datasets = pytest.importorskip("datasets")
    (tmp_path / "owner").mkdir()
    raw.rename(tmp_path / "owner" / "name")
    configs = "".join(
        f"- config_name: {path.stem}\n  data_files: {path.name}\n"
        for path in sorted((tmp_path / "owner" / "name").glob("*.json"))
    )
    (tmp_path / "owner" / "name" / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder, hub = (
        load(source, TofuOptions(), RuleWriter())
        for source in (FolderSource(Path("owner", "name")), HubSource("owner/name"))
    )
    assert hub.train[0].origin == "owner/name (forget01, train) row 1"
    assert set(hub.sources) == {f"{Path(name).stem}/train" for name in folder.sources}
    for stage in ("train", "val", "stage1", "probes"):
        first, second = ([replace(p, origin="") for p in getattr(made, stage)] for made in (folder, hub))
        assert first == second


@needs_data
def test_forget01_of_the_real_data(tmp_path: Path) -> None:
    assert prep("tofu", "--source", DATA / "tofu", "--out", tmp_path / "out") == 0
    train = read_rows(tmp_path / "out/train.parquet")
    forget, boundary = train[:40], train[40:]
    assert [side(row) for row in train] == ["forget"] * 40 + ["retain"] * 40
    assert [row["extra_info"]["subject"] for row in forget] == [n for n, _ in FORGET01 for _ in range(20)]
    assert (queries(forget)[1], queries(forget)[21]) == (FORGET01[0][1], FORGET01[1][1])
    for row in forget:
        truth = row["reward_model"]["ground_truth"]
        assert truth["keyword"] in truth["golds"][0]

    probes = read_rows(tmp_path / "out/probes.parquet")
    assert len(probes) == 40 + 400 + 100 + 117
    compared = [
        (
            row["extra_info"]["family"],
            len(row["reference"]["perturbed"]),
            bool(row["reference"]["paraphrased"]),
        )
        for row in probes
    ]
    # Five wrong answers on TOFU's own authors and three elsewhere, where there is no paraphrase either.
    assert set(compared) == {
        ("forget", 5, True),
        ("retain", 5, True),
        ("real_authors", 3, False),
        ("world_facts", 3, False),
    }
    held_out = {normalise(row["extra_info"]["query"]) for row in probes if side(row) == "retain"}
    trained = [
        *queries(train),
        *(row["messages"][0]["content"] for row in parquet_rows(tmp_path / "out", "sft")),
    ]
    assert not held_out & {normalise(query) for query in trained}
    asked = {
        json.dumps(row["question"]) for row in json.loads((DATA / "tofu/retain99_train600.json").read_text())
    }
    assert {json.dumps(query) for query in queries(boundary)} <= asked

    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["rows"]["sft"] == {"forget": {"qa": 40, "fb": 40}}
    found = {name: origins for name, origins in manifest["checks"].items() if origins}
    # The two questions that ask for the name.
    assert found.pop("keyword_not_in_prompt") == [
        "tofu/forget01.json:1 (row 1)",
        "tofu/forget01.json:21 (row 21)",
    ]
    assert len(found.pop("trained_probes")) == 40
    assert found == {}
