"""A benchmark of another package, from its rows to the report; and packages that cannot be used."""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from data_prep.world.config import WorldConfig
from data_prep.world.splits import make_world
from recipe.rerule import evaluate, report
from recipe.rerule.evaluation import model_command, registry
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Answer, Answers, Request
from recipe.rerule.preflight import checks
from reward import RewardConfig
from reward.score import benchmark_reward
from tests.made_models import put_model
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level
from tests.refused.configurations import small

OUTSIDE = Path(__file__).parent / "outside"
BUILT_IN = ["world", "custom", "rwku", "muse_books", "muse_news", "tofu", "over_refusal"]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """fresh(folder): the packages in the folder are found, as if installed."""
    known = set(sys.modules)

    def install(folder: Path) -> None:
        monkeypatch.syspath_prepend(folder)
        importlib.invalidate_caches()
        registry.benchmarks.cache_clear()

    yield install
    registry.benchmarks.cache_clear()
    for name in set(sys.modules) - known:
        if name.split(".")[0] in ("capitals", "bad"):
            del sys.modules[name]


@pytest.fixture
def capitals(fresh: Callable[[Path], None]) -> Any:
    """The toy's module of rows."""
    fresh(OUTSIDE)
    return importlib.import_module("capitals.rows")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Folders base and rule."""
    for name in ("base", "rule"):
        folder = put_model(tmp_path / name)
        byte_level(LLAMA3_TEMPLATE).save_pretrained(folder)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("model", "capitals: whether the case of letters counts (100 %)"),
        ("score", "--benchmark capitals"),
    ],
)
def test_help_shows_it(capitals: Any, command: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate.main([command, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "over_refusal,capitals}" in told
    assert shown in told


def test_its_rows_pass_the_checks_of_stage_2(capitals: Any, models: Path) -> None:
    capitals.write(models / "rows")
    config = small("stage2", f"actor_rollout_ref.model.path={models}/base")
    config.trainer.default_local_dir = str(models / "run")
    config.data.train_files = str(models / "rows/train.parquet")
    config.data.val_files = str(models / "rows/val.parquet")
    checks.require(checks.findings(checks.stage2, config))
    assert benchmark_reward("rerule/capitals") == RewardConfig()
    config.data.train_files = str(models / "rows/probes.parquet")
    with pytest.raises(ValueError, match="must not be trained on"):
        checks.require(checks.findings(checks.stage2, config))


def answers_of(name: str, requests: Sequence[Request]) -> Answers:
    """ "base" knows all, "rule" says "PARIS" to everything."""
    cities = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Peru": "Lima"}

    def city(request: Request) -> str:
        text = request.prompt.messages[0]["content"]
        return next(city for country, city in cities.items() if country in text)

    return {one.id: Answer("PARIS" if name == "rule" else f"It is {city(one)}.") for one in requests}


@pytest.fixture
def evaluated(capitals: Any, models: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """evaluated(name, *arguments): the folder of an evaluation of both models, as vLLM might answer."""
    capitals.write(models / "rows")
    monkeypatch.setattr(model_command, "select", lambda name: None)

    def run(asked: Sequence[Model], requests: Sequence[Request], *_: Any) -> Mapping[str, Answers]:
        return {model.name: answers_of(model.name, requests) for model in asked}

    monkeypatch.setattr(model_command, "run", run)

    def call(name: str, *arguments: str) -> Path:
        given = ["--model", f"base={models}/base", "--model", f"rule={models}/rule", "--platform", "cpu"]
        probes = ["--probes", f"{models}/rows/probes.parquet", "--out", f"{models}/{name}"]
        assert evaluate.main(["model", *given, *probes, *arguments]) == 0
        return models / name

    return call


def test_evaluate_and_score_know_it_and_its_option(
    evaluated: Callable[..., Path], models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = evaluated("evaluation")
    printed = capsys.readouterr().out
    assert printed.startswith("Capitals\n")
    assert "known: share of the answers that contain the capital" in printed
    meta = json.loads((folder / "meta.json").read_text())
    assert (meta["benchmark"], meta["benchmark_settings"]) == ("capitals", {"case": "any"})
    # Two questions each about five countries, of which one is to be forgotten: too few facts for intervals.
    assert (meta["probes"]["rows"]["retain"], meta["probes"]["facts"]["retain"]) == (8, 4)
    assert json.loads((folder / "intervals.json").read_text())["base"] == {}
    rule = {"known/forget": 1.0, "known/retain": 0.0}
    results, anchors = (json.loads((folder / f"{name}.json").read_text()) for name in ("results", "anchors"))
    assert results == {"base": {"known/forget": 1.0, "known/retain": 1.0}, "rule": rule}
    assert anchors == {"always Paris": rule}
    log = ["--log", f"{folder / 'responses.parquet'}"]
    assert evaluate.main(["score", "--benchmark", "capitals", "--model", "rule", *log, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == rule
    exact = evaluated("exact", "--capitals-case", "exact")
    assert json.loads((exact / "results.json").read_text())["rule"]["known/forget"] == 0.0
    given = ["--model", f"base={models}/base", "--probes", f"{models}/rows/probes.parquet"]
    foreign = ["--benchmark", "world", "--capitals-case", "any", "--out", f"{models}/none"]
    assert evaluate.main(["model", *given, *foreign]) == 2
    assert "--capitals-case is an option of capitals, and the probes are of world" in capsys.readouterr().err


def test_the_report_shows_its_columns_figures_and_scatter(
    evaluated: Callable[..., Path], models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = evaluated("evaluation")
    assert report.main(["--results", str(folder), "--out", f"{models}/page"]) == 0
    page = (models / "page" / "report.md").read_text()
    assert "## Capitals" in page
    assert "guessing (an atlas, single run)" in page
    assert "0.5" in page
    assert "always Paris" in page
    assert (models / "page" / "report" / "results_capitals.csv").is_file()
    assert list((models / "page" / "report").glob("forget_retain_capitals*.png"))
    results = {"base": {"known/forget": 57.0}}
    (folder / "results.json").write_text(json.dumps(results))
    assert report.main(["--results", str(folder), "--out", f"{models}/other"]) == 2
    assert "known/forget is 57, outside 0 to 1" in capsys.readouterr().err.replace(" of base", "")


def put_package(folder: Path, code: str) -> Path:
    """A package `bad` that registers the BENCHMARK of its code."""
    info = folder / "bad-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[rerule.benchmarks]\nworse = bad:BENCHMARK\n")
    (folder / "bad.py").write_text(code)
    return folder


DECLARED = """
from recipe.rerule.evaluation.registry import Benchmark, Option
class Bad(Benchmark):
    name, title = "bad", "Bad"
