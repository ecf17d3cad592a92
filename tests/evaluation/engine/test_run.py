"""The engine process, stood in for by small scripts: what it is asked, what it says, and how it can fail.

Of the worker itself, what it says without vLLM; golden files and e2e tests have its answers.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation.engine import run as module
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Answer, Generation, Likelihood, PromptText, Request
from recipe.rerule.evaluation.engine.run import Decoding, EngineError, run, run_each
from recipe.rerule.evaluation.engine.worker import main as worker_main
from tests.made_tokenizers import CHATML_TEMPLATE, byte_level

CPU = Decoding("cpu")
TOKENIZER = byte_level(CHATML_TEMPLATE)
# Continues each request with "<folder of the model>:<its token ids>", and measures -0.5 and rank 2 a token;
# the last request first. Its job is kept in jobs.jsonl beside it.
ECHO = """
import json, os, sys
job = json.load(open(sys.argv[1]))
with open(os.path.join(os.path.dirname(__file__), "jobs.jsonl"), "a") as file:
    print(json.dumps(job), file=file)
print("noise", file=sys.stderr)
for place, model in enumerate(job["models"]):
    name = os.path.basename(model["path"])
    for number in reversed(model["ask"]):
        request = job["requests"][number]
        answer = {"text": f"{name}:{request['ids']}"}
        if request["answer_start"] is not None:
            count = len(request["ids"]) - request["answer_start"]
            answer = {"log_probs": [-0.5] * count, "ranks": [2] * count}
        print(json.dumps({"model": place, "answers": [{"request": number, **answer}]}), flush=True)
