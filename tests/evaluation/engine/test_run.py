"""The engine process, stood in for by small scripts: what it is asked, what it says, and how it can fail."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from recipe.rerule.evaluation.engine import run as module
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import (
    Answer,
    Generation,
    Likelihood,
    PromptText,
    Request,
    Sampling,
)
from recipe.rerule.evaluation.engine.run import Decoding, EngineError, run, run_each
from tests.made_tokenizers import CHATML_TEMPLATE, byte_level

CPU, GPU = Decoding("cpu"), Decoding("gpu")
TOKENIZER = byte_level(CHATML_TEMPLATE)
# Continues each request with "<folder of the model>:<its token ids>" or, as sample i, "<seed plus i>"; and
# measures -0.5 and rank 2 a token; the last request first. What it is asked is kept in asked.jsonl beside it,
# a line a model.
ECHO = """
import json, os, sys
job = json.load(open(sys.argv[1]))
print("noise", file=sys.stderr)
def reply(number, name):
    request = job["requests"][number]
    start = request["answer_start"]
    if start is not None:
        count = len(request["ids"]) - start
        return {"request": number, "log_probs": [-0.5] * count, "ranks": [2] * count}
    if sampling := request["sampling"]:
        return {"request": number, "samples": [str(sampling["seed"] + i) for i in range(sampling["samples"])]}
    return {"request": number, "text": f"{name}:{request['ids']}"}
def send(event):
    print(json.dumps(event), flush=True)
for model in job["models"]:
    name = os.path.basename(model["path"])
    with open(os.path.join(os.path.dirname(__file__), "asked.jsonl"), "a") as file:
        print(json.dumps([name, model["ask"]]), file=file)
    for number in reversed(model["ask"]):
        send({"answers": [reply(number, name)]})
