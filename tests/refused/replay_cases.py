"""Replay rules of a user's own that were tried, with what must happen; each is tried by test_replay.py."""

from __future__ import annotations

from dataclasses import dataclass

from tests.refused.cases import Case

MADE, RUN, RESUMED = (
    "replay rules of one's own, before the start",
    "replay rules of one's own, at a step",
    "replay rules of one's own, resumed",
)
PATH = "my_rules:Own"


@dataclass(frozen=True)
class RuleCase(Case):
    """A module `my_rules` and the setting that names a class of it.

    source: of the module; "" where there is none.
    setting: which of the replay's settings names it.
    named: what the line must hold besides the setting and its value.
    path: the setting's value.
    """

    source: str = ""
    setting: str = "admission"
    named: str = ""
    path: str = PATH


def own(
    *methods: str, init: str = "def __init__(self, config, rng): self.config, self.rng = config, rng"
) -> str:
    """A module with the class Own."""
    return "\n".join(["class Own:", *(f"    {line}" for line in (init, *methods))]) + "\n"


ADMIT = "def admit(self, groups, threshold): return groups"
SAMPLE = "def sample(self, groups, k, step): return groups[:k]"
VICTIM = "def victim(self, groups): return 0"
UPDATE = "def update(self, groups): return 0.6"
STATE, RESTORE = "def state(self): return {'seen': 3}", "def restore(self, state): self.seen = state['seen']"
RULES = {"admission": ADMIT, "sampling": SAMPLE, "eviction": VICTIM, "threshold_rule": UPDATE}


def refused(
    group: str, name: str, source: str, named: str, setting: str = "admission", path: str = PATH
) -> Case:
    return RuleCase(group, name, "refused", source, setting, named, path)