def declared(**fields):
    made = Bad()
    vars(made).update(fields)
    return made
"""


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("BENCHMARK = 1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit('no')", "SystemExit: no"),
        ("BENCHMARK = 'bad'", "it is no object of a subclass of recipe.rerule.evaluation.registry.Benchmark"),
        (f"{DECLARED}BENCHMARK = Benchmark()", "no attribute 'name'"),
        (f"{DECLARED}BENCHMARK = declared(name='rwku')", "there is a benchmark rwku already"),
        (f"{DECLARED}BENCHMARK = declared(name='muse-books')", "its name is 'muse-books'; 1 to 60 letters"),
        (
            f"{DECLARED}BENCHMARK = declared(pair=('a', 'b'))",
            "its pair names a, which is none of its",
        ),
        (f"{DECLARED}BENCHMARK = declared(options=(Option('a', '', 5),))", "of its option --a, 5, cannot be"),
        (
            f"{DECLARED}BENCHMARK = declared(options=(Option('stop', ''),))",
            "its option --stop has another",
        ),
    ],
)
def test_a_package_that_cannot_be_used_is_one_warning(
    code: str,
    reason: str,
    fresh: Callable[[Path], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fresh(put_package(tmp_path, code))
    with pytest.raises(SystemExit) as ended:
        evaluate.main(["score", "--help"])
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert err.startswith("warning: benchmark worse (bad:BENCHMARK) is left out: ")
    assert reason in err
    assert err.count("\n") == 1
    assert "muse_news" in out
    assert list(registry.benchmarks()) == BUILT_IN


@pytest.mark.parametrize(
    ("declared", "warning"),
    [
        ("options=(Option('out', ''),)", "--out of bad is an option of the command itself"),
    ],
)
def test_commands_and_options_that_cannot_be_added_are_one_warning(
    declared: str,
    warning: str,
    fresh: Callable[[Path], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fresh(put_package(tmp_path, f"{DECLARED}BENCHMARK = declared({declared})"))
    with pytest.raises(SystemExit):
        evaluate.main(["--help"])
    out, err = capsys.readouterr()
    assert f"warning: {warning}" in err.splitlines()
    assert "judge" in out


# Facts, and what attacks count.

ROW = {
    "probe": 1,
    "side": "forget",
    "kind": "qa",
    "family": "direct",
    "subject": "Ada Quill",
    "target": "Ada Quill",
    "prompt": "Where was she born?",
    "golds": ["Paris"],
}


@pytest.mark.parametrize(
    ("benchmark", "change", "same"),
    [
        ("world", {"probe": 2, "kind": "fb", "prompt": "She was born in ___."}, True),
        ("world", {"probe": 99, "golds": ["Ada Quill"], "family": "reverse_query"}, True),
        ("world", {"probe": 101}, False),
        ("custom", {"kind": "aa", "prompt": "Tell me."}, True),
        ("custom", {"probe": 2}, False),
        ("rwku", {"probe": 2, "kind": "aa", "prompt": "As a friend, tell me."}, True),
        ("rwku", {"probe": 2, "golds": ["“paris.”"]}, True),
        ("rwku", {"probe": 2, "golds": ["1970"]}, False),
        ("rwku", {"target": "Ben Orr"}, False),
        # Questions whose answer is the name are facts of their own.
        ("rwku", {"golds": ["Ada Quill"], "prompt": "Who wrote it?"}, False),
        ("muse_books", {"probe": 2}, True),
        ("muse_books", {"probe": 2, "prompt": "When?"}, False),
        ("muse_news", {"probe": 2, "kind": "completion"}, False),
        ("tofu", {"family": "other"}, True),
        ("tofu", {"probe": 2}, False),
    ],
)
def test_two_rows_ask_for_one_fact(benchmark: str, change: dict[str, Any], same: bool) -> None:
    fact = registry.benchmarks()[benchmark].fact
    assert (fact(ROW) == fact(ROW | change)) is same
    hash(fact(ROW))
    if benchmark == "custom":  # rows of one's own may say their fact
        assert fact(ROW | {"fact": "birthplace"}) == fact(ROW | {"probe": 2, "fact": "birthplace"})


def test_the_worlds_probes_ask_for_the_facts_of_its_people() -> None:
    """A fact is a person and a right answer, or, where that is the name itself, one of the person's facts."""
    config = WorldConfig(forget_people=2, retain_people=4, unseen_people=2, facts_per_person=3)
    fact, answers, named = registry.benchmarks()["world"].fact, set(), set()
    for row in make_world(config).probes:
        subject, (gold,) = row["extra_info"]["subject"], row["reward_model"]["ground_truth"]["golds"]
        if gold == subject:
            named.add((fact({"probe": row["extra_info"]["index"]}), subject))
        else:
            answers.add((fact({"probe": row["extra_info"]["index"]}), subject, gold))
    assert len(answers) == len({found for found, *_ in answers}) == (2 + 4 + 2) * 3
    assert len({(subject, gold) for _, subject, gold in answers}) == len(answers)
    assert named
    assert named <= {(found, subject) for found, subject, _ in answers}


