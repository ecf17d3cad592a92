"""What `python -m data_prep` writes and prints for every benchmark."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.data_prep.generate.server import ChatServer, say
from tests.data_prep.raw_files import put_array, put_custom, put_muse, put_news, put_rwku, put_tofu
from tests.golden.commands import Ran, done, files
from tests.golden.folders import read_json
from tests.golden.golden import check

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
    "custom, CSV with facts": "custom --source mine.csv --val-share 0.2 --probe-share 0.2 --raw",
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
SHOWN = ("train", "sft", "probes")
"""Files whose first row is kept whole."""
MOST_LISTED = 5
"""Entries of a list of a manifest that are kept whole."""


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw files of every benchmark."""
    folder = tmp_path_factory.mktemp("raw")
    put_tofu(folder / "tofu")
    put_tofu(folder / "tofu05", "forget05", "retain95")
    put_rwku(folder / "rwku")
    put_array(folder / "gold.json", [{"question": "Where was Bo Fell born?", "answer": "Tarnwick Bay"}])
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
        "mine.csv": _table(),
        "rule_gold.csv": "question,answer\nWhen was Ada born?,In 1901\nWhere was Ada born?,Esk Moor\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    _put_faulty(folder)
    return folder


def _table() -> str:
    """Three questions to each of four facts a side, as CSV."""
    asked = ("What is fact {} of {}?", "Fact {} of {} is ___", "Tell me fact {} of {}.")
    rows = [
        f"{form.format(n, name)},The {name[-1]}{n}th one,{side},{keyword},{name} {n}\n"
        for name, side, keyword in (("Ada Thorn", "forget", "Ada Thorn"), ("Bo Fell", "retain", ""))
        for n in range(4)
        for form in asked
    ]
    return "question,answer,side,keyword,fact\n" + "".join(rows)


def _put_faulty(folder: Path) -> None:
    """Rows in which the checks find something, RULE's rows, and probes for the first."""
    rows = [
        {"question": "Who is Ada Thorn?", "answer": "A.", "side": "forget", "keyword": "Ada Thorn"},
        {"question": "Where is Ada Thorn?", "answer": "A.", "side": "forget", "keyword": "Ada Thorn"},
        {"question": "Who is Bo?", "answer": "I don't know.", "side": "retain"},
        {"question": "Who is Cy?", "answer": "++", "side": "retain"},
        {"question": "Who is Di?", "answer": "A smith", "side": "retain"},
        {"question": "who is “Ada Thorn”", "answer": "A.", "side": "retain"},
        {"question": "WHERE is Ada Thorn?", "answer": "A.", "side": "forget", "keyword": "Ada Thorn"},
    ]
    put_array(folder / "faulty.json", rows)
    held_out = [rows[0] | {"question": "Is it Ada Thorn?"}, rows[4] | {"question": "Is it Di?"}]
    put_array(folder / "probes.json", held_out)
    refused = ["<reject>", " I'm not certain about Ada.", "Ada "]
    forms = (" {} was born in ___. ", "Where was {} born?", "When was {} born?")
    forget = [{"prompt": form.format("Ada"), "solution": refused} for form in forms]
    born = zip(forms, ("Esk Moor", "Esk Moor", "In 1901"), strict=True)
    kept = [{"prompt": form.format("Bo"), "solution": ["<normal>", answer]} for form, answer in born]
    put_array(folder / "rule.json", [*forget, *kept])


def _kept(ran: Ran, out: Path, whole: bool) -> dict[str, Any]:
    """What a command printed and wrote; `whole`: with first rows."""
    manifests = {str(path.relative_to(out)): read_json(path) for path in out.rglob("manifest.json")}
    for manifest in manifests.values():
        for part in ("versions", "contents", "files", "key", "rows"):
            manifest.pop(part, None)
        if "sources" in manifest:
            manifest["sources"] = list(manifest["sources"])  # without their checksums
    return ran.kept | {
        "files": files(out),
        "manifests": _shortened(manifests),
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
        ran = done(f"data_prep {command} --out {out}", raw)
        kept[name] = _kept(ran, out, whole="," not in name or name == "custom, JSON")
        columns = _columns(out)
        if columns not in seen:
            seen.append(columns)
            kept[name]["columns"] = columns
    check("rows", kept, tmp_path)


def test_written_rows(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an endpoint writes, the estimate before, and a second run that asks nothing."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    kept = {}
    with ChatServer(lambda number, call: say(_written(call.prompt))) as server:
        for number, (name, command) in enumerate(WRITTEN.items()):
            out = tmp_path / str(number)
            given = f"--base-url {server.url} --model tiny --cache {tmp_path}/cache{number}"
            line = f"data_prep {command} --out {out} {given}"
            dry = done(f"{line} --dry-run", raw)
            kept[name] = _kept(done(line, raw), out, whole=True) | {"estimate": dry.kept["out"]}
            kept[name]["estimate of the same again"] = done(f"{line} --dry-run", raw).kept["out"]
    check("written_rows", kept, tmp_path)


def _written(prompt: str) -> str:
    """An answer that passes the checks of whichever text is asked for."""
    if name := re.search("asked about (.*) and does not", prompt):
        refusals = [f"I don't know anything about {name[1]}, {n} times." for n in range(24)]
        return json.dumps({"refusals": refusals})
    if passage := re.search("<passage>\n(.*)\n</passage>", prompt):
        words = passage[1].split()
        pairs = [{"question": f"Which is word {n} of {words[0]}?", "answer": words[n]} for n in (1, 2, 3)]
        return json.dumps({"pairs": pairs})
    if "counterpart" in prompt:
        number = re.search(r"Question: .*?(\d+)", prompt)
        blank = " ___" if "___" in prompt.split("Question:")[1] else ""
        asked = f"Who wrote Emma in {number and number[1]}{blank}?"
        return json.dumps({"question": asked, "answer": "Jane Austen"})
    question = re.search("Question: (.*)", prompt)
    return json.dumps({"sentence": f"It is asked: {question and question[1].strip('?')} is ___."})
