"""Evaluations, their scores, their report and the published model, with a stand-in for vLLM (`engine`)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.golden import adapters
from tests.golden.commands import Ran, done, files, refused, run
from tests.golden.golden import check

EVALUATE = "recipe.rerule.evaluate"
MODELS = "--platform cpu --model base=models/base --model rule=models/rule"
RWKU = "rwku/1_Ada_Thorn/probes.parquet"
OTHER_WAYS = {
    "custom, ROUGE-L recall, short answers": f"--probes custom/probes.parquet {MODELS} --convention recall "
    "--max-tokens 8",
    "tofu, phi": f"--probes tofu/probes.parquet {MODELS} --prompts phi",
    "rwku, bare": f"--probes {RWKU} {MODELS} --prompts bare --stop none",
    "muse-books, rule": f"--probes muse-books/probes.parquet {MODELS} --prompts rule",
}
"""Further ways to ask, of which only the numbers are kept."""
SCORES = {
    "tofu": "--benchmark tofu --log tofu.json --retain-log tofu_retain.json",
    "tofu, without a retained model": "--benchmark tofu --log tofu.json",
    "tofu, of an evaluation": "--benchmark tofu --log results/tofu/logs/rule/TOFU_EVAL.json "
    "--retain-log results/tofu/logs/base/TOFU_EVAL.json",
    "muse": "--benchmark muse-books --log muse.json --retain-log muse_retain.json",
    "muse, of an evaluation": "--benchmark muse-news --log results/muse-news/logs/rule/MUSE_EVAL.json",
    "rwku, of an evaluation": "--benchmark rwku --log results/rwku/responses.parquet --model rule",
    "world": "--benchmark world --log results/world/responses.parquet --model rule",
    "custom": "--benchmark custom --log results/custom/responses.parquet --model base",
}
"""Words of `evaluate score`."""
REFUSED = {
    "no command": ("nothing", ["nothing"]),
    "a missing log": ("score --benchmark tofu --log nowhere.json", ["nowhere.json"]),
    "a log of another benchmark": ("score --benchmark tofu --log muse.json", ["muse"]),
    "records of several models": (
        "score --benchmark world --log results/world/responses.parquet",
        ["--model", "rule"],
    ),
    "a log with itself": ("score --benchmark tofu --log tofu.json --retain-log tofu.json", ["tofu.json"]),
    "an option of another benchmark": (
        f"model --probes world/probes.parquet {MODELS} --retain-log tofu.json --out out",
        ["--retain-log"],
    ),
    "missing probes": (f"model --probes nowhere.parquet {MODELS} --out out", ["nowhere.parquet"]),
    "rows that are no probes": (f"model --probes world/sft.parquet {MODELS} --out out", ["sft.parquet"]),
    "a missing model": ("model --probes world/probes.parquet --model a=nowhere --out out", ["nowhere"]),
    "a name twice": (
        f"model --probes world/probes.parquet {MODELS} --model base=models/rule --out out",
        ["base"],
    ),
    "a folder that is there": (
        f"model --probes world/probes.parquet {MODELS} --out results/world",
        ["--overwrite"],
    ),
    "a folder of somebody else": (
        f"model --probes world/probes.parquet {MODELS} --out raw --overwrite",
        ["raw"],
    ),
    "an option for GPUs": (
        f"model --probes world/probes.parquet {MODELS} --tensor-parallel-size 2 --out out",
        ["--tensor-parallel-size"],
    ),
}


def test_evaluations(evaluation_work: Path, evaluated: dict[str, Ran]) -> None:
    """Every number, interval and test, the table, and the files."""
    kept = {}
    for name, ran in evaluated.items():
        out = evaluation_work / "results" / name
        kept[name] = ran.kept(evaluation_work) | {"files": files(out)} | adapters.evaluation(out)
    check("evaluations", kept)


def test_other_ways_to_ask(evaluation_work: Path) -> None:
    kept = {}
    for number, (name, words) in enumerate(OTHER_WAYS.items()):
        done(EVALUATE, "model", *words.split(), "--out", f"other/{number}", folder=evaluation_work)
        kept[name] = adapters.evaluation(evaluation_work / "other" / str(number))["numbers"]
    check("evaluations_otherwise", kept)


def test_scores(evaluation_work: Path, evaluated: dict[str, Ran]) -> None:
    """The numbers of logs: those of an evaluation and of open-unlearning."""
    kept = {}
    for name, words in SCORES.items():
        ran = done(EVALUATE, "score", "--json", *words.split(), folder=evaluation_work)
        *text, last = ran.out.splitlines()
        numbers = json.loads(last)
        legend = " ".join(text[len(numbers) :])
        kept[name] = {"numbers": numbers, "err": ran.kept(evaluation_work)["err"], "legend": legend}
    one = done(EVALUATE, "score", *SCORES["muse, of an evaluation"].split(), folder=evaluation_work)
    kept["the text of one"] = one.kept(evaluation_work)["out"]
    check("scores", kept)


def test_refused_evaluations(evaluation_work: Path, evaluated: dict[str, Ran]) -> None:
    kept = {
        name: refused(run(EVALUATE, *words.split(), folder=evaluation_work), named)
        for name, (words, named) in REFUSED.items()
    }
    assert not (evaluation_work / "out").exists()
    check("refused_evaluations", kept)


def test_judge(evaluation_work: Path, judged: Ran) -> None:
    """Scores of a judge that looks at how long a reply is."""
    out = evaluation_work / "naturalness"
    check("judge", judged.kept(evaluation_work) | {"files": files(out)} | adapters.judged(out))
