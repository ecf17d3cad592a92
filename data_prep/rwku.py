"""RWKU: forget a real and famous person, keep their neighbours (jinzhuoran/RWKU); one run per person."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from tqdm import tqdm

from data_prep import options as shared
from data_prep.build import summary, write
from data_prep.classical import read_golds
from data_prep.prompts import (
    STREAM,
    Benchmark,
    Material,
    Prompt,
    PromptForm,
    Side,
    is_rule_row,
    make_prompt,
    rule_prompt,
    spread,
)
from data_prep.sources import (
    SUFFIXES,
    FolderSource,
    SourceError,
    Table,
    refused_by_the_hub,
)
from data_prep.writers import Writer, blanks, explained, neighbours, with_refusals
from recipe.rerule.io import DATA, file_sha256, new_folder, stamp_folder

# ---- targets: one folder of files each ----


PROBE_FILE = "forget_level1.json"
HUB_FILES = "Target/*/*level*.json", "Target/*/reject.json"


def target_folders(source: str) -> list[FolderSource]:
    """The folder of each target, in RWKU's order (1_Stephen_King, 2_Confucius ...).

    `source` is such a folder, holds them (also under targets/, Target/ or RWKU/Target/), or is a data set on
    the Hub.

    Raises SourceError when there are none.
    """
    root = Path(source) if Path(source).is_dir() else _downloaded(source)
    for parent in (root, root / "targets", root / "Target", root / "RWKU" / "Target"):
        folders = [path.parent for path in parent.glob(f"*/{PROBE_FILE}")]
        if folders:
            return [FolderSource(folder) for folder in sorted(folders, key=_order)]
    if (root / PROBE_FILE).is_file():
        return [FolderSource(root)]
    raise SourceError(f"{source}: holds no target folder, which is one with {PROBE_FILE}")


def choose(
    folders: Sequence[FolderSource], names: Sequence[str], *, written: bool = False
) -> list[FolderSource]:
    """Those of the given names, "Stephen King" or "1_Stephen_King"; without a name all with training rows.

    `written`: an endpoint writes the training rows that a folder does not have. Raises SourceError naming the
    targets that are not there or have no training rows.
    """
    by_name = {form: folder for folder in folders for form in (folder.name, target_name(folder))}
    missing = ", ".join(repr(name) for name in names if name not in by_name)
    if missing:
        known = ", ".join(target_name(folder) for folder in folders)
        raise SourceError(f"there is no target {missing}; choose from {known}")
    chosen = {by_name[name].folder: by_name[name] for name in names}
    wanted = list(chosen.values()) or list(folders)
    ready = wanted if written else [folder for folder in wanted if folder.has(TRAINING)]
    if len(ready) < len(chosen) or not ready:
        without = ", ".join(folder.name for folder in wanted if folder not in ready)
        raise SourceError(
            f"no training rows ({TRAINING.file}.json) in {without}: choose other targets, or give an "
            "endpoint that writes such rows (--base-url, --model)"
        )
    return ready


def target_name(folder: FolderSource) -> str:
    """The target's name as its folder has it: "Stephen King" of 1_Stephen_King."""
    number, _, name = folder.name.partition("_")
    return (name if number.isdigit() else folder.name).replace("_", " ")


def _order(folder: Path) -> tuple[int, str]:
    number = folder.name.partition("_")[0]
    return (int(number) if number.isdigit() else 0, folder.name)


def _downloaded(name: str) -> Path:
    from huggingface_hub import snapshot_download

    with refused_by_the_hub(name):
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=list(HUB_FILES)))


# ---- one target as prompts ----


TRAINING = Table("rl_rejection_with_fb_neighbor_target")
"""RULE's file of stage 2: questions and blanks on the target, and on people in its place."""
QUESTIONS = Table("reject")
"""RWKU's own file of questions on the target, with refusals."""
FORGET_TEXTS = (Table("train_positive_llama3"), Table("positive"))
"""Biographies of the target that Llama-3 wrote, by their names on the Hub and in RWKU's folders: {text}."""
PAIRED_TEXTS = Table("positive_with_retain")
"""RULE's file of such biographies, each with one of somebody else: {prompts: [target's, the other's]}."""
TEXTS = {"forget_text": (*FORGET_TEXTS, PAIRED_TEXTS), "retain_text": (PAIRED_TEXTS,)}
"""By file of texts that is made, the tables of which one must be there."""
OWN_BLANKS, OWN_NEIGHBOURS = 10 * STREAM, 11 * STREAM
PROBES: tuple[tuple[str, Side, str], ...] = (
    ("forget_level1", "forget", "fb"),
    ("forget_level2", "forget", "qa"),
    ("forget_level3", "forget", "aa"),
    ("neighbor_level1", "retain", "fb"),
    ("neighbor_level2", "retain", "qa"),
)
"""RWKU's question sets: file, side and mode."""


@dataclass(frozen=True)
class RwkuOptions(shared.Draws):
    """What shapes the benchmark."""

    stage1_modes: tuple[str, ...] = shared.STAGE1_MODES
    gold: str | None = shared.GOLD


