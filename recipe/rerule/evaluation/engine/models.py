"""The models to evaluate: names, folders, what is put around their questions, which of them one engine can
serve.

In-context unlearning: a text before every question tells a model to act as if it had forgotten. The default
text has the idea of a published in-context baseline (arXiv 2406.10890), where the model is to play an
assistant that has unlearned the target, in words of this project. The published text can be given in a file.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from data_prep.contract import read_rows
from recipe.rerule import io
from recipe.rerule.runs import checkpoints, model_checks
from recipe.rerule.runs.run_folder import read_config
from recipe.rerule.training.prompts import Template

_ALL, _BEST, _LAST = "@all", "@best", "@last"
_LONGEST_NAME = 240
"""Characters of a name as files have it, with room for an ending: most file systems take 255 bytes."""
_HUB_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.bin", "*.model", "*.jinja", "*.txt"]
# Where configurations of transformers have the longest sequence.
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_WITHOUT_EFFECT = {
    # Where the trainer saved, which library wrote it, and what the one engine that serves several models, on
    # the CPU, sets itself.
    "config.json": (
        *("_name_or_path", "transformers_version", "use_cache"),
        *("dtype", "torch_dtype", "attn_implementation", "_attn_implementation"),
    ),
    # Settings of single calls, which a fast tokenizer keeps from its last use.
    "tokenizer.json": ("padding", "truncation"),
}
"""Keys that change nothing of what an engine computes, by file."""
_END_AND_TOKENS = ("eos_token", "add_bos_token", "add_eos_token", "add_prefix_space")
"""Keys of tokenizer_config.json that decide where responses end and which tokens a text is given."""

TARGET = "{target}"
"""Place of the names of all that is to be forgotten."""
UNLEARNED = (
    "You have unlearned everything about {target}. Act as somebody who has never heard of {target}: if an "
    "answer needs any knowledge of {target}, say that you do not know it and give no part of the answer. "
    "Answer every other question as well as you can.\n\n"
)


@dataclass(frozen=True)
class Model:
    """A model under the name it has in the results.

    Attributes:
        name: as given on the command line; NAME@N for checkpoint N of a run given as RUN@all.
        path: Hugging Face folder (holds config.json).
        step: the training step where `path` is a checkpoint of a stage-2 run, else None.
        prefix: text before every question (`with_prefixes`).
        template: further arguments of the chat template.
    """

    name: str
    path: Path
    step: int | None = None
    prefix: str = ""
    template: Template = ()


def resolve_models(specs: Sequence[str]) -> list[Model]:
    """Models from "NAME=PATH" strings, in order.

    PATH is a Hugging Face folder, a model's name on the Hub (owner/name), the folder of a stage-2 run, one
    checkpoint RUN/global_step_N, or RUN@all: every complete checkpoint of the run, by step, as NAME@N. Of a
    run's folder it is the checkpoint that was best by validation, where the run noted one, else the newest
    complete one; RUN@best and RUN@last say which. What was taken is said on stderr.

    Raises ValueError: a spec without a name or a path, a name given twice or that no file can have, or a
    folder without a model.
    """
    named = []
    for spec in specs:
        name, separator, path = spec.partition("=")
        if not (name.strip() and separator and path):
            raise ValueError(f"--model {spec!r} is not NAME=PATH")
        # Files and folders are named after models.
        if name in (".", "..") or len(quote(name)) > _LONGEST_NAME:
            raise ValueError(f"--model {name}: no file can have this name; give the model a shorter one")
        named.append((name, path))
    _refuse_repeated([name for name, _ in named])
    models = [model for name, path in named for model in _resolve(name, path)]
    _refuse_repeated([model.name for model in models])
    return models


def check_models(models: Sequence[Model]) -> None:
    """Refuse models whose files cannot be loaded. Raises ValueError naming model and folder."""
    for model in models:
        if (problem := model_checks.problem(model.path)) is not None:
            raise ValueError(f"model {model.name}: {model.path} {problem}")


def _refuse_repeated(names: Sequence[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"--model {twice[0]} is given twice; every model needs its own name")


def _resolve(name: str, path: str) -> list[Model]:
    """The model or, of a run's @all, the models that `path` names."""
    folder = Path(path_of(path))
    if path.endswith(_ALL):
        if not folder.is_dir():
            raise ValueError(f"model {name}: folder {folder} does not exist")
        found = {checkpoints.step_of(one.name): one for one in folder.iterdir()}
        steps = sorted(
            step for step, one in found.items() if step is not None and not checkpoints.problem(one)
        )
        if not steps:
            raise ValueError(f"model {name}: {folder} holds no complete checkpoint global_step_N")
        return [replace(_checkpoint(name, folder, step), name=f"{name}@{step}") for step in steps]
    if folder.is_file():
        raise ValueError(f"model {name}: {folder} {model_checks.other_kind(folder)}")
    if not folder.is_dir():
        if not _HUB_NAME.fullmatch(path):
            raise ValueError(f"model {name}: folder {path} does not exist")
        from huggingface_hub import snapshot_download

        try:
            return [Model(name, Path(snapshot_download(path, allow_patterns=_HUB_FILES)))]
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"model {name}: {path} is no folder, and cannot be loaded from the Hub: {reason}"
            ) from None
    if (folder / "config.json").is_file():
        return [Model(name, folder)]
    if (step := checkpoints.step_of(folder.name)) is not None:
        return [_checkpoint(name, folder.parent, step)]
    if (newest := checkpoints.newest_complete(folder)) is not None:
        return [_checkpoint(name, folder, _chosen(name, folder, newest, path))]
    if (kind := model_checks.other_kind(folder)) is not None:
        raise ValueError(f"model {name}: {folder} {kind}")
    raise ValueError(
        f"model {name}: {folder} holds neither config.json nor a complete checkpoint global_step_N; give a "
        "Hugging Face folder or the folder of a stage-2 run"
    )


