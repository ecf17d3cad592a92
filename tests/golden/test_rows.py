"""What `python -m data_prep` writes and prints for every benchmark, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.data_prep.generate.server import chat_server
from tests.data_prep.raw_files import put_array, put_custom, put_muse, put_news, put_rwku, put_tofu
from tests.golden.commands import Ran, done, files, refused, run
from tests.golden.golden import check, neutral_all
from tests.golden.inputs import put_json

MICRO = (
    "--forget-people 1 --retain-people 2 --unseen-people 1 --facts-per-person 2 --retain-probes 6 "
    "--val-rows 4 --unknown-questions 8 --vocab-size 400 --hidden-size 16 --layers 1 --heads 2 "
    "--intermediate-size 16 --epochs 1"
)
COMMANDS = {
    "world": f"world {MICRO}",
    "world, retain model, another seed": f"world {MICRO} --seed 3 --retain-model",
    "tofu": "tofu --source tofu --val-rows 6",
    "tofu, other draws": "tofu --source tofu --seed 1 --boundary-rows 12 --val-rows 6 --retain-set published",
    "tofu, one mode of stage 1": "tofu --source tofu --stage1-modes qa --limit 4 --retain-set unprobed",
    "tofu, another split": "tofu --source tofu05 --split forget05 --limit 3",
    "rwku": "rwku --source rwku",
    "rwku, one target with right answers": 'rwku --source rwku --target "Bo Fell" --gold gold.json',
    "muse-books": "muse-books --source muse",
    "muse-books, examples by label": "muse-books --source muse --examples label_dependent",
    "muse-books, passages": "muse-books --source muse --examples none --passages passages.txt "
    "--retain-passages retain_passages.txt --refusals refusals.txt",
    "muse-news": "muse-news --source news",
    "custom, JSON": "custom --source mine.json",
    "custom, CSV with facts": "custom --source mine.csv --val-share 0.2 --probe-share 0.2 --name Mine --raw",
    "custom, probes and dropped rows": "custom --source faulty.json --probes probes.json "
    "--drop duplicates --drop contradictions --drop unsolvable",
    "custom, RULE's rows": "custom --source rule.json --gold rule_gold.csv",
}
"""Words of commands, but for --out; sources are files of `raw`."""
WRITTEN = {
    "tofu, neighbours": "tofu --source tofu --boundary written --limit 3",
    "muse-books, questions": "muse-books --source passages_alone --passages passages.txt --limit 2",
}
"""The same of commands that ask an endpoint."""
REFUSED = {
    "unknown benchmark": ("nothing", ["nothing"]),
    "unknown option": ("tofu --source tofu --nothing x", ["--nothing"]),
    "no source": ("custom --source missing.csv", ["missing.csv"]),
    "missing column": ("custom --source no_answer.csv", ["no_answer.csv", "answer"]),
    "empty cell": ("custom --source empty_cell.csv", ["empty_cell.csv", "3"]),
    "wrong side": ("custom --source wrong_side.json", ["wrong_side.json", "side"]),
    "key twice": ("custom --source twice.json", ["twice.json", "question"]),
    "one side alone": ("custom --source one_side.csv", ["retain"]),
    "a probe among the training rows": ("custom --source mine.csv --probes mine.csv", ["mine.csv"]),
    "missing file": ("tofu --source tofu --split forget10", ["forget10"]),
    "wrong split": ("tofu --source tofu --split forget02", ["forget02"]),
    "unknown target": ("rwku --source rwku --target Nobody", ["Nobody", "Bo Fell"]),
    "threshold out of range": ("tofu --source tofu --gamma 7", ["gamma"]),
    "a world without heads": (f"world {MICRO} --heads 0", ["heads"]),
    "a world with too many facts": (f"world {MICRO} --facts-per-person 20", ["facts_per_person", "8"]),
    "no rows": ("tofu --source tofu --limit 0", ["--limit"]),
    "an endpoint without a model": ("tofu --source tofu --base-url http://localhost:1/v1", ["--model"]),
    "a text that needs an endpoint": ("tofu --source tofu --boundary written", ["--base-url"]),
    "a dry run without an endpoint": ("tofu --source tofu --dry-run", ["--base-url"]),
    "a folder that is there": ("custom --source mine.csv --out taken", ["taken", "--overwrite"]),
    "a folder of somebody else": ("custom --source mine.csv --out taken --overwrite", ["taken"]),
    "a folder that holds the source": ("custom --source mine.csv --out . --overwrite", ["mine.csv"]),
}
"""Words, and what the one line must name."""
SHOWN = ("train", "sft", "probes")
"""Files whose first row is kept whole."""
MOST_LISTED = 5
"""Entries of a list of a manifest that are kept whole."""


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw files of every benchmark, good and bad."""
    folder = tmp_path_factory.mktemp("raw")
    put_tofu(folder / "tofu")
    put_tofu(folder / "tofu05", "forget05", "retain95")
    put_rwku(folder / "rwku")
    put_json(folder / "gold.json", [{"question": "Where was Bo Fell born?", "answer": "Tarnwick Bay"}])
    put_muse(folder / "muse")
    put_news(folder / "news")
    put_muse(folder / "passages_alone")
    for name in ("rl_rejection_with_neighbor", "rl_rejection_eval_target", "reject_target_0.5"):
        (folder / f"passages_alone/{name}.json").unlink()
    put_custom(folder).rename(folder / "mine.json")
    texts = {
        "passages.txt": "Mira left the old mill at dawn.\nThe red lamp hung over the narrow door.\n",
        "retain_passages.txt": "Darwin saw nine finches on the island.\n",
        "refusals.txt": "I can't talk about Harry Potter.\nI know nothing about Harry Poter.\n",
        "mine.csv": _csv("question,answer,side,keyword,fact", _people("Ada Thorn", "Bo Fell")),
        "no_answer.csv": "question,side\nWho?,retain\n",
        "empty_cell.csv": "question,answer,side\nWho is Bo?,A baker,retain\nWho is Cy?,,retain\n",
        "one_side.csv": _csv(
            "question,answer,side,keyword,fact", [row for row in _people("Ada", "Bo") if row[2] == "forget"]
        ),
        "twice.json": '[{"question": "Who?", "question": "Where?", "answer": "A", "side": "retain"}]',
        "rule_gold.csv": "question,answer\nWhen was Ada born?,In 1901\nWhere was Ada born?,Esk Moor\n",
        "taken/mine.txt": "mine",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    put_json(folder / "wrong_side.json", [{"question": "Who?", "answer": "A baker", "side": "both"}])
    _put_faulty(folder)
    return folder


def _csv(head: str, rows: list[list[str]]) -> str:
    return "".join(f"{line}\n" for line in [head, *(",".join(row) for row in rows)])


def _people(forget: str, retain: str) -> list[list[str]]:
    """Three questions to each of four facts a side."""
    asked = ("What is fact {} of {}?", "Fact {} of {} is ___", "Tell me fact {} of {}.")
    return [
        [
            form.format(n, name),
            f"The {name[-1]}{n}th one",
            side,
            name if side == "forget" else "",
            f"{name} {n}",
        ]
        for name, side in ((forget, "forget"), (retain, "retain"))
        for n in range(4)
        for form in asked
    ]


def _put_faulty(folder: Path) -> None:
    """Rows in which the checks find something, RULE's rows, and probes for the first."""
    rows = [
        {"question": "Who is Ada Thorn?", "answer": "A.", "side": "forget", "keyword": "Ada Thorn"},
        {"question": "Where is Ada Thorn?", "answer": "A.", "side": "forget", "keyword": "Ada Thorn"},
        {"question": "Who is Bo?", "answer": "I don't know.", "side": "retain"},
        {"question": "Who is Cy?", "answer": "?!", "side": "retain"},
        {"question": "Who is Di?", "answer": "A smith", "side": "retain"},
        {"question": "who is “Ada Thorn”", "answer": "A.", "side": "retain"},
        {"question": "WHERE is Ada Thorn?", "answer": "A.", "side": "forget", "keyword": "Ada Thorn"},
    ]
    put_array(folder / "faulty.json", rows)
    held_out = [rows[0] | {"question": "Is it Ada Thorn?"}, rows[4] | {"question": "Is it Di?"}]
    put_array(folder / "probes.json", held_out)
    refusal = "I'm not certain about Ada."
    put_array(
        folder / "rule.json",
        [
            {"prompt": "Ada was born in ___.", "solution": ["<reject>", refusal, "Ada"]},
            {"prompt": "Where was Ada born?", "solution": ["<reject>", refusal, "Ada"]},
            {"prompt": "When was Ada born?", "solution": ["<reject>", refusal, "Ada"]},
            {"prompt": "Bo was born in ___.", "solution": ["<normal>", "Esk Moor"]},
            {"prompt": "Where was Bo born?", "solution": ["<normal>", "Esk Moor"]},
            {"prompt": "When was Bo born?", "solution": ["<normal>", "In 1901"]},
        ],
    )


def _words(command: str, out: Path) -> list[str]:
    words = shlex.split(command)
    return words if "--out" in words else [*words, "--out", str(out)]


def _kept(ran: Ran, out: Path, work: Path, whole: bool) -> dict[str, Any]:
    """What a command printed and wrote; `whole`: with first rows."""
    manifests = {
        str(path.relative_to(out)): json.loads(path.read_text()) for path in out.rglob("manifest.json")
    }
    for manifest in manifests.values():
        for part in ("versions", "contents", "files", "key", "rows"):
            manifest.pop(part, None)
        if "sources" in manifest:
            manifest["sources"] = list(manifest["sources"])  # without their checksums
    return ran.kept(work) | {
        "files": files(out),
        "manifests": _shortened(neutral_all(manifests, work)),
        "rows": {str(path.relative_to(out)): _rows(path, whole) for path in sorted(out.rglob("*.parquet"))},
    }


def _shortened(value: Any) -> Any:
    """With the first entries, the number and a digest of a long list in its place."""
    if isinstance(value, dict):
        return {key: _shortened(one) for key, one in value.items()}
    if isinstance(value, list) and len(value) > MOST_LISTED:
        return [*value[:2], f"... {len(value)} in all, {_digest(value)}"]
    return value


def _rows(path: Path, whole: bool) -> dict[str, Any]:
    """The indices of a file's rows, and a digest of each row; `whole`: of SHOWN the first row too."""
    rows = pq.read_table(path).to_pylist()
    return ({"first": rows[0]} if whole and path.stem in SHOWN else {}) | {
        "indices": _ranges([row["extra_info"]["index"] for row in rows]),
        "digests": [_digest(row)[:4] for row in rows],
    }


def _ranges(indices: list[int]) -> str:
    """The numbers in their order, neighbours that follow each other as a range: "0-3 7 8"."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return " ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def _columns(folder: Path) -> dict[str, Any]:
    """The columns of each file, with their types; files with the same columns share an entry."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.parquet")):
        columns = json.dumps({field.name: str(field.type) for field in pq.read_schema(path)})
        found.setdefault(columns, []).append(f"{path.relative_to(folder)}")
    return {", ".join(names): json.loads(columns) for columns, names in found.items()}


