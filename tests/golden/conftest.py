"""Golden files are computed on one thread; people, evaluations and attacks are made once for all tests."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep.world.model import one_thread
from tests.data_prep.generate.server import ChatServer, say
from tests.golden.commands import Ran, done
from tests.golden.evaluation_inputs import judge_by_length, put_answering_models, put_logs, put_rows
from tests.golden.inputs import put_attacked

MODELS = "--platform cpu --model base=models/base --model rule=models/rule"
RWKU = "rwku/1_Ada_Thorn/probes.parquet"
EVALUATIONS = {
    "world": f"--probes world/probes.parquet {MODELS} --model icu=models/base --prefix icu",
    "custom": f"--probes custom/probes.parquet {MODELS}",
    "tofu": f"--probes tofu/probes.parquet {MODELS} --retain-log tofu_retain_20.json",
    "rwku": f"--probes {RWKU} {MODELS} --texts raw/rwku/1_Ada_Thorn",
    "muse-books": f"--probes muse-books/probes.parquet {MODELS}",
    "muse-news": f"--probes muse-news/probes.parquet {MODELS} --texts raw/muse-news/privleak",
}
"""Words of `evaluate model`, but for --out, which is results/NAME."""
ATTACK = (
    "evaluate attack --platform cpu --probes data/probes.parquet --train data/train.parquet "
    "--model original=models/original --model refusing=models/refusing"
)
CONTROL = f"{ATTACK} --control models/control"


@pytest.fixture(autouse=True, scope="package")
def threads() -> Iterator[None]:
    """The order of a sum, and so its last digits, depends on the number of threads."""
    gc.disable()  # a search through all that the commands import takes longer than many of them
    with one_thread():
        yield
    gc.enable()


@pytest.fixture(scope="package")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `put_attacked`."""
    return put_attacked(tmp_path_factory.mktemp("people"))


@pytest.fixture(scope="package")
def evaluation_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, models that answer from a list, and logs."""
    folder = tmp_path_factory.mktemp("evaluation")
    put_rows(folder)
    put_answering_models(folder)
    put_logs(folder)
    return folder


@pytest.fixture(scope="package")
def evaluated(evaluation_work: Path) -> dict[str, Ran]:
    """How the commands of EVALUATIONS ended."""
    return {
        name: done(f"evaluate model {words} --out results/{name}", evaluation_work)
        for name, words in EVALUATIONS.items()
    }


@pytest.fixture(scope="package")
def judged(evaluation_work: Path, evaluated: dict[str, Ran]) -> Ran:
    """The responses of results/custom, scored by a judge; the folder is `naturalness`."""
    server = ChatServer(lambda number, call: say(judge_by_length(call.prompt)))
    with pytest.MonkeyPatch.context() as patch, server:
        patch.setenv("OPENAI_API_KEY", "none")
        return done(
            f"evaluate judge --results results/custom --sections forget retain --base-url {server.url} "
            "--judge-model tiny --cache judged --out naturalness",
            evaluation_work,
        )


@pytest.fixture(scope="package")
def attacked(people: Path) -> Ran:
    """All attacks of one command, into the folder `attacks`; the last two are not made by default."""
    return done(f"{CONTROL} --max-tokens 6 --attacks default quantise_3 relearn_wrong --out attacks", people)
