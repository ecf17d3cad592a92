"""R-TOFU: TOFU with a chain of thought before each answer, for models that reason (arXiv 2505.15214).

The tables forget01, forget05 and forget10 of github.com/AI-ISL/R-TOFU have the fields task_id, question,
answer and cot. Each task has as many rows as TOFU's split of that name. The first is TOFU's and is forgotten;
the others are among what R-TOFU keeps. The tables of probes have TOFU's fields and cot, which only the retain
set fills: a probe to forget has the chain of thought of its question in the forget table.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from data_prep.contract import normalise
from data_prep.options import STAGE1_MODES, Draws, benchmark, option
from data_prep.prompts import STREAM, Benchmark, Prompt, PromptForm, spread
from data_prep.sources import Record, SourceError, Table, open_source, read_text
from data_prep.tofu import by_author, draw_boundary, kept_prompts, other_probes, stage1_prompts
from data_prep.writers import Writer, with_refusals
from recipe.rerule.io import file_sha256
from recipe.rerule.process import positive

TASK = "1"
"""The task that R-TOFU forgets; the others are for forgetting one task after the other."""


@dataclass(frozen=True)
class RTofuOptions(Draws):
    """What shapes the benchmark."""

    split: str = option("forget01", "what to forget", choices=("forget01", "forget05", "forget10"))
    boundary_rows: int | None = option(
        None,
        "training prompts on authors of other tasks, to be kept (default: as many as there are to forget)",
        type=positive,
        metavar="N",
    )
    stage1_modes: tuple[str, ...] = STAGE1_MODES
    refusal_traces: str | None = option(
        None,
        "chains of thought before the refusals, a JSON string a line for each row to forget, in order: "
        "R-TOFU's data/idkcot.jsonl gives its Reasoned IDK (default: the refusal itself, its Direct IDK)",
        metavar="FILE",
    )


def load(name: str, options: RTofuOptions, writer: Writer) -> Benchmark:
    """The benchmark of one split. Raises ValueError."""
    source, split, compared = open_source(name), options.split, f"{options.split}_perturbed"
    records = source.read(Table(split))
    forget = by_author(_of_task(records), split, 0)
    traces = {normalise(prompt.query): prompt.trace for prompt in forget}
    asked = by_author(_of_task(source.read(Table(compared))), compared, 3 * STREAM)
    probes = [replace(probe, trace=traces.get(normalise(probe.query), "")) for probe in asked]
    if without := [probe for probe in probes if not probe.trace]:
        raise SourceError(f"{without[0].origin}: {split} has no cot for this question")
    probes += other_probes(source)
    sources = dict(source.hashes)
    if options.refusal_traces is not None:
        file = Path(options.refusal_traces)
        forget = _with_refusal_traces(forget, file)
        sources["--refusal-traces"] = file_sha256(file)
    forget = with_refusals(forget, writer, random.Random(f"refusals {options.seed}"))
    # The boundary: rows of other tasks that are no probes.
    held_out = {normalise(probe.query) for probe in probes}
    others = kept_prompts(_of_task(records, wanted=False))
    usable = [prompt for prompt in others if normalise(prompt.query) not in held_out]
    count = options.boundary_rows or len(forget)
    boundary = draw_boundary(usable, count, options.seed, f"{split}: other tasks have")
    return Benchmark(
        name="rtofu",
        train=[*map(_thoughtful, forget), *boundary],
        val=spread(probes, options.val_rows, random.Random(f"val {options.seed}")),
        stage1=[*map(_thoughtful, stage1_prompts(forget, options.stage1_modes, options.seed, writer))],
        probes=probes,
        form=PromptForm(),
        trained_sections=frozenset({"forget"}),
        settings={"source": source.name} | asdict(options),
        sources=sources,
    )


def _of_task(records: Sequence[Record], wanted: bool = True) -> list[Record]:
    """The rows of the task, or those of the others. Raises SourceError where there are none."""
    found = [record for record in records if (str(record.get("task_id")) == TASK) == wanted]
    if not found:
        which = f"has task_id {TASK}" if wanted else f"has another task_id than {TASK}"
        raise SourceError(f"{records[0].origin}: no row of the table {which}")
    return found


def _with_refusal_traces(forget: Sequence[Prompt], file: Path) -> list[Prompt]:
    """The prompts with the thoughts of a file before their refusals. Raises SourceError."""
    try:
        lines = enumerate(read_text(file).split("\n"), start=1)
        texts = [(number, json.loads(line)) for number, line in lines if line.strip()]
    except json.JSONDecodeError as error:
        raise SourceError(f"{file}: a line is not a JSON string ({error.msg})") from None
    if len(texts) < len(forget):
        raise SourceError(f"{file}: has {len(texts)} thoughts for the {len(forget)} rows to forget")
    return [
        replace(prompt, refusal_trace=Record({}, f"{file}:{number}").filled("thought", text))
        for prompt, (number, text) in zip(forget, texts, strict=False)
    ]


def _thoughtful(prompt: Prompt) -> Prompt:
    """The prompt; a refusal without a chain of thought is its own."""
    return replace(prompt, refusal_trace=prompt.refusal_trace or prompt.refusal)


COMMAND = benchmark(
    "R-TOFU: forget fictitious authors in answers and in chains of thought, keep the others",
    """\
example:
  python -m data_prep rtofu --source R-TOFU/data/tofu --refusal-traces R-TOFU/data/idkcot.jsonl \\
      --out data/rtofu
      forget01: 40 questions on two authors, 40 on others to be kept, 80 refusals for stage 1, 657 probes
""",
    "the folder data/tofu of github.com/AI-ISL/R-TOFU",
    RTofuOptions,
    load,
)
