"""Unlearning by task arithmetic (arXiv 2212.04089): `python -m recipe.rerule.task_vector --help`.

It writes base - alpha (reinforced - base) as a model folder. The reinforced model is the base model trained
further on what is to be forgotten. Both are read in float32, and the result is written in float32: in
bfloat16 most differences of a short training are lost. One weight file is in memory at a time.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from recipe.rerule import io, process
from recipe.rerule.evaluation.engine.models import resolve_models
from recipe.rerule.io import Kind, check_apart, check_writable, new_folder, stamp_folder
from recipe.rerule.process import ArgumentParser
from recipe.rerule.runs.weights import Weights, config_of, copy_others, read_weights, write_index
from recipe.rerule.runs.written_model import say_dtype

KIND = Kind("rerule/task_vector", "task_vector.json")
"""The folder that is written; its marker says which models it was made from."""
_TIED = "lm_head.weight"
_DESCRIPTION = """\
Unlearn by subtraction: write base - alpha (reinforced - base), in float32. The reinforced model is the base
model, trained further on the answers or texts to be forgotten (python -m recipe.rerule.sft)."""
_EXAMPLES = """\
examples:
  python -m recipe.rerule.task_vector --base models/base --reinforced outputs/reinforced --alpha 1 \\
      --out outputs/task_vector
      a Hugging Face folder with the base model's configuration and tokenizer; both models may also be the
      folders of runs, or names on the Hub
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 where the input is wrong or a file cannot be read or written."""
    with process.stoppable():
        options = _parser().parse_args(arguments)
        try:
            _run(options.base, options.reinforced, options.alpha, options.out, options.overwrite)
        except (ValueError, OSError) as error:
            return io.fail(error, 2)
        return 0


def _run(base: str, reinforced: str, alpha: float, out: Path, overwrite: bool) -> None:
    check_writable(out, overwrite, KIND)
    models = resolve_models([f"base={base}", f"reinforced={reinforced}"])
    if len(models) != 2:
        raise ValueError("--base and --reinforced are one model each; give one checkpoint of a run, not @all")
    check_apart(out, *((f"--{model.name}", model.path) for model in models))
    weights = _read_pair(*(model.path for model in models))
    with new_folder(out, overwrite, KIND) as folder:
        changed = _write(*weights, alpha, folder)
    if not changed:
        io.warn("the reinforced model has the base model's weights, so the result has them too")
    print(f"{out}: base - {alpha:g} (reinforced - base), float32; the two differ in {changed:,} weights")


def _read_pair(base: Path, reinforced: Path) -> tuple[Weights, Weights]:
    """The weights of both models, which must be alike.

    Raises:
        ValueError: a folder has no whole model, no safetensors or quantised weights.
        ValueError: the two differ in the names or the shapes of their tensors.
    """
    one, other = (read_weights(folder, "subtracted") for folder in (base, reinforced))
    tied = all(config_of(weights.folder).get("tie_word_embeddings") is True for weights in (one, other))
    if tied and (_TIED in one.files) != (_TIED in other.files):
        # Only one model wrote its output layer, which both share with the embeddings.
        one, other = one.without(_TIED), other.without(_TIED)
    for here, there in ((one, other), (other, one)):
        if missing := sorted(here.files.keys() - there.files.keys()):
            raise ValueError(
                f"{there.folder} has no tensor {missing[0]}, which {here.folder} has ({len(missing)} missing "
                "in all): are they the same model?"
            )
    ours, theirs = one.shapes(), other.shapes()
    for name, shape in ours.items():
        if shape != theirs[name]:
            raise ValueError(
                f"{name} has shape {shape} in {one.folder} and {theirs[name]} in {other.folder}: are they "
                "the same model?"
            )
    return one, other


def _write(base: Weights, reinforced: Weights, alpha: float, folder: Path) -> int:
    """Write base - alpha (reinforced - base) into an empty folder; returns how many weights differ.

    Configuration and tokenizer are the base model's; config.json says float32.

    Raises ValueError: a tensor of whole numbers that differs, or a result that is not finite.
    """
    copy_others(base.folder, folder, KIND.marker)
    changed = 0
    with tqdm(total=len(base.files), desc="task vector", unit="tensor", disable=None) as bar:
        for file, names in base.by_file().items():
            changed += _write_file(file, names, reinforced, alpha, folder / file.name, bar)
    write_index(base, folder, {})
    say_dtype(folder, "float32")
    marker = {"base": str(base.folder), "reinforced": str(reinforced.folder), "alpha": alpha}
    io.write(
        folder / KIND.marker, json.dumps({**stamp_folder(KIND, folder), **marker}, indent=1).encode() + b"\n"
    )
    return changed


def _write_file(
    file: Path, names: list[str], reinforced: Weights, alpha: float, target: Path, bar: tqdm[Any]
) -> int:
    """Write the tensors of one of the base model's files; returns how many of their weights differ."""
    results, changed = {}, 0
    with safe_open(file, framework="pt") as base:
        for name in names:
            with safe_open(reinforced.files[name], framework="pt") as other:
                before, after = base.get_tensor(name), other.get_tensor(name)
            changed += int(torch.count_nonzero(before != after))
            results[name] = _result(name, before, after, alpha, target.parent)
            bar.update()
        save_file(results, target, metadata=base.metadata() or {"format": "pt"})
    io.flush(target)
    return changed


def _result(name: str, before: Tensor, after: Tensor, alpha: float, folder: Path) -> Tensor:
    if not before.is_floating_point():
        if not torch.equal(before, after):
            raise ValueError(f"{name} holds whole numbers and differs between the two models")
        return before
    base = before.float()
    result = base - alpha * (after.float() - base)
    if not bool(torch.isfinite(result).all()):
        raise ValueError(f"{name} would hold NaN or infinity in {folder}: lower --alpha {alpha:g}")
    return result


def finite(text: str) -> float:
    """A finite number, as an option's type."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m recipe.rerule.task_vector", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    parser.add_argument("--base", required=True, metavar="MODEL", help="the model that is to forget")
    parser.add_argument(
        "--reinforced",
        required=True,
        metavar="MODEL",
        help="the base model, trained further on what is to be forgotten",
    )
    parser.add_argument(
        "--alpha", type=finite, required=True, metavar="A",
        help="how much of the difference to subtract: 0 gives the base model, -1 the reinforced one",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace a folder of this command in DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
