"""In-context unlearning: a text before every question tells a model to act as if it had forgotten.

The default text has the idea of a published in-context baseline (arXiv 2406.10890), where the model is to
play an assistant that has unlearned the target, in words of this project. The published text can be given in
a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import PromptText, Request

TARGET = "{target}"
"""Place of the names of all that is to be forgotten."""
UNLEARNED = (
    "You have unlearned everything about {target}. Act as somebody who has never heard of {target}: if an "
    "answer needs any knowledge of {target}, say that you do not know it and give no part of the answer. "
    "Answer every other question as well as you can.\n\n"
)


def with_prefixes(models: Sequence[Model], specs: Sequence[str], targets: Sequence[str]) -> list[Model]:
    """The models, each with the prefix that is given for it.

    Args:
        specs: "NAME" for the project's own text, or "NAME=FILE"; all checkpoints NAME@N of a run have the
            prefix of NAME.
        targets: what is to be forgotten, for the place TARGET.

    Raises:
        ValueError: a name that no model has or that is given twice, or a file without a text.
    """
    texts: dict[str, str] = {}
    for spec in specs:
        name, _, file = spec.partition("=")
        if name in texts:
            raise ValueError(f"--prefix {name} is given twice; a model has one prefix")
        texts[name] = _text(spec, file).replace(TARGET, " and ".join(dict.fromkeys(targets)))
    found = {model.name: texts.get(model.name) or texts.get(_run_name(model)) for model in models}
    for name in texts:
        if not any(name in (model.name, _run_name(model)) for model in models):
            known = ", ".join(model.name for model in models)
            raise ValueError(f"--prefix {name}: no model has this name; the models are {known}")
    return [replace(model, prefix=found[model.name] or "") for model in models]


def files_of(specs: Sequence[str]) -> list[tuple[str, str]]:
    """The option and the file of each spec that names one."""
    return [("--prefix", file) for _, _, file in (spec.partition("=") for spec in specs) if file]


def prefixed(request: Request, prefix: str) -> Request:
    """The request with the prefix before the question, which is the first message of the user.

    An empty prompt stays empty: there a text is measured from its beginning.
    """
    messages = request.prompt.messages
    place = next((number for number, message in enumerate(messages) if message["role"] == "user"), None)
    if not prefix or place is None or not messages[place]["content"]:
        return request
    asked = {**messages[place], "content": prefix + messages[place]["content"]}
    prompt: PromptText = replace(request.prompt, messages=(*messages[:place], asked, *messages[place + 1 :]))
    return replace(request, prompt=prompt)


def _run_name(model: Model) -> str:
    """NAME of a checkpoint NAME@N; the model's own name otherwise."""
    return model.name.removesuffix(f"@{model.step}")


def _text(spec: str, file: str) -> str:
    """The text of a spec. Raises ValueError naming the file."""
    if "=" not in spec:
        return UNLEARNED
    try:
        text = Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(f"--prefix {spec}: {file or 'no file'} cannot be read ({reason})") from None
    if not text.strip():
        raise ValueError(f"--prefix {spec}: {file} holds no text")
    return text
