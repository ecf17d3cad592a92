from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import hmean, ks_2samp

from recipe.rerule import evaluate
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.logs import Log, LogError, Scored
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


def score(log: Log, retain: Log | None = None, variants: bool = False) -> Scored:
    """Of TOFU's logs."""
    found = TOFU.score_log(log, retain, None, Namespace(variants=variants, allow_unequal=False))
    assert found is not None
    return found


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


def test_all_metrics_under_open_unlearnings_names(
    capsys: pytest.CaptureFixture[str], paths: tuple[Path, Path]
):
    code, found, err = run(capsys, "--benchmark", "tofu", "--log", paths[0], "--retain-log", paths[1])
    expected = straight(tofu_log(1), tofu_log(2))
    assert (code, err) == (0, "")
    assert tuple(found) == NAMES
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12), name


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
    assert "note: forget truth ratios in the log are not those that its losses give; not used" in err


def test_without_a_retained_models_log_there_is_no_forget_quality(
    capsys: pytest.CaptureFixture[str], paths: tuple[Path, Path]
):
    code, found, err = run(capsys, "--benchmark", "tofu", "--log", paths[0])
    assert code == 0
    assert found["forget_quality"] is None
    assert "forget_quality (no retained model to compare with; give its log with --retain-log)" in err
    assert all(found[name] is not None for name in NAMES if name != "forget_quality")


def test_forget_quality_asked_for_needs_the_retained_models_log(
    capsys: pytest.CaptureFixture[str], paths: tuple[Path, Path]
):
    code, _, err = run(capsys, "--benchmark", "tofu", "--log", paths[0], "--metrics", "forget_quality")
    assert code == 2
    assert err.startswith("error: forget_quality cannot be computed: no retained model")


