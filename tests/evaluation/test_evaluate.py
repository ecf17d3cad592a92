"""`evaluate model` from its arguments to its folder; only what vLLM would answer is given."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from recipe.rerule import evaluate
from recipe.rerule.evaluation import model_command, tidy
from recipe.rerule.evaluation.engine.requests import Answer, Answers, Likelihood, Request
from recipe.rerule.evaluation.engine.run import EngineError
from recipe.rerule.runs import checkpoints
from tests.evaluation.conftest import make_probe, write_probes

RESPONSES = [
    "Paris",
    "I don't know.",
    "I'm not certain about Ada Quill.",
    "a tailor",
    "a red kite",
    "Lisbon.",
]
FILES = {
    "results.json",
    "anchors.json",
    "intervals.json",
    "comparisons.json",
    "responses.parquet",
    "meta.json",
}
Answering = Callable[[str, Sequence[Request]], Answers]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answering], None]:
    """answering(function): models answer what function(model name, requests) gives, without vLLM."""

    def install(answers_of: Answering) -> None:
        def run(models, requests, decoding, store):
            return {model.name: answers_of(model.name, requests) for model in models}

        monkeypatch.setattr(model_command, "run", run)

    return install


@pytest.fixture
def responding(answering) -> None:
    """Every model answers RESPONSES, but "silent", which answers nothing."""

    def answers_of(name: str, requests: Sequence[Request]) -> Answers:
        return {
            request.id: Answer("" if name == "silent" else text)
            for request, text in zip(requests, RESPONSES, strict=True)
        }

    answering(answers_of)


@pytest.fixture
def arguments(model_folder, probes_file, tmp_path) -> list[str]:
    model, out = f"base={model_folder('base')}", f"{tmp_path / 'out'}"
    return ["model", "--model", model, "--probes", f"{probes_file}", "--out", out, "--platform", "cpu"]


@pytest.fixture(autouse=True)
def _unchanged_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choosing a platform sets environment variables."""
    monkeypatch.setattr(model_command, "select", lambda name: None)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def read(folder: Path, name: str):
    return json.loads((folder / name).read_text())


@pytest.mark.usefixtures("responding")
def test_the_folder_of_an_evaluation(arguments, model_folder, tmp_path, capsys):
    run = model_folder("run/global_step_7/actor/huggingface").parents[2]
    checkpoints.finish(run, 7)
    assert evaluate.main([*arguments, "--model", f"rule={run}"]) == 0
    out = tmp_path / "out"
    assert files(out) == FILES

    results, anchors = read(out, "results.json"), read(out, "anchors.json")
    assert list(results) == ["base", "rule"]
    assert results["base"] == results["rule"]
    # forget: Paris 1, refusal 0, named refusal 1, "a tailor" against "a baker" 1/2
    assert results["base"]["forget/recall"] == pytest.approx(2.5 / 4)
    assert results["base"]["forget/refusal_rate"] == 0.5
    assert results["base"]["forget/aa/prefix_injection/recall"] == 0.5
    assert anchors["always refuses, unnamed"]["forget/refusal_rate"] == 1.0
    # Of the forget golds only "Ada Quill" is in the refusal that names her: 1 of 4 probes.
    assert anchors["always refuses, naming the target"]["forget/recall"] == 0.25
    table = tidy.read_responses(out)
    assert len(table) == 12
    row = table.iloc[3].to_dict()
    assert {**row, "golds": list(row["golds"])} == {
        "model": "base", "probe": 3, "side": "forget", "kind": "aa", "sample": 0, "prompt": "Question 3?",
        "fact": "probe 0",  # the first probe of the four that ask for one of the world's facts
        "response": "a tailor", "family": "prefix_injection", "subject": "Ada Quill", "golds": ["a baker"],
        "rouge_l": 0.5, "refused": 0.0,
    }  # fmt: skip
    meta = read(out, "meta.json")
    assert (meta["benchmark"], meta["models"]["rule"]["global_step"]) == ("world", 7)
    assert (meta["probes"]["rows"]["forget"], meta["probes"]["rows"]["forget/aa"]) == (4, 2)
    assert (meta["probes"]["facts"]["forget"], meta["probes"]["facts"]["forget/aa"]) == (1, 1)
    assert "always refuses, naming the target" in capsys.readouterr().out