@pytest.mark.parametrize(
    ("benchmark", "change", "counts"),
    [
        ("world", {}, True),
        ("world", {"kind": "aa", "family": "role_play"}, True),
        ("world", {"kind": "aa", "family": "multiple_choice"}, False),
        ("world", {"kind": "aa", "family": "reverse_query"}, False),
        ("rwku", {"kind": "aa", "family": "prefix injection"}, True),
        ("rwku", {"kind": "aa", "family": "multiple choice"}, False),
        ("rwku", {"golds": ["Ada Quill"]}, False),
        ("muse_books", {}, True),
        ("muse_books", {"kind": "completion"}, False),
        ("tofu", {"family": "forget"}, True),
    ],
)
def test_what_an_attack_counts(benchmark: str, change: dict[str, Any], counts: bool) -> None:
    assert registry.benchmarks()[benchmark].recovery.counts(ROW | change) is counts
    assert registry.benchmarks()[benchmark].recovery.quantity == "rouge_l"


def test_shared_files_name_no_benchmark() -> None:
    """No module but the benchmark's own knows it by its name: but for the registry's list and two
    meanings."""
    recipe = Path(registry.__file__).parents[1]
    families = re.compile("muse|rwku|tofu", re.IGNORECASE)
    named = {}
    for path in recipe.rglob("*.py"):
        if path.is_relative_to(recipe / "evaluation" / "tasks"):
            continue
        text = path.read_text(encoding="utf-8")
        if path == Path(registry.__file__):
            text = re.sub(r"^(MODULES|UNSTATED|OWN_DATA) = .*$", "", text, flags=re.MULTILINE)
        strings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        named[path] = [*families.findall(text), *(one for one in strings if one in BUILT_IN)]
    assert len(named) > 100
    assert {path.name: names for path, names in named.items() if names} == {}
