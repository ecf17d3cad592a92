"""Data of the user's own: `python -m data_prep custom`."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from data_prep import options as shared
from data_prep.classical import check_golds, read_golds
from data_prep.contract import MODES, normalise, read_rows, read_sft_rows
from data_prep.prompts import (
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
from data_prep.sources import SourceError, read_records, sha256_of_file
from data_prep.writers import Writer, with_refusals
from recipe.rerule.io import DATA
from reward import RewardConfig

# ---- the user's own questions as prompts: plain rows, or RULE's ----


_FILES = ("probes", "gold", "retain_of")
"""Options that name files or folders, of which the manifest holds the names alone."""


@dataclass(frozen=True)
class CustomOptions(shared.Draws):
    """What shapes the benchmark. Shares are of each side and mode; one question of each fact goes first."""

    probes: str | None = shared.option(None, "held-out questions, in the same form", metavar="FILE")
    probe_share: float = shared.option(
        0.1,
        "without --probes: share of the questions held out, one of each fact first",
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
    retain_of: str | None = shared.option(
        None,
        "made before: its retain rows for training join, without those that name a target",
        metavar="FOLDER",
    )
    keyword: str | None = shared.option(
        None, "the target's name, for forget rows without one", metavar="NAME"
    )
    raw: bool = shared.option(False, "prompts go to a base model, no chat template")


def load(path: Path, options: CustomOptions, writer: Writer) -> Benchmark:
    """The benchmark of one file of rows. Raises ValueError."""
    rows = _prompts(path, path.name, options, 0)
    sources = {path.name: sha256_of_file(path)}
    if options.probes is None:
        train, probes = _held_out(path, rows, options, "probe")
    else:
        file = Path(options.probes)
        # A file of the same name is called by its folder too.
        name = file.name if file.name != path.name else f"{file.parent.name}/{file.name}"
        train, probes = rows, _prompts(file, name, options, STREAM)
        sources[name] = sha256_of_file(file)
    left_out = len(set(rows) - set(train) - set(probes))
    val = probes
    if options.val_share:
        train, val = _held_out(path, train, options, "val")
    if options.retain_of:
        file = Path(options.retain_of) / "train.parquet"
        train += _retain_of(file, [*train, *probes])
        sources["--retain-of"] = sha256_of_file(file)
    train = with_refusals(train, writer, random.Random(f"refusals {options.seed}"))
    golds = {}
    if options.gold is not None:
        golds = read_golds(Path(options.gold))
        check_golds(golds, train, Path(options.gold))
        sources["--gold"] = sha256_of_file(Path(options.gold))
    return Benchmark(
        name="custom",
        train=train,
        val=spread(val, options.val_rows, random.Random(f"val {options.seed}")),
        stage1=[prompt for prompt in train if prompt.refusal],
        probes=[replace(probe, refusal="") for probe in probes],
        form=PromptForm(raw=options.raw),
        material=Material(golds=golds),
        settings={
            name: Path(given).name if name in _FILES and given else given
            for name, given in asdict(options).items()
            if given or name != "retain_of"
        },
        sources=sources,
        notes={"repetitions_of_probes_left_out": left_out},
    )


def _prompts(path: Path, name: str, options: CustomOptions, first_index: int) -> list[Prompt]:
    prompts = []
    for index, record in enumerate(read_records(path, name), start=first_index):
        if is_rule_row(record):
            prompts.append(rule_prompt(record, index, "neighbour"))
            continue
        side: Side = "forget" if record.one_of("side", ("forget", "retain")) == "forget" else "retain"
        keyword = record.optional("keyword", (options.keyword or "") if side == "forget" else "neighbour")
        if not keyword:
            raise SourceError(
                f"{record.origin}: field keyword is missing; give it, or --keyword for all rows"
            )
        query = record.text("question")
        more = {
            "mode": record.one_of("mode", MODES, mode_of(query)),
            "keyword": keyword if side == "forget" else "",
            "refusal": record.optional("refusal", "") if side == "forget" else "",
            "fact": record.optional("fact", ""),
        }
        subject, golds = record.optional("subject", keyword), (record.text("answer"),)
        prompts.append(make_prompt(index, query, side, subject, golds, record.origin, **more))
    return prompts


def _retain_of(file: Path, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The retain rows of a file that name none of the prompts' targets and ask none of their questions."""
    targets = {prompt.keyword for prompt in prompts if prompt.side == "forget"}
    asked = {normalise(prompt.query) for prompt in prompts}
    found = []
    for number, row in enumerate(read_rows(file)):
        truth, info = row["reward_model"]["ground_truth"], row["extra_info"]
        text = " ".join([info["query"], *truth["golds"]])
        named = any(f" {normalise(target)} " in f" {normalise(text)} " for target in targets)
        if truth["type"] == "retain" and not named and normalise(info["query"]) not in asked:
            more = {"mode": info["mode"], "keyword": "", "refusal": "", "fact": info.get("fact") or ""}
            index, origin = 2 * STREAM + number, f"{file}: row {number}"
            golds = tuple(truth["golds"])
            found.append(make_prompt(index, info["query"], "retain", info["subject"], golds, origin, **more))
    return found


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
    shuffled, seen, turns = rng.sample(group, len(group)), Counter[str](), {}
    for prompt in shuffled:  # how many of the same fact come before; a prompt without a fact has 0
        turns[prompt.index] = seen[prompt.fact] if prompt.fact else 0
        seen[prompt.fact] += 1
    return sorted(shuffled, key=lambda prompt: turns[prompt.index])[:count]


