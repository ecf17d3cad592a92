"""`rerule tune`: which rate it names, and what it runs; tests/refused has what it refuses."""

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from recipe.rerule import tune
from tests.data_prep.raw_files import prep


@pytest.mark.parametrize(
    ("recalls", "told"),
    [
        ({1e-5: (0.5, 0.9), 3e-5: (0.1, 0.8), 1e-4: (0, 0.2)}, "take lr=3e-05: .*"),
        ({1e-5: (0.5, 0.9), 3e-5: (0.1, 0.9)}, ".*3e-05: .* largest .*"),
        ({3e-5: (0.1, 0.8), 1e-5: (0.2, 0.9)}, ".*1e-05: .* smallest .*"),  # of equals the smaller one
        ({1e-5: (0.1, 0.8)}, r"lr=1e-05: retain .* 0.700 above .* \(before: 0.250\); it is the only rate .*"),
        ({1e-5: (0.75, 1), 3e-5: (0.6, 0.8)}, "no rate .* fell from 1.000 to 0.800 with 3e-05, .* lower .*"),
        ({1e-5: (0, 0)}, r"no rate .* with lr=1e-05: retain recall is 0.000 .* fell from 1.000 to 0.000 .*"),
        ({1e-5: (0.8, 1), 3e-5: (0.75, 1)}, "no rate .* with lr=3e-05: .* did not fall, so try higher .*"),
    ],
)
def test_the_rate_with_the_sides_furthest_apart(recalls: dict[float, tuple[float, float]], told: str) -> None:
    pairs = {"before": (0.75, 1.0), **{f"{rate:g}": pair for rate, pair in recalls.items()}}
    values = {name: (one, 0, two, 0) for name, (one, two) in pairs.items()}
    found = {name: dict(zip(tune._COLUMNS, four, strict=True)) for name, four in values.items()}
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
    facts = Path(__file__).parents[1] / "examples" / "own_data.csv"
    assert prep("custom", "--source", facts, "--out", tmp_path / "data") == 0
    capsys.readouterr()
    words = f"unlearn --questions {tmp_path}/data/val.parquet --out {tmp_path}/tuning method=po model.path=M"
    words += " experiment=custom platform=cpu data.alternate=a data.retain=r --dry-run --steps 4"
    words += " +data.apply_chat_template_kwargs.a=1"
    assert tune.main(words.split()) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    *lines, asked = lines
    assert "--benchmark custom --max-tokens 32 --template a=1 " in shlex.join(asked)
    assert [line[2] for line in lines] == ["recipe.rerule.unlearn"] * 3
    assert [[word for word in line if "optim.lr" in word] for line in lines] == [
        [f"optim.lr={rate}"] for rate in ("1e-05", "3e-05", "3.3e-06")
    ]
    assert {word for line in lines for word in line if "steps" in word} == {"trainer.total_training_steps=4"}
    assert tune.main([*words.split(), "--rates", "1e-5", "2e-5", "data.train_batch_size=4"]) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()[:-1]]
    assert [("data.train_batch_size=4" in line, "optim.lr=2e-05" in line) for line in lines] == [
        (True, False),
        (True, True),
    ]
    one_sided = words.replace("data/val.parquet", "data/forget_gold.parquet")
    assert tune.main(one_sided.split()) == 2
    assert not (tmp_path / "tuning").exists()
