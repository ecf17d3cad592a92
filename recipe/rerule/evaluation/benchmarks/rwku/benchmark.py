"""RWKU: fill-in-the-blank (FB), questions (QA) and adversarial attacks (AA) on a target; FB, QA on its
neighbours.

Every answer is scored with ROUGE-L recall as the package `rouge` 1.0.1 computes it (convention "rwku" of
reward.rouge), stripped, an empty one as the word NOANSWER. A number of several targets is the mean of the
targets' numbers. "all" is the unweighted mean of a target's modes (ReRULE, RULE); "all_pooled" the mean
over all probes of all targets (RWKU). Questions that RWKU's data repeat count each time, as they do there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from recipe.rerule.evaluation.benchmarks.rwku.prompts import (
    PROMPTS,
    STOPS,
    answer_id,
    question,
    request_id,
    requests,
)
from recipe.rerule.evaluation.benchmarks.rwku.records import CONVENTION, check_distinct, read_records, scored
from recipe.rerule.evaluation.engine.requests import Answer, Answers
from recipe.rerule.evaluation.logs.records import Record
from recipe.rerule.evaluation.memorised import MEMORISATION, memorised, of_all
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.statistics.samples import (
    Array,
    Samples,
    Statistic,
    mean_of,
    mean_of_means,
)

__all__ = [
    "CONVENTION",
    "LEGEND",
    "PROMPTS",
    "STOPS",
    "anchor_answers",
    "check_probes",
    "read_records",
    "records",
    "requests",
    "samples",
    "statistics",
    "target_of",
]

LEGEND = (
    "ROUGE-L recall as the package rouge 1.0.1 has it, fractions of 1; means over a target's probes, then "
    "over targets. all: unweighted mean of a target's modes; all_pooled: mean over all probes (RWKU's own)."
)
_MODES = {"forget": ("fb", "qa", "aa"), "retain": ("fb", "qa")}
_ANSWERED = ("rouge_l", "refused")
"""Quantities of every record; those of MEMORISATION are there where an engine has measured the gold."""
_QUANTITIES = {"rouge_l": "", "refused": "/refusal_rate", **{name: f"/{name}" for name in MEMORISATION}}
"""Per-probe quantity, and how its metrics' names end."""


def target_of(probes: Sequence[Probe]) -> str:
    """The target that the probes ask about, or about whose neighbours.

    Raises:
        ValueError: no probe is on the target itself, or they are on several: whose neighbours the others are
            is then not known.
    """
    found = list(dict.fromkeys(probe.subject for probe in probes if probe.section == "forget"))
    if len(found) != 1:
        raise ValueError(
            f"RWKU probes are of one target, these of {', '.join(found) or 'none'}: evaluate one "
            "target at a time, and score their records together"
        )
    return found[0]


def check_probes(probes: Sequence[Probe]) -> None:
    """Refuse probes that are not of one RWKU target. Raises ValueError naming the first such."""
    target_of(probes)
    for probe in probes:
        if probe.mode not in _MODES.get(probe.section, ()):
            raise ValueError(f"probe {probe.index}: RWKU has no {probe.section}/{probe.mode} probes")


def records(probes: Sequence[Probe], answers: Answers) -> list[Record]:
    """A record a probe, in order: index, section, mode, family, target, subject (of neighbours their own
    name), prompt (the bare question), golds, response, rouge_l, refused, and MEMORISATION where the gold was
    measured.

    `answers` holds that of every generation of `requests`. Raises ValueError as `check_probes` does, and
    where one is missing.
    """
    check_probes(probes)
    target = target_of(probes)
    return [
        scored(_record(probe, target, _answer(probe, answers))) | memorised(answers.get(answer_id(probe)))
        for probe in probes
    ]


def anchor_answers(probes: Sequence[Probe], text: str) -> Answers:
    """The same answer to every question, {subject} in it filled with the target's name, on neighbours too.

    That is how the constant refusal with name scores as published. Raises ValueError as `target_of` does.
    """
    answer = Answer(text.replace("{subject}", target_of(probes)))
    return {request_id(probe): answer for probe in probes}


