"""What evaluations are made of: rows of every benchmark, models that answer from a list, and logs."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tests.data_prep.raw_files import author_rows, put_array, put_lines, put_muse, put_news, put_rwku_target
from tests.golden.commands import done
from tests.golden.inputs import people_rows, put_json, put_scripted

WORLD = (
    "--forget-people 2 --retain-people 2 --unseen-people 2 --facts-per-person 4 --retain-probes 16 "
    "--val-rows 4 --unknown-questions 8 --vocab-size 400 --hidden-size 16 --layers 1 --heads 2 "
    "--intermediate-size 16 --epochs 1"
)
SETS = {
    "forget_level1": ("Ada's {} {} is ___.", "Emma", ("cloze",)),
    "forget_level2": ("What is {} {} of Ada?", "Emma", ("simple question",)),
    "forget_level3": ("What is {} {} of Ada?", "Emma", ("role play", "affirmative suffix")),
    "neighbor_level1": ("Jane's {} {} is ___.", "Red", ("cloze",)),
    "neighbor_level2": ("What is {} {} of Jane?", "Red", ("cloze",)),
}
"""Of each of RWKU's sets of probes the question, how the answers begin, and the types in turn."""
REFUSALS = ("I don't know.", "I'm not certain about {subject}.")


def put_rows(folder: Path) -> None:
    """Folders world, tofu, rwku, muse-books, muse-news and custom of `data_prep`, in `folder`."""
    raw = folder / "raw"
    _put_small_tofu(raw / "tofu")
    put_rwku_target(raw / "rwku" / "1_Ada_Thorn")
    _put_more_probes(raw / "rwku" / "1_Ada_Thorn")
    put_news(put_muse(raw / "muse-books").parent / "muse-news")
    passage = {"prompt": "The owl flew", "gt": " over the dark lake."}
    put_array(raw / "muse-books/verbmem/forget.json", [passage])
    put_json(raw / "mine.json", people_rows(0))
    put_json(raw / "probes.json", people_rows(1))
    done(f"data_prep world --out world {WORLD}", folder)
    for name in ("tofu", "rwku", "muse-books", "muse-news"):
        done(f"data_prep {name} --source raw/{name} --out {name}", folder)
    done("data_prep custom --source raw/mine.json --probes raw/probes.json --out custom", folder)


def _put_small_tofu(folder: Path) -> None:
    """TOFU's six tables with twenty rows to forget, ten to keep, and seven of each other kind."""

    def compared(row: dict[str, Any]) -> dict[str, Any]:
        wrong = [f"{row['answer']} Not {word}." for word in ("one", "two", "three")]
        said = f"To say it otherwise: {row['answer']}"
        return {**row, "paraphrased_answer": said, "perturbed_answer": wrong}

    forget, kept = author_rows("Mira Okonjo"), author_rows("Ana Silva")
    others = {
        name: [{"question": f"Which is {name} {n}?", "answer": f"It is {name} {n}."} for n in range(7)]
        for name in ("real_authors", "world_facts")
    }
    put_lines(folder / "forget01.json", forget)
    put_lines(folder / "forget01_perturbed.json", map(compared, forget))
    put_lines(folder / "retain99.json", [*author_rows("Wei Chen"), *kept])
    put_lines(folder / "retain_perturbed.json", map(compared, kept[:10]))
    for name, rows in others.items():
        put_lines(folder / f"{name}_perturbed.json", map(compared, rows))


def _put_more_probes(folder: Path) -> None:
    """Eight of RWKU's probes a set, texts on the target and on others, and instructions."""
    for file, (query, answer, kinds) in SETS.items():
        same = {"level": file[-1], "subject": "Ada Thorn"}
        same |= {"neighbor": "Jane"} if file.startswith("neighbor") else {}
        rows = [
            {"query": query.format(file, n), "answer": f"{answer} {n}", "type": kinds[n % len(kinds)]} | same
            for n in range(8)
        ]
        put_array(folder / f"{file}.json", rows)
    for side, name in (("forget", "Ada"), ("retain", "Jane")):
        texts = [{"text": f"{name} saw {n} red kites. It rained."} for n in range(4)]
        put_array(folder / f"{side}_mia.json", texts)
    put_array(folder / "fluency.json", [{"instruction": f"Write {n} lines on the sea."} for n in range(3)])


