"""Failures as a user should meet them: one line that names what is wrong, and an exit code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from recipe.rerule import signals


@contextlib.contextmanager
def one_line(*kinds: type[Exception], code: int) -> Iterator[None]:
    """Turn an exception of `kinds` into `error: <line>` on stderr and exit code `code`.

    What is raised after a signal is its consequence and passes: `signals.one_line` has the line then.
    """
    try:
        yield
    except kinds as error:
        if signals.received():
            raise
        print(f"error: {describe(error)}", file=sys.stderr, flush=True)
        sys.exit(code)


def describe(error: BaseException) -> str:
    """One line for an exception: the cause's own message where a remote worker wrapped it."""
    cause = _root_cause(error)
    text = " ".join(line.strip() for line in _message(cause).splitlines() if line.strip())
    return text or type(cause).__name__


def _root_cause(error: BaseException) -> BaseException:
    # Ray wraps a worker's exception and keeps it in `cause`, once for each process it passed.
    while (cause := getattr(error, "cause", None)) is not None and isinstance(cause, BaseException):
        error = cause
    return error


def _message(error: BaseException) -> str:
    # Hydra's and OmegaConf's first line names the key; what follows is internals.
    module = type(error).__module__
    # An error that Ray rebuilt repeats its message once for each process it passed.
    text = str(error.args[0]) if error.args and len(set(map(str, error.args))) == 1 else str(error)
    if module.startswith(("hydra", "omegaconf")):
        return text.split("\n")[0] + _unknown_key(error)
    if module.startswith(("ray", "recipe")) or isinstance(error, ValueError):
        return text
    return f"{type(error).__name__}: {text}"


def _unknown_key(error: BaseException) -> str:
    if "Could not override" not in str(error):
        return ""
    return " No such setting: see docs/configuration.md, or `--cfg job` for every key."
