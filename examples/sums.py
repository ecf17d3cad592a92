"""Replay in a GRPO run that forgets nothing: a model learns sums (docs/architecture.md, "Another task").

    python examples/sums.py FOLDER    writes FOLDER/train.parquet and FOLDER/val.parquet

`compute_score` is the reward: reward.custom_reward_function.path=examples/sums.py.
"""

import argparse
import random
import re
from pathlib import Path
from typing import Any

from data_prep.contract import rl_row, write_rows


def compute_score(solution_str: str, ground_truth: dict[str, Any], **_: object) -> float:
    """1 where the last number of the response is the sum, else 0. verl calls it for each response."""
    return float(re.findall(r"\d+", solution_str)[-1:] == ground_truth["golds"])


def make(folder: Path) -> None:
    """Write 112 sums of numbers below 12 to train on, and the 32 others to validate on."""
    sums = random.Random(0).sample([(one, other) for one in range(12) for other in range(12)], 144)
    folder.mkdir(parents=True)
    for split, part in {"train": sums[:112], "val": sums[112:]}.items():
        rows = [
            rl_row(
                data_source="sums",
                prompt=f"What is {one} + {other}? Answer with the number alone.",
                side="retain",  # the side on which an answer is right
                golds=[str(one + other)],
                keyword="",
                extra_info=dict(
                    index=index, mode="qa", subject="sums", split=split, section="retain", family="sum"
                ),
            )
            for index, (one, other) in enumerate(part)
        ]
        write_rows(folder / f"{split}.parquet", rows)


def main() -> None:
    """Make the rows in the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Make the rows of sums.")
    parser.add_argument("folder", type=Path, help="the folder to make")
    folder = parser.parse_args().folder
    if folder.exists():
        parser.error(f"{folder} exists: give another folder")
    make(folder)


if __name__ == "__main__":
    main()