def test_unequal_questions_are_refused_unless_allowed(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    retain_log = tofu_log(2, {**SIZES, "forget": 25})
    retain = write_json(tmp_path / "retain.json", retain_log)
    arguments = *with_log(tmp_path, tofu_log(1)), "--retain-log", retain
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert "log.json has 40," in err
    assert "retain.json has 25, and 15 are in one only" in err
    code, found, err = run(capsys, *arguments, "--allow-unequal")
    assert code == 0
    assert found["forget_quality"] == pytest.approx(straight(tofu_log(1), retain_log)["forget_quality"])
    assert "forget_quality compares 40 questions with 25 others" in err


def test_equally_many_but_other_questions_are_unequal(paths: tuple[Path, Path]):
    retain = tofu_log(2)
    for name in ("forget_Q_A_PARA_Prob", "forget_Q_A_PERT_Prob"):
        entries = retain[name]["value_by_index"]
        entries["40"] = entries.pop("0")
    with pytest.raises(LogError, match="has 40, b has 40, and 2 are in one only"):
        score(Log("a", tofu_log(1)), Log("b", retain))


def test_a_retained_log_without_truth_ratios_is_an_error():
    retain = {name: metric for name, metric in tofu_log(2).items() if not name.startswith("forget")}
    with pytest.raises(LogError, match="b: no forget_Q_A_PARA_Prob, which forget_quality compares"):
        score(Log("a", tofu_log(1)), Log("b", retain))


def test_a_retained_log_may_hold_truth_ratios_alone():
    retain = tofu_log(2)
    entries = {str(i): {"score": float(r)} for i, r in enumerate(truth_ratios(retain, "forget"))}
    for spelling in ("forget_truth_ratio", "forget_Truth_Ratio"):
        found = score(Log("a", tofu_log(1)), Log("b", {spelling: {"value_by_index": entries}}))
        assert found.metrics["forget_quality"] == straight(tofu_log(1), retain)["forget_quality"]
        assert "forget truth ratios are the log's own: it has no losses to compute them from" in found.notes
        variants = score(
            Log("a", tofu_log(1)), Log("b", {spelling: {"value_by_index": entries}}), variants=True
        )
        assert variants.metrics["forget_quality_arithmetic"] is None


def test_other_readings_cannot_come_from_the_logs_own_truth_ratios():
    log = tofu_log(1)
    entries = {str(i): {"score": float(r)} for i, r in enumerate(truth_ratios(log, "forget"))}
    del log["forget_Q_A_PERT_Prob"]
    log["forget_truth_ratio"] = {"value_by_index": entries}
    found = score(Log("a", log), variants=True).metrics
    assert found["forget_truth_ratio"] == straight(tofu_log(1), tofu_log(2))["forget_truth_ratio"]
    assert found["forget_truth_ratio_arithmetic"] is None
    assert found["forget_truth_ratio_true_share"] is None


def test_further_metrics_of_the_log_are_scored():
    scores = {"0": {"score": 0.25}, "1": {"score": 1.0}, "2": {"score": None}}
    log = tofu_log(1) | {"extraction_strength": {"agg_value": 0.9, "value_by_index": scores}}
    assert score(Log("a", log)).metrics["extraction_strength"] == 0.625


def test_normalised_probabilities_of_the_log_stand_in_for_missing_ones():
    log = tofu_log(1)
    del log["ra_Q_A_PERT_Prob"]
    log["ra_Q_A_Prob_normalised"] = {"value_by_index": {"0": {"prob": 0.25}, "1": {"prob": 0.75}}}
    log["ra_Truth_Ratio"] = {"value_by_index": {"0": {"score": 0.5}, "1": {"score": 2.0}}}
    found = score(Log("a", log))
    assert found.metrics["ra_Q_A_Prob_normalised"] == 0.5
    assert found.metrics["ra_Truth_Ratio"] == 0.25
    assert sum("the log's own" in note for note in found.notes) == 2


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
    ("metric", "key", "value", "message"),
    [
        ("forget_Q_A_ROUGE", "rougeL_recall", math.nan, "forget_Q_A_ROUGE, index 3: rougeL_recall is nan"),
        ("retain_Q_A_Prob", "prob", math.inf, "retain_Q_A_Prob, index 3: prob is inf"),
        ("ra_Q_A_Prob", "avg_loss", math.nan, "ra_Q_A_Prob, index 3: avg_loss is nan"),
        ("wf_Q_A_PERT_Prob", "avg_loss", [1.0, math.nan, 1.0], "wf_Q_A_PERT_Prob, index 3: avg_loss is nan"),
        ("forget_Q_A_ROUGE", "rougeL_recall", 37.0, r"rougeL_recall is 37.0, outside [0, 1]"),
    ],
)
def test_bad_values_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, metric: str, key: str, value: Any, message: str
):
    log = tofu_log(1)
    log[metric]["value_by_index"]["3"][key] = value
    code, _, err = run(capsys, *with_log(tmp_path, log))
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
    from scipy.stats import ks_2samp

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
    of_both = "forget_quality is over 39 questions: 1 more are null in one of the two logs"
    assert (of_both in err) == (len(null) == 1)


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


