"""Tables of training runs: settings and results, hard groups, cost, tokens, and the paper's bound."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from data_prep.contract import SIDES, read_rows, read_sft_rows
from recipe.rerule.evaluation.registry import benchmarks, published
from recipe.rerule.evaluation.table import columns_of, legend
from recipe.rerule.replay.buffer import is_hard
from recipe.rerule.reporting.document import Row, Table, plain_columns
from recipe.rerule.reporting.evaluations import Benchmark, Evaluation
from recipe.rerule.reporting.results import checkpoints_of, published_notes, published_rows
from recipe.rerule.runs.history import Run, replay_start_step

OF_SIDES = {"all": SIDES, **{side: (side,) for side in SIDES}}
"""The sides by which groups are counted."""
FIRST, LAST = "first third of the steps", "last third"
MARK = 0.6
"""The paper's tau in most of its runs: what "hard" means of a run that has no fixed one."""
_REPLAY_PARTS = [f"replay/seconds/{part}" for part in ("offer", "draw", "collate", "update", "record")]
_EXTRA = ["replay/drawn_tokens", "replay/own_tokens"]
_NOT_TRAINING = ["timing_s/testing", "timing_s/save_checkpoint"]
_SUMMED = re.compile(
    r"steps|(device )?hours .*|groups stored|hard tokens .*|effective|(forget|retain) tokens|trained on .*"
)
"""Cells that are summed over the runs of one name; of all others the mean is taken."""
_RISK = ["val-health/forget/refused", "val-health/retain/refused"]


def run_tables(evaluated: Sequence[Benchmark], runs: Sequence[Run], data: Path | None) -> Iterator[Table]:
    """In order: settings of each benchmark, hard groups, cost, and where `data` is given the tokens used.

    `data` is the folder of the training parquet, or holds those of the runs' targets. Raises ValueError as
    `tokens_table` does.
    """
    yield from filter(None, (settings_table(runs, benchmark.mean) for benchmark in evaluated))
    yield hard_share_table(runs)
    yield cost_table(runs)
    if data is not None:
        yield tokens_table(runs, data)


def joint(table: Table) -> Table:
    """The table with one row for all runs of a name, such as those of an arm on RWKU's targets.

    It has the sums of steps, hours, groups and tokens over the runs, and the means of all other numbers.
    """
    of_names: dict[str, list[Row]] = {}
    for row in table.rows:
        if row.kind == "model":
            of_names.setdefault(row.name, []).append(row)
    if all(len(rows) == 1 for rows in of_names.values()):
        return table
    rows = [_joined(rows) if len(rows) > 1 else rows[0] for rows in of_names.values()]
    rows += [row for row in table.rows if row.kind != "model"]
    told = (
        "A row of several runs has the sum of their steps, hours, groups and tokens, and the mean of the "
        "other numbers, each run weighing the same."
    )
    return replace(table, rows=rows, caption=f"{table.caption} {told}")


def _joined(rows: Sequence[Row]) -> Row:
    cells: dict[Any, Any] = {}
    for name, column in pd.DataFrame([row.cells for row in rows]).items():
        if isinstance(column.iloc[0], str):
            cells[name] = column.iloc[0]
        else:
            summed, numbers = _SUMMED.fullmatch(str(name)), pd.to_numeric(column)
            cells[name] = numbers.sum(skipna=False) if summed else numbers.mean(skipna=False)
    return Row(f"{rows[0].name} ({len(rows)} runs)", cells)


def settings_table(runs: Sequence[Run], evaluation: Evaluation) -> Table | None:
    """What replay stores and its threshold, with the results of the model that each run made.

    None where no two runs differ in them and nothing is published.
    """
    chosen = [run for run in runs if run.config]
    known = published(evaluation.benchmark)
    columns = columns_of(evaluation.benchmark, evaluation.results)
    figures = [
        row for row in [*known.storage, *known.tau] if any(column.metric in row.values for column in columns)
    ]
    if not figures and len({(run.storage, threshold(run)) for run in chosen if run.storage != "none"}) < 2:
        return None
    rows = []
    for run in sorted(chosen, key=lambda run: (run.storage, threshold(run) or 0)):
        settings: dict[str, Any] = {"storage": run.storage}
        if run.storage != "none":
            settings["tau"] = threshold(run)
            settings["groups stored"] = run.logged(["replay/admitted"]).sum(min_count=1).item()
        rows.append(Row(run.name, settings | evaluation.results.get(model_of(run, evaluation) or "", {})))
    caption = (
        "Storage: hard stores groups whose mean reward is below tau, random as many groups of the step "
        "whichever they are, none is plain RULE. Storage rules compare fairly only where they store about as "
        "many groups.",
        legend(evaluation.benchmark, evaluation.convention),
        published_notes(figures),
    )
    return Table(
        f"settings_{evaluation.benchmark}",
        "What replay stores",
        "run",
        [*plain_columns({"storage": "", "tau": "g", "groups stored": ".0f"}), *columns],
        [*rows, *published_rows(figures)],
        " ".join(filter(None, caption)),
    )


