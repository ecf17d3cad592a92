"""`evaluate score`: logs of open-unlearning and tidy tables, from the arguments to the numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import hmean, ks_2samp

from recipe.rerule import evaluate
from tests.golden.evaluation_inputs import metric, tofu_log
from tests.golden.inputs import put_json
from tests.refused.rows import responses


@pytest.fixture
def score(capsys):
    """score(*arguments): exit code, the JSON object on stdout's last line, stderr."""

    def call(*arguments: Any) -> tuple[int, dict[str, Any], str]:
        code = evaluate.main(["score", "--json", "--benchmark", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, json.loads(out.splitlines()[-1]) if code == 0 else {}, err

    return call


@pytest.fixture
def scored(score, tmp_path):
    """scored(log of TOFU, retained model's log): as `score`."""

    def call(log: dict[str, Any], *retain: dict[str, Any]) -> tuple[int, dict[str, Any], str]:
        given = ["--log", put_json(tmp_path / "log.json", log)]
        for one in retain:
            given += ["--retain-log", put_json(tmp_path / "retain.json", one)]
        return score("tofu", *given)

    return call


def column(log: dict[str, Any], name: str, key: str) -> np.ndarray:
    entries = log[name]["value_by_index"]
    return np.array([entries[str(i)][key] for i in range(len(entries))])


def truth_ratios(log: dict[str, Any], prefix: str) -> np.ndarray:
    right = f"{prefix}_Q_A_Prob" if prefix in ("ra", "wf") else f"{prefix}_Q_A_PARA_Prob"
    wrong = column(log, f"{prefix}_Q_A_PERT_Prob", "avg_loss").mean(1)
    return np.exp(-wrong) / (np.exp(-column(log, right, "avg_loss")) + 1e-10)


def straight(log: dict[str, Any], retain: dict[str, Any]) -> dict[str, float]:
    """open-unlearning's metrics, written down once more."""
    found: dict[str, float] = {}
    for prefix in ("retain", "ra", "wf", "forget"):
        right = column(log, f"{prefix}_Q_A_Prob", "prob")
        if prefix in ("ra", "wf"):
            wrong = column(log, f"{prefix}_Q_A_PERT_Prob", "prob").sum(1)
            found[f"{prefix}_Q_A_Prob_normalised"] = float(np.mean(right / (right + wrong + 1e-10)))
        else:
            found[f"{prefix}_Q_A_Prob"] = float(right.mean())
        found[f"{prefix}_Q_A_ROUGE"] = float(column(log, f"{prefix}_Q_A_ROUGE", "rougeL_recall").mean())
        ratios = truth_ratios(log, prefix)
        if prefix == "forget":
            found["forget_truth_ratio"] = float(np.mean(np.minimum(ratios, 1 / (ratios + 1e-10))))
        else:
            found[f"{prefix}_Truth_Ratio"] = float(np.mean(np.maximum(0, 1 - ratios)))
    found["model_utility"] = float(hmean(list(found.values())[:9]))
    quality = ks_2samp(truth_ratios(log, "forget"), truth_ratios(retain, "forget")).pvalue
    extracted = column(log, "extraction_strength", "score").mean()
    return found | {"forget_quality": float(quality), "extraction_strength": float(extracted)}


def test_a_log_gives_what_a_straight_computation_gives_and_what_is_missing_is_noted(scored):
    """Neither the order of the samples nor derived values count."""
    log, expected = tofu_log(1), straight(tofu_log(1), tofu_log(2))
    for one in log.values():
        one["value_by_index"] = dict(reversed(one["value_by_index"].items()))
    derived = ["model_utility", "forget_truth_ratio", "ra_Truth_Ratio", "ra_Q_A_Prob_normalised"]
    log |= {name: metric([{"score": 9.0, "prob": 0.9}] * 40) for name in derived}
    assert scored(log, tofu_log(2)) == (0, pytest.approx(expected, rel=1e-10), "")
    del log["wf_Q_A_ROUGE"]
    code, found, err = scored(log)
    missing = ["model_utility", "forget_quality", "wf_Q_A_ROUGE"]
    assert (code, [name for name, value in found.items() if value is None]) == (0, missing)
    assert found["wf_Truth_Ratio"] == pytest.approx(expected["wf_Truth_Ratio"])
    assert "note: null: model_utility (no wf_Q_A_ROUGE), forget_quality (no retained model to" in err
    retain = tofu_log(2)
    del retain["forget_Q_A_PARA_Prob"]
    assert "forget_quality (no forget_Q_A_PARA_Prob in " in scored(tofu_log(1), retain)[2]


def test_a_null_question_is_left_out_of_both_models_and_noted(scored):
    logs = {"log": tofu_log(1), "retain": tofu_log(2)}
    ratios = [np.delete(truth_ratios(log, "forget"), 5) for log in logs.values()]
    logs["retain"]["forget_Q_A_PERT_Prob"]["value_by_index"]["5"] = None
    logs["log"]["forget_Q_A_Prob"]["value_by_index"]["0"] = None
    code, found, err = scored(logs["log"], logs["retain"])
    assert code == 0
    assert found["forget_quality"] == pytest.approx(ks_2samp(*ratios).pvalue)
    others = column(tofu_log(1), "forget_Q_A_Prob", "prob")[1:]
    assert found["forget_Q_A_Prob"] == pytest.approx(others.mean())
    assert "note: forget_Q_A_Prob: 1 of 40 samples are null and left out\n" in err
    assert "retain.json: forget_Q_A_PERT_Prob: 1 of 40 samples are null and left out\n" in err


@pytest.mark.parametrize(
    ("said", "same"),
    [
        (" Answer  5 .\n", True),  # white space, as a tokenizer gives it back
        ("Answer ５.", True),  # a full-width digit, which some tokenizers turn into 5
        ("Rome.", False),
    ],
)
def test_a_retained_models_log_of_other_questions_is_refused(said, same, scored):
    retain = tofu_log(2)
    retain["forget_Q_A_ROUGE"]["value_by_index"]["5"]["ground_truth"] = said
    code, _, err = scored(tofu_log(1), retain)
    assert code == (0 if same else 2)
    assert ("at index 5 of forget_Q_A_ROUGE the right answer is 'Answer 5.' in" in err) is not same


def put_table(path: Path, *rows: tuple[str, int, float, str]) -> Path:
    """Rows of model, probe, recall and response."""
    names = ("model", "probe", "rouge_l", "response")
    made = [dict(zip(names, row, strict=True)) | {"refused": float(row[2] == 0)} for row in rows]
    path.write_bytes(responses(*made))
    return path


def test_tables_are_scored_by_their_columns(score, tmp_path):
    tables = [
        put_table(tmp_path / f"{n}.parquet", ("base", n, recall, "x"), ("rule", n, 0.0, "x"))
        for n, recall in enumerate((0.75, 0.0))
    ]
    put_json(tmp_path / "meta.json", {"benchmark": "custom"})
    code, found, err = score("world", "--log", *tables, "--model", "base")
    assert (code, found["forget/recall"], found["forget/refusal_rate"]) == (0, 0.375, 0.5)
    assert "0.parquet is of Your data; --benchmark custom scores it as such" in err


def test_the_folder_of_an_evaluation_is_scored_also_where_the_benchmark_has_logs(score, tmp_path):
    put_table(tmp_path / "responses.parquet", ("base", 0, 0.75, "x"), ("base", 1, 0.0, "x"))
    code, found, _ = score("tofu", "--log", tmp_path)
    assert (code, found) == (0, {"forget_Q_A_ROUGE": 0.375, "forget_refusal_rate": 0.5})


def test_refusals_are_judged_again_with_the_users_phrases(score, tmp_path):
    said = ("The stars are silent.", "I don't know.", "<think>The stars are silent.</think>Paris", "x")
    rows = [("base", n, float(n != 1), text) for n, text in enumerate(said)]
    table, phrases = put_table(tmp_path / "responses.parquet", *rows), tmp_path / "phrases.txt"
    _, found, err = score("world", "--log", table)
    assert (found["forget/refusal_rate"], err) == (1 / 4, "")
    for text, rate, changed in ("! I don't know\n", 1 / 4, 2), ("", 2 / 4, 1):
        phrases.write_text(f"the stars are silent\n{text}")
        _, found, err = score("world", "--log", table, "--refusal-phrases", phrases)
        assert found["forget/refusal_rate"] == rate
        assert f"{table}: with --refusal-phrases {changed} of 4 responses are judged otherwise" in err
