"""What can be wrong with the inputs of methods without a reward; each is tried by test_classical.py."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.refused.cases import Case

GOLD, TASK_VECTOR, PREFIX = "right answers (--gold)", "task vectors", "prefixes of models (--prefix)"
NORM = "model.norm.weight"


@dataclass(frozen=True)
class GoldCase(Case):
    """Rows of a file for --gold; None for no file. `left_out`: what the manifest says, where it is valid."""

    message: str = ""
    rows: Sequence[dict[str, Any]] | None = ()
    left_out: Sequence[str] = ()


@dataclass(frozen=True)
class VectorCase(Case):
    """A reinforced model whose folder `damage` has changed; {base}, {bad}, {out} in `message` are folders."""

    message: str = ""
    damage: Callable[[Path], object] = str
    arguments: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True)
class PrefixCase(Case):
    """Values of --prefix, for models base, icu and run@7."""

    message: str = ""
    specs: Sequence[str] = ()


def changed(folder: Path, name: str, shape: tuple[int, ...] | None, value: float = 1.0) -> None:
    """Give a model's tensor this shape, or take it away."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    if shape is not None:
        tensors[name] = torch.full(shape, value)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def configured(folder: Path, **changes: Any) -> None:
    """Change a model's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def pickled(folder: Path) -> None:
    """Save a model's weights as pytorch_model.bin alone."""
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


ALIKE = "are they the same model?"
SAME = "mismatch.parquet is not written: all right answers of the forget side are the same"
CASES: list[Case] = [
    GoldCase(
        GOLD,
        "answers to other questions",
        "refused",
        "gold.json: none of its 1 questions is one of the 2 to forget; --gold needs rows {question, answer} "
        "with the questions as train.parquet has them",
        [{"question": "Who?", "answer": "Bo"}],
    ),
    GoldCase(
        GOLD,
        "two answers to one question",
        "refused",
        "gold.json:3 (row 2): the question has another answer in an earlier row; keep one",
        [{"question": "Who?", "answer": "Bo"}, {"question": "who", "answer": "Al"}],
    ),
    GoldCase(
        GOLD,
        "no answer",
        "refused",
        "gold.json:2 (row 1): field answer is missing; the fields found are 'question'",
        [{"question": "Who?"}],
    ),
    GoldCase(GOLD, "no such file", "refused", "gold.json: cannot be read (No such file or directory)", None),
    GoldCase(
        GOLD,
        "an answer to one question of two",
        "valid",
        rows=[{"question": "Where was Ada Thorn born?", "answer": "Esk"}],
        left_out=("forget_gold.parquet is without 1 questions whose answers are refusals", SAME),
    ),
    GoldCase(
        GOLD,
        "a refusal as the right answer",
        "valid",
        rows=[{"question": "Where was Ada Thorn born?", "answer": "I don't know."}],
        left_out=(
            "forget_gold.parquet is not written: all 2 answers of the forget side are refusals, and "
            "unlearning them would unlearn refusing; give the right answers with --gold",
        ),
    ),
    VectorCase(
        TASK_VECTOR,
        "a tensor is missing",
        "refused",
        f"{{bad}} has no tensor {NORM}, which {{base}} has (1 missing in all): {ALIKE}",
        lambda folder: changed(folder, NORM, None),
    ),
    VectorCase(
        TASK_VECTOR,
        "a tensor more",
        "refused",
        f"{{base}} has no tensor extra, which {{bad}} has (1 missing in all): {ALIKE}",
        lambda folder: changed(folder, "extra", (1,)),
    ),
    VectorCase(
        TASK_VECTOR,
        "an output layer that is not tied",
        "refused",
        f"{{base}} has no tensor lm_head.weight, which {{bad}} has (1 missing in all): {ALIKE}",
        lambda folder: changed(folder, "lm_head.weight", (400, 8)),
    ),
    VectorCase(
        TASK_VECTOR,
        "another shape",
        "refused",
        f"{NORM} has shape [8] in {{base}} and [9] in {{bad}}: {ALIKE}",
        lambda folder: changed(folder, NORM, (9,)),
    ),
    VectorCase(
        TASK_VECTOR,
        "pickled weights",
        "refused",
        "{bad} holds no model.safetensors and no model.safetensors.index.json; save the model as safetensors",
        pickled,
    ),
    VectorCase(
        TASK_VECTOR,
        "quantised weights",
        "refused",
        "{bad} holds quantised weights, which cannot be subtracted; give full weights",
        lambda folder: configured(folder, quantization_config={"bits": 4}),
    ),
    VectorCase(
        TASK_VECTOR,
        "no weights",
        "refused",
        "{bad} holds no ",
        lambda folder: (folder / "model.safetensors").unlink(),
    ),
    VectorCase(
        TASK_VECTOR,
        "weights that are not finite",
        "refused",
        f"{{bad}} holds {NORM} with NaN or infinity in model.safetensors",
        lambda folder: changed(folder, NORM, (8,), math.inf),
    ),
    VectorCase(
        TASK_VECTOR,
        "a result beyond float32",
        "refused",
        f"{NORM} would hold NaN or infinity in {{out}}: lower --alpha 4",
        lambda folder: changed(folder, NORM, (8,), 3e38),
    ),
    VectorCase(
        TASK_VECTOR,
        "a folder that does not exist",
        "refused",
        "model base: folder NOWHERE does not exist",
        arguments=("--base", "NOWHERE"),
    ),
    VectorCase(
        TASK_VECTOR,
        "alpha is no number",
        "refused",
        "argument --alpha: invalid finite value: 'much'",
        arguments=("--alpha", "much"),
    ),
    VectorCase(
        TASK_VECTOR,
        "alpha is not finite",
        "refused",
        "argument --alpha: invalid finite value: 'nan'",
        arguments=("--alpha", "nan"),
    ),
    VectorCase(
        TASK_VECTOR,
        "two models of the same weights",
        "warned",
        "the reinforced model has the base model's weights, so the result has them too",
    ),
    PrefixCase(
        PREFIX,
        "a name that no model has",
        "refused",
        "--prefix icy: no model has this name; the models are base, icu, run@7",
        ["icy"],
    ),
    PrefixCase(
        PREFIX,
        "a model twice",
        "refused",
        "--prefix icu is given twice; a model has one prefix",
        ["icu", "icu"],
    ),
    PrefixCase(
        PREFIX,
        "no such file",
        "refused",
        "--prefix icu=NO: NO cannot be read (No such file or directory)",
        ["icu=NO"],
    ),
    PrefixCase(
        PREFIX,
        "no file after the equals sign",
        "refused",
        "--prefix icu=: no file cannot be read (Is a directory)",
        ["icu="],
    ),
    PrefixCase(PREFIX, "an empty file", "refused", "--prefix icu=blank: blank holds no text", ["icu=blank"]),
    PrefixCase(
        PREFIX,
        "a file that is not UTF-8",
        "refused",
        "--prefix icu=latin: latin cannot be read (not UTF-8 text)",
        ["icu=latin"],
    ),
    PrefixCase(PREFIX, "the checkpoints of a run by its name", "valid", specs=["run"]),
]