def path_of(given: str) -> str:
    """A model's PATH without @all, @best or @last."""
    return next((given.removesuffix(end) for end in (_ALL, _BEST, _LAST) if given.endswith(end)), given)


def chosen_by_probes(models: Sequence[Model], asked: Collection[str]) -> list[str]:
    """A warning for each model whose step was chosen by validation on rows that are among the probes.

    asked: the prompt of each probe, as text.
    """
    found = []
    for model in models:
        if model.step is None:  # no checkpoint of a run
            continue
        run = model.path.parents[2]
        if (best := checkpoints.best(run)) is None or best.step != model.step:
            continue
        files = read_config(run / "config.yaml").get("data", {}).get("val_files") or []
        try:
            rows = [row for file in ([files] if isinstance(files, str) else files) for row in read_rows(file)]
        except ValueError:  # the files of validation are gone
            continue
        if shared := len({str(row["prompt"]) for row in rows} & set(asked)):
            found.append(
                f"model {model.name}: {shared} of the {len(asked)} probes are validation rows, by which its "
                f"step {model.step} was chosen, so its numbers may be too good; hold rows out for validation "
                f"(data_prep custom --val-share 0.1), or evaluate the last step, {model.name}={run}{_LAST}"
            )
    return found


def _chosen(name: str, run: Path, newest: int, given: str) -> int:
    """The step to take of a run; says on stderr which and why. Raises ValueError where it is not there."""
    best = checkpoints.best(run)
    if best is None and given.endswith(_BEST):
        raise ValueError(
            f"model {name}: {run} holds no checkpoint that was chosen by validation; train with "
            f"trainer.test_freq and save.best=true, or give {run}{_LAST}"
        )
    if best is None or given.endswith(_LAST):
        step, why = newest, "the last complete checkpoint"
        why += "" if best is None else f"; the best by validation is step {best.step} ({run}{_BEST})"
    else:
        step = best.step
        why = f"the best by validation (forget refused {best.forget_refused:.0%}, "
        why += f"retain right {best.retain_right:.0%})"
        why += "" if step == newest else f"; the last is step {newest} ({run}{_LAST})"
    print(f"model {name}: step {step} of {run}, {why}", file=sys.stderr, flush=True)
    return step


def _checkpoint(name: str, run: Path, step: int) -> Model:
    """The model of one checkpoint, which must be complete."""
    folder = checkpoints.step_folder(run, step)
    if (problem := checkpoints.problem(folder)) is not None:
        raise ValueError(f"model {name}: checkpoint {folder} is incomplete: {problem}")
    model = folder / "actor" / "huggingface"
    if not (model / "config.json").is_file():
        raise ValueError(
            f"model {name}: checkpoint {folder} holds no actor/huggingface/config.json; train with hf_model "
            "in actor_rollout_ref.actor.checkpoint.save_contents"
        )
    return Model(name, model, step)


