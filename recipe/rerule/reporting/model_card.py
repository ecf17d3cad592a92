"""The model card of an exported model: README.md as Hugging Face's model folders have it.

It says what was forgotten and how that was measured, how the model was trained, from what its run folder
says, what it answers, and what attacks get out of it. Of a folder on this machine only the last part of its
path is told; a name on the Hub is told whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from recipe.rerule.evaluation.attacks.registry import BEFORE
from recipe.rerule.evaluation.attacks.summary import CONTROL
from recipe.rerule.evaluation.table import columns_of, legend
from recipe.rerule.io import file_sha256, read_record
from recipe.rerule.reporting.attacks import (
    READING,
    READING_CONTROL,
    WITHOUT_CONTROL,
    AttackResults,
    cells_of,
    sentences_on,
    turned,
)
from recipe.rerule.reporting.document import (
    CAUTION,
    CAUTION_ATTACKED,
    TEMPLATES,
    Row,
    Table,
    plain_columns,
)
from recipe.rerule.reporting.evaluations import Benchmark, Evaluation
from recipe.rerule.reporting.results import base_of, few_facts_note, rows_of
from recipe.rerule.runs import run_folder
from recipe.rerule.runs.run_folder import read_config

FILL_IN = "TO BE FILLED IN"
_STAGE1 = "rejection steering, which is stage 1 of RULE: supervised fine-tuning on refusals"
_RULE = "RULE: rejection steering, then reinforcement on a refusal boundary"
_RERULE = f"ReRULE: {_RULE.removeprefix('RULE: ')}, with off-policy replay of rollout groups"
_UNKNOWN = "not known: the folder holds no record of its training"
_TASK_VECTOR = "task_vector.json"
"""What `recipe.rerule.task_vector` writes into its folder."""
_MOST_NAMES = 5
_OF_STAGE2 = {
    "advantages": "algorithm.adv_estimator",
    "prompts in a step": "data.train_batch_size",
    "responses to a prompt": "actor_rollout_ref.rollout.n",
    "learning rate": "actor_rollout_ref.actor.optim.lr",
    "KL coefficient": "actor_rollout_ref.actor.kl_loss_coef",
    "seed": "data.seed",
}
_OF_REPLAY = {
    "replay update": "replay.update",
    "stored groups": "replay.admission",
    "drawn by": "replay.sampling",
    "capacity (groups)": "replay.capacity",
    "groups in a replay update": "replay.groups_per_update",
}
_OF_UNLEARN = {"batch": "data.train_batch_size", "learning rate": "optim.lr", "seed": "trainer.seed"}


@dataclass(frozen=True)
class Origin:
    """How a model came about.

    Attributes:
        method: in words.
        base: the model that it was trained from, as its training was told; None where nobody said it.
        facts: settings and data, as a reader should see them.
    """

    method: str
    base: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


def origin_of(run: Path, step: int | None) -> Origin:
    """What a run folder says of its model.

    Args:
        run: a run folder, or the folder of a model in one, or alone.
        step: the training step of the model, where it is known.

    Raises ValueError: the run's configuration is no YAML.
    """
    if (vector := run / _TASK_VECTOR).is_file():
        made = read_record(vector)
        if missing := {"alpha", "base", "reinforced"} - made.keys():
            raise ValueError(f"{vector} has no {min(missing)}, which task_vector writes")
        facts = {"alpha": f"{made['alpha']:g}", "reinforced model": shown_name(made["reinforced"])}
        return Origin("task arithmetic", made["base"], facts)
    run = run_of(run)
    config = read_config(run / "config.yaml")
    marker = run / run_folder.MARKER
    stage = read_record(marker).get("stage") if marker.is_file() else None
    if "replay" in config:
        return _stage2(config, step, run_folder.identity_of(run))
    if stage == "unlearn":
        return _unlearn(run_folder.identity_of(run))
    return Origin(_STAGE1, run_folder.identity_of(run).get("model.path")) if stage == 1 else Origin(_UNKNOWN)


def first_model(model: str) -> str:
    """The model that all training began with which led to `model`; one of the Hub by its name there."""
    if before := origin_of(Path(model), None).base:
        return first_model(before)
    kept = re.search(r"/models--([^/]+)/snapshots/", model)
    return kept[1].replace("--", "/") if kept else model


def run_of(folder: Path) -> Path:
    """The run folder of RUN/model or RUN/global_step_N/actor/huggingface; else the folder itself."""
    run = {"model": folder.parent, "huggingface": folder.parent.parent.parent}.get(folder.name, folder)
    return run if (run / run_folder.MARKER).is_file() else folder


def _stage2(config: Mapping[str, Any], step: int | None, identity: Mapping[str, Any]) -> Origin:
    settings = pd.json_normalize(dict(config)).to_dict("records")[0]  # with dotted keys
    replays = bool(settings.get("replay.enable"))
    facts = {} if step is None else {"training steps of stage 2": str(step)}
    facts |= _told(settings, _OF_STAGE2 | (_OF_REPLAY if replays else {}))
    given = settings.get("data.train_files") or []
    files = [Path(path) for path in ([given] if isinstance(given, str) else given)]
    if files:
        now = [file_sha256(file) if file.is_file() else None for file in files]
        sums = identity.get("data.train_files", now)  # of the rows that it was trained with
        facts["training prompts"] = "; ".join(map(_file, files, sums))
    return Origin(_RERULE if replays else _RULE, settings.get("actor_rollout_ref.model.path"), facts)


def _unlearn(identity: Mapping[str, Any]) -> Origin:
    """Of recipe.rerule.unlearn: its run.json has dotted keys."""
    sides = ("forget", "retain", "alternate")
    terms = [f"{side} term {identity[f'method.{side}']}" for side in sides if f"method.{side}" in identity]
    facts = _told(identity, _OF_UNLEARN)
    for key, value in identity.items():
        if key.startswith("data.") and isinstance(value, Mapping) and "sha256" in value:
            facts[f"rows ({key.removeprefix('data.')})"] = _file(Path(value["path"]), str(value["sha256"]))
    return Origin(f"unlearning without reinforcement: {', '.join(terms)}", identity.get("model.path"), facts)


def _told(settings: Mapping[Any, Any], keys: Mapping[str, str]) -> dict[str, str]:
    found = {name: settings.get(key) for name, key in keys.items()}
    return {
        name: f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in found.items()
        if value is not None
    }


def _file(path: Path, sha256: str | None) -> str:
    return f"{path.name} ({'no longer there' if sha256 is None else f'sha256 {sha256}'})"


def shown_name(model: str) -> str:
    """A model or a file as it may be published: a name on the Hub whole, of a path its last part."""
    is_hub_name = model.count("/") == 1 and not model.startswith((".", "/", "~")) and not Path(model).exists()
    return model if is_hub_name else Path(model).name


def model_card(
    name: str,
    origin: Origin,
    evaluated: Sequence[tuple[Benchmark, str]] = (),
    attacked: Sequence[tuple[AttackResults, str]] = (),
) -> str:
    """The card of the model `name`; `evaluated` and `attacked` have the name that it has there."""
    first = origin.base and first_model(origin.base)
    base = first and shown_name(first)
    front_matter = {
        "model_name": name,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["unlearning", "rerule"],
        # The licence is left to who publishes the model.
        "license": "other",
        "license_name": FILL_IN,
        "license_link": FILL_IN,
    }
    if base and base == first:
        front_matter["base_model"] = base
    forgotten, scores = list[str](), list[tuple[str, Table]]()
    for benchmark, model in evaluated:
        for target in benchmark.targets:
            forgotten += _forgotten(target, model, benchmark.title)
            several = f": {target.target}" if len(benchmark.targets) > 1 else ""
            scores.append((f"{benchmark.title}{several}", _scores(target, model)))
    return TEMPLATES.get_template("card.md").render(
        front_matter=yaml.safe_dump(front_matter, sort_keys=False, allow_unicode=True),
        name=name,
        caution=CAUTION_ATTACKED if attacked else CAUTION,
        origin=origin,
        facts=({"trained from": base} if base else {}) | dict(origin.facts),
        base=base,
        forgotten=forgotten,
        scores=scores,
        leaks=[
            (results.title, _sentences(results, model), _leaks(results, model)) for results, model in attacked
        ],
        fill_in=FILL_IN,
    )


def _forgotten(evaluation: Evaluation, model: str, title: str) -> Iterator[str]:
    """Whom or what the questions of the forget side ask about, and how many there are."""
    table = evaluation.responses()
    if table is None:
        return
    table = table[table["model"] == model]
    asked = table[table["side"] == "forget"]
    if asked.empty:
        return
    subjects = asked["subject"].unique() if "subject" in asked else ()
    names = [name for name in subjects if name] or [title]
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [f"{len(names) - _MOST_NAMES} more"]
    yield (
        f"{', '.join(names)}. This was measured with {len(asked)} questions, which ask for "
        f"{asked['fact'].nunique()} facts, and with {len(table) - len(asked)} questions about other things."
    )


def _scores(evaluation: Evaluation, model: str) -> Table:
    """The model's numbers with intervals, with those of the first model of the evaluation and of constant
    answers."""
    first = base_of(evaluation, None)
    columns = columns_of(evaluation.benchmark, {model: evaluation.results[model], **evaluation.anchors})
    shown = rows_of(evaluation, keep=(first, model))
    rows = [row for row in shown if row.name in (first, model) or row.kind == "anchor"]
    notes = [legend(evaluation.benchmark, evaluation.convention)]
    if first != model:
        notes.append(f"To compare: {first}, the first model of the evaluation.")
    if evaluation.numbers["low"].notna().any():
        notes.append("In brackets: the 95 % bootstrap interval over facts.")
    if note := few_facts_note(evaluation):
        notes.append(f"{note[0].upper()}{note[1:]}.")
    if evaluation.anchors:
        notes.append("Rows in italics are no models: they give one answer to everything.")
    return Table("", "", "answers of", columns, rows, " ".join(notes))


def _sentences(results: AttackResults, model: str) -> list[str]:
    told = sentences_on(results, model) if model in results.unlearned else []
    return [*told, READING, READING_CONTROL if CONTROL in results.models else WITHOUT_CONTROL]


def _leaks(results: AttackResults, model: str) -> Table:
    cells = {key: cells_of(results.rows[key][model]) for key in results.shown if key != BEFORE}
    return Table(
        "",
        "",
        "attack",
        plain_columns({"before": ".3f", "after": ".3f", "E": "+.3f"}),
        [Row(results.label(key), of_key) for key, of_key in cells.items()],
        "Before and after: the score without and under the attack. E is the score less that of a model that "
        "never knew the facts, attacked in the same way. In brackets: the 95 % interval over facts. A dash: "
        f"not measured.{turned(results)}",
    )