def threshold(run: Run) -> float | None:
    """replay.threshold; None where the configuration has no number for it, or another rule replaces it."""
    value, rule = run.setting("replay.threshold"), run.setting("replay.threshold_rule")
    return value if isinstance(value, int | float) and rule in (None, "fixed") else None


def model_of(run: Run, evaluation: Evaluation) -> str | None:
    """The model that the run made: the one of its name, or the last checkpoint of that name."""
    checkpoints = checkpoints_of(evaluation.results, least=1).get(run.name, {})
    named = [run.name, *reversed(checkpoints.values())]
    return next((name for name in named if name in evaluation.results), None)


def hard_share_table(runs: Sequence[Run]) -> Table:
    """How many groups are hard in the first and the last third of each run."""
    figures = [row for benchmark in benchmarks().values() for row in benchmark.published.hard_share]
    rows = []
    for run in runs:
        tau = threshold(run)
        tau = MARK if tau is None else tau
        cells: dict[str, Any] = {"tau": tau}
        for name, steps in thirds(run).items():
            cells |= {f"{name} {label}": hard_share(run, tau, steps, of) for label, of in OF_SIDES.items()}
        rows.append(Row(run.name, cells))
    for row in published_rows(figures):
        rows.append(row._replace(cells={"tau": row.cells["tau"], f"{FIRST} all": row.cells["share"]}))
    shares = dict.fromkeys(OF_SIDES, ".3f")
    return Table(
        "hard_share",
        "Share of hard groups",
        "run",
        [*plain_columns({"tau": ".2g"}), *plain_columns(shares, FIRST), *plain_columns(shares, LAST)],
        rows,
        "Share of a step's rollout groups whose mean reward is below tau, averaged over steps. A run without "
        f"a fixed tau is counted at {MARK:g}. The published figures say early on, without the number of "
        "steps. " + published_notes(figures),
    )


