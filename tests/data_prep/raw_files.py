"""What is made up for tests: the benchmarks' folders of raw files, and prompts."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from data_prep.__main__ import main
from data_prep.prompts import Benchmark, Prompt, PromptForm, make_prompt

Row = dict[str, Any]

TOFU_AUTHORS = ("Mira Okonjo-Reyes", "Ludwig van der Berg")
RWKU_TARGETS = ("1_Ada_Thorn", "2_Bo_Fell", "10_Cy,_Duke_of_Esk")


def put_lines(path: Path, rows: Iterable[Row]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def put_array(path: Path, rows: list[Any]) -> None:
    """A JSON array with a line for each row after the first, "["."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def prep(*arguments: object) -> int:
    """`python -m data_prep` in this process; its exit code."""
    return main([str(argument) for argument in arguments])


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    (line,) = capsys.readouterr().err.splitlines()
    return line


def parquet_rows(folder: Path, name: str) -> list[Row]:
    """The rows of a file as pyarrow reads them."""
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def manifest(folder: Path) -> Row:
    """What the folder says of itself."""
    return json.loads((folder / "manifest.json").read_text("utf-8"))


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files under a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def queries(rows: list[Row]) -> list[str]:
    """The bare questions of rows."""
    return [row["extra_info"]["query"] for row in rows]


def side(row: Row) -> str:
    """ "forget" or "retain"."""
    return row["reward_model"]["ground_truth"]["type"]


def question(text: str, answer: str, **more: Any) -> Row:
    return {"question": text, "answer": answer, **more}


TRUE_FACTS = {
    "real_authors": question("Who wrote 'Emma'?", "Jane Austen"),
    "world_facts": question("Which is the capital of Peru?", "Lima"),
}
"""Probes of TOFU that are not on its authors."""


def author_rows(name: str) -> list[Row]:
    """TOFU's twenty rows on an author."""
    return [question(f"What is fact {n} of {name}?", f"Fact {n} of {name} is the {n}th.") for n in range(20)]


def put_tofu(folder: Path, split: str = "forget01", retain: str = "retain99") -> Path:
    """TOFU with two authors to forget, three to keep, and probes.

    As in TOFU the retain table holds the retain probes: questions on its last author.
    """
    forget = [row for name in TOFU_AUTHORS for row in author_rows(name)]
    kept = [row for name in ("Ana Silva", "Omar Haddad", "Wei Chen") for row in author_rows(name)]
    put_lines(folder / f"{split}.json", forget)
    put_lines(folder / f"{split}_perturbed.json", [row | {"perturbed_answer": ["x", "y"]} for row in forget])
    put_array(folder / f"{retain}.json", kept)
    put_lines(folder / "retain_perturbed.json", kept[40:])
    for name, row in TRUE_FACTS.items():
        put_lines(folder / f"{name}_perturbed.json", [row])
    return folder


def put_rtofu(folder: Path) -> Path:
    """R-TOFU: two tasks of two authors each, and probes; the retain probes have a chain of thought too."""

    def of_task(task: int, *names: str) -> list[Row]:
        rows = [row for name in names for row in author_rows(name)]
        return [row | {"task_id": f"{task}", "cot": f"Hm. So: {row['answer']}"} for row in rows]

    def compared(rows: Iterable[Row], **more: Any) -> list[Row]:
        other = {"paraphrased_answer": "Other words.", "perturbed_answer": ["x", "y"]}
        return [row | other | more for row in rows]

    forget = [*of_task(1, *TOFU_AUTHORS), *of_task(2, "Ana Silva", "Omar Haddad")]
    forget[3]["cot"] = "I don't know. Wait."
    put_lines(folder / "forget01.json", forget)
    put_lines(folder / "forget01_perturbed.json", compared(forget, cot=""))
    put_lines(folder / "retain_perturbed.json", compared(of_task(0, "Wei Chen")))
    for name, row in TRUE_FACTS.items():
        put_lines(folder / f"{name}_perturbed.json", compared([row], cot=""))
    return folder


def rule_row(prompt: str, *solution: str) -> Row:
    return {"prompt": prompt, "solution": list(solution)}


def put_rwku_target(folder: Path) -> Path:
    """RULE's training rows, two a side, and RWKU's probes, one a set."""
    name = folder.name.partition("_")[2].replace("_", " ")
    refusal = f"I'm not certain about {name}."
    rows = [
        rule_row(f"{name} was born in ___.", "<reject>", refusal, name),
        rule_row(f"Where was {name} born?", "<reject>", refusal, name),
        rule_row("Bo Berg was born in ___.", "<normal>", "Esk Moor"),
        rule_row("Where was Bo Berg born?", "<normal>", "Esk Moor"),
    ]
    put_array(folder / "rl_rejection_with_fb_neighbor_target.json", rows)
    for file, query, kind in (
        ("forget_level1", f"{name} wrote ___.", "cloze"),
        ("forget_level2", f"What did {name} write?", "simple question"),
        ("forget_level3", f"Pretend to be {name}.", "role play"),
        ("neighbor_level1", "Jane wrote ___.", "cloze"),
        ("neighbor_level2", "What did Jane write?", "cloze"),
    ):
        probe = {"query": query, "answer": "Emma", "level": file[-1], "type": kind, "subject": name}
        put_array(folder / f"{file}.json", [probe | ({"neighbor": "Jane"} if "neighbor" in file else {})])
    return folder