"""


def request(number: int, raw: bool = False) -> Generation:
    prompt = PromptText(({"role": "user", "content": f"Who wrote it {number}?"},), raw)
    return Generation(f"r{number}", prompt, 4 + number, ("\n",))


MEASURED = Likelihood("measured", PromptText(({"role": "user", "content": "Who?"},)), "it")
REQUESTS: list[Request] = [request(0), request(1, raw=True), MEASURED, request(3)]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """worker(script): run `script` in place of the vLLM worker."""

    def use(script: str) -> None:
        (tmp_path / "worker.py").write_text(script)
        monkeypatch.setattr(module, "WORKER_COMMAND", (sys.executable, str(tmp_path / "worker.py")))

    return use


@pytest.fixture
def jobs(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """jobs(): those of ECHO since the last call."""
    file = tmp_path / "jobs.jsonl"

    def take() -> list[dict[str, Any]]:
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    return take


def asked(jobs: list[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    """The models of the jobs, and the numbers of what each was asked."""
    return [(Path(one["path"]).name, one["ask"]) for job in jobs for one in job["models"]]


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


def expected(model: str, names: Sequence[str] = ("r0", "r1", "measured", "r3")) -> dict[str, Answer]:
    """What ECHO answers to REQUESTS of these names."""
    texts = {name: ids(f"Who wrote it {name[1:]}?", raw=name == "r1") for name in ("r0", "r1", "r3")}
    answers = {name: Answer(f"{model}:{text}") for name, text in texts.items()}
    # "it" and the end of the turn; the newline behind is not measured
    answers["measured"] = Answer(log_probs=(-0.5, -0.5), ranks=(2, 2))
    return {name: answers[name] for name in names}


def test_what_the_worker_is_told(worker, models, jobs, tmp_path):
    worker(ECHO)
    run([models[0], models[2]], REQUESTS[:3], CPU, tmp_path / "kept")
    (job,) = jobs()
    measured = [*ids("Who?"), *TOKENIZER("it<|eot|>", add_special_tokens=False).input_ids]
    first, second = ids("Who wrote it 0?"), ids("Who wrote it 1?", raw=True)
    assert job["models"] == [{"path": str(one.path), "ask": [0, 1, 2]} for one in (models[0], models[2])]
    told = [[one[name] for name in ("ids", "answer_start", "max_tokens", "stop")] for one in job["requests"]]
    assert told == [[first, None, 4, ["\n"]], [second, None, 5, ["\n"]], [measured, len(ids("Who?")), 1, []]]
    assert job["max_model_len"] == len(first) + 4
    of_cpu = {"enforce_eager": True, "enable_prefix_caching": False}
    assert job["engine"] == {"dtype": "float32", "tensor_parallel_size": 1, **of_cpu}


def test_only_what_is_missing_is_asked(worker, models, jobs, tmp_path):
    """Requests alike are asked once."""
    worker(ECHO)
    store = tmp_path / "out.partial"
    twice = run(models[:1], [*REQUESTS[:2], replace(request(0), id="again")], CPU, store)["a"]
    assert twice["r0"] == twice["again"] == expected("a")["r0"]
    assert asked(jobs()) == [("a", [0, 1])]
    assert run(models, REQUESTS, CPU, store) == {name: expected(name) for name in ("a", "b", "c")}
    assert asked(jobs()) == [("a", [2, 3]), ("c", [0, 1, 2, 3]), ("b", [0, 1, 2, 3])]
    worker("an engine that must not start")
    assert run(models, REQUESTS, CPU, store) == {name: expected(name) for name in ("a", "b", "c")}


def test_each_model_is_asked_its_own_requests_in_one_job(worker, models, jobs, tmp_path):
    """a and c share an engine; c is asked less, and in another order; b is asked by an engine of its own."""
    worker(ECHO)
    few = [REQUESTS[3], REQUESTS[0]]
    asked_of = [(models[0], REQUESTS), (models[2], few), (models[1], few)]
    found = run_each(asked_of, CPU, tmp_path / "kept")
    assert found == {"a": expected("a"), **{name: expected(name, ["r3", "r0"]) for name in "cb"}}
    assert [*map(list, (found, found["c"]))] == [["a", "c", "b"], ["r3", "r0"]]
    told = [[(name, sorted(ask)) for name, ask in asked([job])] for job in jobs()]
    assert told == [[("a", [0, 1, 2, 3]), ("c", [0, 3])], [("b", [0, 3])]]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", r"exit code -9 \(SIGKILL\), as"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("""print('{"error": "no weights"}', flush=True); import time; time.sleep(60)""", "no weights"),
        ("""print('{"model": 0, "answers": []}\\n{"answ', end='')""", "exit code 0"),
    ],
)
def test_a_failing_worker_ends_with_its_reason_at_once(worker, models, script, reason, tmp_path):
    worker(script)
    start = time.monotonic()
    with pytest.raises(EngineError, match=f"model a: vLLM failed: .*{reason}"):
        run(models[:1], REQUESTS[:1], CPU, tmp_path / "kept")
    assert time.monotonic() - start < 20


def test_the_model_that_failed_is_named_and_the_log_shown(worker, models, tmp_path, capfd):
    failing = '    if name == "b": sys.exit("out of memory")\n'
    worker(ECHO.replace("    for number in rev", failing + "    for number in rev"))
    with pytest.raises(EngineError, match="model b: "):
        run(models, REQUESTS, CPU, tmp_path / "kept")
    assert "out of memory" in capfd.readouterr().err
    worker(ECHO.replace("[-0.5]", "[-float('nan')]"))
    with pytest.raises(EngineError, match="model a: request measured: a log-likelihood is not finite"):
        run(models, REQUESTS, CPU, tmp_path / "out.partial")
    worker(ECHO)
    assert run(models, REQUESTS, CPU, tmp_path / "out.partial")["a"] == expected("a")


def test_nothing_starts_where_a_request_of_any_model_cannot_be_asked(worker, models, jobs, tmp_path):
    worker(ECHO)
    others = [(models[0], [request(0)]), (models[2], [replace(request(0), max_tokens=9)])]
    with pytest.raises(ValueError, match="request r0: two different requests have this id"):
        run_each(others, CPU, tmp_path / "kept")
    (models[1].path / "config.json").write_text(json.dumps({"max_position_embeddings": 40}))
    with pytest.raises(ValueError, match=r"request r0: 44 tokens and 4 new ones .* model b, 40 tokens"):
        run(models, REQUESTS, CPU, tmp_path / "kept")
    assert jobs() == []
    assert not (tmp_path / "kept").exists()


def test_one_dtype_for_all_models_gpus_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never "auto", which is each model's own: a stage-2 folder's and a base model's may differ."""
    assert Decoding("gpu", "float16").engine_arguments["dtype"] == "float16"
    expected = {"dtype": "bfloat16", "tensor_parallel_size": 4, "gpu_memory_utilization": 0.8}
    expected["enforce_eager"] = True
    assert Decoding("gpu", None, 4, 0.8).engine_arguments == expected
    assert not Decoding("gpu", cuda_graphs=True).engine_arguments["enforce_eager"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 4, 9})
    assert Decoding("cpu").environment["OMP_NUM_THREADS"] == "3"


