"""What rows of training and validation files say about themselves, checked before anything starts.

Training on probes is refused. What probably is a mistake but can be meant is one warning each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from omegaconf import DictConfig

from data_prep.contract import Row, control_character_place
from recipe.rerule import io
from reward import RewardConfig
from reward.score import usable_golds

Files = list[tuple[str, list[Row]]]
"""Path and rows of each data file."""


class DataError(ValueError):
    """Rows that must not be trained on; the message is one line naming file and row."""


def check_stage1(train: Files, validation: Files) -> None:
    """Check the rows of stage 1 against each other, and warn.

    Raises:
        DataError: a row is a probe.
    """
    _refuse_probes(train)
    _warn(
        [
            *_repetitions(train, "messages"),
            *_validation_rows(train),
            *_trained_validation(train, validation, "messages"),
            *_control_characters([*train, *validation]),
        ]
    )


def warn_of_refusals(train: Files, reward: RewardConfig) -> None:
    """Warn where the reward of stage 2 would not see the refusals that stage 1 teaches."""
    taught = [row["messages"][-1]["content"] for _, _, row in _rows(train)]
    _warn(reward.unseen(taught, "refusal_phrases of the reward"))


def check_stage2(train: Files, validation: Files) -> None:
    """Check the rows of stage 2 against each other, and warn.

    Raises:
        DataError: a training row is a probe.
    """
    _refuse_probes(train)
    _warn(
        [
            *_missing_sides(train),
            *_unseen_leaks(train),
            *_repetitions(train, "prompt"),
            *_validation_rows(train),
            *_trained_validation(train, validation, "prompt"),
            *_control_characters([*train, *validation]),
        ]
    )


def check_prompts(files: Files) -> None:
    """Check the prompts that stage 1 samples responses to.

    Raises:
        DataError: a row is a probe, or a side has no row.
    """
    _refuse_probes(files, "data.prompt_files")
    sides = {row["reward_model"]["ground_truth"]["type"] for _, _, row in _rows(files)}
    for side in sorted({"forget", "retain"} - sides):
        raise DataError(
            f"data.prompt_files hold no row of type {side}, so that nothing can be said of that side; "
            "add some, or set data.prompt_files=null data.retain_share=0 stop=none"
        )


def check_sides(train: Files, data: DictConfig) -> None:
    """Check that `data.sides` can be kept, and warn of sides that a batch has too unequally.

    Raises:
        DataError: sides are to be balanced, and one has no row, or the data set is not verl's own.
    """
    counts = Counter(row["reward_model"]["ground_truth"]["type"] for _, _, row in _rows(train))
    if data.sides == "balanced":
        missing = [side for side in ("forget", "retain") if not counts[side]]
        if missing:
            raise DataError(
                f"data.sides is balanced, but data.train_files hold no row of type {missing[0]}; add some, "
                "or set data.sides=as_given"
            )
        if data.custom_cls.path is not None:
            raise DataError(
                "data.sides is balanced, but of a data set of your own (data.custom_cls) the sides are not "
                "known; set data.sides=as_given"
            )
    elif 0 < 3 * min(counts["forget"], counts["retain"]) < counts.total():
        few, many = sorted(("forget", "retain"), key=counts.__getitem__)
        share = data.train_batch_size * counts[few] / counts.total()
        _warn(
            [
                f"data.train_files hold {counts[few]} {few} and {counts[many]} {many} prompts, so that a "
                f"batch of {data.train_batch_size} has {share:.1f} of the {few} side on average; set "
                "data.sides=balanced, which gives each batch half of each"
            ]
        )


def _warn(lines: list[str]) -> None:
    for line in lines:
        io.warn(line)


def _refuse_probes(files: Files, key: str = "data.train_files") -> None:
    for path, number, row in _rows(files):
        if row["extra_info"].get("split") == "probe":
            raise DataError(
                f"{path}: row {number}: extra_info.split is 'probe': a model must not be trained on the rows "
                f"that it is evaluated on; take it out of {key}"
            )


def _missing_sides(train: Files) -> Iterator[str]:
    sides = {row["reward_model"]["ground_truth"]["type"] for _, _, row in _rows(train)}
    if "forget" not in sides:
        yield "data.train_files hold no row of type forget, so nothing is to be forgotten"
    if "retain" not in sides:
        yield (
            "data.train_files hold no row of type retain; without boundary prompts a model learns to refuse "
            "everything"
        )


def _unseen_leaks(train: Files) -> Iterator[str]:
    truths = [
        (row["extra_info"]["query"], truth["golds"], truth["keyword"])
        for _, _, row in _rows(train)
        if (truth := row["reward_model"]["ground_truth"])["type"] == "forget"
    ]
    unseen = sum(not usable_golds(golds, query, keyword) for query, golds, keyword in truths)
    if unseen:
        yield (
            f"leaks cannot be seen for {unseen} of {len(truths)} forget rows of data.train_files, whose "
            "golds are refusals or hold no word beyond question and keyword; give right answers as golds"
        )


def _repetitions(train: Files, field: str) -> Iterator[str]:
    """A row that occurs twice, and two rows of one index that are not the same; of each kind the first."""
    seen: dict[int, tuple[str, int, Row]] = {}
    same = different = False
    for path, number, row in _rows(train):
        before, line, first = seen.setdefault(row["extra_info"]["index"], (path, number, row))
        if first is row:
            continue
        if row[field] == first[field] and not same:
            same = True
            yield f"{path}: row {number} is also row {line} of {before}, and will count twice in each epoch"
        elif row[field] != first[field] and not different:
            different = True
            yield (
                f"{path}: row {number}: extra_info.index {row['extra_info']['index']} is also that of row "
                f"{line} of {before}, another prompt; what is kept by index will mix the two"
            )


def _validation_rows(train: Files) -> Iterator[str]:
    for path, number, row in _rows(train):
        if row["extra_info"].get("split") == "val":
            yield (
                f"{path}: row {number}: extra_info.split is 'val': validation rows are drawn from the "
                "probes, so that evaluation would measure what was trained"
            )
            return


def _trained_validation(train: Files, validation: Files, field: str) -> Iterator[str]:
    """Nothing where some rows are not trained on: a benchmark may validate on its forget rows."""
    trained = {str(row[field]) for _, _, row in _rows(train)}
    if validation and all(str(row[field]) in trained for _, _, row in _rows(validation)):
        yield (
            "every row of data.val_files is also in data.train_files, so that validation measures what was "
            "trained; give other rows"
        )


def _control_characters(files: Files) -> Iterator[str]:
    for path, number, row in _rows(files):
        if place := control_character_place(row):
            yield f"{path}: row {number}: {place}; models see it as part of the text"
            return


def _rows(files: Files) -> Iterator[tuple[str, int, Row]]:
    """Every row with its file and number."""
    return ((path, number, row) for path, rows in files for number, row in enumerate(rows))
