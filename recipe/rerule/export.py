"""A trained model as a folder to publish: `python -m recipe.rerule.export --help`."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from httpx import HTTPError
from huggingface_hub import HfApi, get_token
from huggingface_hub.utils import validate_repo_id

from recipe.rerule import io, process
from recipe.rerule.evaluation.engine.models import Model, path_of, resolve_models
from recipe.rerule.evaluation.output import json_text
from recipe.rerule.io import Kind, check_apart, check_writable, new_folder, read_record, stamp_folder
from recipe.rerule.process import ArgumentParser, Progress
from recipe.rerule.reporting.attacks import read_attacks
from recipe.rerule.reporting.evaluations import Benchmark, read_benchmarks
from recipe.rerule.reporting.model_card import Origin, model_card, origin_of, run_of
from recipe.rerule.runs import checkpoints, run_folder
from recipe.rerule.runs.weights import Weights, copy_others, read_weights, write_index

KIND = Kind("rerule/export", "export.json")
"""The folder that is written."""
CARD = "README.md"
_DESCRIPTION = """\
Copy a trained model into a folder that transformers and vLLM load, with a model card (README.md): how it was
trained, what it answers and refuses, what attacks get out of it, and what is left to fill in."""
_EXAMPLES = """\
examples:
  python -m recipe.rerule.export outputs/rerule --to outputs/export
      a run's best checkpoint, or its last one if it kept no best, with a card that has no numbers
  python -m recipe.rerule.export outputs/rerule --to outputs/export --results outputs/evaluation \\
      --attacks outputs/attacks --name my-model
      with the numbers of this model in both folders

A folder of results names its models; the one that was read from the exported folder is taken. If none was,
--as NAME says which one it is.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 where the input is wrong or a file cannot be read or written."""
    with process.stoppable():
        options = _parser().parse_args(arguments)
        try:
            _run(options)
        except (ValueError, OSError) as error:
            return io.fail(error, 2)
        return 0


def _run(options: argparse.Namespace) -> None:
    if options.push:
        validate_repo_id(options.push)
        if "/" not in options.push:
            raise ValueError(f"--push {options.push}: give OWNER/NAME, the owner too")
        if not options.dry_run and get_token() is None:
            raise ValueError("--push needs a token of the Hub: set HF_TOKEN, or log in with `hf auth login`")
    elif options.dry_run:
        raise ValueError("--dry-run belongs to --push OWNER/NAME: give it too")
    check_writable(options.to, options.overwrite, KIND)
    run, model = _model_of(options.run)
    inputs = [("--results", path) for path in options.results]
    inputs += [("--attacks", path) for path in options.attacks]
    check_apart(options.to, ("RUN", model.path), *inputs, written="--to")
    weights = read_weights(model.path, "exported")
    origin = origin_of(run, model.step)
    evaluated = [(one, _name_in_all(options.named, model, one)) for one in read_benchmarks(options.results)]
    attacked = [
        (one, _name(options.named, model, "--attacks", one.meta.get("models", {}), one.models))
        for one in read_attacks(options.attacks)
    ]
    card = model_card(options.name or run_of(run.resolve()).name, origin, evaluated, attacked)
    with new_folder(options.to, options.overwrite, KIND) as folder, Progress("export") as progress:
        progress.doing("copying the weights")
        _write(weights, folder, card, origin)
    print(f"exported: {options.to} (fill in what {CARD} asks for before you publish it)")
    if options.push:
        _push(options.to, options.push, options.dry_run)


def _push(folder: Path, name: str, dry_run: bool) -> None:
    """Upload a folder to a repository of the Hub, which is private if it is new. Raises ValueError."""
    if dry_run:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        lines = [f"  {path.name} ({path.stat().st_size / 1e6:.1f} MB)" for path in files]
        print("\n".join([f"not uploaded to {name}, as --dry-run says:", *lines]))
        return
    api = HfApi()
    try:
        api.create_repo(name, private=True, exist_ok=True)
        found = api.upload_folder(repo_id=name, folder_path=folder)
    except (HTTPError, OSError, ValueError) as error:  # a card that the Hub refuses is a ValueError
        again = f"hf upload {name} {folder} --private"
        raise ValueError(
            f"{folder} is there, but --push failed: {io.describe(error)}; go on with `{again}`"
        ) from None
    print(f"uploaded: {found}")


def _model_of(given: str) -> tuple[Path, Model]:
    """The run folder and its model; of a model's folder alone, that folder. Raises ValueError."""
    folder = Path(path_of(given))
    if (folder / run_folder.MARKER).is_file() and (folder / "model" / "config.json").is_file():
        return folder, Model("RUN", folder / "model")
    model = resolve_models([f"RUN={given}"])
    if len(model) != 1:
        raise ValueError(f"{given} names several models; give one checkpoint of a run")
    run = folder.parent if checkpoints.step_of(folder.name) is not None else folder
    return run, model[0]