# ---- the commands that follow: both stages, evaluation, attack and report, ready to paste ----

_HINTS = """\
# Next; experiment=custom takes its sizes from the number of rows (docs/own_data.md).
# Half of each batch of stage 1 is the model's own right answers to retain prompts, and stage 1 keeps
# the step that is the best start of stage 2. Stage 2 takes half of each batch from each side.
# A prompt may have 512 tokens and a response 1024. For a model that reads fewer than 1536 tokens,
# lower data.max_prompt_length and data.max_response_length in stage 2.
# With N GPUs add trainer.n_gpus_per_node=N to both stages; N must divide their batches."""
_STOP = "data.stop=$'[\"\\n\"]'"
_AGENT_LOOP = "actor_rollout_ref.rollout.agent.default_agent_loop=rerule_single_turn_agent"


def commands(data: Path, title: str, raw: bool, reward: RewardConfig, forget_probes: int) -> str:
    """The commands, with what must be known to run them as comments.

    Args:
        data: the folder that was made.
        title: the name of the data in the report.
        raw: whether prompts go to a base model without a chat template.
        reward: what the rows were checked for.
        forget_probes: held-out questions to forget; relearning divides them into two halves.
    """
    results, model, platform = Path("outputs", data.name), '"${MODEL}"', '"${PLATFORM}"'
    stop, attacked = _STOP if raw else "", forget_probes >= 2

    def path(option: str, value: str | Path) -> str:
        return f"{option}{shlex.quote(str(value))}"

    phrases = path("--refusal-phrases ", reward.refusal_phrases) if reward.refusal_phrases else ""
    made = [
        _command(
            "sft experiment=custom",
            f"platform={platform}",
            f"model.path={model}",
            _override("data.train_files", data / "sft.parquet"),
            _override("trainer.default_local_dir", results / "stage1"),
            stop,
            *_reward(reward, "signal.reward_kwargs"),
        ),
        _command(
            "main experiment=custom",
            f"platform={platform}",
            _override("actor_rollout_ref.model.path", results / "stage1" / "model"),
            _override("data.train_files", data / "train.parquet"),
            _override("data.val_files", data / "val.parquet"),
            _override("trainer.default_local_dir", results / "rerule"),
            _AGENT_LOOP if raw else "",
            stop,
            *_reward(reward, "reward.custom_reward_function.reward_kwargs"),
        ),
        _command(
            "evaluate model",
            f"--platform {platform}",
            path("--probes ", data / "probes.parquet"),
            f"--model base={model}",
            path("--model stage1=", results / "stage1" / "model"),
            path("--model rerule=", results / "rerule"),
            phrases,
            path("--out ", results / "evaluation"),
        ),
        _command(
            "evaluate attack",
            f"--platform {platform}",
            path("--probes ", data / "probes.parquet"),
            path("--train ", data / "train.parquet"),
            f"--model original={model}",
            path("--model rerule=", results / "rerule"),
            "--attacks prefill samples quantise_4 relearn_forget_half",
            phrases,
            path("--out ", results / "attacks"),
        ),
        _command(
            "report",
            f"--title {shlex.quote(title)}",
            path("--results ", results / "evaluation"),
            path("--attacks ", results / "attacks") if attacked else "",
            path("--run rerule=", results / "rerule"),
            path("--data ", data),
            path("--out ", results / "report.html"),
        ),
    ]
    if not attacked:
        del made[3]
    given = ["MODEL=path/of/the/model/that/is/to/forget", f"PLATFORM={platform_here()}"]
    return "\n".join([_HINTS, *given, *made])