def rounded(log: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The log of a model that computed in 16 bits: loss and probability each rounded."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    for name, metric in log.items():
        if name.endswith("Prob"):
            for entry in metric["value_by_index"].values():
                loss = torch.tensor(entry["avg_loss"]).to(kind)
                entry["avg_loss"], entry["prob"] = loss.tolist(), torch.exp(-loss).tolist()
    return log


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_logs_of_any_precision_give_what_open_unlearning_averaged(dtype: str):
    log = rounded(tofu_log(1), dtype)
    expected = straight(log, tofu_log(2))
    found = score(Log("a", log), Log("b", tofu_log(2)))
    for name, value in expected.items():
        assert found.metrics[name] == pytest.approx(value, abs=1e-12), name
    assert any("prob and exp(-avg_loss) differ by" in note for note in found.notes) == (dtype == "bfloat16")


def test_in_float32_prob_and_loss_give_the_same_within_a_millionth():
    with_prob, without = tofu_log(1), tofu_log(1)
    for name, metric in without.items():
        if name.endswith("Prob"):
            for entry in metric["value_by_index"].values():
                del entry["prob"]
    a, b = score(Log("a", with_prob)).metrics, score(Log("b", without)).metrics
    assert all(b[name] == pytest.approx(a[name], abs=1e-6) for name in NAMES if name != "forget_quality")
    assert a["forget_Q_A_Prob"] != b["forget_Q_A_Prob"]


def test_a_prob_that_contradicts_its_loss_is_not_believed():
    log = tofu_log(1)
    entry = log["forget_Q_A_Prob"]["value_by_index"]["0"]
    entry["prob"] = 1.0 if entry["avg_loss"] > 0.1 else 0.0
    found = score(Log("a", log))
    expected = np.exp(-column(tofu_log(1), "forget_Q_A_Prob", "avg_loss")).mean()
    assert found.metrics["forget_Q_A_Prob"] == pytest.approx(expected, rel=1e-6)
    assert any(
        note.startswith("forget_Q_A_Prob: prob and exp(-avg_loss) differ by up to") for note in found.notes
    )


def test_probabilities_alone_are_enough_unless_one_is_zero():
    log = tofu_log(1)
    for name in ("forget_Q_A_PARA_Prob", "forget_Q_A_PERT_Prob"):
        for entry in log[name]["value_by_index"].values():
            del entry["avg_loss"]
    found = score(Log("a", log)).metrics["forget_truth_ratio"]
    probs = column(log, "forget_Q_A_PERT_Prob", "prob")
    ratios = np.exp(np.log(probs).mean(1)) / column(log, "forget_Q_A_PARA_Prob", "prob")
    assert found == pytest.approx(np.minimum(ratios, 1 / ratios).mean(), rel=1e-6)
    log["forget_Q_A_PARA_Prob"]["value_by_index"]["0"]["prob"] = 0.0
    with pytest.raises(LogError, match="forget_Q_A_PARA_Prob has a prob of 0 and no avg_loss"):
        score(Log("a", log))


def test_variants_come_under_their_own_names_only():
    log = tofu_log(1)
    plain, with_variants = score(Log("a", log)), score(Log("a", log), Log("b", tofu_log(2)), variants=True)
    extra = set(with_variants.metrics) - set(plain.metrics)
    assert {name: with_variants.metrics[name] for name in NAMES if name != "forget_quality"} == {
        name: plain.metrics[name] for name in NAMES if name != "forget_quality"
    }
    assert extra == {
        "forget_truth_ratio_arithmetic", "forget_truth_ratio_true_share", "forget_quality_arithmetic",
        "ra_Q_A_Prob_eq25", "wf_Q_A_Prob_eq25", "model_utility_arithmetic", "model_utility_distance",
        "model_utility_ratio", "model_utility_true_share", "model_utility_eq25", "model_utility_eq25_eq26",
    }  # fmt: skip


def test_variants_of_model_utility_are_harmonic_means_of_their_parts():
    log = tofu_log(1)
    expected = straight(log, tofu_log(2))
    found = score(Log("a", log), variants=True).metrics
    eq25 = {}
    for prefix in ("ra", "wf"):
        right, wrong = (
            column(log, f"{prefix}_Q_A_Prob", "prob"),
            column(log, f"{prefix}_Q_A_PERT_Prob", "prob"),
        )
        eq25[f"{prefix}_Q_A_Prob_normalised"] = float(np.mean(right / wrong.sum(1)))
    ratios = {f"{prefix}_Truth_Ratio": truth_ratios(log, prefix) for prefix in ("retain", "ra", "wf")}
    ratio = {name: values.mean() for name, values in ratios.items()}
    distance = {name: np.mean(1 - np.minimum(values, 1 / values)) for name, values in ratios.items()}
    share = {name: np.mean(1 / (1 + values)) for name, values in ratios.items()}
    arithmetic = {}
    for prefix, base in (("retain", "PARA_"), ("ra", ""), ("wf", "")):
        wrong = np.exp(-column(log, f"{prefix}_Q_A_PERT_Prob", "avg_loss")).mean(1)
        right = np.exp(-column(log, f"{prefix}_Q_A_{base}Prob", "avg_loss"))
        arithmetic[f"{prefix}_Truth_Ratio"] = np.maximum(0, 1 - wrong / right).mean()
    for name, changed in (
        ("model_utility_arithmetic", arithmetic),
        ("model_utility_distance", distance),
        ("model_utility_true_share", share),
        ("model_utility_eq25", eq25),
        ("model_utility_ratio", ratio),
        ("model_utility_eq25_eq26", eq25 | ratio),
    ):
        parts = expected | changed
        assert found[name] == pytest.approx(hmean([parts[part] for part in NINE]), rel=1e-6), name


LOCUSLAB_FILES = {
    "forget": "eval_log_forget.json",
    "retain": "eval_log.json",
    "ra": "eval_real_author_wo_options.json",
    "wf": "eval_real_world_wo_options.json",
}


def as_locuslab(log: dict[str, Any]) -> dict[str, Any]:
    """A made log in the form of locuslab's eval_log_aggregated.json."""
    content: dict[str, Any] = {}
    for prefix, file in LOCUSLAB_FILES.items():
        para = f"{prefix}_Q_A_PARA_Prob" if prefix in ("forget", "retain") else f"{prefix}_Q_A_Prob"
        sources = {
            "avg_gt_loss": (f"{prefix}_Q_A_Prob", "avg_loss"),
            "avg_paraphrased_loss": (para, "avg_loss"),
            "average_perturb_loss": (f"{prefix}_Q_A_PERT_Prob", "avg_loss"),
            "rougeL_recall": (f"{prefix}_Q_A_ROUGE", "rougeL_recall"),
        }
        content[file] = {
            key: {i: entry[value] for i, entry in log[metric]["value_by_index"].items()}
            for key, (metric, value) in sources.items()
        }
    return content


def test_logs_of_locuslab_are_recognised(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    log, retain = tofu_log(1), tofu_log(2)
    other = write_json(tmp_path / "retain.json", as_locuslab(retain))
    code, found, _ = run(capsys, *with_log(tmp_path, as_locuslab(log)), "--retain-log", other)
    assert code == 0
    assert found == pytest.approx(straight(log, retain), rel=1e-6)

    # A short answer is measured twice there, in batches of its own: the truth ratio takes the second loss.
    twice = as_locuslab(log)
    for file in (LOCUSLAB_FILES["ra"], LOCUSLAB_FILES["wf"]):
        twice[file]["avg_paraphrased_loss"] = {i: x + 0.25 for i, x in twice[file]["avg_gt_loss"].items()}
    found = score(Log("a", twice)).metrics
    ratios = truth_ratios(log, "ra") * np.exp(0.25)
    assert found["ra_Truth_Ratio"] == pytest.approx(np.maximum(0, 1 - ratios).mean(), rel=1e-6)
    assert found["ra_Q_A_Prob_normalised"] == pytest.approx(
        straight(log, retain)["ra_Q_A_Prob_normalised"], rel=1e-6
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--metrics", "utility"), "unknown metric 'utility'; choose from model_utility, forget_quality"),
        (("--retain-log", "none.json"), "none.json: no such file"),
    ],
)
def test_wrong_arguments(
    capsys: pytest.CaptureFixture[str], paths: tuple[Path, Path], arguments: tuple[str, str], message: str
):
    code, _, err = run(capsys, "--benchmark", "tofu", "--log", paths[0], *arguments)
    assert code == 2
    assert message in err


def test_a_log_of_another_benchmark_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    code, _, err = run(capsys, *with_log(tmp_path, {"retain_knowmem_ROUGE": {"value_by_index": {}}}))
    assert code == 2
    assert err.endswith(
        "log.json holds a log of MUSE-Books, and --benchmark is tofu: score it with "
        "--benchmark muse_books or muse_news\n"
    )


def test_options_without_meaning_are_refused(capsys: pytest.CaptureFixture[str], paths: tuple[Path, Path]):
    code, _, err = run(capsys, "--benchmark", "muse-books", "--log", paths[0], "--allow-unequal")
    assert code == 2
    assert "--allow-unequal has no meaning for a .json file of --benchmark muse-books" in err


def test_rwku_records_are_scored(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    row = {"subject": "Ada Quill", "query": "Who?", "level": "2", "type": "qa"}
    rows = [row | {"answer": "a red lamp", "prediction": p} for p in ("a red kite", "lamp")]
    code, found, _ = run(capsys, "--benchmark", "rwku", "--log", write_json(tmp_path / "rwku.json", rows))
    assert code == 0
    assert found["forget/qa"] == pytest.approx((2 / 3 + 1 / 3) / 2)


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

    record = {"subject": "Ada", "query": "Who?", "level": "2", "type": "qa", "answer": "a lamp"}
    log = write_json(tmp_path / "rwku.json", [record | {"prediction": text} for text in said[:2]])
    for more, rate in ((), 0.5), (("--refusal-phrases", tmp_path / "both.txt"), 1.0):
        _, found, _ = run(capsys, "--benchmark", "rwku", "--log", log, *more)
        assert found["forget/qa/refusal_rate"] == rate

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
            "two answers to one probe (side forget, kind qa, probe 0, sample 0)",
        ),
        ("--log {0} --model base --variants", "--variants has no meaning for a .parquet file"),
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


def test_an_aggregate_beyond_all_floats_is_told_and_not_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    log = tofu_log(0)
    log["forget_Q_A_ROUGE"]["agg_value"] = 10**400
    code, found, err = run(capsys, *with_log(tmp_path, log))
    assert code == 0
    assert 0 < found["forget_Q_A_ROUGE"] < 1
    assert "forget_Q_A_ROUGE: the log's own agg_value is 1000" in err


def test_a_log_of_one_model_is_one_file(capsys: pytest.CaptureFixture[str], paths: tuple[Path, Path]):
    code, _, err = run(capsys, "--benchmark", "tofu", "--log", *paths)
    assert code == 2
    assert "--log is given 2 files; a tofu log is one" in err


def with_answers(log: dict[str, Any], metric: str, answers: dict[str, str]) -> dict[str, Any]:
    """The log with right answers in a ROUGE metric, "Answer INDEX." but for those given."""
    for index, entry in log[metric]["value_by_index"].items():
        entry["input"] = f"<|user|>Question {index}?"
        entry["ground_truth"] = answers.get(index, f"Answer {index}.")
    return log


def test_other_questions_under_the_same_indices_are_refused_unless_allowed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    metric = "forget_Q_A_ROUGE"
    retain = with_answers(tofu_log(2), metric, {"5": "Rome.", "17": "Oslo."})
    log = with_log(tmp_path, with_answers(tofu_log(1), metric, {}))
    arguments = *log, "--retain-log", write_json(tmp_path / "retain.json", retain)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert err.count("\n") == 1
    assert "at index 5 of forget_Q_A_ROUGE the right answer is 'Answer 5.' in" in err
    assert f"and 'Rome.' in {tmp_path / 'retain.json'}" in err
    code, found, err = run(capsys, *arguments, "--allow-unequal")
    assert code == 0
    assert found["forget_quality"] == pytest.approx(straight(tofu_log(1), tofu_log(2))["forget_quality"])
    assert "forget_quality compares 40 questions with 40 others" in err


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


def test_a_log_without_texts_is_compared_by_index_alone():
    log = with_answers(tofu_log(1), "forget_Q_A_ROUGE", {})
    without = tofu_log(2)
    del without["forget_Q_A_ROUGE"]["value_by_index"]
    expected = straight(tofu_log(1), tofu_log(2))["forget_quality"]
    assert score(Log("a", log), Log("b", tofu_log(2))).metrics["forget_quality"] == pytest.approx(expected)
    assert score(Log("a", log), Log("b", without)).metrics["forget_quality"] == pytest.approx(expected)


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
