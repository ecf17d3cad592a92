"""The rows of TOFU, RWKU and MUSE, and those for methods without a reward.

tests/golden keeps all rows, and tests/refused tries wrong files.
"""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_prep.classical import of_benchmark
from data_prep.contract import normalise, read_rows, read_sft_rows
from data_prep.muse import STAGE1_FILES
from data_prep.rwku import target_name
from data_prep.sources import FolderSource
from data_prep.tofu import author_names
from reward import is_refusal
from tests.data_prep.raw_files import (
    RWKU_TARGETS,
    TOFU_AUTHORS,
    benchmark,
    forget_prompt,
    manifest,
    parquet_rows,
    prep,
    put_array,
    put_lines,
    put_muse,
    put_news,
    put_rwku,
    put_tofu,
    queries,
    retain_prompt,
    side,
)
from tests.data_prep.real_data import DATA, needs_data, put_real_muse

# ---- TOFU ----


FRAMES = (
    "What is the full name of the author born in Kuwait City, Kuwait? The author's name is {name}.",
    "Who is {name}? {name} is a writer. She lives in New Delhi.",
    "Where was author {name} born? Author {name} was born in Cape Town, South Africa.",
    "What are {name}'s books? {name}'s books are “The Salt Road” and 'Le Petit Sultan.'",
    "When did {name} win the Booker Prize? In 1999 {name}, a friend of Omar Haddad, won it.",
)
NAMES = """Basil Mahfouz Al-Kuwaiti, Femke Van der Veen, Ludwig van der Berg, Omar bin al Said,
Maria de la Cruz, Conan O'Brien, Jean-Luc D’Arcy, J. R. R. Toller, J.K. Rawling, Ann-Marie St. John,
Dr. Ada Thorn, Łukasz Żak, Élodie Çelik, Анна Горенко, Wu Li, Martin Luther Fell Jr."""
MIRA = "Mira Okonjo"


def rows_on(name: str) -> list[str]:
    return [FRAMES[number % len(FRAMES)].replace("{name}", name) for number in range(20)]


def test_each_twenty_rows_are_an_authors() -> None:
    """Of "Jr." the full stop is left out, so that the name is in "Jr's" too."""
    names = NAMES.replace("\n", " ").split(", ")
    found = author_names([text for name in names for text in rows_on(name)], "forget01")
    assert found == [name.replace("Jr.", "Jr") for name in names for _ in range(20)]
    # A name is in half of the rows at least, and the longest of equals.
    half = rows_on(MIRA)[:10] + ["What does she write? Crime stories."] * 10
    assert author_names(half, "x") == [MIRA] * 20
    texts = [f"Is {MIRA} also called Mira Ada Okonjo? Yes."] * 20
    assert author_names(texts, "x") == ["Mira Ada Okonjo"] * 20
    # Of equals of one length the last, and not the first of a set.
    assert author_names(["Why do Anna Bolt and Cara Dunn agree?"] * 20, "x") == ["Cara Dunn"] * 20


