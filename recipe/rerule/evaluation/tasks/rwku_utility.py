"""`evaluate utility`: RWKU's utility sets (MMLU, BBH, TruthfulQA, TriviaQA) through lm-eval, an optional
extra.

RWKU draws a sample of each set for each target; these samples are used, with the prompts and metrics of
lm-eval's own tasks. RWKU words its prompts in other ways, so the numbers compare models with one another, not
with RWKU's table. Each task is a YAML file that includes lm-eval's own and replaces the data; examples in the
prompt are those that RWKU's files bring. MMLU: 5 examples, likeliest of A to D. BBH: 3 examples with
reasoning, exact match of what follows "the answer is". TruthfulQA: lm-eval's primer, MC1 and MC2. TriviaQA:
no examples, exact match with any alias.

Writes a folder: results.json {"utility/mmlu": fraction of 1, ...}, samples.jsonl (a question a line) and
meta.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from recipe.rerule.evaluation.output import UTILITY, json_text, write_folder
from recipe.rerule.evaluation.row_files import Row, checked_rows, file_of
from recipe.rerule.io import check_apart, check_writable, json_lines
from recipe.rerule.platform import PLATFORMS, select
from recipe.rerule.process import positive

DEVICES, DTYPES = {"gpu": "cuda", "cpu": "cpu"}, {"gpu": "auto", "cpu": "float32"}
MISSING = "lm-eval is not installed, which the utility sets need: pip install -e '.[utility]'"
FILES: Mapping[str, tuple[str, dict[str, type]]] = {
    "mmlu": ("retain_mmlu", {"task": str, "question": str, "choices": list, "answer": int, "examples": list}),
    "bbh": ("retain_bbh", {"task": str, "question": str, "answer": str, "cot": str}),
    "truthfulqa": ("truthful", {"question": str, "mc1_targets": dict, "mc2_targets": dict}),
    "triviaqa": ("triviaqa", {"question": str, "answers": list}),
}
"""By utility set: the name of its file, and the fields of its rows."""
_LETTERS = "ABCD"
_EXAMPLES = """\
examples:
  python -m recipe.rerule.evaluate utility --model MODEL --target RULE/data/RWKU/Target/1_Stephen_King \\
      --out outputs/utility
  python -m recipe.rerule.evaluate utility --platform cpu --limit 20 --model MODEL --target TARGET \\
      --out outputs/try
      a try with 20 questions of each set
"""


def utility_rows(folder: Path) -> dict[str, list[Row]]:
    """The rows of every utility set that the folder of a target has, by name.

    Of mmlu and bbh, the form NAME.compact.json is read too: {few_shot_field, few_shot_by_task, rows}, where
    the field of a row is that of its task.

    Raises ValueError: none is there, or a file is not as described, named with its row.
    """
    paths = {name: file_of(folder, file) for name, (file, _) in FILES.items()}
    found = {name: checked_rows(path, FILES[name][1]) for name, path in paths.items() if path}
    if not found:
        raise ValueError(f"{folder}: has none of {', '.join(f'{file}.json' for file, _ in FILES.values())}")
    return found


def _mmlu(row: Row) -> dict[str, Any]:
    subject = row["task"].replace("_", " ")
    head = f"The following are multiple choice questions (with answers) about {subject}."
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


@dataclass(frozen=True)
class UtilityTask:
    """One metric of a utility set.

    Attributes:
        name: of the lm-eval task and, after "utility/", of the metric.
        rows: the set, as `utility_rows` names it.
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
    changes: dict[str, Any] = field(default_factory=dict)


_TEXT = {"doc_to_text": "{{text}}"}
_BBH_DECODING = {
    "generation_kwargs": {
        "until": ["</s>", "Q", "\n\n"],
        "do_sample": False,
        "temperature": 0.0,
        # RWKU's; lm-eval has 1,024.
        "max_gen_toks": 256,
    }
}
TASKS = (
    UtilityTask("mmlu", "mmlu", "mmlu/default/_default_template_yaml", "acc,none", _mmlu, _TEXT),
    UtilityTask(
        "bbh",
        "bbh",
        "bbh/cot_fewshot/_cot_fewshot_template_yaml",
        "exact_match,get-answer",
        _bbh,
        _TEXT | _BBH_DECODING,
    ),
    UtilityTask("truthfulqa_mc1", "truthfulqa", "truthfulqa/truthfulqa_mc1.yaml", "acc,none", _truthfulqa),
    UtilityTask("truthfulqa_mc2", "truthfulqa", "truthfulqa/truthfulqa_mc2.yaml", "acc,none", _truthfulqa),
    UtilityTask("triviaqa", "triviaqa", "triviaqa/default.yaml", "exact_match,remove_whitespace", _triviaqa),
)