def test_engines_share_the_questions_each_on_gpus_of_its_own(worker, models, jobs, monkeypatch, tmp_path):
    """Three engines of one GPU each; a and c share them. Of two questions the third engine has none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    worker(ECHO.replace("dumps(job)", "dumps(job | {'gpu': os.environ['CUDA_VISIBLE_DEVICES']})"))
    both = [models[0], models[2]]
    found = run(both, REQUESTS, Decoding("gpu", engines=3), tmp_path / "kept")
    assert found == {"a": expected("a"), "c": expected("c")}
    shares = [("4", [0, 3]), ("5", [1]), ("6", [2])]
    told = sorted(jobs(), key=lambda job: job["gpu"])
    wanted = [(gpu, [("a", ask), ("c", ask)]) for gpu, ask in shares]
    assert [(job["gpu"], asked([job])) for job in told] == wanted
    run(models[:1], REQUESTS[:2], Decoding("gpu", engines=3), tmp_path / "other")
    assert sorted(job["gpu"] for job in jobs()) == ["4", "5"]
    with pytest.raises(ValueError, match=r"2 GPUs each .*, but 4 are here"):
        Decoding("gpu", engines=3, tensor_parallel_size=2)


def test_the_engine_of_several_that_fails_is_the_reason(worker, models, monkeypatch, capfd, tmp_path):
    """The others wait for a minute, and are ended."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    worker(
        "import os, sys, time\n"
        "if os.environ['CUDA_VISIBLE_DEVICES'] == '0': time.sleep(60)\n"
        "sys.exit('no room on this GPU')"
    )
    start = time.monotonic()
    with pytest.raises(EngineError, match=r"model a: vLLM failed: .*exit code 1"):
        run(models[:1], REQUESTS, Decoding("gpu", engines=2), tmp_path / "kept")
    assert time.monotonic() - start < 20
    assert "no room on this GPU" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("graphs", "wanted"), [(False, {"ac": False, "b": True}), (True, {"a": True, "b": True, "c": True})]
)
def test_prefixes_are_kept_where_an_engine_has_one_model(worker, models, jobs, tmp_path, graphs, wanted):
    """The keys and values of a's weights would be wrong for c. With captured graphs none share an engine."""
    worker(ECHO)
    run(models, REQUESTS, Decoding("gpu", cuda_graphs=graphs), tmp_path / "kept")
    told = {"".join(name for name, _ in asked([job])): job["engine"] for job in jobs()}
    assert {names: engine["enable_prefix_caching"] for names, engine in told.items()} == wanted
    assert {engine["enforce_eager"] for engine in told.values()} == {not graphs}


def start(job: Path) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", worker_main.__module__, str(job)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


def test_an_error_is_the_only_thing_on_standard_output(tmp_path: Path):
    """A job that cannot be read fails before vLLM is imported."""
    (tmp_path / "job.json").write_text("{")
    with start(tmp_path / "job.json") as started:
        assert started.wait(60) == 1
        said = started.stdout.read()
        assert said.startswith(b'{"error": "JSONDecodeError: ')
        assert said.count(b"\n") == 1
        assert b"Traceback" in started.stderr.read()


def test_it_ends_with_its_standard_input(tmp_path: Path):
    """A job that nobody writes keeps it waiting for ever otherwise."""
    os.mkfifo(tmp_path / "job.json")
    with start(tmp_path / "job.json") as started:
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(1)
        started.stdin.close()
        assert started.wait(60) == 1