def load(source: FolderSource, options: RwkuOptions, writer: Writer) -> Benchmark:
    """The benchmark of one target. Raises ValueError."""
    probes = []
    for stream, (name, side, mode) in enumerate(PROBES, start=1):
        for number, record in enumerate(source.read(Table(name))):
            subject = record.text("subject" if side == "forget" else "neighbor")
            made = (stream * STREAM + number, record.text("query"), side, subject, (record.text("answer"),))
            family = record.text("type")
            probes.append(make_prompt(*made, record.origin, mode=mode, family=family))
    train = []
    if source.has(TRAINING):
        for number, record in enumerate(source.read(TRAINING)):
            if not is_rule_row(record):
                raise SourceError(f"{record.origin}: has no prompt and solution")
            train.append(rule_prompt(record, number, "neighbour"))
    else:
        train = _written_prompts(source, options, writer, probes)
    golds, hashes = {}, {}
    if (file := _gold_file(source, options)) is not None:
        golds, hashes = read_golds(file, train), {"--gold": file_sha256(file)}
    pairs = []  # of a text on the target and one on somebody else
    for record in source.read(PAIRED_TEXTS) if source.has(PAIRED_TEXTS) else []:
        pairs.append(record.texts("prompts"))
        if len(pairs[-1]) != 2:
            count = len(pairs[-1])
            raise SourceError(
                f"{record.origin}: prompts holds {count} texts, expected the target's and another's"
            )
    table = next((table for table in FORGET_TEXTS if source.has(table)), None)
    own = [record.text("text") for record in source.read(table)] if table else [one for one, _ in pairs]
    return Benchmark(
        name="rwku",
        train=train,
        val=spread(probes, options.val_rows, random.Random(f"val {options.seed}")),
        stage1=[prompt for prompt in train if prompt.refusal and prompt.mode in options.stage1_modes],
        probes=probes,
        form=PromptForm(),
        material=Material(golds=golds, forget_texts=own, retain_texts=[other for _, other in pairs]),
        settings={"source": source.name}
        | asdict(options)
        | {"gold": options.gold and Path(options.gold).name},
        sources=source.hashes | hashes,
    )


def _gold_file(source: FolderSource, options: RwkuOptions) -> Path | None:
    """The file of right answers of one target. Raises SourceError where a folder has none for it."""
    if options.gold is None:
        return None
    given = Path(options.gold)
    if not given.is_dir():
        return given
    files = [given / f"{source.name}{suffix}" for suffix in SUFFIXES]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise SourceError(f"{given}: --gold has none of {', '.join(file.name for file in files)}")
    return file


def _written_prompts(
    source: FolderSource, options: RwkuOptions, writer: Writer, probes: list[Prompt]
) -> list[Prompt]:
    """As the paper makes them: RWKU's questions to refuse, their blanks, and neighbours of both."""
    questions = []
    for number, record in enumerate(source.read(QUESTIONS)):
        query, target = record.text("instruction"), record.text("subject")
        questions.append(make_prompt(number, query, "forget", target, (), record.origin, mode="qa"))
    forget = questions + blanks(questions, OWN_BLANKS, writer)
    forget = with_refusals(forget, writer, random.Random(f"refusals {options.seed}"))
    # No answer is known; the refusal is what a forget row has for gold.
    forget = [replace(prompt, golds=(prompt.refusal,)) for prompt in forget]
    return forget + neighbours(forget, OWN_NEIGHBOURS, writer, probes)


# ---- the command ----


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shared options and RWKU's own."""
    source = "folder of RWKU's target folders, or its name on the Hub (jinzhuoran/RWKU)"
    shared.add_arguments(parser, source, RwkuOptions)
    text = "a target by name; may be given several times (default: all that have training rows)"
    parser.add_argument("--target", action="append", default=[], metavar="NAME", help=text)
    text = "print the names of the targets' folders, and make nothing"
    parser.add_argument("--list", action="store_true", help=text)


def run(options: argparse.Namespace) -> None:
    """Make a folder per target, all of them or none. Raises ValueError."""
    rwku = shared.settings_of(RwkuOptions, options)
    if not (options.dry_run or options.list):
        shared.check_out(options)
    written = options.base_url is not None
    chosen = choose(target_folders(options.source), options.target, written=written)
    if options.list:
        return print("\n".join(folder.name for folder in chosen))
    loads = [partial(load, folder, rwku) for folder in chosen]
    if options.dry_run:
        return shared.print_estimate(loads, options)
    benchmarks = [shared.loaded(load_target, options) for load_target in loads]
    with new_folder(options.out, options.overwrite) as draft:
        names = [str(benchmark.settings["source"]) for benchmark in benchmarks]
        for name, benchmark in zip(names, tqdm(benchmarks, unit="target", disable=None), strict=True):
            (draft / name).mkdir()
            with explained(benchmark.failures):
                manifest = write(benchmark, draft / name, shared.build_options(options, benchmark.name))
            tqdm.write(summary(options.out / name, manifest))
        whole = {**stamp_folder(DATA, draft), "benchmark": "rwku", "targets": names}
        (draft / DATA.marker).write_text(json.dumps(whole, indent=1) + "\n")


COMMAND = shared.Command(
    "RWKU: forget a real and famous person, keep their neighbours; a folder per person",
    """\
example:
  python -m data_prep rwku --source RULE/data --out data/rwku
      data/rwku/1_Stephen_King and so on: of each target 600 prompts to forget, 600 on others in its place,
      600 refusals for stage 1, and RWKU's probes
  python -m data_prep rwku --source RULE/data --target "Stephen King" --out data/king
      one of them; a folder holds the targets of one command
""",
    add_arguments,
    run,
)
