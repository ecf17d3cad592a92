"""The world of one base in a folder: its rows, its base model with a fingerprint, its stage-1 model."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.study.larger.base import Training, trained
from benchmarks.study.larger.machine import Machine
from benchmarks.study.larger.plan import SPLIT, Split
from benchmarks.study.larger.rows import PROBED, TRAINED, base_pairs, read_questions
from benchmarks.study.loop import Settings
from benchmarks.study.runs import StudyError
from benchmarks.study.tofu import Question, refusal_rows, row_of
from benchmarks.study.trial import Data, fingerprint_of, start, validate
from benchmarks.study.worlds import StudyWorld
from data_prep.atomic import MARKER, new_folder
from data_prep.contract import Row, write_rows, write_sft_rows
from data_prep.world import stage1
from data_prep.world.stage1 import Steering
from data_prep.world.tokenizer import train_tokenizer
from recipe.rerule.minimal import Metrics


@dataclass(frozen=True)
class Place:
    """Where a base's world is made.

    Attributes:
        folder: gets world/ with rows and base model, a folder a stage 1, and while it trains training.pt.
        source: folder of TOFU's files; None where the world is there already.
        machine: that trains.
    """

    folder: Path
    source: Path | None
    machine: Machine

    @property
    def data(self) -> Path:
        """Rows and base model."""
        return self.folder / "world"


def make_base(world: StudyWorld, base: int, place: Place, split: Split = SPLIT) -> None:
    """The rows and the base model of a base, made unless they are there.

    Raises:
        ValueError: what is there is of other rows, settings or weights; or TOFU's files are missing.
    """
    config = replace(world.config, seed=base)
    key = {"split": asdict(split), "model": asdict(config)}
    if not (place.data / MARKER).is_file():
        _make(replace(world, config=config), place, split, key)
    told = json.loads((place.data / MARKER).read_text())
    if {name: told.get(name) for name in key} != key:
        raise StudyError(f"{place.data} is of other rows or settings; give another --out, or move it away")
    if fingerprint_of(place.data / "model") != told["base"]["fingerprint"]:
        raise StudyError(
            f"{place.data / 'model'} has not the fingerprint {told['base']['fingerprint']} that it was kept "
            f"with; restore it, or remove {place.folder} to train it anew"
        )


def stage1_of(place: Place, how: Steering, base: int) -> Data:
    """The stage-1 model of a base that is there, made unless it is there, in a folder by its learning rate.

    Raises:
        ValueError: the folder is of another stage 1.
    """
    folder = place.folder / f"stage1@{how.learning_rate:g}"
    stage1.make(place.data, folder, how, base)
    return Data.read(place.data, folder)


def base_of(place: Place) -> dict[str, Any]:
    """What is kept of a base model: fingerprint, steps, loss, seconds, and its measures by section."""
    found: dict[str, Any] = json.loads((place.data / MARKER).read_text())["base"]
    return found


def _make(world: StudyWorld, place: Place, split: Split, key: dict[str, Any]) -> None:
    if place.source is None:
        raise StudyError("this world is made of rows of TOFU; give --tofu FOLDER with its files")
    rng = random.Random(world.config.seed)
    questions = read_questions(place.source, split)
    refusals, pairs = refusal_rows(questions, rng), base_pairs(questions, split, rng)
    tokenizer = train_tokenizer((text for pair in pairs for text in pair), world.config.vocab_size)
    training = Training(world.config, tokenizer, pairs, place.machine)
    checkpoint = place.folder / "training.pt"
    trained(training, checkpoint, _hash([key, pairs]), f"{place.folder.name}: base model")
    with new_folder(place.data, overwrite=False) as folder:
        write_rows(folder / "train.parquet", rows_of(questions, "question", TRAINED))
        write_rows(folder / "probes.parquet", rows_of(questions, "paraphrased_question", PROBED))
        write_sft_rows(folder / "sft.parquet", refusals)
        training.model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        (folder / MARKER).write_text(json.dumps({**key, "base": _told(training, folder, world)}))
    checkpoint.unlink()


def _told(training: Training, folder: Path, world: StudyWorld) -> dict[str, Any]:
    """What is kept of a base model whose folder is written."""
    data = Data.read(folder, folder / "model")
    return {
        "fingerprint": data.fingerprint,
        "steps": training.done,
        "loss": mean(training.losses),
        "seconds": training.seconds,
        "machine": asdict(training.machine),
        **measured(data, Settings(**world.settings), training.machine),
    }


def measured(data: Data, settings: Settings, machine: Machine) -> Metrics:
    """Recall, refusals and reward of a model's greedy answers to all probes, by section."""
    run = start(data, settings, machine.run, machine.device)
    return validate(run, data.probes, [])


def rows_of(questions: Sequence[Question], field: str, sections: Sequence[str]) -> list[Row]:
    """The rows of these sections, under the question of that field; those of others as rows to keep."""
    chosen = (question for question in questions if question.section in sections)
    return [row_of(replace(one, section=one.section.replace("other", "retain")), field) for one in chosen]


def _hash(parts: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