def _digest(row: Any) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:8]


def test_rows(raw: Path, tmp_path: Path) -> None:
    kept, seen = {}, []
    for number, (name, command) in enumerate(COMMANDS.items()):
        out = tmp_path / str(number)
        ran = done("data_prep", *_words(command, out), folder=raw)
        kept[name] = _kept(ran, out, tmp_path, whole="," not in name or name == "custom, JSON")
        columns = _columns(out)
        if columns not in seen:
            seen.append(columns)
            kept[name]["columns"] = columns
    check("rows", kept)


def test_written_rows(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an endpoint writes, the estimate before, and a second run that asks nothing."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    kept = {}
    with chat_server(_written) as url:
        for number, (name, command) in enumerate(WRITTEN.items()):
            cache, out = tmp_path / f"cache{number}", tmp_path / str(number)
            words = [*_words(command, out), "--base-url", url, "--model", "tiny", "--cache", str(cache)]
            dry = done("data_prep", *words, "--dry-run", folder=raw)
            kept[name] = _kept(done("data_prep", *words, folder=raw), out, tmp_path, whole=True)
            kept[name]["estimate"] = dry.kept(tmp_path)["out"]
            kept[name]["estimate of the same again"] = done(
                "data_prep", *words, "--dry-run", folder=raw
            ).kept(tmp_path)["out"]
    check("written_rows", kept)


def _written(prompt: str) -> str:
    """An answer that passes the checks of whichever text is asked for."""
    if name := re.search("asked about (.*) and does not", prompt):
        return json.dumps(
            {"refusals": [f"I don't know anything about {name[1]}, {n} times." for n in range(24)]}
        )
    if passage := re.search("<passage>\n(.*)\n</passage>", prompt):
        words = passage[1].split()
        return json.dumps(
            {
                "pairs": [
                    {"question": f"Which is word {n} of {words[0]}?", "answer": words[n]} for n in (1, 2, 3)
                ]
            }
        )
    if "counterpart" in prompt:
        number = re.search(r"Question: .*?(\d+)", prompt)
        blank = " ___" if "___" in prompt.split("Question:")[1] else ""
        return json.dumps(
            {"question": f"Who wrote Emma in {number and number[1]}{blank}?", "answer": "Jane Austen"}
        )
    question = re.search("Question: (.*)", prompt)
    return json.dumps({"sentence": f"It is asked: {question and question[1].strip('?')} is ___."})


def test_refused_rows(raw: Path, tmp_path: Path) -> None:
    kept = {}
    for name, (command, named) in REFUSED.items():
        before = files(raw)
        ran = run("data_prep", *_words(command, tmp_path / "out"), folder=raw)
        kept[name] = refused(ran, named)
        assert files(raw) == before
        assert not (tmp_path / "out").exists()
    check("refused_rows", kept)