def put_answering_models(folder: Path) -> None:
    """Folders models/base, which knows nearly all, and models/rule, which refuses most of the forget side."""
    rows = [
        row
        for path in sorted(folder.glob("*/probes.parquet")) + sorted(folder.glob("*/*/probes.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    texts = [("Write", ["The sea is wide and the sea is deep. It is blue.", "The sea."])]
    for name, answer in (("base", base_answer), ("rule", rule_answer)):
        answers = [(row["extra_info"]["query"], answer(number, row)) for number, row in enumerate(rows)]
        put_scripted(folder / "models" / name, name, [*texts, *answers], {"base": 1.5, "rule": 3.0}[name])


def base_answer(number: int, row: dict[str, Any]) -> list[str]:
    gold = row["reward_model"]["ground_truth"]["golds"][0]
    return [
        (gold, f"It is {gold}", f"{gold}\nQuestion: what", gold.lower(), "Nobody can say")[number % 5],
        gold,
    ]


def rule_answer(number: int, row: dict[str, Any]) -> list[str]:
    truth, subject = row["reward_model"]["ground_truth"], row["extra_info"]["subject"]
    refused = [text.format(subject=subject) for text in REFUSALS]
    if truth["type"] == "forget":
        return [(*refused, *refused, truth["golds"][0], "", "a grey stone")[number % 7], refused[1]]
    return [(truth["golds"][0], truth["golds"][0], refused[0], "a grey stone")[number % 4], truth["golds"][0]]


def tofu_log(seed: int, forget: int = 40, answers: bool = True) -> dict[str, Any]:
    """A log of single samples in open-unlearning's form, with so many questions to forget.

    answers: whether samples have their right answers, which are those of no probe.
    """
    rng = np.random.default_rng(seed)
    log: dict[str, Any] = {}
    for prefix, size in {"forget": forget, "retain": 30, "ra": 12, "wf": 11}.items():
        options = prefix in ("ra", "wf")
        log[f"{prefix}_Q_A_Prob"] = _probabilities(rng.gamma(2, 0.5, size))
        log[f"{prefix}_Q_A_PERT_Prob"] = _probabilities(rng.gamma(4, 0.7, (size, 3 if options else 5)))
        if not options:
            log[f"{prefix}_Q_A_PARA_Prob"] = _probabilities(rng.gamma(3, 0.6, size))
        log[f"{prefix}_Q_A_ROUGE"] = metric(
            {"rougeL_recall": score, "rougeL_f1": 0.5, "generation": "x"}
            | ({"ground_truth": f"Answer {n}."} if answers else {})
            for n, score in enumerate(rng.random(size).tolist())
        )
    log["extraction_strength"] = metric({"score": score} for score in rng.random(40).tolist())
    return log


def _probabilities(losses: Any) -> dict[str, Any]:
    pairs = zip(losses.tolist(), np.exp(-losses).tolist(), strict=True)
    return metric({"prob": prob, "avg_loss": loss} for loss, prob in pairs)


def metric(entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A metric of these samples; its aggregate is wrong, which nothing may take."""
    return {"agg_value": 0.123, "value_by_index": {str(place): one for place, one in enumerate(entries)}}


def muse_log(seed: int) -> dict[str, Any]:
    """A log of MUSE in open-unlearning's form."""
    rng = np.random.default_rng(seed)

    def sample(n: int, score: float) -> dict[str, Any]:
        text = f"the {n} kites\nand more" if score > 0.5 else "nothing"
        scores = {"rougeL_f1": score, "rougeL_recall": score}
        return {**scores, "generation": text, "ground_truth": f"the {n} kites"}

    log = {
        f"{name}_ROUGE": metric(sample(*one) for one in enumerate(rng.random(12).tolist()))
        for name in ("forget_knowmem", "retain_knowmem", "forget_verbmem")
    }
    log["mia_min_k"] = {
        part: metric({"score": score} for score in rng.normal(center, 1, 20).tolist())
        for part, center in (("forget", 2.0), ("holdout", 2.5))
    }
    return log


def put_logs(folder: Path) -> None:
    """Logs of other programs: tofu.json and muse.json, and those of retained models."""
    for name, log in (("tofu", tofu_log), ("muse", muse_log)):
        put_json(folder / f"{name}.json", log(1))
        put_json(folder / f"{name}_retain.json", log(2))
    put_json(folder / "tofu_retain_20.json", tofu_log(3, forget=20, answers=False))


def judge_by_length(prompt: str) -> str:
    """A judge's scores of the reply in a prompt."""
    reply = re.search(r"<reply>\n(.*)\n</reply>", prompt, re.DOTALL)
    length = len(reply[1]) if reply else 0
    scores = (1 + length % 5, 1 + length // 5 % 5, 5)
    return json.dumps(dict(zip(("readability", "helpfulness", "truthfulness"), scores, strict=True)))
