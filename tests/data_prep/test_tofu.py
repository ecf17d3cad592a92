"""TOFU: whom a row is about, and the rows that are made; tests/golden keeps all rows of other options."""

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
from data_prep.writers import Writer
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

# ---- whom a row is about ----

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


def test_each_twenty_rows_are_an_authors() -> None:
    """Of "Jr." the full stop is left out, so that the name is in "Jr's" too."""
    texts = [text for name in [*NAMES, "Martin Luther Fell Jr."] for text in rows_on(name)]
    found = author_names(texts, "forget01")
    assert found == [name for name in [*NAMES, "Martin Luther Fell Jr"] for _ in range(20)]


def test_a_name_is_in_half_of_the_rows_and_the_longest_of_equals() -> None:
    texts = rows_on("Mira Okonjo")[:10] + ["What does she write? Crime stories."] * 10
    assert author_names(texts, "forget01") == ["Mira Okonjo"] * 20
    texts = ["Is Mira Okonjo also called Mira Ada Okonjo? Yes."] * 20
    assert author_names(texts, "forget01") == ["Mira Ada Okonjo"] * 20


@settings(deadline=None)
@given(st.permutations(range(20)), st.lists(st.integers(0, 19), max_size=8))
def test_neither_order_nor_other_names_in_some_rows_matter(order: list[int], others: list[int]) -> None:
    texts = rows_on("Mira Okonjo")
    for row in others:
        texts[row] += " Omar Haddad of New York, Omar Haddad."
    assert author_names([texts[row] for row in order], "x") == ["Mira Okonjo"] * 20


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            rows_on("Mira Okonjo") + [f"Who is Ada Q{n}x? A writer." for n in range(20)],
            "rows 20 to 39 have no name in common; are they one author's?",
        ),
        (["who is she?"] * 20, "rows 0 to 19 have no name in common; are they one author's?"),
        (["Mira Okonjo"] * 21, "has 21 rows, no multiple of 20 for each author"),
    ],
)
def test_rows_of_no_author_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        author_names(texts, "forget05")
    assert str(caught.value) == f"forget05: {message}"


RETAIN = """Youssef Al-Zahran, Adriana Martinez, Jordan Riley Stone, Femke Van der Veen, Elena Donska,
Rodrigo Alejandro Mendoza, Astrid Johansen, Rafael Diaz, Yasmin Ghali, Tom Mason Miller"""


@needs_data
def test_real_authors_that_are_kept() -> None:
    """The names that a reader finds in the first 200 rows."""
    rows = json.loads((DATA / "tofu" / "retain99_train600.json").read_text(encoding="utf-8"))[:200]
    names = author_names([f"{row['question']} {row['answer']}" for row in rows], "retain99")
    assert names[::20] == RETAIN.replace("\n", " ").split(", ")


# ---- rows ----


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return put_tofu(tmp_path / "raw")


