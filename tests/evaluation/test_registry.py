"""A benchmark of another package, from its probes to its numbers; packages that cannot be used; facts."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule import evaluate
from recipe.rerule.evaluation import registry
from recipe.rerule.evaluation.probes import Probe
from tests.evaluation.conftest import make_probe, write_probes
from tests.golden.commands import done
from tests.golden.inputs import put_scripted

OUTSIDE = Path(__file__).parent / "outside"
CITIES = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Peru": "Lima"}


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


def capitals_probes() -> Iterator[Probe]:
    """Two questions for each city; France is to be forgotten."""
    asked = product(CITIES.items(), ("What is {}'s capital?", "{} is governed from which city?"))
    for number, ((country, city), text) in enumerate(asked):
        section = "forget" if country == "France" else "retain"
        turn = {"role": "user", "content": text.format(country)}
        more = {"messages": [turn], "subject": country, "data_source": "rerule/capitals"}
        yield make_probe(number, section, "qa", [city], **more)


def test_evaluate_and_score_know_it_and_its_option(fresh, tmp_path):
    """Of the models, base knows all capitals, and rule always says "PARIS"."""
    fresh(OUTSIDE)
    write_probes(tmp_path / "probes.parquet", list(capitals_probes()))
    asked = list(CITIES.items())
    put_scripted(tmp_path / "base", "", [(country, [f"{city}."]) for country, city in asked], 1.0)
    put_scripted(tmp_path / "rule", "", [(country, ["PARIS"]) for country, _ in asked], 1.0)
    assert "capitals: whether case counts (100 %)" in " ".join(done("evaluate model --help").out.split())

    def evaluated(name: str, more: str = "") -> tuple[dict[str, Any], str]:
        given = f"--platform cpu --probes probes.parquet --model base=base --model rule=rule --out {name}"
        printed = done(f"evaluate model {given} {more}", tmp_path).out
        return {file.stem: json.loads(file.read_text()) for file in (tmp_path / name).glob("*.json")}, printed

    found, printed = evaluated("evaluation")
    assert printed.startswith("Capitals\n")
    assert "known: share of the answers that contain the capital" in printed
    meta = found["meta"]
    assert (meta["benchmark"], meta["benchmark_settings"]) == ("capitals", {"case": "any"})
    # Two questions each about five countries, of which one is to be forgotten: too few facts for intervals.
    assert (meta["probes"]["rows"]["retain"], meta["probes"]["facts"]["retain"]) == (8, 4)
    assert found["intervals"]["base"] == {}
    rule = {"known/forget": 1.0, "known/retain": 0.0}
    assert found["results"] == {"base": {"known/forget": 1.0, "known/retain": 1.0}, "rule": rule}
    assert found["anchors"] == {"always Paris": rule}
    scored = "--benchmark capitals --model rule --log evaluation/responses.parquet --json"
    assert json.loads(done(f"evaluate score {scored}", tmp_path).out.splitlines()[-1]) == rule
    exact, _ = evaluated("exact", "--capitals-case exact")
    assert exact["results"]["rule"]["known/forget"] == 0.0


DECLARED = """
from recipe.rerule.evaluation.registry import Benchmark, Option
class Bad(Benchmark):
    name, title = "bad", "5 % bad"
BENCHMARK = Bad()
"""


@pytest.mark.parametrize(
    ("code", "warning"),
    [
        ("BENCHMARK = 1 / 0", "ZeroDivisionError: division by zero"),
        ("BENCHMARK = 'bad'", "it is no object of a subclass of recipe.rerule.evaluation.registry.Benchmark"),
        (f"{DECLARED}BENCHMARK.name = 'rwku'", "there is a benchmark rwku already"),
        (f"{DECLARED}BENCHMARK.name = 'muse-books'", "its name is 'muse-books'; 1 to 60 letters"),
        (f"{DECLARED}BENCHMARK.pair = ('a', 'b')", "its pair names a, which is none of its"),
        (f"{DECLARED}BENCHMARK.options = (Option('stop', type=int),)", "its option --stop has another"),
        (
            f"{DECLARED}BENCHMARK.options = (Option('out'),)",
            "--out of bad is an option of the command itself",
        ),
    ],
)
def test_a_package_that_cannot_be_used_is_one_warning(code, warning, fresh, tmp_path, capsys):
    info = tmp_path / "bad-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[rerule.benchmarks]\nworse = bad:BENCHMARK\n")
    (tmp_path / "bad.py").write_text(code)
    fresh(tmp_path)
    with pytest.raises(SystemExit) as ended:
        evaluate.main(["model", "--help"])
    assert ended.value.code == 0
    err = capsys.readouterr().err
    assert err.startswith("warning: ")
    assert warning in err
    assert len(set(err.splitlines())) == 1
    assert list(registry.benchmarks())[:5] == ["world", "custom", "rwku", "muse_books", "muse_news"]


# Facts, and what attacks count.

ROW = {
    **{"probe": 1, "side": "forget", "kind": "qa", "family": "direct", "prompt": "Where was she born?"},
    **{"subject": "Ada Quill", "target": "Ada Quill", "golds": ["Paris"]},
}


@pytest.mark.parametrize(
    ("benchmark", "change", "same"),
    [
        ("rwku", {"probe": 2, "kind": "aa", "prompt": "As a friend, tell me."}, True),
        ("rwku", {"probe": 2, "golds": ["“paris.”"]}, True),
        ("rwku", {"probe": 2, "golds": ["1970"]}, False),
        ("rwku", {"target": "Ben Orr"}, False),
        # Questions whose answer is the name are facts of their own.
        ("rwku", {"golds": ["Ada Quill"], "prompt": "Who wrote it?"}, False),
        ("muse_books", {"probe": 2}, True),
        ("muse_books", {"probe": 2, "prompt": "When?"}, False),
        ("muse_news", {"probe": 2, "kind": "completion"}, False),
    ],
)
def test_two_rows_ask_for_one_fact(benchmark: str, change: dict[str, Any], same: bool) -> None:
    fact = registry.benchmarks()[benchmark].fact
    assert (fact(ROW) == fact(ROW | change)) is same


@pytest.mark.parametrize(
    ("benchmark", "change", "counts"),
    [
        ("world", {"kind": "aa", "family": "multiple_choice"}, False),
        ("world", {"kind": "aa", "family": "reverse_query"}, False),
        ("rwku", {"kind": "aa", "family": "role play"}, True),
        ("rwku", {"kind": "aa", "family": "multiple choice"}, False),
        ("rwku", {"golds": ["Ada Quill"]}, False),
        ("muse_books", {}, True),
        ("muse_books", {"kind": "completion"}, False),
    ],
)
def test_what_an_attack_counts(benchmark: str, change: dict[str, Any], counts: bool) -> None:
    assert registry.benchmarks()[benchmark].counts(ROW | change) is counts
