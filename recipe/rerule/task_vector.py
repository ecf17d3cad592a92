"""Unlearning by task arithmetic: `python -m recipe.rerule.task_vector --help`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from recipe.rerule import io, process
from recipe.rerule.evaluation.engine.models import Model, resolve_models
from recipe.rerule.io import check_apart, check_writable, new_folder
from recipe.rerule.process import ArgumentParser
from recipe.rerule.unlearning.task_vectors import KIND, finite, read_pair, write

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
    models = _resolved(base, reinforced)
    check_apart(out, *((f"--{model.name}", model.path) for model in models))
    weights = read_pair(*(model.path for model in models))
    with new_folder(out, overwrite, KIND) as folder:
        changed = write(*weights, alpha, folder)
    if not changed:
        io.warn("the reinforced model has the base model's weights, so the result has them too")
    print(f"{out}: base - {alpha:g} (reinforced - base), float32; the two differ in {changed:,} weights")


def _resolved(base: str, reinforced: str) -> list[Model]:
    """Both models. Raises ValueError naming the one that is none."""
    models = resolve_models([f"base={base}", f"reinforced={reinforced}"])
    if len(models) != 2:
        raise ValueError("--base and --reinforced are one model each; give one checkpoint of a run, not @all")
    return models


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