CASES: list[Case] = [
    *(
        RuleCase(MADE, f"{setting}: a fitting class", "valid", own(line), setting)
        for setting, line in RULES.items()
    ),
    *(
        refused(MADE, f"{setting}: no such method", own(), f"Own has no method {line.split()[1]}(", setting)
        for setting, line in {
            "admission": "def admit",
            "sampling": "def sample",
            "eviction": "def victim",
            "threshold_rule": "def update",
        }.items()
    ),
    *(
        refused(
            MADE,
            f"{setting}: too few arguments",
            own(f"def {name}(self): ..."),
            f"Own.{name} cannot be called as",
            setting,
        )
        for setting, name in {
            "admission": "admit",
            "sampling": "sample",
            "eviction": "victim",
            "threshold_rule": "update",
        }.items()
    ),
    RuleCase(
        MADE, "arguments with other names and defaults", "valid", own("def admit(self, a, b=0, *c): return a")
    ),
    RuleCase(MADE, "a class with a state", "valid", own(ADMIT, STATE, RESTORE)),
    refused(
        MADE,
        "no such module",
        "",
        "Python finds no module nowhere; correct it, or put its folder on",
        path="nowhere.rules:Own",
    ),
    refused(
        MADE,
        "no such submodule",
        own(ADMIT),
        "Python finds no module my_rules.more",
        path="my_rules.more:Own",
    ),
    refused(MADE, "no such class", "x = 1\n", "my_rules has no class Own"),
    refused(
        MADE, "a function instead of a class", "def Own(config, rng): ...\n", "my_rules has no class Own"
    ),
    refused(MADE, "a syntax error", "class Own\n", "importing my_rules raised SyntaxError"),
    refused(
        MADE,
        "an error on import",
        "raise RuntimeError('no\\nluck')\n",
        "importing my_rules raised RuntimeError: no luck",
    ),
    refused(
        MADE,
        "an import that is missing",
        "import nowhere_else\n",
        "importing my_rules raised ModuleNotFoundError",
    ),
    refused(
        MADE,
        "made without arguments",
        own(ADMIT, init="def __init__(self): ..."),
        "Own is not made with (config, rng)",
    ),
    refused(
        MADE,
        "made with an error",
        own(ADMIT, init="def __init__(self, config, rng): 1 / 0"),
        "raised ZeroDivisionError",
    ),
    refused(MADE, "a method that is none", own("admit = 3"), "Own has no method admit(groups, threshold)"),
    refused(MADE, "a state without restore", own(ADMIT, STATE), "Own has no method restore(state)"),
    refused(MADE, "a restore without state", own(ADMIT, RESTORE), "Own has no method state()"),
    refused(
        MADE,
        "a restore without argument",
        own(ADMIT, STATE, "def restore(self): ..."),
        "Own.restore cannot be called as restore(state)",
    ),
    *(
        refused(
            RUN,
            f"{setting} raises",
            own(f"def {name}: raise KeyError('lost')"),
            f"{method} raised KeyError: 'lost'",
            setting,
        )
        for setting, (method, name) in {
            "admission": ("admit", "admit(self, groups, threshold)"),
            "sampling": ("sample", "sample(self, groups, k, step)"),
            "eviction": ("victim", "victim(self, groups)"),
            "threshold_rule": ("update", "update(self, groups)"),
        }.items()
    ),
    *(
        refused(
            RUN,
            f"admit gives {what}",
            own(f"def admit(self, groups, threshold): {code}"),
            "admit must give a list of some of its groups",
        )
        for what, code in {
            "nothing": "...",
            "a group twice": "return [groups[0], groups[0]]",
            "a group of its own": "import copy; return [copy.copy(groups[0])]",
            "places": "return [0, 1]",
            "a generator": "return (group for group in groups)",
        }.items()
    ),
    *(
        refused(
            RUN,
            f"sample gives {what}",
            own(f"def sample(self, groups, k, step): {code}"),
            "sample must give a list of k=2 different",
            "sampling",
        )
        for what, code in {
            "too few": "return groups[:k - 1]",
            "too many": "return groups",
            "one twice": "return [groups[0]] * k",
            "their contents": "return [stored.group() for stored in groups[:k]]",
            "nothing": "...",
        }.items()
    ),
    *(
        refused(
            RUN,
            f"victim gives {what}",
            own(f"def victim(self, groups): return {code}"),
            "victim must give a whole number from 0 to 4",
            "eviction",
        )
        for what, code in {
            "a place that is not there": "len(groups)",
            "a negative place": "-1",
            "a group": "groups[0]",
            "true": "True",
            "nothing": "None",
        }.items()
    ),
    *(
        refused(
            RUN,
            f"update gives {what}",
            own(f"def update(self, groups): return {code}"),
            "update must give a finite number",
            "threshold_rule",
        )
        for what, code in {
            "nothing": "None",
            "nan": "float('nan')",
            "infinity": "float('inf')",
            "true": "True",
            "text": "'0.6'",
        }.items()
    ),
    refused(
        MADE,
        "a state that JSON does not hold",
        own(ADMIT, "def state(self): return {1, 2}", RESTORE),
        "state must give what JSON holds",
    ),
    RuleCase(
        RUN,
        "victim gives a number of numpy",
        "valid",
        "import numpy\n" + own("def victim(self, groups): return numpy.argmin([1, 0])"),
        "eviction",
    ),
    RuleCase(
        RUN,
        "update gives a number of numpy",
        "valid",
        "import numpy\n" + own("def update(self, groups): return numpy.float32(0.5)"),
        "threshold_rule",
    ),
    RuleCase(
        RUN, "admit gives a tuple", "valid", own("def admit(self, groups, threshold): return (groups[1],)")
    ),
    refused(
        RESUMED,
        "a state that cannot be restored",
        own(ADMIT, "def state(self): return {}", RESTORE),
        "restore raised KeyError: 'seen'",
    ),
    *(
        RuleCase(RESUMED, f"{setting}: a state that is restored", "valid", own(line, STATE, RESTORE), setting)
        for setting, line in RULES.items()
    ),
]
