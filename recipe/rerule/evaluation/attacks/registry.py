"""The attacks that `evaluate attack` knows.

They are the `ATTACKS` of the modules of this folder. Other packages register single objects through the
entry-point group `rerule.attacks`; one of them that cannot be used is left out, with a warning.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points

from recipe.rerule import io
from recipe.rerule.evaluation.attacks.attack import Attack

BEFORE = "none"
"""The attack that changes nothing, which every command makes."""
GROUP = "rerule.attacks"
DEFAULT = "default"
"""On the command line: all attacks that are declared with `default`."""


@cache
def attacks() -> Mapping[str, Attack]:
    """All attacks by name: BEFORE, those that ask, those that change and those that measure; then others'."""
    folder = importlib.import_module(__package__).__path__
    modules = [importlib.import_module(f"{__package__}.{one.name}") for one in pkgutil.iter_modules(folder)]
    built_in = [one for module in modules for one in getattr(module, "ATTACKS", ())]
    built_in.sort(key=lambda one: (one.name != BEFORE, one.ask is None, one.changes is None))
    found: dict[str, Attack] = {}
    for declared in built_in:
        _add(declared, found)
    for entry in entry_points(group=GROUP):
        try:
            _add(entry.load(), found)
        # Whatever a package of others does: the rest goes on.
        except (Exception, SystemExit) as error:
            io.warn(f"attack {entry.name} ({entry.value}) is left out: {io.describe(error)}")
    return found


def chosen(names: Sequence[str]) -> list[Attack]:
    """The attacks of these names, each once, in the order of the registry; DEFAULT stands for several.

    Raises ValueError: an unknown name; the message has the nearest one.
    """
    known = attacks()
    for name in names:
        if name != DEFAULT and name not in known:
            near = difflib.get_close_matches(name, [DEFAULT, *known], n=1, cutoff=0)
            raise ValueError(
                f"there is no attack {name!r}; the nearest name is {near[0]}. Known are {DEFAULT}, "
                f"{', '.join(known)}"
            )
    return [one for one in known.values() if one.name in names or (one.default and DEFAULT in names)]


def _add(declared: object, known: dict[str, Attack]) -> None:
    if not isinstance(declared, Attack):
        raise ValueError(f"it is no {Attack.__module__}.Attack")
    if declared.name in known or declared.name == DEFAULT:
        raise ValueError(f"there is an attack {declared.name} already")
    known[declared.name] = declared