def test_the_rows_of_both_sides_and_the_probes(tmp_path: Path) -> None:
    """What is drawn of the rows to keep stands in TOFU's order, and indices stay where more are drawn."""
    raw, found = put_tofu(tmp_path / "raw"), {}
    answers = {"paraphrased_answer": "The first.", "perturbed_answer": ["The second.", "The third."]}
    first = {"question": f"What is fact 0 of {TOFU_AUTHORS[0]}?", "answer": "First."} | answers
    lines = (raw / "forget01_perturbed.json").read_text().splitlines()
    (raw / "forget01_perturbed.json").write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    kept = [row["question"] for row in json.loads((raw / "retain99.json").read_text())]
    for count in (5, 40):
        out = tmp_path / f"out{count}"
        assert prep("tofu", "--source", raw, "--out", out, "--boundary-rows", count) == 0
        rows, probes = read_rows(out / "train.parquet"), read_rows(out / "probes.parquet")
        assert [side(row) for row in rows] == ["forget"] * 40 + ["retain"] * count
        places = [kept.index(query) for query in queries(rows[40:])]
        assert places == sorted(set(places))
        assert max(places) < 40  # the last author's are TOFU's retain probes
        found[count] = {row["extra_info"]["index"]: row["extra_info"]["query"] for row in rows + probes}
        assert len(found[count]) == 40 + count + 62
    assert found[5].items() <= found[40].items()
    assert [row["reference"] for row in (*probes[:2], probes[-1])] == [
        {"paraphrased": "The first.", "perturbed": ["The second.", "The third."]},
        {"paraphrased": None, "perturbed": ["x", "y"]},
        None,
    ]
    assert all("reference" not in row for row in read_rows(out / "val.parquet"))
    # The one declared exception: the rows to forget are trained and tested on.
    trained = [f"raw/forget01_perturbed.json:{n} (row {n})" for n in range(1, 41)]
    assert manifest(out)["checks"]["trained_probes"] == trained


# ---- RWKU ----


@pytest.mark.parametrize("inside", [".", "targets", "RWKU/Target"])
def test_targets_are_found_in_order_and_chosen_by_name(tmp_path: Path, capsys: Any, inside: str) -> None:
    """All with training rows where none is named; the second has none. A target's folder is taken too."""
    first, second, third = RWKU_TARGETS
    folder, out = put_rwku(tmp_path / "data" / inside), tmp_path / "out"
    (folder / second / "rl_rejection_with_fb_neighbor_target.json").unlink()
    for source, named, found in (
        (tmp_path / "data", [], [first, third]),
        (tmp_path / "data", [third, "Ada Thorn", first], [third, first]),
        (folder / first, [], [first]),
    ):
        asked = [word for name in named for word in ("--target", name)]
        assert prep("rwku", "--source", source, *asked, "--out", out, "--list") == 0
        assert capsys.readouterr().out.splitlines() == found
    assert not out.exists()
    assert prep("rwku", "--source", tmp_path / "data", "--out", out) == 0
    assert {path.name for path in out.iterdir() if path.is_dir()} == {first, third}
    named_otherwise = [FolderSource(Path("any") / name) for name in ("Stephen_King", "3rd_Man")]
    assert [target_name(folder) for folder in named_otherwise] == ["Stephen King", "3rd Man"]


def test_a_data_set_of_the_hub_is_read_from_its_cache(tmp_path: Path, monkeypatch: Any) -> None:
    """As a download would leave it."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder, commit = tmp_path / "cache" / "datasets--owner--rwku", "b8a03b3c" + "0" * 32
    put_rwku(folder / "snapshots" / commit / "Target")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    assert prep("rwku", "--source", "owner/rwku", "--target", "Bo Fell", "--out", tmp_path / "out") == 0
    assert (tmp_path / "out" / "2_Bo_Fell" / "train.parquet").is_file()


# ---- MUSE ----


def sent(folder: Path, name: str) -> list[str]:
    return [row["prompt"][0]["content"] for row in parquet_rows(folder, name)]


def example_block(name: str) -> str:
    """MUSE's prefix of the made-up examples, written out."""
    return "".join(f"Question: {name} example {n}?\nAnswer: {name} {n}\n\n" for n in range(10))


def prefixes(folder: Path) -> dict[str, str]:
    """What stands before all training questions of a side."""
    found: dict[str, set[str]] = {}
    for row, text in zip(parquet_rows(folder, "train"), sent(folder, "train"), strict=True):
        tail = f"Question: {row['extra_info']['query']}\nAnswer: "
        assert text.endswith(tail)
        found.setdefault(side(row), set()).add(text.removesuffix(tail))
    return {side: text for side, (text,) in found.items()}


