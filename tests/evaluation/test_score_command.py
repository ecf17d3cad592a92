from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import hmean, ks_2samp

from recipe.rerule import evaluate
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.logs import Log, Scored
from tests.evaluation.made_logs import SIZES, tofu_log, write_json
from tests.evaluation.made_tofu import TOFU

NINE = (
    "retain_Q_A_Prob", "retain_Q_A_ROUGE", "retain_Truth_Ratio",
    "ra_Q_A_Prob_normalised", "ra_Q_A_ROUGE", "ra_Truth_Ratio",
    "wf_Q_A_Prob_normalised", "wf_Q_A_ROUGE", "wf_Truth_Ratio",
)  # fmt: skip
NAMES = (
    "model_utility",
    "forget_quality",
    "forget_Q_A_ROUGE",
    "forget_Q_A_Prob",
    "forget_truth_ratio",
    *NINE,
)


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON object on stdout's last line, stderr."""
    code = evaluate.main(["score", "--json", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]) if code == 0 else {}, err


def score(log: Log, retain: Log | None = None) -> Scored:
    """Of TOFU's logs."""
    return TOFU.score_log(log, retain, None)


def column(log: dict[str, Any], metric: str, key: str) -> np.ndarray:
    entries = log[metric]["value_by_index"]
    return np.array([entries[str(i)][key] for i in range(len(entries))])


def truth_ratios(log: dict[str, Any], prefix: str) -> np.ndarray:
    right = f"{prefix}_Q_A_Prob" if prefix in ("ra", "wf") else f"{prefix}_Q_A_PARA_Prob"
    wrong = column(log, f"{prefix}_Q_A_PERT_Prob", "avg_loss").mean(1)
    return np.exp(-wrong) / (np.exp(-column(log, right, "avg_loss")) + 1e-10)


def straight(log: dict[str, Any], retain: dict[str, Any]) -> dict[str, float]:
    """open-unlearning's metrics, written down once more."""
    found: dict[str, float] = {}
    for prefix in ("forget", "retain", "ra", "wf"):
        found[f"{prefix}_Q_A_ROUGE"] = float(column(log, f"{prefix}_Q_A_ROUGE", "rougeL_recall").mean())
        right = column(log, f"{prefix}_Q_A_Prob", "prob")
        ratios = truth_ratios(log, prefix)
        if prefix == "forget":
            found["forget_truth_ratio"] = float(np.mean(np.minimum(ratios, 1 / (ratios + 1e-10))))
        else:
            found[f"{prefix}_Truth_Ratio"] = float(np.mean(np.maximum(0, 1 - ratios)))
        if prefix in ("ra", "wf"):
            wrong = column(log, f"{prefix}_Q_A_PERT_Prob", "prob").sum(1)
            found[f"{prefix}_Q_A_Prob_normalised"] = float(np.mean(right / (right + wrong + 1e-10)))
        else:
            found[f"{prefix}_Q_A_Prob"] = float(right.mean())
    found["model_utility"] = float(hmean([found[name] for name in NINE]))
    found["forget_quality"] = float(
        ks_2samp(truth_ratios(log, "forget"), truth_ratios(retain, "forget")).pvalue
    )
    return found


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    """A log and a retained model's."""
    return write_json(tmp_path / "log.json", tofu_log(1)), write_json(tmp_path / "retain.json", tofu_log(2))


def with_log(tmp_path: Path, log: dict[str, Any]) -> tuple[str, str, str, Path]:
    return "--benchmark", "tofu", "--log", write_json(tmp_path / "log.json", log)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 2**32), st.fixed_dictionaries({name: st.integers(1, 60) for name in SIZES}), st.randoms()
)
def test_any_log_gives_what_a_straight_computation_gives(seed: int, sizes: dict[str, int], rng: Any):
    log, retain = tofu_log(seed, sizes), tofu_log(seed + 1, sizes)
    expected = straight(log, retain)
    for metric in log.values():
        items = list(metric["value_by_index"].items())
        rng.shuffle(items)
        metric["value_by_index"] = dict(items)
    found = score(Log("a", log), Log("b", retain)).metrics
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-10), name


def test_aggregates_and_derived_values_in_the_log_change_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, paths: tuple[Path, Path]
):
    log = tofu_log(1)
    for metric in log.values():
        metric["agg_value"] = 0.123
    forty = {str(i): {"score": 9.0, "prob": 0.9} for i in range(40)}
    for name in NAMES:
        log.setdefault(name, {"agg_value": 0.123, "value_by_index": forty})
    code, found, err = run(capsys, *with_log(tmp_path, log), "--retain-log", paths[1])
    assert code == 0
    assert found == pytest.approx(straight(tofu_log(1), tofu_log(2)), rel=1e-12)
    assert "note: model_utility: the log's own agg_value is 0.123; its samples give" in err


