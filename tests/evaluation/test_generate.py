"""The engine process, stood in for by small scripts: what it says, and how it can fail."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.rerule.evaluation import generate as module
from recipe.rerule.evaluation.generate import Decoding, EngineError, engine_groups, generate
from recipe.rerule.evaluation.models import Model

CPU, GPU = Decoding("cpu", 8), Decoding("gpu", 8)
# Answers each prompt with "<folder of the model>:<content of the last message>".
ECHO = """
import json, os, sys
job = json.load(open(sys.argv[1]))
print("noise", file=sys.stderr)
for path in job["models"]:
    for _ in job["prompts"]:
        print(json.dumps({"done": 1}))
    texts = [os.path.basename(path) + ":" + prompt["messages"][-1]["content"] for prompt in job["prompts"]]
    print(json.dumps({"responses": texts}), flush=True)
"""


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """worker(script): run `script` in place of the vLLM worker."""

    def use(script: str) -> None:
        (tmp_path / "worker.py").write_text(script)
        monkeypatch.setattr(module, "WORKER_COMMAND", (sys.executable, str(tmp_path / "worker.py")))

    return use


@pytest.fixture
def models(model_folder) -> list[Model]:
    """a and c can share an engine, b cannot."""
    wide = json.dumps({"hidden_size": 16})
    files = {"tokenizer.json": "{}"}
    return [
        Model("a", model_folder("a", **files)),
        Model("b", model_folder("b", **(files | {"config.json": wide}))),
        Model("c", model_folder("c", **files)),
    ]


def test_models_share_engines_on_cpu_only(models):
    def names(groups):
        return [[model.name for model in group] for group in groups]

    assert names(engine_groups(models, CPU)) == [["a", "c"], ["b"]]
    assert names(engine_groups(models, GPU)) == [["a"], ["b"], ["c"]]


def test_responses_come_by_model_in_the_order_given(worker, models, probes):
    worker(ECHO)
    responses = generate(models, probes[:2], CPU)
    assert list(responses.items()) == [
        (name, [f"{name}:Question 0?", f"{name}:Question 1?"]) for name in ("a", "b", "c")
    ]


def test_the_worker_is_told_which_prompts_are_raw(worker, models, probes):
    worker(ECHO.replace("""os.path.basename(path) + ":" + prompt""", "json.dumps(job) + prompt"))
    (response, _) = generate(models[:1], probes[-2:], Decoding("cpu", 8))["a"]
    job, _ = json.JSONDecoder().raw_decode(response)
    assert job == {
        "models": [str(models[0].path.resolve())],
        "prompts": [
            {"messages": [{"role": "user", "content": "Question 4?"}], "raw": False},
            {"messages": [{"role": "user", "content": "Question 5?"}], "raw": True},
        ],
        "raw_stop": ["\n"],
        "max_tokens": 8,
        "dtype": "float32",
    }


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit code -9"),
        ("import sys; sys.exit(3)", "exit code 3"),
        (
            """print('{"error": "ValueError: no weights"}', flush=True); import time; time.sleep(60)""",
            "no weights",
        ),
        ("""print('{"done": 1}\\n{"respon', end='')""", "exit code 0"),
    ],
)
def test_a_failing_worker_ends_with_its_reason_at_once(worker, models, probes, script, reason):
    worker(script)
    start = time.monotonic()
    with pytest.raises(EngineError, match=f"model a: vLLM failed: .*{reason}"):
        generate(models, probes, CPU)
    assert time.monotonic() - start < 20


def test_the_model_that_failed_is_named_and_the_log_shown(worker, models, probes, capfd):
    failing = 'if job["models"][0][-1] == "b": sys.exit("out of memory")\n'
    worker(ECHO.replace("for path in", failing + "for path in", 1))
    with pytest.raises(EngineError, match="model b: "):
        generate(models, probes, CPU)
    assert "out of memory" in capfd.readouterr().err


def test_a_worker_that_never_ends_is_ended_after_its_last_response(worker, models, probes):
    worker(ECHO + "\nimport time; time.sleep(60)")
    start = time.monotonic()
    generate(models[:1], probes, CPU)
    assert time.monotonic() - start < 20