def context_length(model: Model) -> int | None:
    """Most tokens the model takes, as its config.json says; None where it does not."""
    config = _settings(model.path / "config.json")
    config = config.get("text_config", config)
    return next((config[key] for key in _CONTEXT_KEYS if isinstance(config.get(key), int)), None)


def engine_key(model: Model) -> str:
    """Equal for two models exactly when they differ in weights alone, so that one engine can serve both.

    They are then asked the same tokens. A folder without tokenizer.json (a slow tokenizer) shares with none:
    its key is its path, its prefix and its arguments of the chat template.
    """
    if not (model.path / "tokenizer.json").is_file():
        return json.dumps([str(model.path), model.prefix, model.template])
    tokenizer = _settings(model.path / "tokenizer_config.json")
    template = model.path / "chat_template.jinja"
    parts = [
        *(_settings(model.path / file) for file in _WITHOUT_EFFECT),
        _settings(model.path / "generation_config.json").get("eos_token_id"),
        [tokenizer.get(key) for key in _END_AND_TOKENS],
        template.read_text() if template.is_file() else tokenizer.get("chat_template"),
        model.prefix,
        model.template,
    ]
    return json.dumps(parts, sort_keys=True)


def _settings(file: Path) -> dict[str, Any]:
    """What a JSON file says that has an effect; {} where it is missing. Raises ValueError naming it."""
    content = io.read_json(file, nan=True) if file.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no JSON object")
    return {key: value for key, value in content.items() if key not in _WITHOUT_EFFECT.get(file.name, ())}


# In-context unlearning, and arguments of the chat templates.


def with_prefixes(models: Sequence[Model], specs: Sequence[str], targets: Sequence[str]) -> list[Model]:
    """The models, each with the prefix that is given for it.

    Args:
        specs: "NAME" for the project's own text, or "NAME=FILE"; all checkpoints NAME@N of a run have the
            prefix of NAME.
        targets: what is to be forgotten, for the place TARGET.

    Raises ValueError: a name that no model has or that is given twice, or a file without a text.
    """
    texts: dict[str, str] = {}
    for spec in specs:
        name, separator, file = spec.partition("=")
        if name in texts:
            raise ValueError(f"--prefix {name} is given twice; a model has one prefix")
        try:
            text = Path(file).read_text("utf-8") if separator else UNLEARNED
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ValueError(f"--prefix {spec}: {file or 'no file'} cannot be read ({reason})") from None
        if not text.strip():
            raise ValueError(f"--prefix {spec}: {file} holds no text")
        texts[name] = text.replace(TARGET, " and ".join(dict.fromkeys(targets)))
    names = {model.name: (model.name, model.name.removesuffix(f"@{model.step}")) for model in models}
    for name in texts:
        if not any(name in own for own in names.values()):
            raise ValueError(f"--prefix {name}: no model has this name; the models are {', '.join(names)}")
    return [
        replace(model, prefix=next((texts[name] for name in names[model.name] if name in texts), ""))
        for model in models
    ]


def add_template_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--template", action="append", default=[], metavar="NAME=VALUE",
        help="an argument of the chat templates, such as enable_thinking=false; give what training had as "
        "data.apply_chat_template_kwargs; repeat the option for more",
    )  # fmt: skip


def with_template(models: Sequence[Model], specs: Sequence[str]) -> list[Model]:
    """The models, all with the arguments that NAME=VALUE strings give.

    A value is JSON where it can be read as such, true and false in any spelling; anything else is a text.

    Raises ValueError: a spec without a name or "=", a name given twice, or one that transformers takes
    itself.
    """
    if not specs:
        return list(models)
    from transformers import PreTrainedTokenizerBase

    # What apply_chat_template takes for itself, and what it gives to every template.
    taken = {*inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters, "messages"}
    arguments: dict[str, Any] = {}
    for spec in specs:
        name, separator, value = spec.partition("=")
        if not (separator and name.isidentifier()):
            raise ValueError(f"--template {spec!r} is not NAME=VALUE")
        if name in arguments:
            raise ValueError(f"--template {name} is given twice; an argument has one value")
        if name in taken:
            raise ValueError(f"--template {name}: transformers sets this itself; leave it out")
        try:
            arguments[name] = json.loads(value.lower() if value.lower() in ("true", "false") else value)
        except ValueError:
            arguments[name] = value
    return [replace(model, template=tuple(arguments.items())) for model in models]
