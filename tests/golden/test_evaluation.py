"""Evaluations, their scores, the judge and attacks, with a stand-in for vLLM (`engine`)."""

import json
from pathlib import Path
from typing import Any

from tests.golden import folders
from tests.golden.commands import Ran, done, files
from tests.golden.conftest import ATTACK, CONTROL, MODELS, RWKU
from tests.golden.golden import check, neutral

OTHER_WAYS = {
    "custom, ROUGE-L recall, short answers": "custom/probes.parquet --convention recall --max-tokens 8",
    "tofu, phi": "tofu/probes.parquet --prompts phi",
    "rwku, bare": f"{RWKU} --prompts bare --stop none",
    "muse-books, rule": "muse-books/probes.parquet --prompts rule",
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
ATTACKS = {
    "without a control": f"{ATTACK} --attacks prefill samples quantise_4",
    "membership": f"{CONTROL.replace('data/', 'questions/')} --benchmark muse_books --texts texts "
    "--budget full --attacks membership membership_reference",
}
"""Commands beside that of `attacked`, but for --out."""
SHOWN = 8
"""Lines of a table that are kept at its beginning and at its end."""


def test_evaluations(evaluation_work: Path, evaluated: dict[str, Ran]) -> None:
    """Every number, interval and test, the table, and the files."""
    kept = {}
    for name, ran in evaluated.items():
        out = evaluation_work / "results" / name
        kept[name] = neutral(ran.kept, evaluation_work) | {"files": files(out)} | folders.evaluation(out)
    check("evaluations", kept)


def test_other_ways_to_ask(evaluation_work: Path) -> None:
    kept = {}
    for number, (name, words) in enumerate(OTHER_WAYS.items()):
        done(f"evaluate model {MODELS} --out other/{number} --probes {words}", evaluation_work)
        kept[name] = folders.evaluation(evaluation_work / "other" / str(number))["numbers"]
    check("evaluations_otherwise", kept, evaluation_work)


def test_scores(evaluation_work: Path, evaluated: dict[str, Ran]) -> None:
    """The numbers of logs: those of an evaluation and of open-unlearning."""
    kept = {}
    for name, words in SCORES.items():
        ran = done(f"evaluate score --json {words}", evaluation_work)
        *text, last = ran.out.splitlines()
        numbers = json.loads(last)
        kept[name] = {"numbers": numbers, "err": ran.said, "legend": " ".join(text[len(numbers) :])}
    one = done(f"evaluate score {SCORES['muse, of an evaluation']}", evaluation_work)
    check("scores", kept | {"the text of one": one.kept["out"]}, evaluation_work)


def test_judge(evaluation_work: Path, judged: Ran) -> None:
    """Scores of a judge that looks at how long a reply is."""
    out = evaluation_work / "naturalness"
    names = ("results", "anchors", "counts", "intervals", "comparisons", "missing")
    numbers = folders.read_json(out / "naturalness.json")
    found = {name: numbers[name] for name in names}
    check("judge", judged.kept | {"files": files(out)} | found, evaluation_work)


def _kept(ran: Ran, out: Path) -> dict[str, Any]:
    """What was printed, with the beginning and the end of the table, whose numbers are kept elsewhere."""
    kept = ran.kept
    if len(kept["out"]) > 2 * SHOWN:
        kept["out"] = [*kept["out"][:SHOWN], "...", *kept["out"][-SHOWN:]]
    return kept | {"files": files(out)} | folders.attacks(out)


def test_attacks(people: Path, attacked: Ran) -> None:
    """Every attack's rows, the curves of relearning, the table, and the files."""
    check("attacks", _kept(attacked, people / "attacks"), people, 1e-3, 1e-4)


def test_attacks_otherwise(people: Path) -> None:
    """Without a never-knew model, and on texts, as MUSE has them."""
    kept = {}
    for number, (name, line) in enumerate(ATTACKS.items()):
        kept[name] = _kept(done(f"{line} --out other/{number}", people), people / "other" / str(number))
    check("attacks_otherwise", kept, people, 1e-3, 1e-4)
