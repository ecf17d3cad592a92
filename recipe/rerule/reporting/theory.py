"""The quantities of the paper's theorem 1 (ReRULE, appendix on theory), measured on each run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from recipe.rerule.replay.buffer import is_hard
from recipe.rerule.reporting.document import Row, Table, plain_columns
from recipe.rerule.runs.history import Run

_RISK = ["val-health/forget/refused", "val-health/retain/refused"]


def theory_table(runs: Sequence[Run]) -> Table:
    """Tokens on hard prompts, what the theorem makes of them, and the measured risk."""
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