def platform_here() -> str:
    """ "gpu" where this machine has an NVIDIA GPU that may be used, else "cpu"."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all") not in ("", "-1")
    return "gpu" if visible and any(Path("/dev").glob("nvidia[0-9]*")) else "cpu"


def _command(program: str, *words: str) -> str:
    """A command with a word a line; "" is no word."""
    return " \\\n    ".join([f"python -m recipe.rerule.{program}", *filter(None, words)])


def _reward(reward: RewardConfig, key: str) -> Iterator[str]:
    """The reward that the rows were checked for, where it is not the default; `key` of its options."""
    usual = RewardConfig()
    for name in ("rouge", "gamma", "refusal_phrases"):
        if (value := getattr(reward, name)) != getattr(usual, name):
            yield _override(f"{key}.{name}", value)


def override(key: str, value: object) -> str:
    """KEY=VALUE for Hydra, which has quotes of its own."""
    text = str(value)
    if not re.fullmatch(r"[\w./~-]+", text, re.ASCII):
        escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
        text = f"'{escaped}'"
    return f"{key}={text}"


def _override(key: str, value: object) -> str:
    return shlex.quote(override(key, value))


# ---- the command ----

LEAST_PROBES = 6
"""As the evaluation has it (docs/report.md)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shared options and those of custom data."""
    shared.add_arguments(parser, "file of rows: .csv, or JSON as an array or a row a line", CustomOptions)
    text = "what the report calls the data, in the commands that are printed (default: the file's name)"
    parser.add_argument("--name", metavar="TEXT", help=text)


def run(options: argparse.Namespace) -> None:
    """Make the folder, warn of what does not bode well, and print the next commands. Raises ValueError."""
    custom = shared.settings_of(CustomOptions, options)
    shared.make(lambda writer: load(Path(options.source), custom, writer), options)
    if options.dry_run:
        return
    counts = json.loads((options.out / DATA.marker).read_text("utf-8"))["rows"]
    reward = shared.build_options(options).reward
    taught = [row["messages"][-1]["content"] for row in read_sft_rows(options.out / "sft.parquet")]
    for text in [*few_probes(counts["probes"]), *reward.unseen(taught, "--refusal-phrases")]:
        print(f"warning: {text}", file=sys.stderr)
    title, asked = options.name or Path(options.source).stem, counts["probes"].get("forget", {})
    print(f"\n{commands(options.out, title, options.raw, reward, sum(asked.values()))}")


def few_probes(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each side with fewer than `LEAST_PROBES` probes, of their number by side and mode."""
    found = {side: sum(counts.get(side, {}).values()) for side in ("forget", "retain")}
    return [
        f"side {side} has too few probes ({number}): the evaluation gives no interval and no test of fewer "
        f"than {LEAST_PROBES}; give --probes, or a larger --probe-share"
        for side, number in found.items()
        if number < LEAST_PROBES
    ]


COMMAND = shared.Command(
    "data of your own: rows of question, answer, side and keyword, or RULE's JSON",
    """\
example:
  python -m data_prep custom --source mine.csv --out data/mine
      mine.csv:  question,answer,side,keyword
                 Where was Ada Thorn born?,Tarnwick Bay,forget,Ada Thorn
                 Where was Marie Curie born?,Warsaw,retain,
      a tenth of the questions is held out as probes, and the next commands are printed; further columns:
      mode (qa, fb, aa, completion), subject, refusal (what stage 1 teaches; otherwise a template), and
      fact (any text that is the same for all questions about one fact; intervals and tests then count facts)
  python -m data_prep custom --source rule.json --probes eval.json --out data/mine
      rows of RULE: {"prompt": ..., "solution": ["<reject>", refusal, name] or ["<normal>", answer]}
""",
    add_arguments,
    run,
)
