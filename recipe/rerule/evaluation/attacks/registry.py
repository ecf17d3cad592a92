"""The attacks that `evaluate attack` knows.

An attack is one module of this folder with its protocol in the docstring, which declares ATTACKS, a tuple of
`interface.Attack` objects. Other packages register single objects through the entry-point group
`rerule.attacks`; one of them that cannot be used is left out, with a warning. Nothing else knows a name.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from recipe.rerule import io
from recipe.rerule.evaluation.attacks.interface import Attack, FolderAttack, ForwardAttack, RequestAttack

BUILT_IN = (
    "plain", "prompts", "prefill", "gold_prefill", "many_shot", "samples", "memorisation", "probability",
    "choice", "rounded", "relearned", "without_direction", "logit_lens", "uds", "probing",
    "membership_inference",
)  # fmt: skip
"""Modules of this folder that declare ATTACKS, in the order of tables."""
BEFORE = "none"
"""The attack that changes nothing, which every command makes."""
GROUP = "rerule.attacks"
DEFAULT = "default"
"""On the command line: all attacks that are declared with `default`."""
_KINDS = (RequestAttack, FolderAttack, ForwardAttack)


@cache
def attacks() -> Mapping[str, Attack]:
    """All attacks by name: the built-in ones in their order, then those of other packages."""
    found: dict[str, Attack] = {}
    for name in BUILT_IN:
        for declared in importlib.import_module(f"{__package__}.{name}").ATTACKS:
            found[declared.name] = _checked(declared, found)
    for entry in entry_points(group=GROUP):
        try:
            declared = _loaded(entry, found)
        # Whatever a package of others does: the rest goes on.
        except (Exception, SystemExit) as error:
            io.warn(f"attack {entry.name} ({entry.value}) is left out: {io.describe(error)}")
        else:
            found[declared.name] = declared
    return found


def chosen(names: Sequence[str]) -> list[Attack]:
    """The attacks of these names, each once, in the order of the registry; DEFAULT stands for several.

    Raises:
        ValueError: an unknown name; the message has the nearest one.
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


def _loaded(entry: EntryPoint, known: Mapping[str, Attack]) -> Attack:
    """What an entry point gives. Raises ValueError where it is no attack, or its name is taken."""
    return _checked(entry.load(), known)


def _checked(declared: object, known: Mapping[str, Attack]) -> Attack:
    if not isinstance(declared, _KINDS):
        kinds = ", ".join(kind.__name__ for kind in _KINDS)
        raise ValueError(f"it is none of {kinds} of recipe.rerule.evaluation.attacks.interface")
    if declared.name in known or declared.name == DEFAULT:
        raise ValueError(f"there is an attack {declared.name} already")
    return declared