"""


def request(number: int, raw: bool = False) -> Generation:
    prompt = PromptText(({"role": "user", "content": f"Who wrote it {number}?"},), raw)
    return Generation(f"r{number}", prompt, 4 + number, ("\n",))


REQUESTS: list[Request] = [
    request(0),
    request(1, raw=True),
    Likelihood("measured", PromptText(({"role": "user", "content": "Who?"},)), "it"),
    request(3),
]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """worker(script): run `script` in place of the vLLM worker."""

    def use(script: str) -> None:
        (tmp_path / "worker.py").write_text(script)
        monkeypatch.setattr(module, "WORKER_COMMAND", (sys.executable, str(tmp_path / "worker.py")))

    return use


@pytest.fixture
def asked(tmp_path: Path) -> Callable[[], list[list]]:
    """asked(): what ECHO was asked since the last call, [model, numbers of requests] each."""
    file = tmp_path / "asked.jsonl"

    def take() -> list[list]:
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    return take


@pytest.fixture
def models(model_folder) -> list[Model]:
    """a and c can share an engine, b cannot."""
    folders = {name: model_folder(name) for name in ("a", "b", "c")}
    for folder in folders.values():
        TOKENIZER.save_pretrained(folder)
    (folders["b"] / "config.json").write_text(json.dumps({"hidden_size": 16}))
    return [Model(name, folder) for name, folder in folders.items()]


def ids(text: str, raw: bool = False) -> list[int]:
    if not raw:
        text = f"<|head|>system\nBe brief.<|eot|>\n<|head|>user\n{text}<|eot|>\n<|head|>assistant\n"
    return TOKENIZER(text, add_special_tokens=raw).input_ids


def expected(model: str) -> dict[str, Answer]:
    """What ECHO answers to REQUESTS."""
    texts = {0: False, 1: True, 3: False}
    answers = {
        f"r{number}": Answer(f"{model}:{ids(f'Who wrote it {number}?', raw)}")
        for number, raw in texts.items()
    }
    # "it" and the end of the turn; the newline behind is not measured
    answers["measured"] = Answer(log_probs=(-0.5, -0.5), ranks=(2, 2))
    return {name: answers[name] for name in ("r0", "r1", "measured", "r3")}


def test_answers_come_by_model_and_request_in_the_order_given(worker, models, asked):
    """Models share engines on the CPU only."""
    worker(ECHO)
    for decoding, order in ((CPU, ["a", "c", "b"]), (GPU, ["a", "c", "b"])):
        answers = run(models, REQUESTS, decoding)
        assert answers == {name: expected(name) for name in ("a", "b", "c")}
        assert list(answers) == ["a", "b", "c"]
        assert list(answers["c"]) == ["r0", "r1", "measured", "r3"]
        assert [name for name, _ in asked()] == order


def test_what_the_worker_is_told(worker, models):
    worker(
        ECHO.replace('print("noise"', 'open(__file__ + ".job", "w").write(json.dumps(job)); print("noise"')
    )
    run([models[0], models[2]], REQUESTS[:3], CPU)
    job = json.loads(Path(module.WORKER_COMMAND[1] + ".job").read_text())
    measured = [*ids("Who?"), *TOKENIZER("it<|eot|>", add_special_tokens=False).input_ids]
    first, second = ids("Who wrote it 0?"), ids("Who wrote it 1?", raw=True)
    assert job == {
        "models": [{"path": str(model.path), "ask": [0, 1, 2]} for model in (models[0], models[2])],
        "requests": [
            {"ids": first, "answer_start": None, "max_tokens": 4, "stop": ["\n"], "sampling": None},
            {"ids": second, "answer_start": None, "max_tokens": 5, "stop": ["\n"], "sampling": None},
            {
                "ids": measured,
                "answer_start": len(ids("Who?")),
                "max_tokens": 1,
                "stop": [],
                "sampling": None,
            },
        ],
        "max_model_len": len(first) + 4,
        "engine": {"dtype": "float32", "tensor_parallel_size": 1},
    }


def test_requests_alike_are_asked_once(worker, models, asked):
    worker(ECHO)
    answers = run(models[:1], [request(0), replace(request(0), id="again")], CPU)["a"]
    assert asked() == [["a", [0]]]
    assert answers["r0"] == answers["again"] == expected("a")["r0"]


def test_only_what_is_missing_is_asked(worker, models, asked, tmp_path):
    worker(ECHO)
    store = tmp_path / "out.partial"
    run(models[:1], REQUESTS[:2], CPU, store)
    assert asked() == [["a", [0, 1]]]
    assert run(models, REQUESTS, CPU, store) == {name: expected(name) for name in ("a", "b", "c")}
    assert asked() == [["a", [2, 3]], ["c", [0, 1, 2, 3]], ["b", [0, 1, 2, 3]]]
    worker("an engine that must not start")
    assert run(models, REQUESTS, CPU, store) == {name: expected(name) for name in ("a", "b", "c")}


def test_samples_are_kept_and_counted_as_answers(worker, models, asked, tmp_path, capfd):
    worker(ECHO)
    store, greedy = tmp_path / "out.partial", request(0)
    sampled = replace(greedy, id="sampled", sampling=Sampling(3, 0.7, seed=4))
    answers = run(models[:1], [greedy, sampled], CPU, store)["a"]
    assert "4/4 [" in capfd.readouterr().err
    assert answers["r0"] == expected("a")["r0"]
    first, *others = map(int, answers["sampled"].samples)
    assert others == [first + 1, first + 2]
    assert answers["sampled"].text == ""
    again = [replace(sampled, id="again"), replace(sampled, sampling=Sampling(2, 0.7, seed=4))]
    assert asked() == [["a", [0, 1]]]
    assert run(models[:1], again, CPU, store)["a"]["again"] == answers["sampled"]
    assert asked() == [["a", [1]]]  # for another number of samples


@pytest.mark.parametrize("change", ["weights", "platform", "limit", "stop", "prompt", "template"])
def test_an_answer_to_something_else_is_never_taken(change, worker, models, asked, tmp_path):
    worker(ECHO)
    store, model, asking, decoding = tmp_path / "out.partial", models[0], request(0), CPU
    run([model], [asking], decoding, store)
    asked()
    if change == "weights":
        (model.path / "model.safetensors").write_text("others")
    elif change == "template":
        byte_level(CHATML_TEMPLATE.replace("brief", "kind")).save_pretrained(model.path)
    elif change == "platform":
        decoding = GPU
    else:
        other = {"limit": {"max_tokens": 9}, "stop": {"stop": ()}, "prompt": {"prompt": request(5).prompt}}
        asking = replace(asking, **other[change])
    run([model], [asking], decoding, store)
    assert asked() == [["a", [0]]]


FAULTS = [
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", r"exit code -9 \(SIGKILL\), as"),
    ("import sys; sys.exit(3)", "exit code 3"),
    (
        """print('{"error": "ValueError: no weights"}', flush=True); import time; time.sleep(60)""",
        "no weights",
    ),
    ("""print('{"answers": []}\\n{"answ', end='')""", "exit code 0"),
]


@pytest.mark.parametrize(("script", "reason"), FAULTS)
def test_a_failing_worker_ends_with_its_reason_at_once(worker, models, script, reason):
    worker(script)
    start = time.monotonic()
    with pytest.raises(EngineError, match=f"model a: vLLM failed: .*{reason}"):
        run(models, REQUESTS, CPU)
    assert time.monotonic() - start < 20


def test_the_model_that_failed_is_named_and_the_log_shown(worker, models, capfd):
    failing = '    if name == "b": sys.exit("out of memory")\n'
    worker(ECHO.replace("    for number in rev", failing + "    for number in rev", 1))
    with pytest.raises(EngineError, match="model b: "):
        run(models, REQUESTS, CPU)
    assert "out of memory" in capfd.readouterr().err


def test_a_likelihood_that_is_no_number_is_an_error(worker, models, tmp_path):
    worker(ECHO.replace("[-0.5]", "[-float('nan')]"))
    with pytest.raises(EngineError, match="model a: request measured: a log-likelihood is not finite"):
        run(models, REQUESTS, CPU, tmp_path / "out.partial")
    worker(ECHO)
    assert run(models, REQUESTS, CPU, tmp_path / "out.partial")["a"] == expected("a")


def test_nothing_starts_where_a_request_of_any_model_cannot_be_asked(worker, models, asked):
    worker(ECHO)
    (models[1].path / "config.json").write_text(json.dumps({"max_position_embeddings": 40}))
    with pytest.raises(ValueError, match=r"request r0: 44 tokens and 4 new ones .* model b, 40 tokens"):
        run(models, REQUESTS, CPU)
    assert asked() == []


def test_killed_and_started_again_it_asks_only_what_is_missing(worker, models, asked, tmp_path):
    """The whole process is killed while the third answer of five is awaited."""
    requests, store = [request(number) for number in range(5)], tmp_path / "out.partial"
    worker(ECHO.replace("send({", 'number == 2 and __import__("time").sleep(60)\n        send({'))
    first = multiprocessing.get_context("fork").Process(target=run, args=(models[:1], requests, CPU, store))
    first.start()
    wait_for_lines(first, store / "a.jsonl", 3)
    first.kill()
    first.join()
    asked()
    worker(ECHO)
    answers = run(models[:1], requests, CPU, store)["a"]
    assert asked() == [["a", [0, 1, 2]]]
    assert [answer.text for answer in answers.values()] == [
        f"a:{ids(f'Who wrote it {number}?')}" for number in range(5)
    ]


def wait_for_lines(process: BaseProcess, file: Path, count: int) -> None:
    while not file.exists() or file.read_text().count("\n") < count:
        assert process.is_alive()
        time.sleep(0.05)


def test_each_model_is_asked_its_own_requests_in_one_job(worker, models, asked):
    """a and c share an engine; c is asked less, and in another order; b is asked by an engine of its own."""
    worker(ECHO)
    few = [REQUESTS[3], REQUESTS[0]]
    found = run_each([(models[0], REQUESTS), (models[2], few), (models[1], few)], CPU)
    assert found == {
        "a": expected("a"),
        "c": {name: expected("c")[name] for name in ("r3", "r0")},
        "b": {name: expected("b")[name] for name in ("r3", "r0")},
    }
    assert list(found["c"]) == ["r3", "r0"]
    told = {name: sorted(numbers) for name, numbers in asked()}
    assert told == {"a": [0, 1, 2, 3], "c": [0, 3], "b": [0, 3]}


def test_requests_with_one_id_are_one_request(models):
    other = replace(request(0), max_tokens=9)
    with pytest.raises(ValueError, match="request r0: two different requests have this id"):
        run_each([(models[0], [request(0)]), (models[2], [other])], CPU)
    with pytest.raises(ValueError, match="request r0: 2 requests have this id"):
        run_each([(models[0], [request(0)]), (models[2], [request(0), request(0)])], CPU)
