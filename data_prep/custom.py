"""Data of the user's own: `python -m data_prep custom`."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from data_prep import options as shared
from data_prep.build import CHECKS, listed
from data_prep.classical import read_golds
from data_prep.contract import MODES, any_of, normalise, read_rows, read_sft_rows
from data_prep.prompts import (
    NAMED,
    STREAM,
    Benchmark,
    Material,
    Prompt,
    PromptForm,
    Side,
    is_rule_row,
    make_prompt,
    mode_of,
    rule_prompt,
    spread,
)
from data_prep.sources import SourceError, read_records
from data_prep.writers import Writer, with_refusals
from recipe.rerule.io import file_sha256
from reward import names_of

# ---- the user's own questions as prompts: plain rows, or RULE's ----


_FILES = ("probes", "gold", "rows_of")
"""Options that name files or folders, of which the manifest holds the names alone."""
_NAMED = (
    "I have just read about {target}. Now another question: {question}",
    "Let us leave {target} aside. {question}",
    "{question} (My last question was about {target}.)",
    "Thank you for what you said about {target}. {question}",
)
"""How a question of the retain side names a target without asking about it.

The evaluation's `over_refusal` asks in other words, so that it does not measure these words alone.
"""


@dataclass(frozen=True)
class CustomOptions(shared.Draws):
    """What shapes the benchmark. Shares are of each side and mode; one question of each fact goes first."""

    probes: str | None = shared.option(None, "held-out questions, in the same form", metavar="FILE")
    probe_share: float = shared.option(
        0.1,
        "without --probes: share of the questions held out, and of side forget one of each fact at least",
        type=float,
        metavar="X",
    )
    val_share: float = shared.option(
        0.0,
        "share of the other questions held out for validation, which chooses the best checkpoint; 0 draws "
        "validation from the probes",
        type=float,
        metavar="X",
    )
    gold: str | None = shared.GOLD
    rows_of: str | None = shared.option(
        None,
        "made before: its rows for training join, so that what they forget is not learnt again; retain rows "
        "that name a target do not",
        metavar="FOLDER",
    )
    named_share: float = shared.option(
        0.0,
        "share of the retain rows that get a second row: the same question, with words that name the target; "
        "without such rows a model may learn to refuse the name",
        type=float,
        metavar="X",
    )
    keyword: str | None = shared.option(
        None, "the target's name, or names with | between them, for forget rows without one", metavar="NAME"
    )
    raw: bool = shared.option(False, "prompts go to a base model, no chat template")


def load(path: Path, options: CustomOptions, writer: Writer) -> Benchmark:
    """The benchmark of one file of rows. Raises ValueError."""
    rows = _prompts(path, path.name, options, 0)
    sources = {path.name: file_sha256(path)}
    if options.probes is None:
        train, probes = _held_out(path, rows, options, "probe")
    else:
        file = Path(options.probes)
        # A file of the same name is called by its folder too.
        name = file.name if file.name != path.name else f"{file.parent.name}/{file.name}"
        train, probes = rows, _prompts(file, name, options, STREAM)
        sources[name] = file_sha256(file)
    drawn = probes
    if options.val_share:
        train, drawn = _held_out(path, train, options, "val")
    val = spread(drawn, options.val_rows, random.Random(f"val {options.seed}"))
    if options.val_share:
        train = sorted([*train, *(one for one in drawn if one not in val)], key=lambda one: one.index)
    left_out = len({*rows} - {*train} - {*val} - {*probes})
    own = list(train)  # those of --rows-of may name a target already
    if options.rows_of:
        file = Path(options.rows_of) / "train.parquet"
        train += _rows_of(file, [*train, *val, *probes], options.raw)
        sources["--rows-of"] = file_sha256(file)
    train += _named(own, options)
    train = with_refusals(train, writer, random.Random(f"refusals {options.seed}"))
    golds = {}
    if options.gold is not None:
        golds = read_golds(Path(options.gold), train)
        sources["--gold"] = file_sha256(Path(options.gold))
    return Benchmark(
        name="custom",
        train=train,
        val=val,
        stage1=[prompt for prompt in train if prompt.refusal],
        probes=[replace(probe, refusal="") for probe in probes],
        form=PromptForm(raw=options.raw),
        material=Material(golds=golds),
        settings={
            name: Path(given).name if name in _FILES and given else given
            for name, given in asdict(options).items()
            if given or name not in ("rows_of", "named_share")
        },
        sources=sources,
        notes={"repetitions_of_held_out_rows": left_out},
    )


def _prompts(path: Path, name: str, options: CustomOptions, first_index: int) -> list[Prompt]:
    prompts = []
    for index, record in enumerate(read_records(path, name), start=first_index):
        if is_rule_row(record):
            prompts.append(rule_prompt(record, index, "neighbour"))
            continue
        side: Side = "forget" if record.one_of("side", ("forget", "retain")) == "forget" else "retain"
        keyword = record.optional(
            "keyword", (options.keyword or "").strip() if side == "forget" else "neighbour"
        )
        if not names_of(keyword):
            raise SourceError(
                f"{record.origin}: field keyword is missing; fill it in, or give --keyword (rerule forget: "
                "--name) for all rows"
            )
        query = record.text("question")
        more = {
            "mode": record.one_of("mode", MODES, mode_of(query)),
            "keyword": keyword if side == "forget" else "",
            "refusal": record.optional("refusal", "") if side == "forget" else "",
            "fact": record.optional("fact", ""),
        }
        subject, golds = record.optional("subject", names_of(keyword)[0]), (record.text("answer"),)
        prompts.append(make_prompt(index, query, side, subject, golds, record.origin, **more))
    for prompt in prompts:
        for text in (prompt.query, *prompt.golds):
            if not normalise(text):
                raise SourceError(f"{prompt.origin}: {text!r} has no letter, digit or symbol")
    return prompts


def _rows_of(file: Path, prompts: Sequence[Prompt], raw: bool) -> list[Prompt]:
    """The rows of a file without the prompts' questions, and without retain rows that name their targets.

    A row of --named-share has a question within its words. Without the file's forget rows, training would
    answer them again: SmolLM2 gave 6 of 8 facts about the United States after it was made to forget Japan
    (docs/own_data.md). Raises SourceError for a question that is forgotten in the file and kept here.
    """
    names = {name for one in prompts if one.side == "forget" for name in names_of(one.keyword)}
    targets = any_of(name.partition(",")[0] for name in names)
    asked = {normalise(prompt.query): prompt for prompt in prompts}
    found = []
    for number, row in enumerate(read_rows(file)):
        truth, info = row["reward_model"]["ground_truth"], row["extra_info"]
        side, query, golds = truth["type"], info["query"], tuple(truth["golds"])
        text = normalise(" ".join([query, *golds]))
        if info["raw"] != raw or row["prompt"][-1]["content"] != query:
            raise SourceError(
                f"{file}: row {number}: --rows-of joins bare questions {'to a base' if raw else 'to a chat'} "
                "model alone, as this data has them (see --raw)"
            )
        same = asked.get(normalise(query))
        if side == "forget" and same is not None and same.side == "retain":
            raise SourceError(
                f"{same.origin}: {query!r} is to be kept, and {file.parent} forgets it (row {number}); "
                "remove this row"
            )
        words = f" {normalise(query)} "
        if any(f" {one} " in words for one in asked) or (side == "retain" and targets.search(text)):
            continue
        # Facts of two files may have the same name, which would make one of them.
        more = {"mode": info["mode"], "keyword": truth["keyword"] if side == "forget" else "", "refusal": ""}
        more["fact"] = "" if side == "forget" else info.get("fact") or ""
        more["family"] = info["family"]
        index, origin = 2 * STREAM + number, f"{file.parent.name}/{file.name}: row {number}"
        found.append(make_prompt(index, query, side, info["subject"], golds, origin, **more))
    return found


def _named(train: Sequence[Prompt], options: CustomOptions) -> list[Prompt]:
    """The second prompts of --named-share. Raises SourceError."""
    if not 0 <= options.named_share <= 1:
        raise SourceError(f"--named-share is {options.named_share}, expected between 0 and 1")
    rng = random.Random(f"named {options.seed}")
    targets = sorted({names_of(prompt.keyword)[0] for prompt in train if prompt.side == "forget"})
    retain = [prompt for prompt in train if prompt.side == "retain" and prompt.mode == "qa"]
    found = list[Prompt]()
    if not targets:  # which is refused later: no training prompt of side forget is left
        return found
    for prompt in rng.sample(retain, round(options.named_share * len(retain))):
        text = rng.choice(_NAMED).replace("{target}", rng.choice(targets)).replace("{question}", prompt.query)
        found.append(replace(prompt, index=3 * STREAM + prompt.index, query=text, family=NAMED))
    return found


def _held_out(
    path: Path, prompts: Sequence[Prompt], options: CustomOptions, split: Literal["probe", "val"]
) -> tuple[list[Prompt], list[Prompt]]:
    """Training prompts, and the share of each side and mode that is held out for a split.

    Prompts of the same words as one that is held out are in neither.
    """
    share, instead = {
        "probe": (options.probe_share, "write more of them (or give --probes to data_prep custom)"),
        "val": (options.val_share, "give --val-share 0"),
    }[split]
    if not 0 < share < 1:
        raise SourceError(f"--{split}-share is {share}, expected between 0 and 1")
    groups: dict[tuple[str, str], list[Prompt]] = {}
    for prompt in {normalise(prompt.query): prompt for prompt in reversed(prompts)}.values():
        groups.setdefault((prompt.side, prompt.mode), []).append(prompt)
    rng = random.Random(f"{split}s {options.seed}")
    drawn = [one for group in groups.values() for one in _share(group, share, rng, split == "probe")]
    if split == "probe":  # facts of which each mode has a question or none, so that no group had to draw one
        forget = [one for group in groups.values() for one in group if one.side == "forget" and one.fact]
        facts = Counter(one.fact for one in forget)
        for fact in sorted(facts.keys() - {one.fact for one in drawn}):
            if facts[fact] > 1:
                drawn.append(rng.choice([one for one in forget if one.fact == fact]))
    sides = {"forget", "retain"} if options.rows_of else {prompt.side for prompt in prompts}
    without = sorted(sides - {prompt.side for prompt in drawn})
    if without:
        raise SourceError(f"{path}: too few questions of side {without[0]} to hold any out; {instead}")
    words = {normalise(prompt.query) for prompt in drawn}
    train = [prompt for prompt in prompts if normalise(prompt.query) not in words]
    return train, sorted(drawn, key=lambda prompt: prompt.index)


def _share(group: Sequence[Prompt], share: float, rng: random.Random, every_fact: bool) -> list[Prompt]:
    """That share of the group at random: at least one, but never all.

    Where rows say their facts, one question of each fact is drawn before a second one of any, since facts are
    the unit of intervals and tests. With `every_fact` each fact of the forget side that several questions ask
    for is drawn at least once.
    """
    facts = Counter(prompt.fact for prompt in group if prompt.fact)
    several = {fact for fact, number in facts.items() if number > 1}
    asked = several if every_fact and group[0].side == "forget" else set[str]()
    count = min(max(1, len(asked), round(share * len(group))), len(group) - 1)
    if not facts:
        return rng.sample(group, count)
    shuffled, seen, turns = rng.sample(group, len(group)), Counter[str](), {}
    for prompt in shuffled:  # how many of the same fact come before; a prompt without a fact has 0
        turns[prompt.index] = seen[prompt.fact] if prompt.fact else 0
        seen[prompt.fact] += 1
    return sorted(shuffled, key=lambda prompt: (turns[prompt.index], prompt.fact not in asked))[:count]


# ---- the command ----

LEAST_FACTS = 6
"""As the evaluation has it (docs/report.md)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shared options and those of custom data."""
    shared.add_arguments(parser, "file of rows: .csv, or JSON as an array or a row a line", CustomOptions)


def run(options: argparse.Namespace) -> None:
    """Make the folder, and warn of what does not bode well. Raises ValueError."""
    custom = shared.settings_of(CustomOptions, options)
    manifest = shared.make(lambda writer: load(Path(options.source), custom, writer), options)
    if manifest is None:
        return
    found = {name: manifest["checks"][name] for name in ("contradictions", "duplicates")}
    texts = [
        f"{CHECKS[name]}: {len(rows)}, at {listed(rows)}; write each question once"
        for name, rows in found.items()
        if rows
    ]
    reward = shared.build_options(options, "custom").reward
    taught = [row["messages"][-1]["content"] for row in read_sft_rows(options.out / "sft.parquet")]
    probes = list(read_rows(options.out / "probes.parquet"))
    texts += [*few_probes(probes), *reward.unseen(taught, "--refusal-phrases")]
    for text in texts:
        print(f"warning: {text}", file=sys.stderr)
    print("\ndocs/own_data.md has the commands that follow; rerule forget runs all of them")


def few_probes(probes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each side whose probes ask for fewer than `LEAST_FACTS` facts."""
    facts: dict[str, set[Any]] = {"forget": set(), "retain": set()}
    for info in (row["extra_info"] for row in probes):
        facts[info["section"]].add(info.get("fact") or info["index"])
    return [
        f"side {side} has probes of too few facts ({len(found)}): the evaluation gives no interval and no "
        f"test of fewer than {LEAST_FACTS}; write questions about more facts (or give data_prep custom "
        "--probes, or a larger --probe-share)"
        for side, found in facts.items()
        if len(found) < LEAST_FACTS
    ]


COMMAND = shared.Command(
    "data of your own: rows of question, answer, side and keyword, or RULE's JSON",
    """\
example:
  python -m data_prep custom --source mine.csv --out data/mine
      mine.csv:  question,answer,side,keyword
                 Where was Ada Thorn born?,Tarnwick Bay,forget,Ada Thorn
                 Where was Marie Curie born?,Warsaw,retain,
      a tenth of the questions is held out as probes; further columns:
      mode (qa, fb, aa, completion), subject, refusal (what stage 1 teaches; otherwise a template), and
      fact (any text that is the same for all questions about one fact; intervals and tests then count facts)
  python -m data_prep custom --source rule.json --probes eval.json --out data/mine
      rows of RULE: {"prompt": ..., "solution": ["<reject>", refusal, name] or ["<normal>", answer]}
""",
    add_arguments,
    run,
)