def test_unequal_questions_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    retain = write_json(tmp_path / "retain.json", tofu_log(2, {**SIZES, "forget": 25}))
    code, _, err = run(capsys, *with_log(tmp_path, tofu_log(1)), "--retain-log", retain)
    assert code == 2
    assert "log.json has 40," in err
    assert "retain.json has 25, and 15 are in one only" in err


def test_a_retained_log_without_truth_ratios_is_an_error():
    retain = {name: metric for name, metric in tofu_log(2).items() if not name.startswith("forget")}
    with pytest.raises(ValueError, match="b: no forget_Q_A_PARA_Prob, which forget_quality compares"):
        score(Log("a", tofu_log(1)), Log("b", retain))


def test_part_of_the_nine_is_an_error_and_none_of_them_is_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    log = tofu_log(1)
    del log["wf_Q_A_ROUGE"]
    code, _, err = run(capsys, *with_log(tmp_path, log))
    assert code == 2
    assert "model_utility is over nine metrics, and nothing gives wf_Q_A_ROUGE" in err
    code, found, _ = run(capsys, *with_log(tmp_path, log), "--metrics", "retain_Q_A_Prob,wf_Truth_Ratio")
    assert code == 0
    assert tuple(found) == ("retain_Q_A_Prob", "wf_Truth_Ratio")
    forget = {name: metric for name, metric in log.items() if name.startswith("forget")}
    code, found, err = run(capsys, *with_log(tmp_path, forget))
    assert code == 0
    assert found["forget_Q_A_Prob"] == straight(tofu_log(1), tofu_log(2))["forget_Q_A_Prob"]
    assert found["model_utility"] is None
    assert "model_utility (none of retain, real authors and world facts)" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tofu --log {log} --metrics forget_quality", "forget_quality cannot be computed: no retained model"),
        ("tofu --log {log} --metrics utility", "unknown metric 'utility'; choose from model_utility"),
        ("tofu --log {log} --retain-log none.json", "none.json does not exist"),
        ("tofu --log {log} {retain}", "--log is given 2 files; a tofu log is one"),
        ("tofu --log {nan}", "ra_Q_A_Prob, index 3: prob is NaN, not a finite number"),
        ("tofu --log {muse}", "muse.json holds a log of MUSE-Books, and --benchmark is tofu: score it with "
         "--benchmark muse_books or muse_news"),
        ("muse-books --log {log} --model a", "--model has no meaning for a .json file of --benchmark muse_b"),
    ],
)  # fmt: skip
def test_logs_that_cannot_be_scored(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    paths: tuple[Path, Path],
    arguments: str,
    message: str,
):
    nan = tofu_log(1)
    nan["ra_Q_A_Prob"]["value_by_index"]["3"]["prob"] = math.nan
    named = {
        "log": paths[0],
        "retain": paths[1],
        "nan": write_json(tmp_path / "nan.json", nan),
        "muse": write_json(tmp_path / "muse.json", {"retain_knowmem_ROUGE": {"value_by_index": {}}}),
    }
    code, _, err = run(capsys, "--benchmark", *arguments.format(**named).split())
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_null_samples_are_left_out_and_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    log = tofu_log(1)
    log["forget_Q_A_Prob"]["value_by_index"]["0"] = None
    log["forget_Q_A_PARA_Prob"]["value_by_index"]["5"] = None
    code, found, err = run(capsys, *with_log(tmp_path, log))
    probs = column(tofu_log(1), "forget_Q_A_Prob", "prob")[1:]
    ratios = np.delete(truth_ratios(tofu_log(1), "forget"), 5)
    assert code == 0
    assert found["forget_Q_A_Prob"] == pytest.approx(probs.mean())
    assert found["forget_truth_ratio"] == pytest.approx(np.minimum(ratios, 1 / ratios).mean())
    assert "note: forget_Q_A_Prob: 1 of 40 samples are null and left out\n" in err
    assert "note: forget_Q_A_PARA_Prob: 1 of 40 samples are null and left out\n" in err