def thirds(run: Run) -> dict[str, Sequence[int]]:
    """The first and the last third of a run's steps, each rounded up to a whole step."""
    third = -(-len(run.steps) // 3)
    return {FIRST: run.steps[:third], LAST: run.steps[len(run.steps) - third :]}


def hard_share(run: Run, tau: float, steps: Sequence[int], sides: Sequence[str]) -> float:
    """Share of groups of `sides` with a mean reward below `tau`; mean over `steps`, NaN without groups."""
    return float(hard_shares(run, [tau], steps, sides).iloc[0])


def hard_shares(
    run: Run, taus: Sequence[float], steps: Sequence[int], sides: Sequence[str]
) -> pd.Series[float]:
    """The `hard_share` of each tau, by tau."""
    groups = run.groups[run.groups["side"].isin(sides) & run.groups["step"].isin(steps)]
    hard = pd.DataFrame({tau: groups["mean_reward"].apply(is_hard, threshold=tau) for tau in taus})
    return hard.astype(float).groupby(groups["step"]).mean().mean()


def cost_table(runs: Sequence[Run]) -> Table:
    """Seconds a training step with and without replay, and replay's share of them."""
    first_start = min(filter(None, map(replay_start_step, runs)), default=math.inf)
    figures = [row for benchmark in benchmarks().values() for row in benchmark.published.cost]
    rows = [Row(run.name, cost_of(run, replay_start_step(run) or first_start)) for run in runs]
    return Table(
        "cost",
        "Cost of replay",
        "run",
        [
            *plain_columns({"steps": ".0f"}),
            *plain_columns({"with validation": ".3g", "without": ".3g"}, "hours"),
            *plain_columns({"with validation": ".3g", "without": ".3g"}, "device hours"),
            *plain_columns({"before": ".2f", "from replay on": ".2f", "replay": ".2f"}, "seconds a step"),
            *plain_columns({"of a step": ".1%", "of the run": ".1%"}, "replay's share"),
            *plain_columns({"with validation": "+.1%", "without": "+.1%"}, "added"),
        ],
        [*rows, *published_rows(figures)],
        "Wall time. Hours with validation: all steps as recorded; without: neither validation nor writing "
        "checkpoints. Device hours: hours times devices. Seconds a step: means without validation, without "
        "writing checkpoints, and without the first step, which warms up; before the first replay update and "
        "from it on, for a run without replay before and from the first replay update of the others. Replay: "
        "storing, drawing, collating, the replay updates and their record, at steps with an update; its "
        "share of such a step and of the whole run, in the same time. Added: its time divided by all other "
        "time; without validation, that of the same steps as the seconds a step. "
        f"{published_notes(figures)}",
    )


def cost_of(run: Run, start: float) -> dict[str, float]:
    """A run's cells in the cost table; `start` is the step that divides it."""
    logged = run.logged(["timing_s/step", *_NOT_TRAINING, *_REPLAY_PARTS, "replay/updates"])
    logged["seconds"] = logged["timing_s/step"] - logged[_NOT_TRAINING].sum(axis=1)
    logged["replay"] = logged[_REPLAY_PARTS].sum(axis=1)
    hours, trained = logged[["timing_s/step", "seconds"]].sum(min_count=1) / 3600
    devices = [run.setting(f"trainer.{name}") for name in ("n_gpus_per_node", "nnodes")]
    count = math.nan if None in devices else math.prod(devices)
    steps = logged[1:].dropna(subset="seconds")
    cells = {
        "steps": len(run.steps),
        "hours with validation": hours,
        "hours without": trained,
        "device hours with validation": count * hours,
        "device hours without": count * trained,
        "seconds a step before": steps[steps.index < start]["seconds"].mean(),
        "seconds a step from replay on": steps[steps.index >= start]["seconds"].mean(),
    }
    replayed = steps[steps["replay/updates"] > 0]
    if len(replayed):
        spent, seconds = steps["replay"].sum(), steps["seconds"].sum()
        cells |= {
            "seconds a step replay": replayed["replay"].mean(),
            "replay's share of a step": replayed["replay"].sum() / replayed["seconds"].sum(),
            "replay's share of the run": spent / seconds,
            "added with validation": logged["replay"].sum() / (3600 * hours - logged["replay"].sum()),
            "added without": spent / (seconds - spent),
        }
    return cells


def tokens_table(runs: Sequence[Run], data: Path) -> Table:
    """# Tokens: the share of forget and retain tokens used.

    Used are the rows of train.parquet that a run's prompt records name, each counted once however often it
    was visited. A row's tokens are those of its prompt and its first gold answer. Where `data` has the
    benchmark's whole texts, forget_text.parquet or retain_text.parquet, the share of their tokens is the
    paper's # Tokens.

    Where `data` has no train.parquet, a run's is in the folder there that is named as the one it trained on,
    as RWKU's targets are.

    Raises ValueError: no train.parquet in `data`, a bad row in it or the texts, no tokenizer, or prompts that
    it lacks.
    """
    rows = []
    figures = [row for benchmark in benchmarks().values() for row in benchmark.published.tokens]
    for run in runs:
        trained_on = data / Path(str(run.setting("data.train_files"))).parent.name
        is_target = not (data / "train.parquet").is_file() and trained_on.is_dir()
        folder = trained_on if is_target else data
        file = folder / "train.parquet"
        training_rows = read_rows(file)
        texts = {
            side: [message["content"] for row in read_sft_rows(path) for message in row["messages"]]
            for side in SIDES
            if (path := folder / f"{side}_text.parquet").is_file()
        }
        count = tokenizer_of(run)
        groups, sizes = run.groups, row_sizes(training_rows, count)
        cells: dict[str, float] = {}
        if strange := {*groups["index"]} - {*sizes.index}:
            raise ValueError(
                f"run {run.name}: it trained on prompt {min(strange)}, which {file} lacks; give the --data "
                "that the run trained on"
            )
        for side in SIDES:
            of_side, own = sizes[sizes["side"] == side]["tokens"], groups[groups["side"] == side]["tokens"]
            used, every = of_side[of_side.index.isin(groups["index"])].sum(), of_side.sum()
            cells |= {f"{side} tokens": used, f"{side} share": used / every if every else math.nan}
            if side in texts:
                cells[f"{side} of the texts"] = used / sum(count(texts[side]))
            # Known only where the run recorded all of them.
            cells[f"trained on {side}"] = own.sum(min_count=max(1, len(own)))
        cells["trained on replayed"] = run.logged(_EXTRA).sum(min_count=1).sum(min_count=1)
        rows.append(Row(run.name, cells))
    return Table(
        "tokens",
        "# Tokens",
        "run",
        [
            *(
                column
                for side in SIDES
                for column in plain_columns({"tokens": ",.0f", "share": ".1%", "of the texts": ".2%"}, side)
            ),
            *plain_columns(dict.fromkeys([*SIDES, "replayed"], ",.0f"), "trained on"),
        ],
        [*rows, *published_rows(figures)],
        "Tokens of the training rows that the run drew on at least once (prompt and first gold answer, "
        "without chat template, under the run's own tokenizer), and their share of all rows of that side "
        "in train.parquet. Trained on: tokens of prompts and sampled responses in all on-policy updates, "
        "by side, and in replay updates, or those on a step's own groups in their place. Of the texts: the "
        "same tokens as a share of the benchmark's whole forget or retain texts, as the paper has it; stage "
        f"1 is not counted, and baselines on texts use all of them. {published_notes(figures)}",
    )


def row_sizes(rows: Sequence[dict[str, Any]], count: Callable[[list[str]], list[int]]) -> pd.DataFrame:
    """Side and tokens of each training row, by prompt index."""
    truths = [row["reward_model"]["ground_truth"] for row in rows]
    asked = [[message["content"] for message in row["prompt"]] for row in rows]
    texts = [[*of_row, truth["golds"][0]] for of_row, truth in zip(asked, truths, strict=True)]
    counts = iter(count([text for of_row in texts for text in of_row]))
    found = {
        "side": [truth["type"] for truth in truths],
        "tokens": [sum(next(counts) for _ in of_row) for of_row in texts],
    }
    return pd.DataFrame(found, index=[row["extra_info"]["index"] for row in rows])


def tokenizer_of(run: Run) -> Callable[[list[str]], list[int]]:
    """Texts to their numbers of tokens: under the tokenizer of the run's newest model, or of its first one.

    Raises ValueError: neither has one.
    """
    checkpoints = run.folder.glob("global_step_*/actor/huggingface")
    newest = sorted(checkpoints, key=lambda path: int(path.parents[1].name.rsplit("_", 1)[1]), reverse=True)
    started_from = run.setting("actor_rollout_ref.model.path")
    for folder in [*newest, *([Path(started_from)] if started_from else [])]:
        if (folder / "tokenizer_config.json").is_file():
            from transformers import AutoTokenizer  # takes seconds

            tokenizer = AutoTokenizer.from_pretrained(folder)
            return lambda texts: [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    raise ValueError(
        f"run {run.name}: no tokenizer in {run.folder}/global_step_N/actor/huggingface nor in the model it "
        "started from, so tokens cannot be counted; leave --data out"
    )


def theory_table(runs: Sequence[Run]) -> Table:
    """The quantities of the paper's theorem 1 (ReRULE, appendix on theory), measured on each run."""
    return Table(
        "theory",
        "The terms of the paper's bound",
        "run",
        [
            *plain_columns({"on-policy": ",.0f", "replayed": ",.0f"}, "hard tokens"),
            *plain_columns({"eta": ".3f", "effective": ",.0f", "ratio of bounds": ".3f"}),
            *plain_columns({"first": ".3f", "last": ".3f"}, "risk"),
        ],
        [Row(run.name, theory_of(run)) for run in runs],
        "Hard tokens: of prompts and responses of rollout groups whose mean reward is below the step's tau, "
        "sampled in all steps (N_on), and of all replayed groups (N_off). Eta: the effective sample size of "
        "the importance weights, (mean w)^2 / mean w^2, averaged over replayed tokens. Effective: N_on + "
        "eta N_off. Ratio of bounds: sqrt(N_on / effective), the theorem's exploration error on hard "
        "prompts over that of the same run without replay. It is below 1 for any replay, whatever the model "
        "has learnt, and leaves out the bias of clipping. Risk: R(pi), the share of forget prompts that are "
        "not refused plus that of retain prompts that are, at the first and the last validation.",
    )


def theory_of(run: Run) -> dict[str, float]:
    """A run's cells; NaN where it did not record what a cell needs."""
    logged = run.logged(["replay/threshold", "replay/drawn_tokens", "replay/effective_sample_size"]).set_axis(
        ["tau", "drawn", "eta"], axis=1
    )
    groups = run.groups.join(logged["tau"], on="step")
    judged = groups.dropna(subset="tau")
    hard = judged[
        [is_hard(reward, tau) for reward, tau in zip(judged["mean_reward"], judged["tau"], strict=True)]
    ]
    on_policy = hard["tokens"].sum(skipna=False) if len(judged) else math.nan
    weighted = logged.dropna()
    replayed = weighted["drawn"].sum()
    effective = on_policy + (weighted["eta"] * weighted["drawn"]).sum()
    cells = {
        "hard tokens on-policy": on_policy,
        "hard tokens replayed": replayed,
        "eta": (weighted["eta"] * weighted["drawn"]).sum() / replayed if replayed else math.nan,
        "effective": effective,
        "ratio of bounds": math.sqrt(on_policy / effective) if effective > 0 else math.nan,
    }
    refused = run.validations.sort_index().reindex(columns=_RISK).dropna()
    risks = 1 - refused[_RISK[0]] + refused[_RISK[1]]
    if len(risks):
        cells |= {"risk first": risks.iloc[0], "risk last": risks.iloc[-1]}
    return cells