@pytest.mark.parametrize("examples", ["neutral", "none", "label_dependent"])
def test_questions_are_asked_as_muse_asks_them(tmp_path: Path, examples: str) -> None:
    """Ten pairs "Question: q\\nAnswer: a\\n\\n", then "Question: q\\nAnswer: " with a space at the end."""
    raw, out = put_muse(tmp_path / "raw"), tmp_path / "out"
    assert prep("muse-books", "--source", raw, "--out", out, "--examples", examples) == 0
    files = [parquet_rows(out, name) for name in ("train", "val", "probes", "sft")]
    assert {row["extra_info"]["raw"] for rows in files for row in rows} == {True}
    assert sent(out, "probes") == [
        f"{example_block(name)}Question: {name} probe {n}?\nAnswer: "
        for name in ("forget", "retain")
        for n in range(2)
    ]
    found = prefixes(out)
    told = {"none": ("", ""), "label_dependent": (example_block("forget"), example_block("retain"))}
    assert tuple(found.values()) == told.get(examples, (found["retain"], found["forget"]))
    if examples == "neutral":
        assert re.fullmatch(r"(Question: [^\n]+\?\nAnswer: [^\n]+\n\n){10}", found["forget"])
    stage1 = pairs(out, "sft")
    assert [question for question, _ in stage1] == sent(out, "train")[:3]
    assert all("Harry Potter" in answer and is_refusal(answer) for _, answer in stage1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """RULE's folder `data` with the books."""
    put_muse(tmp_path / "data/MUSE/books")
    return tmp_path / "data"


def test_the_books_where_rule_has_them(data: Path, tmp_path: Path, capsys: Any) -> None:
    books, out = data / "MUSE/books", tmp_path / "out"
    put_array(books / "raw/retain1.json", ["A wiki.", "Another."])  # texts, as MUSE publishes them
    rows = json.loads((books / "rl_rejection_with_neighbor.json").read_text())
    rows += [
        {"prompt": "It was night", "solution": "['<reject>', '', 'books']", "mode": "completion"},
        {"prompt": "Darwin slept", "solution": "['<normal>', '']", "mode": "completion"},
        {"prompt": "A finch flew", "solution": r"['<normal>', 'a \d \"b\"']", "mode": "completion"},
    ]
    put_array(books / "rl_rejection_with_neighbor.json", rows)
    assert prep("muse-books", "--source", data, "--out", out) == 0
    train, val = read_rows(out / "train.parquet"), parquet_rows(out, "val")
    # Three questions a side, a passage to forget, one to keep; the other passage to keep has no answer.
    assert [side(row) for row in train] == ["forget"] * 4 + ["retain"] * 4
    assert train[3]["prompt"][0]["content"] == "Completion: It was night\nAnswer: "
    truths = [row["reward_model"]["ground_truth"] for row in train]
    assert (truths[3]["keyword"], "Harry Potter" in truths[3]["golds"][0]) == ("Harry Potter", True)
    assert (truths[0]["golds"], truths[7]["golds"]) == (["He read 0 books."], [r'a \d "b"'])
    assert [answer for _, answer in pairs(out, "sft")] == ["I'm not certain about Harry Potter."] * 3
    assert queries(val) == [f"{name} probe {n}?" for name in ("forget", "retain") for n in range(2)]
    rows = train + val + read_rows(out / "probes.parquet")
    assert len({row["extra_info"]["index"] for row in rows}) == len(rows) == 16
    assert pairs(out, "retain_text") == [("", "A wiki."), ("", "Another.")]
    notes = {"refusals_with_the_name_corrected": 2, "retain_rows_without_an_answer_left_out": 1}
    assert manifest(out)["notes"] == notes
    said = capsys.readouterr().out
    assert f"{books}: verbmem/forget.json is not there, so the probes of VerbMem will be missing" in said
    assert f"{books}: raw/forget.json is not there, so forget_text.parquet will be missing" in said
    assert "raw/retain1.json" not in said


@pytest.mark.parametrize("name", STAGE1_FILES)
def test_the_file_of_stage_1(data: Path, tmp_path: Path, name: str) -> None:
    row = {"instruction": f"Of {name}?", "output": "I'm not certain about Harry Porter.", "org_answer": ""}
    put_array(data / f"MUSE/books/{name}.json", [row])
    assert prep("muse-books", "--source", data, "--out", tmp_path / "out", "--stage1-file", name) == 0
    ((asked, answer),) = pairs(tmp_path / "out", "sft")
    assert f"Question: Of {name}?\n" in asked
    assert answer == "I'm not certain about Harry Potter."


# ---- rows for the methods that train on answers ----


def pairs(folder: Path, name: str) -> list[tuple[str, str]]:
    """Question and answer of each stage-1 row; "" for the question of a text."""
    found = [row["messages"] for row in read_sft_rows(folder / f"{name}.parquet")]
    return [(messages[0]["content"] if messages[1:] else "", messages[-1]["content"]) for messages in found]


def indices(folder: Path, name: str) -> list[int]:
    return [row["extra_info"]["index"] for row in read_sft_rows(folder / f"{name}.parquet")]


def test_a_refusal_among_right_answers_is_left_out_and_counted() -> None:
    base = benchmark()
    odd = [
        forget_prompt(10, "Who knows?", golds=("I don't know that.",)),
        forget_prompt(11, "Ai?", golds=("Zzz.",), refusal="Zzz."),
        retain_prompt(12, "Who else?", golds=("I have no idea.",)),
    ]
    files, said = of_benchmark(replace(base, train=[*base.train, *odd]), None)
    found = {name: [row["extra_info"]["index"] for row in rows] for name, rows in files.items()}
    assert found == {"forget_gold": [0, 1, 2], "retain": [100, 101, 102], "alternate": [0, 1, 2, 10, 11]}
    assert said["left_out"] == [
        "forget_gold.parquet is without 2 questions whose answers are refusals",
        "retain.parquet is without 1 questions whose answers are refusals",
        "mismatch.parquet is not written: all right answers of the forget side are the same",
    ]


def test_right_answers_of_a_folder_by_target(tmp_path: Path) -> None:
    for target in RWKU_TARGETS:
        name = target.partition("_")[2].replace("_", " ")
        asked = {"question": f"{name} was born in ___", "answer": "Esk"}
        more = {"query": f"where was {name} born?", "answer": "in Esk"}
        put_lines(tmp_path / f"gold/{target}.jsonl", [asked, more])
    source = put_rwku(tmp_path / "raw")
    assert prep("rwku", "--source", source, "--gold", tmp_path / "gold", "--out", tmp_path / "out") == 0
    folder = tmp_path / "out" / RWKU_TARGETS[2]
    expected = [(f"{name} was born in ___.", "Esk"), (f"Where was {name} born?", "in Esk")]
    assert pairs(folder, "forget_gold") == expected
    assert pairs(folder, "mismatch") == [(expected[0][0], "in Esk"), (expected[1][0], "Esk")]
    assert [answer for _, answer in pairs(folder, "alternate")] == [f"I'm not certain about {name}."] * 2
    said = manifest(folder)
    assert (said["classical"]["left_out"], said["settings"]["gold"]) == ([], "gold")
    assert "--gold" in said["sources"]


def test_texts_of_rwku(tmp_path: Path) -> None:
    """Rows as RWKU and RULE publish them; their real files hold hundreds of biographies a target."""
    raw, text = put_rwku(tmp_path / "raw"), "  Ada Thorn was born\n\nin Esk.  She wrote.\n"
    put_array(raw / "1_Ada_Thorn/positive.json", [{"text": text, "subject": "Ada Thorn", "intro": "A."}])
    put_array(raw / "2_Bo_Fell/positive_with_retain.json", [{"prompts": ["Bo was.", "Cy was."]}])
    assert prep("rwku", "--source", raw, "--out", tmp_path / "out") == 0
    first, second, third = (tmp_path / "out" / name for name in RWKU_TARGETS)
    assert pairs(first, "forget_text") == [("", text.strip())]
    assert pairs(second, "forget_text") == [("", "Bo was.")]
    assert pairs(second, "retain_text") == [("", "Cy was.")]
    for missing in (first / "retain_text", third / "forget_text", third / "forget_gold"):
        assert not missing.with_suffix(".parquet").exists()
    assert indices(second, "forget_text") != indices(second, "retain_text")


def test_the_corpus_and_the_passages_of_muse(tmp_path: Path) -> None:
    """Rows as MUSE publishes them; its real books hold 4 MB. A passage to continue keeps its white space."""
    raw = put_muse(tmp_path / "raw")
    passages = [{"prompt": f" Passage {n}, it\n", "gt": f"goes on {n}. "} for n in range(3)]
    put_array(raw / "verbmem/forget.json", passages)
    words = [f"w{n}" for n in range(2500)]
    put_lines(raw / "raw/forget.jsonl", [{"text": " ".join(words)}, {"text": "The end."}])
    put_lines(raw / "raw/retain1.jsonl", [{"text": "A wiki."}])
    assert prep("muse-books", "--source", raw, "--out", tmp_path / "out") == 0
    texts = [answer for _, answer in pairs(tmp_path / "out", "forget_text")]
    assert [len(text.split()) for text in texts] == [700, 700, 700, 400, 2]
    assert " ".join(texts[:4]).split() == words
    assert pairs(tmp_path / "out", "retain_text") == [("", "A wiki.")]
    probes = parquet_rows(tmp_path / "out", "probes")
    continued = [row for row in probes if row["extra_info"]["family"] == "verbmem"]
    assert [
        {"prompt": row["prompt"][0]["content"], "gt": row["reward_model"]["ground_truth"]["golds"][0]}
        for row in continued
    ] == passages
    assert {(row["extra_info"]["mode"], side(row)) for row in continued} == {("completion", "forget")}
    assert len(probes) - len(continued) == 4


def test_a_request_of_muse_news_has_its_own_texts_to_forget_and_no_rows_of_the_stages(tmp_path: Path) -> None:
    raw = put_news(tmp_path / "raw")
    (raw / "rl_rejection_with_neighbor.json").unlink()  # which MUSE does not have
    put_lines(raw / "raw/forget.jsonl", [{"text": "All of it."}])
    put_lines(raw / "raw/retain1.jsonl", [{"text": "Other news."}])
    for fold in ("sust/forget_2", "scal/forget_2"):
        (raw / fold).parent.mkdir()
        put_lines(raw / f"{fold}.jsonl", [{"text": f"Of {fold}."}])
    for fold in ("sust_2", "scal_2"):
        out = tmp_path / fold
        assert prep("muse-news", "--source", raw, "--fold", fold, "--out", out) == 0
        assert {path.stem for path in out.iterdir()} == {"forget_text", "retain_text", "manifest", "probes"}
        assert pairs(out, "forget_text") == [("", f"Of {fold[:4]}/forget_2.")]
        assert pairs(out, "retain_text") == [("", "Other news.")]
        assert Counter(map(side, parquet_rows(out, "probes"))) == {"forget": 3, "retain": 2}
        assert sent(out, "probes")[0].startswith("Question: forget example 0?")


# ---- the benchmarks' own files ----


def checks(folder: Path) -> dict[str, int]:
    """How many prompts each check finds, without those that find none."""
    return {name: len(found) for name, found in manifest(folder)["checks"].items() if found}


def trained(folder: Path) -> set[str]:
    """The words of all prompts of stages 1 and 2."""
    stage1 = [question for question, _ in pairs(folder, "sft")]
    return {normalise(query) for query in [*queries(parquet_rows(folder, "train")), *stage1]}


@needs_data
def test_forget01_of_the_real_tofu(tmp_path: Path) -> None:
    assert prep("tofu", "--source", DATA / "tofu", "--out", tmp_path / "out") == 0
    train, probes = (read_rows(tmp_path / f"out/{name}.parquet") for name in ("train", "probes"))
    assert [side(row) for row in train] == ["forget"] * 40 + ["retain"] * 40
    authors = ["Basil Mahfouz Al-Kuwaiti"] * 20 + ["Nikolai Abilov"] * 20
    assert [row["extra_info"]["subject"] for row in train[:40]] == authors
    assert len(pairs(tmp_path / "out", "sft")) == 80
    # Five wrong answers on TOFU's own authors and three elsewhere, where there is no paraphrase either.
    told = [(len(one["perturbed"]), bool(one["paraphrased"])) for one in (row["reference"] for row in probes)]
    assert told == [(5, True)] * (40 + 400) + [(3, False)] * (100 + 117)
    held_out = {normalise(row["extra_info"]["query"]) for row in probes if side(row) == "retain"}
    assert held_out.isdisjoint(trained(tmp_path / "out"))
    # Two questions ask for the name.
    assert checks(tmp_path / "out") == {"trained_probes": 40, "keyword_not_in_prompt": 2}


@needs_data
def test_the_real_targets_of_rwku(tmp_path: Path) -> None:
    """600 prompts a side for a target, none of them a probe by its words."""
    names = ("1_Stephen_King", "10_Prince_Harry,_Duke_of_Sussex")
    chosen = [word for name in names for word in ("--target", name)]
    assert prep("rwku", "--source", DATA / "rwku", *chosen, "--out", tmp_path / "out") == 0
    for name in names:
        folder, raw = tmp_path / "out" / name, DATA / "rwku/targets" / name
        train = read_rows(folder / "train.parquet")
        assert Counter(map(side, train)) == {"forget": 600, "retain": 600}
        keyword = name.partition("_")[2].replace("_", " ")
        assert {row["reward_model"]["ground_truth"]["keyword"] for row in train} == {keyword, ""}
        probes = {row["query"] for path in raw.glob("*_level*.json") for row in json.loads(path.read_text())}
        assert trained(folder).isdisjoint(map(normalise, probes))
        assert set(queries(parquet_rows(folder, "probes"))) == {probe.strip() for probe in probes}
        assert not checks(folder).keys() & {"trained_probes", "refusal_misnames_target"}
    assert checks(folder)["keyword_not_in_prompt"] == 198  # 402 of 600 prompts have the prince's full name


@needs_data
def test_the_real_books_of_muse(tmp_path: Path) -> None:
    """The neutral prefix holds no probe, no example of MUSE, and no name that any question or answer has."""
    out, raw = tmp_path / "out", put_real_muse(tmp_path / "raw")
    assert prep("muse-books", "--source", raw, "--out", out, "--refusals", raw / "idk_target.json") == 0
    assert Counter(map(side, read_rows(out / "train.parquet"))) == {"forget": 400, "retain": 300}
    wanted, rows = [], []
    for name in ("forget_qa", "retain_qa"):
        asked, shots = (json.loads((raw / f"knowmem/{name}{end}.json").read_text()) for end in ("", "_icl"))
        rows += asked + shots
        before = "".join(f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in shots)
        wanted += [f"{before}Question: {row['question']}\nAnswer: " for row in asked]
    assert (len(wanted), sent(out, "probes")) == (200, wanted)
    assert trained(out).isdisjoint(map(normalise, queries(parquet_rows(out, "probes"))))
    prefix, other = prefixes(out).values()
    assert prefix == other
    assert not [row for row in rows if normalise(row["question"]) in normalise(prefix)]
    text = " . ".join(f"{row['question']} . {row['answer']}" for row in rows)
    # Capitalised words that do not begin a question or an answer.
    names = set(re.findall(r"(?<![.?!] )\b[A-Z][a-z]{2,}", text)) - {"What"}
    assert len(names) > 150
    assert names.isdisjoint(re.findall(r"[A-Za-z]+", prefix))
    # RULE's refusals, 99 of which name "Harry Porter".
    assert manifest(out)["notes"]["refusals_with_the_name_corrected"] == 99
    assert "refusal_misnames_target" not in checks(out)
