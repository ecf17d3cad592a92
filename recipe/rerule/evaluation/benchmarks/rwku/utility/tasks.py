"""lm-eval tasks over a target's own samples: lm-eval's definitions, with local data in place of the Hub's.

Each task is a YAML file that includes lm-eval's own and replaces the data; examples in the prompt are those
that RWKU's files bring. MMLU: 5 examples, likeliest of A to D. BBH: 3 examples with reasoning, exact match
of what follows "the answer is". TruthfulQA: lm-eval's primer, MC1 and MC2. TriviaQA: no examples, exact
match with any alias.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.benchmarks.rwku.utility.target_files import Row
from recipe.rerule.io import json_lines

_LETTERS = "ABCD"
_NO_SHOTS = {"num_fewshot": 0, "fewshot_split": None, "training_split": None, "fewshot_config": None}
_SPLIT = "test"


@dataclass(frozen=True)
class UtilityTask:
    """One metric of a utility set.

    Attributes:
        name: of the lm-eval task and, after "utility/", of the metric.
        rows: the set, as `target_files.utility_rows` names it.
        base: lm-eval's definition, relative to its folder of tasks.
        metric: lm-eval's, with its filter.
        document: what lm-eval's templates see of a row.
        changes: of the definition, besides the data.
    """

    name: str
    rows: str
    base: str
    metric: str
    document: Callable[[Row], dict[str, Any]]
    changes: dict[str, Any]


def _mmlu(row: Row) -> dict[str, Any]:
    head = (
        f"The following are multiple choice questions (with answers) about {row['task'].replace('_', ' ')}."
    )
    shots = [f"{_choices(example)} {_LETTERS[example['answer']]}" for example in row["examples"]]
    return {"text": "\n\n".join([head, *shots, _choices(row)]), "answer": row["answer"]}


def _choices(row: Row) -> str:
    options = [f"{letter}. {choice}" for letter, choice in zip(_LETTERS, row["choices"], strict=True)]
    return "\n".join([row["question"].strip(), *options, "Answer:"])


def _bbh(row: Row) -> dict[str, Any]:
    text = f"{row['cot'].strip()}\n\nQ: {row['question'].strip()}\nA: Let's think step by step.\n"
    return {"text": text, "target": row["answer"]}


def _truthfulqa(row: Row) -> dict[str, Any]:
    first = row["mc1_targets"]["labels"]
    if first[0] != 1 or sum(first) != 1:
        raise ValueError(f"TruthfulQA: the right choice of {row['question']!r} is not the first and only one")
    return {name: row[name] for name in ("question", "mc1_targets", "mc2_targets")}


def _triviaqa(row: Row) -> dict[str, Any]:
    # The template adds the question mark.
    return {"question": row["question"].strip().removesuffix("?"), "answer": {"aliases": row["answers"]}}


_MADE_HERE = {"doc_to_text": "{{text}}"}
_BBH_DECODING = {
    "generation_kwargs": {
        "until": ["</s>", "Q", "\n\n"],
        "do_sample": False,
        "temperature": 0.0,
        # RWKU's; lm-eval has 1,024.
        "max_gen_toks": 256,
    }
}
TASKS: tuple[UtilityTask, ...] = (
    UtilityTask("mmlu", "mmlu", "mmlu/default/_default_template_yaml", "acc,none", _mmlu, _MADE_HERE),
    UtilityTask(
        "bbh",
        "bbh",
        "bbh/cot_fewshot/_cot_fewshot_template_yaml",
        "exact_match,get-answer",
        _bbh,
        _MADE_HERE | _BBH_DECODING,
    ),
    UtilityTask(
        "truthfulqa_mc1", "truthfulqa", "truthfulqa/truthfulqa_mc1.yaml", "acc,none", _truthfulqa, {}
    ),
    UtilityTask(
        "truthfulqa_mc2", "truthfulqa", "truthfulqa/truthfulqa_mc2.yaml", "acc,none", _truthfulqa, {}
    ),
    UtilityTask(
        "triviaqa", "triviaqa", "triviaqa/default.yaml", "exact_match,remove_whitespace", _triviaqa, {}
    ),
)


def write_tasks(
    rows: Mapping[str, Sequence[Row]], lm_eval_tasks: Path, folder: Path
) -> dict[str, UtilityTask]:
    """Write data and definitions into `folder`, for lm-eval's `include_path`.

    Args:
        rows: of `target_files.utility_rows`.
        lm_eval_tasks: lm-eval's own folder of tasks.
        folder: an empty folder.

    Returns:
        The tasks written by their name in lm-eval, those whose set `rows` has.

    Raises:
        ValueError: a row that its task cannot ask.
    """
    written = {f"rwku_{task.name}": task for task in TASKS if task.rows in rows}
    for name, task in written.items():
        data = folder / f"{name}.jsonl"
        documents = [task.document(row) for row in rows[task.rows]]
        data.write_text(json_lines(documents), encoding="utf-8")
        definition = _definition(name, task, lm_eval_tasks, data, folder / "cache")
        # JSON is YAML.
        (folder / f"{name}.yaml").write_text(json.dumps(definition, indent=2), encoding="utf-8")
    return written


def _definition(name: str, task: UtilityTask, lm_eval_tasks: Path, data: Path, cache: Path) -> dict[str, Any]:
    return {
        "include": str(lm_eval_tasks / task.base),
        "task": name,
        "tag": None,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {_SPLIT: str(data)}, "cache_dir": str(cache)},
        "test_split": _SPLIT,
        "validation_split": None,
        **_NO_SHOTS,
        **task.changes,
    }