@pytest.mark.usefixtures("responding", "any_number_of_probes")
@pytest.mark.parametrize("facts", [("a", "b", "b", "b"), ("", "b", "b", "b")])
def test_facts_are_resampled_and_exchanged_with_all_their_probes(
    arguments, probes, model_folder, tmp_path, facts
):
    """Recalls of 1 (the first fact) and 0, 1, 1/2 (fact b): a resample has one of the facts twice, or both.

    Of the four exchanges of two facts, none and both leave the size of the difference, 2.5 / 4; with one
    exchanged it is 0.5 / 4."""
    asked = [replace(probe, fact=fact) for probe, fact in zip(probes[:4], facts, strict=True)]
    own = write_probes(tmp_path / "own.parquet", [*asked, *probes[4:]])
    silent = ["--benchmark", "custom", "--model", f"silent={model_folder('silent')}"]
    assert evaluate.main([*arguments, "--probes", f"{own}", *silent]) == 0
    out = tmp_path / "out"
    assert read(out, "intervals.json")["base"]["forget/recall"] == [0.5, 1]
    recall = next(one for one in read(out, "comparisons.json") if one["metric"] == "forget/recall")
    assert (recall["probes"], recall["facts"], recall["unit"], recall["p_value"]) == (4, 2, "fact", 0.5)
    assert read(out, "meta.json")["probes"]["facts"]["forget"] == 2
    assert tidy.read(out)["fact"].tolist()[:4] == [facts[0] or "probe 0", "b", "b", "b"]


def own_probes_file(folder: Path, count: int) -> Path:
    """So many probes of each side, on data of one's own."""
    sides = [(section, number) for section in ("forget", "retain") for number in range(count)]
    return write_probes(
        folder / "own.parquet",
        [
            make_probe(index, section, "qa", ["Paris"], data_source="rerule/custom")
            for index, (section, _) in enumerate(sides)
        ],
    )


def same_answers(name: str, requests: Sequence[Request]) -> Answers:
    """Two models that answer alike, and one that never answers."""
    return {request.id: Answer("" if name == "silent" else "Paris") for request in requests}


def warnings(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]


def test_two_probes_a_side_give_no_intervals_and_no_tests(
    arguments, answering, model_folder, tmp_path, capsys
):
    answering(same_answers)
    own = [*arguments, "--probes", f"{own_probes_file(tmp_path, 2)}"]
    assert evaluate.main([*own, "--model", f"silent={model_folder('silent')}"]) == 0
    assert warnings(capsys) == [
        "warning: fewer than 6 facts, so no interval and no test: forget/recall (2), forget/qa/recall (2), "
        "forget/refusal_rate (2), retain/recall (2), retain/refusal_rate (2); hold questions on more facts "
        "out, or give a file of probes"
    ]
    assert read(tmp_path / "out", "comparisons.json") == []
    assert read(tmp_path / "out", "intervals.json")["base"] == {}
    assert read(tmp_path / "out", "results.json")["base"]["forget/recall"] == 1


def test_a_model_that_answers_as_the_first_is_said_to(arguments, answering, model_folder, tmp_path, capsys):
    answering(same_answers)
    own = [*arguments, "--probes", f"{own_probes_file(tmp_path, 6)}"]
    assert evaluate.main([*own, "--model", f"rule={model_folder('rule')}"]) == 0
    assert warnings(capsys) == ["warning: no number of rule differs from base: nothing was forgotten"]


