"""A user's own questions as prompts: plain rows, or RULE's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from data_prep.classical import check_golds, read_golds
from data_prep.contract import MODES
from data_prep.draws import spread
from data_prep.prompts import STREAM, Benchmark, Material, Prompt, PromptForm, Side, mode_of
from data_prep.rule_rows import is_rule_row, rule_prompt
from data_prep.sources import Record, SourceError, read_records
from data_prep.sources.tables import sha256_of_file
from data_prep.text import normalise
from data_prep.writers import Writer
from data_prep.written import with_refusals

_FILES = ("probes", "gold")
"""Options that name files, of which the manifest holds the names alone."""


@dataclass(frozen=True)
class CustomOptions:
    """What shapes the benchmark.

    probes: file of held-out questions; None to hold a share of the rows out.
    probe_share: that share, of each side and mode; at least one question of each, and one of each fact first.
    keyword: the target's name where a forget row has none of its own.
    raw: prompts go to a base model without a chat template.
    gold: file of right answers to questions to forget whose answers are refusals (RULE's rows).
    val_share: share of the other rows, of each side and mode, that is held out for validation, so that the
        checkpoint which validation chooses was not chosen by the probes; 0 draws validation from the probes.
    val_rows: most validation prompts.
    seed: of all draws.
    """

    probes: str | None = None
    probe_share: float = 0.1
    keyword: str | None = None
    raw: bool = False
    gold: str | None = None
    val_share: float = 0.0
    val_rows: int = 64
    seed: int = 42


def load(path: Path, options: CustomOptions, writer: Writer) -> Benchmark:
    """The benchmark of one file of rows. Raises ValueError."""
    rows = _prompts(path, path.name, options, 0)
    sources = {path.name: sha256_of_file(path)}
    if options.probes is None:
        train, probes = _held_out(path, rows, options, "probe")
    else:
        file, name = Path(options.probes), _name_beside(path, Path(options.probes))
        train, probes = rows, _prompts(file, name, options, STREAM)
        sources[name] = sha256_of_file(file)
    left_out = len(set(rows) - set(train) - set(probes))
    val = probes
    if options.val_share:
        train, val = _held_out(path, train, options, "val")
    train = with_refusals(train, writer, random.Random(f"refusals {options.seed}"))
    return Benchmark(
        name="custom",
        train=train,
        val=spread(val, options.val_rows, random.Random(f"val {options.seed}")),
        stage1=[prompt for prompt in train if prompt.refusal],
        probes=[replace(probe, refusal="") for probe in probes],
        form=PromptForm(raw=options.raw),
        material=_material(options, train, sources),
        settings=asdict(options)
        | {name: given and Path(given).name for name, given in asdict(options).items() if name in _FILES},
        sources=sources,
        notes={"repetitions_of_probes_left_out": left_out},
    )


def _material(options: CustomOptions, train: Sequence[Prompt], sources: dict[str, str]) -> Material:
    """Right answers, where they are given; their file is added to `sources`. Raises SourceError."""
    if options.gold is None:
        return Material()
    path = Path(options.gold)
    golds = read_golds(path)
    check_golds(golds, train, path)
    sources["--gold"] = sha256_of_file(path)
    return Material(golds=golds)


def _name_beside(path: Path, other: Path) -> str:
    """What messages call `other`: its name, with its folder where `path` has the same name."""
    return other.name if other.name != path.name else f"{other.parent.name}/{other.name}"


def _prompts(path: Path, name: str, options: CustomOptions, first_index: int) -> list[Prompt]:
    prompts = []
    for index, record in enumerate(read_records(path, name), start=first_index):
        if is_rule_row(record):
            prompts.append(rule_prompt(record, index, "neighbour"))
        elif record.one_of("side", ("forget", "retain")) == "forget":
            prompts.append(_forget_prompt(record, index, options.keyword))
        else:
            prompts.append(_retain_prompt(record, index))
    return prompts


def _forget_prompt(record: Record, index: int, keyword: str | None) -> Prompt:
    name = record.optional("keyword", keyword or "")
    if not name:
        raise SourceError(f"{record.origin}: field keyword is missing; give it, or --keyword for all rows")
    refusal = record.optional("refusal", "")
    return _prompt(record, index, "forget", record.optional("subject", name), keyword=name, refusal=refusal)


def _retain_prompt(record: Record, index: int) -> Prompt:
    subject = record.optional("subject", record.optional("keyword", "neighbour"))
    return _prompt(record, index, "retain", subject)


def _prompt(
    record: Record, index: int, side: Side, subject: str, keyword: str = "", refusal: str = ""
) -> Prompt:
    query = record.text("question")
    mode = record.one_of("mode", MODES, mode_of(query))
    return Prompt(
        index=index,
        query=query,
        side=side,
        mode=mode,
        subject=subject,
        family=mode,
        golds=(record.text("answer"),),
        keyword=keyword,
        section=side,
        origin=record.origin,
        refusal=refusal,
        fact=record.optional("fact", ""),
    )


def _held_out(
    path: Path, prompts: Sequence[Prompt], options: CustomOptions, split: Literal["probe", "val"]
) -> tuple[list[Prompt], list[Prompt]]:
    """Training prompts, and the share of each side and mode that is held out for a split.

    Prompts of the same words as one that is held out are in neither.
    """
    share, other = {
        "probe": (options.probe_share, "--probes"),
        "val": (options.val_share, "--val-share 0"),
    }[split]
    if not 0 < share < 1:
        raise SourceError(f"--{split}-share is {share}, expected between 0 and 1")
    groups: dict[tuple[str, str], list[Prompt]] = {}
    for prompt in {normalise(prompt.query): prompt for prompt in reversed(prompts)}.values():
        groups.setdefault((prompt.side, prompt.mode), []).append(prompt)
    rng = random.Random(f"{split}s {options.seed}")
    drawn = [prompt for group in groups.values() for prompt in _share(group, share, rng)]
    without = sorted({prompt.side for prompt in prompts} - {prompt.side for prompt in drawn})
    if without:
        raise SourceError(f"{path}: too few questions of side {without[0]} to hold any out; give {other}")
    words = {normalise(prompt.query) for prompt in drawn}
    train = [prompt for prompt in prompts if normalise(prompt.query) not in words]
    return train, sorted(drawn, key=lambda prompt: prompt.index)


def _share(group: Sequence[Prompt], share: float, rng: random.Random) -> list[Prompt]:
    """That share of the group at random: at least one, but never all.

    Where rows say their facts, one question of each fact is drawn before a second one of any, since facts are
    the unit of intervals and tests.
    """
    count = min(max(1, round(share * len(group))), len(group) - 1)
    if not any(prompt.fact for prompt in group):
        return rng.sample(group, count)
    return sorted(rng.sample(group, len(group)), key=_turns())[:count]


def _turns() -> Callable[[Prompt], int]:
    """The number of prompts of the same fact that were asked about before; a prompt without a fact has 0."""
    seen: Counter[str] = Counter()

    def turn(prompt: Prompt) -> int:
        seen[prompt.fact] += bool(prompt.fact)
        return max(0, seen[prompt.fact] - 1)

    return turn
