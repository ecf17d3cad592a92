"""The tables of why replay did not help, from made runs; the real ones are in an earlier commit."""

from typing import Any

import pandas as pd

from benchmarks.earlier_studies import tables


def runs(rows: list[tuple[str, str, float, float]], base: str = "201", **more: Any) -> pd.DataFrame:
    """Of (world, arm, learning rate, score)."""
    made = pd.DataFrame(rows, columns=["world", "arm", "rate", "score"])
    made["settings"] = [{"learning_rate": rate} for rate in made["rate"]]
    return made.assign(base=base, **more)


def curves(recall: float, signal: float) -> dict[str, list[float]]:
    return {
        "at/steps": [4.0, 8.0, 12.0],
        "retain/recall": [0.5, 0.9, recall],
        "retain/reward": [0.6, 0.95, 0.97],
        "signal_share": [1.0, *[signal] * 10],
    }


ARMS = ("rule", "equal_updates", "quantile_newest", "rerule")


def test_the_tables_say_what_the_runs_say() -> None:
    scores = {"rule": 0.8, "equal_updates": 0.7, "quantile_newest": 0.9, "rerule": 0.5}
    tuning = runs([("many", arm, 1e-4, score) for arm, score in scores.items()])
    more = [("tofu", "rule", 1e-4, 0.6), *(("tofu", arm, 1e-4, 0.8) for arm in ARMS[1:])]
    counted = runs([("many", arm, 1e-4, 0.0) for arm in ARMS], base="217")  # is of no tuning model
    study2 = pd.concat([tuning, runs(more), counted])
    study1 = pd.concat(
        [
            runs([("many", arm, 1e-4, score) for arm, score in scores.items()], seed=seed, final=[{}] * 4)
            for seed in ("1", "101")
        ]
    )
    study1["final"] = [{"hard_share/last": 0.25 if seed == "1" else 1.0} for seed in study1["seed"]]
    study3 = pd.concat(
        [
            runs([("10m", "rule", 2, 0.9)] * 2, base="311", curves=[curves(1.0, 0.1), curves(0.8, 0.3)]),
            runs([("10m", "rule", 2, 0.9)], base="301", curves=[curves(0.0, 1.0)]),  # chose the rate
        ]
    )
    said = list(tables(study1, study2, study3))
    assert "| 0.0001 | 0.050 | 0.150 | -0.050 |" in said  # means of -.1, .2; .1, .2; -.3, .2
    assert "| many | 0.250 | -0.100 | 0.100 | -0.300 |" in said
    assert "| rule | 0.900 | 0.900 | 0.950 | 0.970 | 0.200 |" in said