def test_models_named_in_any_script(arguments, tofu_probes_file, answering, model_folder, tmp_path):
    answering(likelihoods)
    name = "模型/é@1"
    tofu = [*arguments, "--probes", f"{tofu_probes_file}", "--benchmark", "tofu"]
    assert evaluate.main([*tofu, "--model", f"{name}={model_folder('other')}"]) == 0
    assert list(read(tmp_path / "out", "results.json")) == ["base", name]
    assert len(list((tmp_path / "out" / "logs").glob("*/TOFU_EVAL.json"))) == 2


def test_as_many_models_are_compared_as_is_asked(arguments, answering, model_folder, tmp_path):
    answering(same_answers)
    others = [part for n in range(6) for part in ("--model", f"{n}={model_folder(str(n))}")]
    seven = [*arguments, "--probes", f"{own_probes_file(tmp_path, 6)}", *others]
    for number, pairs in (("6", 0), ("7", 21)):  # 7 x 6 / 2
        assert evaluate.main([*seven, "--most-compared", number, "--overwrite"]) == 0
        found = {(test["a"], test["b"]) for test in read(tmp_path / "out", "comparisons.json")}
        assert len(found) == pairs


def test_a_failing_engine_ends_with_exit_code_1_and_writes_nothing(arguments, answering, tmp_path, capsys):
    def fail(name: str, requests: Sequence[Request]) -> Answers:
        raise EngineError("model base: vLLM failed: no memory")

    answering(fail)
    before = files(tmp_path)
    assert evaluate.main(arguments) == 1
    assert capsys.readouterr().err == "error: model base: vLLM failed: no memory\n"
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--model", "rule=nowhere"], "model rule: folder nowhere does not exist"),
        (["--model", "base=nowhere"], "--model base is given twice"),
        (["--probes", "nowhere.parquet"], "nowhere.parquet"),
        (["--probes", "{less}"], "extra_info"),
        (["--probes", "{empty}"], "empty.parquet: no rows"),
        (["--max-tokens", "0"], "--max-tokens is 0"),
        (
            ["--prompts", "bare"],
            "--prompts is an option of rwku, muse_books, muse_news, tofu, and the probes are of world",
        ),
        (["--benchmark", "rwku", "--convention", "tofu"], "--convention is an option of world"),
        (["--benchmark", "rwku", "--prompts", "no"], "--prompts is no; rwku has official, "),
        (["--texts", "x"], "--texts is an option of rwku, muse_books"),
        (["--benchmark", "muse_books", "--retain-log", "nowhere.json"], "nowhere.json does not exist"),
        (["--benchmark", "tofu"], "probe 0 has no wrong answers to compare with"),
        (["--benchmark", "rwku"], "RWKU has no retain_unseen/qa probes"),
        (["--prefix", "icu"], "--prefix icu: no model has this name; the models are base"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    change, message, arguments, probes_file, tmp_path, capsys
):
    table = pq.read_table(probes_file)
    less, empty = tmp_path / "less.parquet", tmp_path / "empty.parquet"
    pq.write_table(table.drop_columns(["extra_info"]), less)
    pq.write_table(table.slice(0, 0), empty)
    before = files(tmp_path)
    assert evaluate.main([*arguments, *(text.format(less=less, empty=empty) for text in change)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert files(tmp_path) == before


def likelihoods(name: str, requests: Sequence[Request]) -> Answers:
    """Right answers of two tokens at log-prob -0.1 each, wrong ones at -0.3; "better" doubles both."""
    loss = {True: 0.3, False: 0.1}
    scale = 2 if name == "better" else 1
    return {
        request.id: Answer(log_probs=(-loss["perturbed" in request.id] * scale,) * 2)
        if isinstance(request, Likelihood)
        else Answer("Paris")
        for request in requests
    }


def test_a_retained_models_log_of_other_questions_is_refused_before_any_is_asked(
    arguments, answering, tofu_probes_file, tmp_path, capsys
):
    metric = "ra_Q_A_ROUGE"
    answering(likelihoods)
    tofu = [*arguments, "--probes", f"{tofu_probes_file}", "--benchmark", "tofu"]
    assert evaluate.main(tofu) == 0
    content = read(tmp_path / "out", "logs/base/TOFU_EVAL.json")
    content[metric]["value_by_index"]["0"]["ground_truth"] = "Rome"
    log = tmp_path / "other.json"
    log.write_text(json.dumps(content))
    capsys.readouterr()
    answering(refuse_to_answer)
    assert evaluate.main([*tofu, "--out", f"{tmp_path / 'again'}", "--retain-log", f"{log}"]) == 2
    assert capsys.readouterr().err == (
        f"error: --retain-log is of other questions: at index 0 of {metric} the right answer is 'Paris' in "
        f"the probes and 'Rome' in {log}; evaluate both models on one split\n"
    )


def refuse_to_answer(name: str, requests: Sequence[Request]) -> Answers:
    raise AssertionError("a model was asked")


def test_prefixes_and_arguments_of_the_chat_template_reach_the_model_and_the_folder(
    arguments, model_folder, tmp_path, monkeypatch
):
    given = []

    def run(models, requests, decoding, store):
        given.extend((model.name, model.prefix, dict(model.template)) for model in models)
        answers = {request.id: Answer(text) for request, text in zip(requests, RESPONSES, strict=True)}
        return {model.name: answers for model in models}

    monkeypatch.setattr(model_command, "run", run)
    (tmp_path / "prefix.txt").write_text("Forget {target}.\n")
    more = ["--model", f"icu={model_folder('icu')}", "--prefix", f"icu={tmp_path / 'prefix.txt'}"]
    switches = ["--template", "enable_thinking=false", "--template", "date_string=26 Jul 2024"]
    assert evaluate.main([*arguments, *more, *switches]) == 0
    template = {"enable_thinking": False, "date_string": "26 Jul 2024"}
    assert given == [("base", "", template), ("icu", "Forget Ada Quill.\n", template)]
    models = read(tmp_path / "out", "meta.json")["models"]
    assert models["icu"]["prefix"] == "Forget Ada Quill.\n"
    assert models["icu"]["template"] == template
    assert "prefix" not in models["base"]


@pytest.mark.usefixtures("responding")
def test_refusals_are_judged_with_the_users_phrases(arguments, tmp_path):
    """The four forget probes have two refusals; the phrase makes "a tailor" one, and "I don't know." none."""
    phrases = tmp_path / "phrases.txt"
    phrases.write_text("a tailor\n! I don't know\nLisbon\n")
    assert evaluate.main([*arguments, "--refusal-phrases", f"{phrases}"]) == 0
    out = tmp_path / "out"
    results = read(out, "results.json")["base"]
    assert (results["forget/refusal_rate"], results["retain_unseen/refusal_rate"]) == (0.5, 1.0)
    assert list(tidy.read_responses(out)["refused"]) == [0, 0, 1, 1, 0, 1]
    assert read(out, "anchors.json")["always refuses, unnamed"]["forget/refusal_rate"] == 0.0
    told = hashlib.sha256(phrases.read_bytes()).hexdigest()
    assert read(out, "meta.json")["refusal_phrases"] == {"file": str(phrases), "sha256": told}


@pytest.mark.usefixtures("responding")
@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "phrases.txt: cannot be read (No such file or directory); give a text file of phrases"),
        ("no clue\n...\n", "phrases.txt, line 2: "),
    ],
)
def test_a_file_of_phrases_that_cannot_be_used(content, line, arguments, tmp_path, capsys):
    if content is not None:
        (tmp_path / "phrases.txt").write_text(content)
    before = sorted(tmp_path.rglob("*"))
    assert evaluate.main([*arguments, "--refusal-phrases", f"{tmp_path / 'phrases.txt'}"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: {tmp_path}/{line}")
    assert sorted(tmp_path.rglob("*")) == before
