"""Every line of the table `cases.txt`, what documents say of it, users' files that stay; damaged files."""

import io
import itertools
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from recipe.rerule import evaluate, report
from recipe.rerule.evaluation import tidy
from recipe.rerule.io import file_sha256
from recipe.rerule.training import entry, memory
from tests.golden.evaluation_inputs import metric, muse_log, tofu_log
from tests.made_runs import stage2_run
from tests.refused import playground
from tests.refused.configurations import STAGE2, build, findings
from tests.refused.groups import GROUPS, Place
from tests.refused.rows import changed
from tests.refused.table import Case, read, told
from tests.report.made import paired

DOCS = Path(__file__).resolve().parents[2] / "docs"
CASES = list(read())
Shared = Callable[[Callable[[Path], Any]], Path]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """shared(build): a folder that `build` has made, once for all tests."""
    made: dict[object, Path] = {}

    def get(build: Callable[[Path], Any]) -> Path:
        if build.__code__ not in made:
            made[build.__code__] = tmp_path_factory.mktemp("shared") / "folder"
            made[build.__code__].mkdir()
            build(made[build.__code__])
        return made[build.__code__]

    return get


@pytest.fixture
def place(shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Place:
    monkeypatch.setattr(memory, "free_bytes", lambda: (64e9, 64e9))  # a busy machine would get a warning
    return Place(tmp_path, shared, monkeypatch, capsys)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case(case: Case, place: Place) -> None:
    ended = GROUPS[case.group](case, place)
    if case.outcome == "refused":
        assert len(ended.errors) == ended.commands
        for line in ended.errors:
            assert case.is_said(line)
            assert "\n" not in line
            assert "Errno" not in line
    else:
        assert ended.errors == []
        assert len(ended.warnings) == (case.outcome == "warned"), ended.warnings
        assert case.is_said("".join(ended.warnings) + ended.said)


@pytest.mark.parametrize(
    "words", ["--config-name rerule_trainer", "--config-name=nothing", "--config-dir mine --config-name rwku"]
)
def test_other_names_of_configurations_are_left_to_hydra(words: str) -> None:
    entry.check_options(words.split(), entry.STAGE2)


def test_the_line_in_the_documentation_is_what_is_printed(shared: Shared) -> None:
    (line,), _ = findings(STAGE2, shared(build), {"actor_rollout_ref.actor.optim.lr": math.nan})
    assert f"\n    error: {line}\n" in (DOCS / "configuration.md").read_text("utf-8")


# Wherever it is told to write, no command of ours removes or changes a file that it did not make.

PLACES = (
    "new", "data", "evaluation", "report.html", "report", ".", "own", "own/mine.html", "own/mine", "data/sub",
    "evaluation/sub", "link", "link/mine.html", "link_to_data", "dangling", "mine.csv", "model",
    "own/../data", "around.txt", "report.md", "evaluation/results.json", "own/new",
)  # fmt: skip
PLANTED = (
    "data/notes.txt", "data/sub/notes.txt", "data/mine.csv", "evaluation/notes.txt",
    "evaluation/logs/a/b.json", "report/notes.png", "report/notes.csv", "new.partial/answers.jsonl",
    "evaluation.partial/answers.jsonl", "evaluation.partial/base.jsonl", ".data.draft-0000abcd/draft/a.txt",
    ".evaluation.draft-x/former/a.txt", ".report.draft-x/owner.json",
    "evaluation-naturalness/naturalness.json", "new.md", "new/report.md", "new/report/tokens.csv",
    "data.txt", "cache/mine.jsonl",
)  # fmt: skip
WORKING = {
    "rows": ("data_prep", "custom --source mine.csv --out {} --overwrite"),
    "evaluation": ("evaluate", "model --model base=model --probes data/probes.parquet --out {} --overwrite"),
    "report": ("report", "--results evaluation --out {} --overwrite"),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        playground.stub_slow_parts(patch)
        yield playground.build(tmp_path_factory.mktemp("playground") / "root")


@pytest.mark.parametrize("around", [(), PLANTED], ids=["own files alone", "files in every output too"])
@pytest.mark.parametrize("name", WORKING)
def test_wherever_it_writes_no_file_of_a_users_is_touched(
    name: str, around: tuple[str, ...], template: Path, tmp_path: Path
) -> None:
    command, arguments = WORKING[name]
    for number, place in enumerate(PLACES):
        root = playground.copy(template, tmp_path / str(number))
        playground.plant(root, dict.fromkeys(around, "mine"))
        names = [*playground.OWN, "mine.csv", "model/config.json", *around]
        mine = playground.snapshot(root, names)
        playground.call(command, root, arguments.format(place))
        assert playground.snapshot(root, names) == mine, place
        assert (root / "link").is_symlink()
        assert (root / "link_to_data").is_symlink()


# Readers of others' files, each file damaged in every way: finite numbers, or one line and exit code 2.
# RERULE_EVERY=1 tries all of it, which takes minutes; otherwise a share that differs from file to file.

Damages = Iterator[tuple[str, bytes]]
EVERY = int(os.environ.get("RERULE_EVERY", "61"))
OTHERS = (*(None, "x", [], {"x": {}}, True, -57.5, 1e308, 10**400, math.nan, math.inf),)
"""What stands in the place of each value."""
UNREADABLE = ("Errno", "Traceback", "object has no", "indices must be", "not supported between", "unhashable")


def shortened(log: dict[str, Any]) -> dict[str, Any]:
    """A log with two samples of each metric."""
    if "value_by_index" in log:
        return metric(list(log["value_by_index"].values())[:2])
    return {name: shortened(of) for name, of in log.items()}


COMPARISON = paired("base", "rule", "forget/all", 0.25, 0.125, 0.01, p_holm=0.02, probes=4)
ROLLOUT = {
    "index": 4, "step": 1, "side": "forget", "mode": "qa", "prompt": "Where?", "response": "There.",
    "reward": 0.5,
}  # fmt: skip
NATURALNESS = {
    "results": {"base": {"forget/all": 50.0}, "rule": {"forget/all": 75.0}},
    "anchors": {"always refuses": {"forget/all": 25.0}},
    "intervals": {"base": {"forget/all": [25.0, 75.0]}},
    "comparisons": [COMPARISON],
    "counts": {"base": {"forget": {"responses": 1, "scored": 1, "missing": 0, "empty": 0}}},
    "note": "A judge.", "judge": {"model": "j", "temperature": 0.0}, "rubric": {"version": 1, "scale": "s"},
    "responses_sha256": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def root(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation of two models, its scores of naturalness, and a run; figures have no pixels."""
    root = playground.copy(template, tmp_path_factory.mktemp("damaged") / "root")
    stage2_run(root / "run", [0.5, 0.25])
    (root / "run" / "records" / "rollouts").mkdir()
    rollouts = [ROLLOUT, ROLLOUT | {"response": "Here.", "reward": 1.0}]
    (root / "run" / "records" / "rollouts" / "1.jsonl").write_text(written(rollouts, True))
    (root / "scores").mkdir()
    judged = NATURALNESS | {"responses_sha256": file_sha256(root / "evaluation" / tidy.FILE)}
    (root / "scores" / "naturalness.json").write_text(json.dumps(judged))
    return root


def written(value: Any, lines: bool) -> str:
    """A value as JSON, or a list as lines of JSON."""
    if lines and isinstance(value, list):
        return "".join(json.dumps(row) + "\n" for row in value)
    return json.dumps(value)


def damaged(value: Any, lines: bool = False, every: int = EVERY) -> Damages:
    """A JSON text that is nested too deeply or no text, and a share of `all_damaged`."""
    whole = written(value, lines)
    inner = whole.replace(":", f': {"[" * 10_000 + "]" * 10_000}, "more":', 1)
    yield from {"deep": b"[" * 10_000, "deep in its place": inner.encode()}.items()
    yield "bytes", whole.encode().replace(b'"', b'"\xff', 1)
    for name, text in itertools.islice(all_damaged(value, whole, lines), 0, None, every):
        yield name, text.encode()


def all_damaged(value: Any, whole: str, lines: bool) -> Iterator[tuple[str, str]]:
    """The text cut off, and with each of its values another one, each key gone, and each key twice."""
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        yield f"cut at {place}", whole[:place]
    for path, inner in places(value):
        for other in OTHERS:
            yield f"{path} is {other}", written(changed(value, *path, value=other), lines)
        for key in inner if isinstance(inner, dict) else ():
            rest = {name: one for name, one in inner.items() if name != key}
            yield f"{path} without {key}", written(changed(value, *path, value=rest), lines)
            yield f"{key} twice", whole.replace(f'"{key}": ', f'"{key}": 0, "{key}": ', 1)


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Each value with where it stands: of a list the first element and the last."""
    yield path, value
    ends = {0, len(value) - 1} if value and isinstance(value, list) else ()
    for key in value if isinstance(value, dict) else ends:
        yield from places(value[key], (*path, key))


def sweep(capsys: Any, file: Path, damages: Damages, *commands: tuple[Any, ...]) -> None:
    """No command breaks the rule on any of the damaged files.

    A command is a function and its words; on the file as it is it must end with code 0.
    """
    content, broken, tried = file.read_bytes(), [], 0
    for name, damage in [("whole", content), *damages]:
        file.write_bytes(damage)
        for number, (command, *words) in enumerate(commands):
            tried += 1
            if found := problem(capsys, command, [str(word) for word in words], name == "whole"):
                broken.append(f"{name}, command {number}: {found}")
    file.write_bytes(content)
    assert tried > 3
    assert not broken, f"{len(broken)} of {tried}:\n" + "\n".join(broken[:40])


def problem(capsys: Any, command: Callable[[list[str]], int], words: list[str], must_succeed: bool) -> str:
    """How a command broke the rule, "" where it kept it; `score` prints numbers on its last line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # they would be further lines on stderr
            code = command(words)
    except Exception as error:
        capsys.readouterr()
        return f"{type(error).__name__}: {error}"[:300]
    out, err = capsys.readouterr()
    lines = told(err)
    if code == 0:
        values = json.loads(out.splitlines()[-1]).values() if "score" in words else ()
        finite = all(value is None or math.isfinite(value) for value in values)
        quiet = all(line.startswith(("note: ", "warning: ")) for line in lines)
        return "" if finite and quiet else f"{out[-300:]} {err[:300]}"
    one = code == 2 and len(lines) == 1 and lines[0].startswith("error: ") and len(lines[0]) < 600
    readable = one and not any(word in err for word in UNREADABLE)
    return "" if readable and not must_succeed else f"ended with {code}: {err[:300]}"


@pytest.mark.parametrize(("benchmark", "value"), [("tofu", tofu_log(1)), ("muse-books", muse_log(1))])
def test_a_log_to_score(benchmark: str, value: Any, tmp_path: Path, capsys: Any) -> None:
    file, whole, value = tmp_path / "log.json", tmp_path / "whole.json", shortened(value)
    whole.write_text(json.dumps(value))
    file.write_text(json.dumps(value | {"more": {}}))  # a log is not compared with itself
    score = (evaluate.main, "score", "--benchmark", benchmark, "--json", "--log")
    sweep(capsys, file, damaged(value), (*score, file), (*score, whole, "--retain-log", file))


READ_BY_THE_REPORT = [
    *(f"evaluation/{name}.json" for name in ("results", "anchors", "intervals", "comparisons", "meta")),
    *("run/records/metrics.jsonl", "run/records/prompts.jsonl", "run/records/rollouts/1.jsonl"),
    *("run/config.yaml", "scores/naturalness.json"),
]


@pytest.mark.parametrize("name", READ_BY_THE_REPORT)
def test_an_input_of_the_report(name: str, root: Path, tmp_path: Path, capsys: Any) -> None:
    read = ("--results", root / "evaluation", "--naturalness", root / "scores")
    content, lines = (root / name).read_text(), name.endswith(".jsonl")
    value = [json.loads(line) for line in content.splitlines()] if lines else yaml.safe_load(content)
    page = (report.main, *read, "--run", f"rule={root / 'run'}", "--overwrite", "--out", tmp_path / "out")
    sweep(capsys, root / name, damaged(value, lines, 1 if EVERY == 1 else 3 * EVERY), page)


def damaged_tables(content: bytes) -> Damages:
    """A table that is cut off, that lacks a column, or has one with values of another type."""
    whole = pd.read_parquet(io.BytesIO(content))
    for share in (0, 1, 2, 3):
        yield f"cut at {share} quarters", content[: share * len(content) // 4]
    for column in whole.columns:
        yield f"without {column}", whole.drop(columns=column).to_parquet()
        for value in (None, "x", 0.5, ["x"], float("nan")):
            yield f"{column} of {value}", whole.assign(**{column: [value] * len(whole)}).to_parquet()
    yield "no rows", whole.head(0).to_parquet()


def test_the_table_of_responses(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = root / "evaluation"
    asked = ("--base-url", "http://localhost:1/v1", "--judge-model", "j", "--dry-run")
    sweep(
        capsys,
        results / tidy.FILE,
        damaged_tables((results / tidy.FILE).read_bytes()),
        (evaluate.main, "judge", "--results", results, *asked),
        (
            *(evaluate.main, "score", "--benchmark", "custom", "--json", "--model", "base"),
            *("--log", results / tidy.FILE),
        ),
        (report.main, "--results", results, "--overwrite", "--out", tmp_path / "out"),
    )