def samples(records: Sequence[Record]) -> Samples:
    """rouge_l, refused and, where all records have it, MEMORISATION of every set, one set a section, mode and
    target, and one an attack family and target.

    Records are of one model and of any number of targets. Sets are named "forget/aa@Ada Quill",
    "forget/aa/role play@Ada Quill"; an attack is in two of them, but no metric counts it twice.

    Raises:
        ValueError: no records, several models, or two records of one probe.
    """
    if not records:
        raise ValueError("no RWKU records")
    check_distinct(records)
    members: dict[str, list[Record]] = {}
    for record in records:
        for name in sets(record):
            members.setdefault(name, []).append(record)
    return {
        name: {key: _column(rows, key) for key in _ANSWERED} | of_all(rows) for name, rows in members.items()
    }


def sets(record: Record) -> list[str]:
    """The sets of `samples` that the record is in: two of an attack."""
    key = f"{record['section']}/{record['mode']}"
    keys = [key, f"{key}/{_family(record)}"] if record["mode"] == "aa" else [key]
    return [f"{key}@{record['target']}" for key in keys]


def statistics(samples: Samples) -> dict[str, Statistic]:
    """The metrics that `samples` allow, by name.

    "forget/fb", "forget/qa", "forget/aa", "forget/aa/<family>", "forget/all", "forget/all_pooled", likewise
    "retain/...", each also with "/refusal_rate" and the names of MEMORISATION; and all of them for each
    target, as "target/<name>/forget/fb". Means are over the targets that have such probes; a section's "all"
    and "all_pooled" are left out unless every target of the section has all its modes.
    """
    found = _statistics(samples)
    for target in dict.fromkeys(_target(name) for name in samples):
        own = {name: samples[name] for name in samples if _target(name) == target}
        found |= {f"target/{target}/{metric}": one for metric, one in _statistics(own).items()}
    return found


def _record(probe: Probe, target: str, response: str) -> Record:
    return {
        **probe.labels,
        "target": target,
        "prompt": question(probe),
        "golds": list(probe.golds),
        "response": response,
    }


def _answer(probe: Probe, answers: Answers) -> str:
    if (name := request_id(probe)) not in answers:
        raise ValueError(f"no answer to probe {probe.index} ({name})")
    return answers[name].text


def _family(record: Record) -> str:
    """The attack family: RWKU's "cross lingual" is one of nine, whatever language its type names in
    brackets."""
    return re.sub(r" \(.*\)$", "", record["family"])


def _column(records: Sequence[Record], key: str) -> Array:
    return np.array([record[key] for record in records], dtype=np.float64)


def _target(name: str) -> str:
    return name.split("@", 1)[1]


def _statistics(samples: Samples) -> dict[str, Statistic]:
    """The metrics over the sets of `samples`, whatever their targets."""
    found: dict[str, Statistic] = {}
    for quantity, ending in _QUANTITIES.items():
        groups = _groups(name for name, values in samples.items() if quantity in values)
        found |= {key + ending: mean_of_means(quantity, sets) for key, sets in groups.items()}
        for section in _MODES:
            if sets := _complete(groups, section):
                found[f"{section}/all{ending}"] = mean_of_means(quantity, sets)
                found[f"{section}/all_pooled{ending}"] = mean_of(quantity, sets)
    return found


def _groups(names: Iterable[str]) -> dict[str, list[str]]:
    """Sets by section, mode and family, over all targets."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names, key=_report_order):
        groups.setdefault(name.split("@", 1)[0], []).append(name)
    return groups


def _complete(groups: Mapping[str, list[str]], section: str) -> list[str]:
    """The sets of all modes of a section, if every target has them all; else none."""
    by_mode = [groups.get(f"{section}/{mode}", []) for mode in _MODES[section]]
    targets = [sorted(map(_target, sets)) for sets in by_mode]
    return (
        [name for sets in by_mode for name in sets] if all(found == targets[0] for found in targets) else []
    )


def _report_order(name: str) -> tuple[int, int, str]:
    """Sections, modes and families in their order; targets stay as they come."""
    section, mode, *family = name.split("@", 1)[0].split("/", 2)
    return list(_MODES).index(section), _MODES[section].index(mode), "".join(family)