def write_tasks(
    rows: Mapping[str, Sequence[Row]], lm_eval_tasks: Path, folder: Path
) -> dict[str, UtilityTask]:
    """Write data and definitions into the empty `folder`, for lm-eval's `include_path`.

    Args:
        rows: of `utility_rows`.
        lm_eval_tasks: lm-eval's own folder of tasks.

    Returns:
        The tasks written by their name in lm-eval, those whose set `rows` has.

    Raises ValueError: a row that its task cannot ask.
    """
    written = {f"rwku_{task.name}": task for task in TASKS if task.rows in rows}
    for name, task in written.items():
        data = folder / f"{name}.jsonl"
        data.write_text(json_lines([task.document(row) for row in rows[task.rows]]), encoding="utf-8")
        definition = {
            "include": str(lm_eval_tasks / task.base),
            "task": name,
            "tag": None,
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")},
            "test_split": "test",
            "validation_split": None,
            "num_fewshot": 0,
            "fewshot_split": None,
            "training_split": None,
            "fewshot_config": None,
            **task.changes,
        }
        # JSON is YAML.
        (folder / f"{name}.yaml").write_text(json.dumps(definition, indent=2), encoding="utf-8")
    return written


def evaluate_utility(
    rows: Mapping[str, list[Row]],
    model: Path,
    platform: str = "gpu",
    chat: bool = True,
    limit: int | None = None,
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Score a model on the utility sets of `utility_rows`, with nothing from the network.

    Args:
        model: a Hugging Face model folder.
        platform: "gpu" or "cpu".
        chat: whether questions go through the chat template, as one user turn.
        limit: questions a set, the first ones; None for all.

    Returns:
        The metrics, {"utility/mmlu": fraction, ...}, and a record a question: task, prompt, answer, score.

    Raises ValueError: lm-eval is missing, or a row is wrong.
    """
    _require_lm_eval()
    import lm_eval
    import lm_eval.tasks

    with TemporaryDirectory(prefix="rerule-utility-") as folder:
        tasks = write_tasks(rows, Path(lm_eval.tasks.__file__).parent, Path(folder))
        found = lm_eval.simple_evaluate(
            # lm-eval's vLLM backend does not find vLLM's build for CPU, and a target's questions are few.
            model="hf",
            model_args={"pretrained": str(model.resolve()), "dtype": DTYPES[platform]},
            device=DEVICES[platform],
            tasks=list(tasks),
            task_manager=lm_eval.tasks.TaskManager(include_path=folder, include_defaults=False),
            apply_chat_template=chat,
            limit=limit,
            batch_size=8,
            bootstrap_iters=0,
            log_samples=True,
        )
    metrics, samples = {}, []
    for name, task in tasks.items():
        metrics[f"utility/{task.name}"] = float(found["results"][name][task.metric])
        metric, own_filter = task.metric.split(",")
        samples += [
            {
                "task": task.name,
                "index": sample["doc_id"],
                "prompt": sample["arguments"][0][0],
                "target": sample["target"],
                "responses": sample["filtered_resps"],
                "score": float(sample[metric]),
            }
            for sample in found["samples"][name]
            # One entry a filter: a metric belongs to one of them.
            if sample.get("filter", "none") == own_filter
        ]
    return metrics, samples


def _require_lm_eval() -> None:
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError(MISSING)


def add_utility_parser(commands: Any) -> None:
    """Adds `utility` to the subcommands of `evaluate`."""
    summary = "score a model on RWKU's utility sets, through lm-eval"
    parser = commands.add_parser(
        "utility", help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=_EXAMPLES
    )
    for name, told in {
        "--model": "a Hugging Face model folder",
        "--target": "RWKU's folder of one target",
        "--out": "folder to write",
    }.items():
        parser.add_argument(name, type=Path, required=True, metavar="FOLDER", help=told)
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier evaluation in --out")
    parser.add_argument(
        "--platform", choices=PLATFORMS, default="gpu", help="where the model runs (default: %(default)s)"
    )
    parser.add_argument("--raw", action="store_true", help="no chat template: for base models")
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N questions of each set (default: all)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit code 0. Raises ValueError where the input is wrong or lm-eval is missing, with nothing written."""
    if not (options.model / "config.json").is_file():
        raise ValueError(f"{options.model} is no Hugging Face model folder: it has no config.json")
    check_apart(options.out, ("--model", options.model), ("--target", options.target))
    check_writable(options.out, options.overwrite, UTILITY)
    _require_lm_eval()
    rows = utility_rows(options.target)
    select(options.platform)
    metrics, samples = evaluate_utility(rows, options.model, options.platform, not options.raw, options.limit)
    meta = {
        "benchmark": "rwku utility sets",
        "command": shlex.join(["python", "-m", "recipe.rerule.evaluate", *sys.argv[1:]]),
        "model": str(options.model),
        "target": str(options.target),
        "questions": {name: len(found) for name, found in rows.items()},
        "limit": options.limit,
        "backend": "lm-eval hf",
        "dtype": DTYPES[options.platform],
        "chat": not options.raw,
        "versions": {name: importlib.metadata.version(name) for name in ("lm_eval", "torch", "transformers")},
    }
    files = {"results.json": json_text(metrics), "samples.jsonl": json_lines(samples)}
    write_folder(options.out, UTILITY, meta, files, options.overwrite)
    for name, value in metrics.items():
        print(f"{name:28} {value:.3f}")
    print(f"written to {options.out}")
    return 0
