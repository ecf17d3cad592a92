"""`rerule tune`: which rate it names, what it runs, and what it refuses."""

import re
import shlex
import sys
from pathlib import Path

import pandas as pd
import pytest

from recipe.rerule import tune

WORDS = ["experiment=custom", "platform=cpu", "data.alternate=a.parquet", "data.retain=r.parquet"]


def unlearn(tmp_path: Path, *words: str) -> list[str]:
    (tmp_path / "val.parquet").touch()
    paths = ["--questions", f"{tmp_path / 'val.parquet'}", "--out", f"{tmp_path / 'tuning'}"]
    return ["unlearn", *paths, "method=po", "model.path=M", *WORDS, *words]


@pytest.mark.parametrize(
    ("recalls", "told"),
    [
        pytest.param({1e-5: (0.5, 0.9), 3e-5: (0.1, 0.8), 1e-4: (0, 0.2)}, "take lr=3e-05: .*", id="between"),
        pytest.param({1e-5: (0.5, 0.9), 3e-5: (0.1, 0.9)}, ".*3e-05: .* largest .*", id="largest"),
        pytest.param({3e-5: (0.1, 0.8), 1e-5: (0.2, 0.9)}, ".*1e-05: .* smallest .*", id="equal, so smaller"),
        pytest.param(
            {1e-5: (0.1, 0.8)}, r"take lr=1e-05: retain .* 0.700 above .* \(before: 0.250\)", id="one"
        ),
    ],
)
def test_the_rate_with_the_sides_furthest_apart(recalls: dict[float, tuple[float, float]], told: str) -> None:
    pairs = {"before": (0.75, 1.0), **{f"{rate:g}": pair for rate, pair in recalls.items()}}
    found = {
        name: dict(zip(tune._COLUMNS, (one, 0, two, 0), strict=True)) for name, (one, two) in pairs.items()
    }
    *table, last = tune.told(found, list(recalls), "lr")
    assert [line.split()[0] for line in table[1:]] == list(pairs)
    assert re.fullmatch(told, last)


def test_shares_are_means_by_side() -> None:
    rows = [("a", "forget", 0.5, True), ("a", "forget", 0, False), ("a", "retain", 1, False)]
    table = pd.DataFrame(rows, columns=["model", "side", "rouge_l", "refused"])
    wanted = {"forget recall": 0.25, "forget refused": 0.5, "retain recall": 1, "retain refused": 0}
    assert tune.shares(table) == {"a": wanted}


def test_what_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The configured rate (1e-5), then three times and a third of it."""
    assert tune.main([*unlearn(tmp_path), "--dry-run", "--steps", "4"]) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert [line[2] for line in lines] == ["recipe.rerule.unlearn"] * 3
    assert [[word for word in line if "optim.lr" in word] for line in lines] == [
        ["optim.lr=1e-05"],
        ["optim.lr=3e-05"],
        ["optim.lr=3.3e-06"],
    ]
    assert {word for line in lines for word in line if "steps" in word} == {"trainer.total_training_steps=4"}
    assert not (tmp_path / "tuning").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(["--rates", "1e-5"], "--rates needs two or more different rates", id="one rate"),
        pytest.param(["--rates", "1e-5", "1e-5"], "two or more different", id="the same rate twice"),
        pytest.param(["--rates", "0", "1e-5"], "--rates 0: a rate is above 0", id="zero"),
        pytest.param(["--rate", "x"], "invalid float value", id="no number"),
        pytest.param(["optim.rl=1e-5"], "optim.rl is no setting; did you mean optim.lr?", id="unknown key"),
        pytest.param(["--epochs", "3"], "--epochs is no option", id="unknown option"),
        pytest.param(["--out", "."], "--out . exists", id="a folder that is there"),
        pytest.param(
            ["--questions", "no.parquet"], "--questions no.parquet: no such file", id="no questions"
        ),
        pytest.param(["--steps", "0"], "'0' is no whole number above 0", id="no step"),
    ],
)
def test_refused(words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:  # also argparse's own
        sys.exit(tune.main(unlearn(tmp_path, *words)))
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err
    assert not (tmp_path / "tuning").exists()
