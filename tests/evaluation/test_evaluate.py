"""`evaluate model` from its arguments to its folder; only what vLLM would answer is given."""

import hashlib
import json
from collections.abc import Sequence

import pytest

from recipe.rerule import evaluate
from recipe.rerule.evaluation import model_command, tidy
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Answer, Answers, Likelihood, Request
from recipe.rerule.evaluation.engine.run import EngineError
from recipe.rerule.runs import checkpoints
from tests.evaluation.conftest import REFERENCES, make_probe, write_probes

RESPONSES = (
    "Paris", "I don't know.", "I'm not certain about Ada Quill.", "a tailor", "a red kite", "Lisbon."
)  # fmt: skip


def responses(model: Model, requests: Sequence[Request]) -> Answers:
    """RESPONSES over and over, of "silent" nothing; every token of a likelihood has -0.1."""
    texts = ("",) if model.name == "silent" else RESPONSES
    measured = Answer(log_probs=(-0.1, -0.1))
    said = [Answer(texts[place % len(texts)]) for place in range(len(requests))]
    pairs = zip(requests, said, strict=True)
    return {one.id: measured if isinstance(one, Likelihood) else text for one, text in pairs}


@pytest.fixture
def evaluated(model_folder, probes_file, tmp_path, capsys, monkeypatch):
    """evaluated(*arguments, answers=function of a model and requests): exit code and stderr."""
    base = model_folder("base")
    given = ["model", "--model", f"base={base}", "--probes", probes_file, "--platform", "cpu"]

    def call(*more, answers=responses):
        def run(models, requests, *_):
            return {model.name: answers(model, requests) for model in models}

        monkeypatch.setattr(model_command, "run", run)
        monkeypatch.setattr(model_command, "select", lambda name: None)  # it would change the environment
        code = evaluate.main([*map(str, given), "--out", f"{tmp_path / 'out'}", *map(str, more)])
        return code, capsys.readouterr().err

    return call


@pytest.fixture
def read(tmp_path):
    """read(NAME): the content of out/NAME.json."""
    return lambda name: json.loads((tmp_path / "out" / f"{name}.json").read_text())


def test_checkpoints_are_asked_with_their_prefix_and_arguments(evaluated, read, model_folder, tmp_path):
    """Golden files have the numbers and the files of whole evaluations."""
    asked = []

    def note(model, requests):
        asked.append((model.name, model.prefix, dict(model.template)))
        return responses(model, requests)

    run = model_folder("run/global_step_7/actor/huggingface").parents[2]
    checkpoints.finish(run, 7)
    (tmp_path / "prefix.txt").write_text("Forget {target}.\n")
    more = ["--model", f"rule={run}", "--prefix", f"rule={tmp_path / 'prefix.txt'}"]
    assert evaluated(*more, "--template", "enable_thinking=false", answers=note)[0] == 0
    template, prefix = {"enable_thinking": False}, "Forget Ada Quill.\n"
    assert asked == [("base", "", template), ("rule", prefix, template)]
    path = f"{run}/global_step_7/actor/huggingface"
    assert read("meta")["models"] == {
        "base": {"path": f"{tmp_path / 'base'}", "global_step": None, "template": template},
        "rule": {"path": path, "global_step": 7, "template": template, "prefix": prefix},
    }


@pytest.mark.parametrize(("options", "compared"), [([], 3), (["--most-compared", "2"], 0)])
def test_many_models_are_not_compared(options, compared, evaluated, read, model_folder, tmp_path):
    own = [make_probe(n, "forget", "qa", ["Paris"], data_source="rerule/mine") for n in range(6)]
    models = [part for name in ("silent", "rule") for part in ("--model", f"{name}={model_folder(name)}")]
    file = write_probes(tmp_path / "own.parquet", own)
    assert evaluated("--probes", file, *models, *options)[0] == 0
    assert len({(test["a"], test["b"]) for test in read("comparisons")}) == compared


def test_a_failing_engine_ends_with_exit_code_1_and_writes_nothing(evaluated, tmp_path):
    def fail(model, requests):
        raise EngineError("model base: vLLM failed: no memory")

    before = sorted(tmp_path.rglob("*"))
    assert evaluated(answers=fail) == (1, "error: model base: vLLM failed: no memory\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_retained_models_log_of_other_questions_is_refused_first(evaluated, read, model_folder, tmp_path):
    """The log is one of our own, of a model whose name is no name of a folder."""
    own = [
        make_probe(n, section, "qa", ["Paris"], family=family, reference=REFERENCES[section])
        for n, (section, family) in enumerate((("forget", "forget"), ("retain_unseen", "real_authors")))
    ]
    tofu = ["--probes", write_probes(tmp_path / "tofu.parquet", own), "--benchmark", "tofu"]
    assert evaluated(*tofu, "--model", f"模型/é@1={model_folder('other')}")[0] == 0
    assert list(read("results")) == ["base", "模型/é@1"]
    _, log = (tmp_path / "out" / "logs").glob("*/TOFU_EVAL.json")
    content = json.loads(log.read_text())
    content["ra_Q_A_ROUGE"]["value_by_index"]["0"]["ground_truth"] = "Rome"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(content))
    given = [*tofu, "--overwrite", "--retain-log", other]
    assert evaluated(*given, answers=lambda *_: pytest.fail("a model was asked")) == (
        2,
        "error: --retain-log is of other questions: at index 0 of ra_Q_A_ROUGE the right answer is 'Paris' "
        f"in the probes and 'Rome' in {other}; evaluate both models on one split\n",
    )


def test_refusals_are_judged_with_the_users_phrases(evaluated, read, tmp_path):
    """The four forget probes have two refusals; the phrase makes "a tailor" one, and "I don't know." none."""
    phrases = tmp_path / "phrases.txt"
    phrases.write_text("a tailor\n! I don't know\nLisbon\n")
    assert evaluated("--refusal-phrases", phrases)[0] == 0
    assert list(tidy.read_responses(tmp_path / "out")["refused"]) == [0, 0, 1, 1, 0, 1]
    assert read("anchors")["always refuses, unnamed"]["forget/refusal_rate"] == 0.0
    told = hashlib.sha256(phrases.read_bytes()).hexdigest()
    assert read("meta")["refusal_phrases"] == {"file": str(phrases), "sha256": told}
