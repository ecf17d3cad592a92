from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe.rerule.evaluation.benchmarks.tofu import benchmark as tofu
from recipe.rerule.evaluation.benchmarks.tofu.log_writer import log_metrics
from recipe.rerule.evaluation.logs.open_unlearning import Log, LogError, write_log
from recipe.rerule.evaluation.logs.questions import check_retained, logged_golds, numbered_golds
from tests.evaluation.made_tofu import answered, made_probes


def test_probes_have_the_indices_of_our_logs():
    probes = made_probes()  # the forget ones are 7, then 3
    golds = numbered_golds(probes, tofu.question_set)
    assert golds == {
        "forget": {"0": "Answer 3.", "1": "Answer 7."},
        "retain": {"0": "Answer 10."},
        "real_authors": {"0": "Answer 20."},
        "world_facts": {"0": "Answer 30."},
    }
    log = Log("ours", log_metrics(tofu.records(probes, answered(probes))))
    assert logged_golds(log, "forget_Q_A_ROUGE").texts == golds["forget"]


def test_the_first_index_that_differs_is_named_and_long_answers_are_cut(tmp_path: Path):
    probes = made_probes()
    log = log_metrics(tofu.records(probes, answered(probes)))
    write_log(tmp_path / "log.json", log)
    golds = {"0": "Answer 3.", "1": "x" * 70}
    check_retained(tmp_path / "log.json", {"forget_Q_A_ROUGE": {"0": "Answer 3.", "5": "not in the log"}})
    with pytest.raises(
        LogError, match=f"at index 1 of forget_Q_A_ROUGE the right answer is '{'x' * 60}…' in"
    ):
        check_retained(tmp_path / "log.json", {"forget_Q_A_ROUGE": golds})


def test_samples_without_a_text_are_not_compared(tmp_path: Path):
    entries = {"0": None, "1": {"rougeL_recall": 1.0}, "2": {"ground_truth": "Rome"}}
    file = tmp_path / "log.json"
    file.write_text(json.dumps({"m": {"value_by_index": entries}, "bare": {"agg_value": 0.5}}))
    check_retained(file, {"m": {"0": "a", "1": "b", "2": "Rome"}, "bare": {"0": "a"}, "absent": {"0": "a"}})
    with pytest.raises(LogError, match="at index 2 of m "):
        check_retained(file, {"m": {"0": "a", "1": "b", "2": "Oslo"}})
