"""MUSE-News from rows of MUSE's published form to the report; what vLLM would answer is given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule import evaluate, report
from recipe.rerule.evaluation import model_command
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Answer, Answers, Likelihood, Request
from tests.data_prep.raw_files import prep, put_news

LOSSES = {"forget/3": 3.0, "forget": 1.0, "holdout": 2.0}
"""Of every token of a text; the last forgotten one is as if never seen."""


def answer_to(request: Request) -> Answer:
    if isinstance(request, Likelihood) and request.id.endswith("/answer"):
        return Answer(log_probs=(-1.0,) * 3, ranks=(2, 1, 1) if "storm" in str(request.prompt) else (1, 2, 1))
    if isinstance(request, Likelihood):
        text = request.id.removeprefix("privleak/")
        return Answer(log_probs=(-LOSSES.get(text, LOSSES[text.split("/")[0]]),) * 3)
    passage = request.prompt.messages[0]["content"] == "A storm hit"
    return Answer(" the coast" if passage else "yes 0\nQuestion: and?")


@pytest.fixture
def evaluated(tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an evaluation with PrivLeak's texts."""
    raw = put_news(tmp_path / "raw")
    assert prep("muse-news", "--source", raw, "--out", tmp_path / "data") == 0

    def run(models: Sequence[Model], requests: Sequence[Request], *_: Any) -> Mapping[str, Answers]:
        return {model.name: {one.id: answer_to(one) for one in requests} for model in models}

    monkeypatch.setattr(model_command, "run", run)
    monkeypatch.setattr(model_command, "select", lambda name: None)
    given = ["--model", f"target={tokenizer_folder}", "--platform", "cpu", "--out", f"{tmp_path}/out"]
    texts = ["--probes", f"{tmp_path}/data/probes.parquet", "--texts", f"{raw}/privleak"]
    assert evaluate.main(["model", *given, *texts]) == 0
    return tmp_path / "out"


def test_metrics_by_hand(evaluated: Path) -> None:
    assert json.loads((evaluated / "meta.json").read_text())["benchmark"] == "muse_news"
    results = json.loads((evaluated / "results.json").read_text())["target"]
    # "yes 0" is right of one question in two, and has one word in two of the other.
    assert results["knowmem_f"] == results["knowmem_r"] == 0.75
    # Two words of four, none wrong: F1 of 1 and 1/2.
    assert results["verbmem_f"] == pytest.approx(2 / 3)
    # Two tokens and the end of the turn: the second one is right of the passage, the first of all questions.
    assert (results["extraction_strength"], results["exact_memorization"]) == (0.5, 0.5)
    assert (results["knowmem_f_extraction_strength_definition"], results["knowmem_r_exact_memorization"]) == (
        0,
        0.5,
    )
    # The holdout text scores higher in 12 of 16 pairs: AUC 3/4, of MUSE's own count 1/4.
    assert results["privleak"] == pytest.approx((0.25 - 0.4772) / 0.4772 * 100)


@pytest.mark.parametrize("name", ["muse-news", "muse_news"])
def test_its_log_is_scored(evaluated: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = evaluated / "logs" / "target" / "MUSE_EVAL.json"
    capsys.readouterr()
    assert evaluate.main(["score", "--benchmark", name, "--log", str(log), "--json"]) == 0
    scored = json.loads(capsys.readouterr().out.splitlines()[-1])
    results = json.loads((evaluated / "results.json").read_text())["target"]
    logged = ("knowmem_f", "knowmem_r", "verbmem_f", "retain_knowmem_ROUGE", "extraction_strength")
    for metric in logged:
        assert scored[metric] == pytest.approx(results[metric])
    assert scored["mia_min_k"] == 0.75


def test_a_log_of_tofu_is_refused(
    evaluated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.json"
    log.write_text(json.dumps({"forget_Q_A_ROUGE": {"value_by_index": {}}}))
    assert evaluate.main(["score", "--benchmark", "muse-news", "--log", str(log)]) == 2
    assert "a log of TOFU, and --benchmark is muse-news" in capsys.readouterr().err


def test_the_report_shows_the_row_that_the_paper_prints_elsewhere(
    evaluated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main(["--results", str(evaluated), "--out", f"{tmp_path}/page"]) == 0
    page = (tmp_path / "page" / "report.md").read_text()
    assert "## MUSE-News" in page
    (original,) = [line for line in page.splitlines() if "ReRULE paper, MUSE-Books table" in line]
    for number in ("58.4", "63.9", "55.2"):
        assert number in original


def test_constant_refusals_name_the_story(evaluated: Path) -> None:
    anchors = json.loads((evaluated / "anchors.json").read_text())
    assert anchors["always refuses, naming the target"]["knowmem_f_refusal_rate"] == 1.0
    assert anchors["always refuses, naming the target"]["knowmem_f"] == 0.0