def _name_in_all(named: str | None, model: Model, benchmark: Benchmark) -> str:
    """`_name` in the folders of all targets. Raises ValueError where it is another model in one of them."""
    targets = benchmark.targets
    names = {_name(named, model, "--results", one.models, list(one.results)) for one in targets}
    if len(names) > 1:
        raise ValueError(
            f"--results of {benchmark.title}: the model is called {' and '.join(sorted(names))}; give the "
            "folders of one name"
        )
    return names.pop()


def _name(named: str | None, model: Model, option: str, told: Mapping[str, Any], names: Sequence[str]) -> str:
    """The model's name in a folder of results: `named`, or the one that was read from the model's folder."""
    if named is not None:
        if named not in names:
            raise ValueError(f"--as {named}: {option} has no such model; there are {', '.join(names)}")
        return named
    found = [name for name in names if _is_read_from(told.get(name), model.path)]
    if len(found) != 1:
        raise ValueError(
            f"{option} names {len(found) or 'no'} model{'s' * (len(found) != 1)} read from {model.path}; "
            f"say with --as NAME which one it is: {', '.join(names)}"
        )
    return found[0]


def _is_read_from(told: Any, folder: Path) -> bool:
    """Whether meta.json says that a model was read from this folder, and asked without a prefix."""
    path = told.get("path") if isinstance(told, dict) and "prefix" not in told else None
    return isinstance(path, str) and Path(path).resolve() == folder.resolve()


def _write(weights: Weights, folder: Path, card: str, origin: Origin) -> None:
    """Weights, what belongs to them, the card and the marker, into an empty folder."""
    for file in weights.by_file():
        shutil.copyfile(file, folder / file.name)
    write_index(weights, folder, {})
    copy_others(weights.folder, folder, KIND.marker)
    _without_traces(folder)
    (folder / CARD).write_text(card, encoding="utf-8")
    marker = {**stamp_folder(KIND, folder), "method": origin.method}
    (folder / KIND.marker).write_text(json_text(marker), encoding="utf-8")


def _without_traces(folder: Path) -> None:
    """Remove what names this machine's folders: markers of commands, and where a model was loaded from."""
    for file in folder.glob("*.json"):
        record = read_record(file)
        if str(record.get("format", "")).startswith("rerule/"):
            file.unlink()
        elif file.name == "config.json" and "_name_or_path" in record:
            del record["_name_or_path"]
            file.write_text(json_text(record), encoding="utf-8")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m recipe.rerule.export", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a run's folder (its best checkpoint by validation, or its last one if it kept no best), "
        "RUN@best, RUN@last, one checkpoint RUN/global_step_N, or a Hugging Face folder",
    )
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="the folder to write")
    parser.add_argument(
        "--name", metavar="TEXT", help="the model's name on its card (default: the folder's name)"
    )
    for option, what in (("--results", "model"), ("--attacks", "attack")):
        parser.add_argument(
            option, action="append", type=Path, default=[], metavar="FOLDER",
            help=f"a folder of recipe.rerule.evaluate {what} with this model; repeat the option for more",
        )  # fmt: skip
    parser.add_argument("--as", dest="named", metavar="NAME", help="the model's name in these folders")
    parser.add_argument("--overwrite", action="store_true", help="replace a folder of this command in FOLDER")
    text = "upload the folder to this repository of the Hub too, which is private if it is new"
    parser.add_argument("--push", metavar="OWNER/NAME", help=f"{text}; the token is HF_TOKEN")
    text = "with --push: write the folder and list its files, and upload nothing"
    parser.add_argument("--dry-run", action="store_true", help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