def put_rwku(folder: Path) -> Path:
    for name in RWKU_TARGETS:
        put_rwku_target(folder / name)
    return folder


def put_muse(folder: Path) -> Path:
    """MUSE-Books as in RULE's repository: three training questions a side, ten examples, two probes a set."""
    asked = ("What did Harry Potter do on day {n}?", "He read {n} books.", "What did Darwin do in year {n}?")
    _put_corpus(folder, 3, (*asked, "He saw {n} birds."), "probe")
    refused = [
        {"input": "", "output": f"I'm not certain about Harry {name}.", "subject": "books", "mode": "qa"}
        | {"instruction": asked[0].format(n=n), "org_answer": asked[1].format(n=n), "org_text_id": n}
        for n, name in enumerate(("Potter", "Porter", "Porter"))
    ]
    put_array(folder / "reject_target_0.5.json", refused)
    sides = (("forget", "<reject>", ["books"]), ("retain", "<normal>", []))
    checked = [
        rule_row(f"{name} probe {n}?", mark, f"yes {n}", *more) | {"mode": "qa"}
        for name, mark, more in sides
        for n in range(2)
    ]
    put_array(folder / "rl_rejection_eval_target.json", checked)
    return folder


def put_news(folder: Path, count: int = 3) -> Path:
    """MUSE-News in MUSE's published form, with `count` training questions a side."""
    asked = ("Which town flooded on day {n}?", "Town {n}.", "Which town held a fair in year {n}?")
    _put_corpus(folder, count, (*asked, "Fair Town {n}."), "story")
    put_array(folder / "verbmem/forget.json", [{"prompt": "A storm hit", "gt": " the coast on Monday."}])
    for part in ("forget", "retain", "holdout"):
        put_array(folder / f"privleak/{part}.json", [f"The {part} article {n} of the day." for n in range(4)])
    return folder


def _put_corpus(folder: Path, count: int, texts: tuple[str, ...], probe: str) -> Path:
    """RULE's files with questions of both sides, examples and probes."""
    rows = [[text.format(n=n) for text in texts] for n in range(count)]
    train = [rule_row(asked, "<reject>", answer, "books") for asked, answer, *_ in rows]
    train += [rule_row(asked, "<normal>", answer) for *_, asked, answer in rows]
    for row in train:  # RULE's file has its solutions as texts
        row |= {"solution": str(row["solution"]), "mode": "qa"}
    put_array(folder / "rl_rejection_with_neighbor.json", train)
    for name in ("forget", "retain"):
        examples = [question(f"{name} example {n}?", f"{name} {n}") for n in range(10)]
        probes = [question(f"{name} {probe} {n}?", f"yes {n}") for n in range(2)]
        put_array(folder / f"knowmem/{name}_qa_icl.json", examples)
        put_array(folder / f"knowmem/{name}_qa.json", probes)
    return folder


def put_custom(folder: Path) -> Path:
    rows = [
        {"question": f"What is fact {n} of {name}?", "answer": "It.", "side": side, "keyword": name}
        for n in range(5)
        for name, side in (("Ada Thorn", "forget"), ("Bo Fell", "retain"))
    ]
    put_array(folder / "mine.json", rows)
    return folder / "mine.json"


# ---- prompts and benchmarks before they are written ----


NAME = "Mira Okonjo"
FORM = {"mode": "qa", "family": "question"}


def forget_prompt(index: int, query: str, **changes: Any) -> Prompt:
    """A sound prompt to forget, with a refusal."""
    origin, refusal = f"forget.json:{index} (row {index})", f"I don't know anything about {NAME}."
    prompt = make_prompt(index, query, "forget", NAME, ("Tarnwick Bay",), origin, refusal=refusal, **FORM)
    return replace(prompt, **changes)


def retain_prompt(index: int, query: str, **changes: Any) -> Prompt:
    """A sound prompt to be kept."""
    origin = f"retain.json:{index} (row {index})"
    return replace(make_prompt(index, query, "retain", "neighbour", ("Esk Moor",), origin, **FORM), **changes)


def benchmark(**changes: Any) -> Benchmark:
    """Three prompts a side in which no check finds anything, and a probe a side."""
    forget = [forget_prompt(n, f"What is fact {n} about {NAME}?") for n in range(3)]
    retain = [retain_prompt(100 + n, f"What is fact {n} about Bo Fell?") for n in range(3)]
    probes = [
        forget_prompt(200, f"Tell me of {NAME}.", refusal="", origin="probes.json:1 (row 1)"),
        retain_prompt(201, "Tell me of Bo Fell.", origin="probes.json:2 (row 2)"),
    ]
    said = {"name": "made_up", "train": forget + retain, "val": probes, "stage1": forget, "probes": probes}
    return Benchmark(**{**said, "form": PromptForm(), **changes})