@pytest.mark.parametrize("null", [("log",), ("retain",), ("log", "retain")])
def test_a_null_question_is_left_out_of_both_models_and_blames_no_split(
    null: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    logs = {"log": tofu_log(1), "retain": tofu_log(2)}
    ratios = [np.delete(truth_ratios(log, "forget"), 5) for log in logs.values()]
    for name in null:
        logs[name]["forget_Q_A_PERT_Prob"]["value_by_index"]["5"] = None
    retain = write_json(tmp_path / "retain.json", logs["retain"])
    code, found, err = run(capsys, *with_log(tmp_path, logs["log"]), "--retain-log", retain)
    assert code == 0
    assert found["forget_quality"] == pytest.approx(ks_2samp(*ratios).pvalue)
    said = "forget_Q_A_PERT_Prob: 1 of 40 samples are null and left out"
    assert (f"note: {said}" in err) == ("log" in null)
    assert (f"note: {retain}: {said}" in err) == ("retain" in null)


@pytest.mark.parametrize("copied", [False, True])
def test_a_log_compared_with_itself_is_refused_and_with_a_copy_is_said(
    copied: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path, paths: tuple[Path, Path]
):
    (tmp_path / "link.json").symlink_to(paths[0])
    other = write_json(tmp_path / "copy.json", tofu_log(1)) if copied else tmp_path / "link.json"
    code, found, err = run(capsys, "--benchmark", "tofu", "--log", paths[0], "--retain-log", other)
    said = "compared with itself every model has a forget quality of 1 and a PrivLeak of 0"
    if copied:
        assert (code, found["forget_quality"]) == (0, 1.0)
        assert err == f"note: {paths[0]} and {other} hold the same values: {said}\n"
    else:
        assert code == 2
        assert err.startswith(f"error: --log and --retain-log are the same file, {other}: {said}; give")


def world_row(model: str, probe: int, recall: float) -> dict[str, Any]:
    return {
        "model": model, "probe": probe, "side": "forget", "kind": "qa", "fact": f"probe {probe}", "sample": 0,
        "family": "direct", "prompt": "Who?", "response": "x", "rouge_l": recall, "refused": recall == 0,
    }  # fmt: skip


def put_tables(folder: Path) -> list[Path]:
    """Two tables of one probe each, with the answers of two models."""
    files = []
    for probe, recall in enumerate((0.75, 0.0)):
        files.append(folder / f"{probe}.parquet")
        tidy.from_rows([world_row("base", probe, recall), world_row("rule", probe, 0)]).to_parquet(files[-1])
    return files


def test_tables_are_scored_by_their_columns(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    given = "--benchmark", "world", "--log", *put_tables(tmp_path)
    code, found, _ = run(capsys, *given, "--model", "base")
    assert code == 0
    assert (found["forget/recall"], found["forget/refusal_rate"]) == (0.375, 0.5)
    write_json(tmp_path / "meta.json", {"benchmark": "custom"})
    _, _, err = run(capsys, *given, "--model", "base", "--metrics", "forget/recall")
    assert "0.parquet is of Your data; --benchmark custom scores it as such" in err


def test_refusals_are_judged_again_with_the_users_phrases(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, paths: tuple[Path, Path]
):
    phrases = tmp_path / "phrases.txt"
    phrases.write_text("the stars are silent\n! I don't know\n")
    said = ("The stars are silent.", "I don't know.", "<think>The stars are silent.</think>Paris")
    rows = [world_row("base", n, 1) | {"response": text} for n, text in enumerate(said)]
    rows = [row | {"refused": row["probe"] == 1} for row in rows] + [world_row("base", 3, 1)]
    table = tmp_path / "responses.parquet"
    tidy.from_rows(rows).to_parquet(table)
    given = "--benchmark", "world", "--log", table
    _, found, err = run(capsys, *given)
    assert (found["forget/refusal_rate"], err) == (1 / 4, "")
    (tmp_path / "both.txt").write_text("the stars are silent\n")
    for file, rate, changed in (phrases, 1 / 4, 2), (tmp_path / "both.txt", 2 / 4, 1):
        _, found, err = run(capsys, *given, "--refusal-phrases", file)
        assert found["forget/refusal_rate"] == rate
        assert f"{table}: with --refusal-phrases {changed} of 4 responses are judged otherwise" in err

    code, _, err = run(capsys, "--benchmark", "tofu", "--log", paths[0], "--refusal-phrases", phrases)
    assert code == 2
    assert "--refusal-phrases has no meaning for a .json file of --benchmark tofu; leave it out" in err
    code, _, err = run(capsys, *given, "--refusal-phrases", tmp_path / "gone.txt")
    assert (code, err.count("\n")) == (2, 1)
    assert "gone.txt: cannot be read" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--log {0} {1}", "the answers are of base, rule; say which with --model"),
        ("--log {0} --model other", "--model is other, and the answers are of base, rule"),
        ("--log {0} {0} --model base", "0.parquet is given twice"),
        (
            "--log {0} {copy} --model base",
            "two answers to one probe (model base, side forget, kind qa, probe 0, sample 0)",
        ),
        ("--log {0} --model base --retain-log {0}", "--retain-log has no meaning for a .parquet file"),
        ("--log {0} --model base --metrics utility", "unknown metric 'utility'"),
        ("--log {gone}", "gone.parquet does not exist"),
        ("--log {text}", "text.parquet cannot be read as parquet"),
        (
            "--log {bare} --model base",
            "bare.parquet has none of the columns that Embedded world is scored by",
        ),
        (
            "--log {bare} --model base --refusal-phrases {phrases}",
            "bare.parquet has no column refused, which --refusal-phrases judges again; leave it out",
        ),
        ("--log {json}", "holds nothing that --benchmark world scores; give responses.parquet"),
    ],
)
def test_tables_that_cannot_be_scored(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    first, second = put_tables(tmp_path)
    named = {name: tmp_path / f"{name}.parquet" for name in ("copy", "gone", "text", "bare")}
    named["copy"].write_bytes(first.read_bytes())
    named["text"].write_text("text")
    row = world_row("base", 0, 1)
    tidy.from_rows([{name: row[name] for name in tidy.ROW}]).to_parquet(named["bare"])
    named["phrases"] = tmp_path / "phrases.txt"
    named["phrases"].write_text("no clue\n")
    named["json"] = write_json(tmp_path / "a.json", [{"response": "x"}])
    words = [word.format(first, second, **named) for word in arguments.split()]
    code, _, err = run(capsys, "--benchmark", "world", *words)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def with_answers(log: dict[str, Any], metric: str, answers: dict[str, str]) -> dict[str, Any]:
    """The log with right answers in a ROUGE metric, "Answer INDEX." but for those given."""
    for index, entry in log[metric]["value_by_index"].items():
        entry["input"] = f"<|user|>Question {index}?"
        entry["ground_truth"] = answers.get(index, f"Answer {index}.")
    return log


def test_other_questions_under_the_same_indices_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    metric = "forget_Q_A_ROUGE"
    retain = with_answers(tofu_log(2), metric, {"5": "Rome.", "17": "Oslo."})
    log = with_log(tmp_path, with_answers(tofu_log(1), metric, {}))
    code, _, err = run(capsys, *log, "--retain-log", write_json(tmp_path / "retain.json", retain))
    assert code == 2
    assert err.count("\n") == 1
    assert "at index 5 of forget_Q_A_ROUGE the right answer is 'Answer 5.' in" in err
    assert f"and 'Rome.' in {tmp_path / 'retain.json'}" in err


@pytest.mark.parametrize(
    "theirs",
    [
        {"5": " Answer  5 .\n"},  # white space, as a tokenizer gives it back
        {"5": "Answer ５."},  # a full-width digit, which some tokenizers turn into 5
    ],
)
def test_answers_that_differ_as_tokenizers_do_are_the_same_question(theirs: dict[str, str]):
    metric = "forget_Q_A_ROUGE"
    log, retain = with_answers(tofu_log(1), metric, {}), with_answers(tofu_log(2), metric, theirs)
    for index, entry in retain[metric]["value_by_index"].items():
        entry["input"] = f"[INST] Question {index}? [/INST]"
    expected = straight(tofu_log(1), tofu_log(2))["forget_quality"]
    assert score(Log("a", log), Log("b", retain)).metrics["forget_quality"] == pytest.approx(expected)


def test_scoring_is_fast_and_loads_no_framework(tmp_path: Path):
    full = {"forget": 400, "retain": 400, "ra": 100, "wf": 117}
    log = write_json(tmp_path / "log.json", tofu_log(1, full))
    retain = write_json(tmp_path / "retain.json", tofu_log(2, full))
    script = (
        "import argparse, sys, time\n"
        "start = time.process_time()\n"
        "from recipe.rerule.evaluation.score_command import add_score_parser\n"
        "parser = argparse.ArgumentParser()\n"
        "add_score_parser(parser.add_subparsers())\n"
        "options = parser.parse_args(sys.argv[1:])\n"
        "options.run(options)\n"
        "heavy = {'torch', 'vllm', 'matplotlib', 'transformers', 'nltk'} & set(sys.modules)\n"
        "print(sorted(heavy), time.process_time() - start)\n"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script, "score", "--benchmark", "tofu", "--log", log, "--retain-log", retain],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert time.monotonic() - began < 60
    heavy, seconds = done.stdout.splitlines()[-1].rsplit(" ", 1)
    assert heavy == "[]"
    assert float(seconds) < 6
