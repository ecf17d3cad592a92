"""How much of the training data a run used, in tokens.

Used are the rows of train.parquet that a run's prompt records name, each counted once however often it was
visited. A row's tokens are those of its prompt messages and its first gold answer (the text, without chat
template and special tokens), under the tokenizer of the run's own model. The share is over all rows of the
side in train.parquet. So a run of an epoch or more has used all, and one cut short says how little it needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.contract import read_rows
from recipe.rerule.runs.history import Run

Count = Callable[[list[str]], list[int]]
"""Texts to their numbers of tokens."""
SIDES = ("forget", "retain")


@dataclass(frozen=True)
class TokenUse:
    """Tokens of one side: of the rows that the run used, and of all rows."""

    used: int
    available: int

    @property
    def share(self) -> float | None:
        return self.used / self.available if self.available else None


def token_use(run: Run, data: Path) -> dict[str, TokenUse]:
    """By side.

    Raises:
        ValueError: no train.parquet in `data`, a bad row in it, no tokenizer, or prompts that it lacks.
    """
    rows = read_rows(data / "train.parquet")
    lengths = row_lengths(rows, tokenizer_of(run))
    strange = run.prompts.keys() - {row["extra_info"]["index"] for row in rows}
    if strange:
        raise ValueError(
            f"run {run.name}: it trained on prompt {min(strange)}, which {data / 'train.parquet'} lacks; "
            "give the --data that the run trained on"
        )
    use = {}
    for side in SIDES:
        sizes = {
            row["extra_info"]["index"]: length
            for row, length in zip(rows, lengths, strict=True)
            if row["reward_model"]["ground_truth"]["type"] == side
        }
        used = sum(length for index, length in sizes.items() if index in run.prompts)
        use[side] = TokenUse(used, sum(sizes.values()))
    return use


def row_lengths(rows: Sequence[dict[str, Any]], count: Count) -> list[int]:
    """Tokens of each row's prompt and first gold answer."""
    texts = [
        [message["content"] for message in row["prompt"]] + [row["reward_model"]["ground_truth"]["golds"][0]]
        for row in rows
    ]
    counts = iter(count([text for of_row in texts for text in of_row]))
    return [sum(next(counts) for _ in of_row) for of_row in texts]


def tokenizer_of(run: Run) -> Count:
    """The tokenizer of the run's newest model, or of the model it started from.

    Raises:
        ValueError: neither has one that can be read.
    """
    for folder in _model_folders(run):
        if (folder / "tokenizer.json").is_file():
            return _fast_counter(folder / "tokenizer.json")
        if (folder / "tokenizer_config.json").is_file():
            return _slow_counter(folder)
    raise ValueError(
        f"run {run.name}: no tokenizer in {run.folder}/global_step_N/actor/huggingface nor in the model it "
        "started from, so tokens cannot be counted; leave --data out"
    )


def _model_folders(run: Run) -> list[Path]:
    checkpoints = sorted(
        run.folder.glob("global_step_*/actor/huggingface"),
        key=lambda path: int(path.parents[1].name.rsplit("_", 1)[1]),
        reverse=True,
    )
    started_from = run.setting("actor_rollout_ref.model.path")
    return checkpoints + ([Path(started_from)] if started_from else [])


def _fast_counter(file: Path) -> Count:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: list[str]) -> list[int]:
        return [len(e.ids) for e in tokenizer.encode_batch(texts, add_special_tokens=False)]

    return count


def _slow_counter(folder: Path) -> Count:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda texts: [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