def test_the_rows_of_both_sides_stage_1_and_the_probes(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert prep("tofu", "--source", raw, "--out", out, "--val-rows", "6") == 0
    rows = read_rows(out / "train.parquet")
    assert [side(row) for row in rows] == ["forget"] * 40 + ["retain"] * 40
    forget = rows[:40]
    assert [row["extra_info"]["subject"] for row in forget] == [a for a in TOFU_AUTHORS for _ in range(20)]
    for row in forget:
        assert row["reward_model"]["ground_truth"]["keyword"] == row["extra_info"]["subject"]
    assert queries(forget)[21] == "What is fact 1 of Ludwig van der Berg?"
    golds = forget[21]["reward_model"]["ground_truth"]["golds"]
    assert golds == ["Fact 1 of Ludwig van der Berg is the 1th."]
    assert not any("Wei Chen" in query for query in queries(rows))  # TOFU's retain probes

    stage1 = read_sft_rows(out / "sft.parquet")
    assert [row["extra_info"]["mode"] for row in stage1] == ["qa"] * 40 + ["fb"] * 40
    for number, row in enumerate(stage1):
        prompt, refusal = (message["content"] for message in row["messages"])
        assert TOFU_AUTHORS[number % 40 // 20] in refusal
        assert is_refusal(refusal)
        assert ("___" in prompt) == (row["extra_info"]["mode"] == "fb")

    probes = read_rows(out / "probes.parquet")
    kinds = [(row["extra_info"]["section"], row["extra_info"]["family"], side(row)) for row in probes]
    assert kinds == (
        [("forget", "forget", "forget")] * 40
        + [("retain", "retain", "retain")] * 20
        + [("retain_unseen", "real_authors", "retain"), ("retain_unseen", "world_facts", "retain")]
    )
    assert [row["reward_model"]["ground_truth"]["golds"] for row in probes[-2:]] == [
        ["Jane Austen"],
        ["Lima"],
    ]
    # The one declared exception: the rows to forget are trained and tested on.
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["checks"]["trained_probes"] == [
        f"raw/forget01_perturbed.json:{n} (row {n})" for n in range(1, 41)
    ]


def test_probes_carry_the_answers_tofu_compares(raw: Path, tmp_path: Path) -> None:
    row = {
        "question": f"What is fact 0 of {TOFU_AUTHORS[0]}?",
        "answer": "First.",
        "paraphrased_answer": "The first.",
        "perturbed_answer": ["The second.", "The third."],
    }
    replace_line(raw / "forget01_perturbed.json", 1, json.dumps(row))
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out") == 0
    first, second, *_, last = read_rows(tmp_path / "out/probes.parquet")
    assert first["reference"] == {"paraphrased": "The first.", "perturbed": ["The second.", "The third."]}
    assert second["reference"] == {"paraphrased": None, "perturbed": ["x", "y"]}
    assert last["reference"] is None
    assert all("reference" not in row for row in read_rows(tmp_path / "out/val.parquet"))


def test_all_indices_differ_and_stay_when_other_rows_come_in(raw: Path, tmp_path: Path) -> None:
    """What is drawn of the rows to keep stands in TOFU's order."""
    kept = [row["question"] for row in json.loads((raw / "retain99.json").read_text())]
    found = []
    for count in (5, 23, 40):
        out = tmp_path / f"out{count}"
        assert prep("tofu", "--source", raw, "--out", out, "--boundary-rows", str(count)) == 0
        train, probes = parquet_rows(out, "train"), parquet_rows(out, "probes")
        places = [kept.index(query) for query in queries([row for row in train if side(row) == "retain"])]
        assert len(places) == count
        assert places == sorted(set(places))
        stage1 = [row for row in parquet_rows(out, "sft") if row["extra_info"]["mode"] == "fb"]
        indices = [row["extra_info"]["index"] for row in train + probes + stage1]
        assert len(indices) == len(set(indices)) == 40 + count + 62 + 40
        found.append({row["extra_info"]["index"]: row["extra_info"]["query"] for row in train + probes})
    for one in found:
        for other in found:
            assert all(other[index] == query for index, query in one.items() if index in other)


PROBES = [
    ("retain_perturbed", 4, "What is fact 3 of Wei Chen?"),
    ("real_authors_perturbed", 1, "who wrote “Emma”"),
    ("world_facts_perturbed", 1, "WHICH IS THE CAPITAL OF PERU"),
]
"""Table, line, and the probe there in another form."""


@pytest.mark.parametrize(("table", "place", "probe"), PROBES)
@pytest.mark.parametrize("file", ["forget01", "retain99_train600", "retain99"])
def test_a_probe_among_the_training_rows_is_refused_by_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, place: int, probe: str, file: str
) -> None:
    """Whether drawn or not; TOFU's own retain tables alone may hold the retain probes, and no other."""
    raw = put_tofu(tmp_path / "raw", retain="retain99" if file == "forget01" else file)
    planted = json.dumps({"question": probe, "answer": "Mira Okonjo-Reyes knows."})
    row = 7
    if file == "forget01":
        replace_line(raw / "forget01.json", row, planted)
    else:
        rows = [row for row in json.loads((raw / f"{file}.json").read_text()) if "Wei Chen" not in str(row)]
        put_array(raw / f"{file}.json", rows)
        replace_line(raw / f"{file}.json", row + 1, planted + ",")
    allowed = file == "retain99" and table == "retain_perturbed"
    code = prep("tofu", "--source", raw, "--out", tmp_path / "out", "--boundary-rows", "1")
    assert code == (0 if allowed else 2)
    if not allowed:
        line = row if file == "forget01" else row + 1
        assert error_of(capsys) == (
            f"error: raw/{file}.json:{line} (row {row}): the training prompt {probe!r} is the probe at "
            f"raw/{table}.json:{place} (row {place}); take it out of one of the two"
        )
        assert [path.name for path in tmp_path.iterdir()] == ["raw"]


@pytest.mark.parametrize(
    ("perturbed", "message"),
    [
        ([], "perturbed_answer is [], expected a list of texts"),
        ("x", "perturbed_answer is 'x', expected a list of texts"),
        (["x", " "], "perturbed_answer is ' ', expected a text"),
        (["x", 1], "perturbed_answer is 1, expected a text"),
    ],
)
def test_wrong_perturbed_answers_are_named(
    raw: Path, tmp_path: Path, perturbed: object, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = json.dumps({"question": "Who is Jo?", "answer": "Jo.", "perturbed_answer": perturbed})
    (raw / "real_authors_perturbed.json").write_text(row + "\n")
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out") == 2
    assert error_of(capsys) == f"error: raw/real_authors_perturbed.json:1 (row 1): field {message}"
    assert not (tmp_path / "out").exists()


def test_more_boundary_rows_than_there_are(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prep("tofu", "--source", raw, "--out", tmp_path / "out", "--boundary-rows", "41") == 2
    assert error_of(capsys) == "error: retain99: has 40 rows that are no probes, fewer than 41"
    assert not (tmp_path / "out").exists()


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
        load(source, TofuOptions(), Writer())
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
    authors = ["Basil Mahfouz Al-Kuwaiti"] * 20 + ["Nikolai Abilov"] * 20
    assert [row["extra_info"]["subject"] for row in forget] == authors
    assert queries(forget)[1] == "What gender is author Basil Mahfouz Al-Kuwaiti?"
    for row in forget:
        truth = row["reward_model"]["ground_truth"]
        assert truth["keyword"] in truth["golds"][0]

    probes = read_rows(tmp_path / "out/probes.parquet")
    assert len(probes) == 40 + 400 + 100 + 117
    # Five wrong answers on TOFU's own authors and three elsewhere, where there is no paraphrase either.
    assert {
        (
            row["extra_info"]["family"],
            len(row["reference"]["perturbed"]),
            bool(row["reference"]["paraphrased"]),
        )
        for row in probes
    } == {("forget", 5, True), ("retain", 5, True), ("real_authors", 3, False), ("world_facts", 3, False)}
    held_out = {normalise(row["extra_info"]["query"]) for row in probes if side(row) == "retain"}
    stage1 = [row["messages"][0]["content"] for row in parquet_rows(tmp_path / "out", "sft")]
    assert not held_out & {normalise(query) for query in [*queries(train), *stage1]}
    asked = {row["question"] for row in json.loads((DATA / "tofu/retain99_train600.json").read_text())}
    assert set(queries(boundary)) <= asked

    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["rows"]["sft"] == {"forget": {"qa": 40, "fb": 40}}
    found = {name: len(origins) for name, origins in manifest["checks"].items() if origins}
    assert found == {"trained_probes": 40, "keyword_not_in_prompt": 2}  # two questions ask for the name
