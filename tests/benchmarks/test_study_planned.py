"""The plan of the study: batches and losses of the ideas, and what the runs are made and compared by."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.study.loop import Cost, Run, Settings
from benchmarks.study.planned import saving
from benchmarks.study.planned.plan import RUNS
from benchmarks.study.planned.saving import (
    HALF_LIFE,
    EarlierSampler,
    Saving,
    kept_rows,
    largest_rows,
    newest,
    use_and_age,
)
from benchmarks.study.planned.trial import Budget, Stream
from recipe.rerule import minimal
from recipe.rerule.minimal import batches
from recipe.rerule.replay import Replay, ReplayConfig, pad_groups
from tests.benchmarks.small_study import REPLAY, SIZES, by_length
from tests.replay.groups import make_group

SMALL = {
    "half": Saving(2),
    "half_filled": Saving(2, filled=True),
    "half_priority": Saving(2, order=use_and_age),
    "half_rollouts": Saving(2, rollouts=True),
}
"""Of 4 places, with 3 responses a prompt."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minimal, "rewards_of", by_length)
    for name, one in SMALL.items():
        monkeypatch.setitem(saving.SAVINGS, name, one)


def run_of(idea: str, made: SimpleNamespace, **changed: Any) -> Run:
    torch.manual_seed(0)
    replay = ReplayConfig.from_dict({**REPLAY, "min_groups": 1, "warmup_steps": 0})
    settings = Settings(**{**SIZES, "idea": idea, "replay": replay, "grad_clip": 1e9, **changed})
    return RUNS[idea](copy.deepcopy(made.model), made.model, made.tokenizer, settings)


def gradients_of(run: Run) -> list[list[torch.Tensor]]:
    """The gradients of each optimiser step from here on."""
    taken: list[list[torch.Tensor]] = []
    step = run.optimizer.step

    def record() -> None:
        taken.append([weight.grad.clone() for weight in run.policy.model.parameters()])
        step()

    run.optimizer.step = record  # type: ignore[method-assign]
    return taken


def stored(step: int, signal: float = 1.0, reuse: int = 0, name: str = "") -> Any:
    group = SimpleNamespace(step=step, signal=signal, reuse_count=reuse, name=name)
    group.staleness = lambda now: now - step
    return group


def test_the_newest_groups_of_earlier_steps_are_taken() -> None:
    groups = [stored(1, name="a"), stored(2, name="b"), stored(2, name="c"), stored(3, name="d")]
    sampler = EarlierSampler(newest, places=2)
    assert [group.name for group in sampler.sample(groups, 4, 3)] == ["c", "b"]
    assert [group.name for group in sampler.sample(groups, 4, 4)] == ["d", "c"]
    assert sampler.sample(groups[3:], 1, 3) == []


def test_priority_falls_with_use_and_age() -> None:
    # At step 9: 1.0 once used is 0.5 a quarter of a half-life old; 0.8 of step 1 is two half-lives old.
    groups = [
        stored(1, 0.8, name="0.2"),
        stored(5, 0.9, name="0.45"),
        stored(8, 1.0, 1, name="0.42"),
        stored(8, 0.3, name="0.25"),
    ]
    worth = [use_and_age(group, 9) for group in groups]
    assert worth == pytest.approx([0.2, 0.45, 0.5 * 2**-0.25, 0.3 * 2**-0.25])
    taken = EarlierSampler(use_and_age, places=3).sample(groups, 4, 9)
    assert [group.name for group in taken] == ["0.45", "0.42", "0.25"]


def test_rows_without_signal_leave_their_places_where_these_are_filled() -> None:
    advantages = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [-1.0, -1.0]])
    assert kept_rows({"advantages": advantages}, 2, filled=True).tolist() == [False, False, True, True]
    assert kept_rows({"advantages": advantages}, 2, filled=False).all()
    assert kept_rows({"advantages": 0 * advantages}, 2, filled=True).all()


def test_the_rows_with_the_largest_advantage_are_taken() -> None:
    advantages = torch.tensor([[0.5, 0.5], [-2.0, 0.0], [0.5, 0.0], [1.0, 1.0]])
    assert largest_rows(advantages, 3).tolist() == [1, 3, 0]
    assert largest_rows(advantages, 9).tolist() == [1, 3, 0, 2]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("idea", sorted(SMALL))
def test_a_saving_step_is_one_update_on_the_mean_over_all_its_tokens(
    idea: str, made: SimpleNamespace
) -> None:
    run = run_of(idea, made)
    assert run.wanted == 4
    run.step(made.world.train[:4], 1)
    assert run.wanted == 2
    model = copy.deepcopy(run.policy.model).double()
    taken, cost = gradients_of(run), run.cost.tokens
    metrics, groups = run.step(made.world.train[4:6], 2)
    drawn = run.replay.log.draws[0].groups
    assert {group.step for group in drawn} == {1}
    rows = [row for group in drawn for row in rows_of(group)]
    if idea == "half_rollouts":
        rows = sorted(rows, key=lambda row: -abs(float(row.advantages[0])))[:6]
    assert len(rows) == 6
    fresh = [row for group in groups for row in rows_of(group)]
    expected = by_hand(model, fresh, rows)
    assert len(taken) == 1
    assert max(float(grad.abs().max()) for grad in taken[0]) > 1e-3
    for grad, weight in zip(taken[0], expected.parameters(), strict=True):
        torch.testing.assert_close(grad.double(), weight.grad, atol=2e-6, rtol=1e-4)
    read = [len(row.prompt) + len(row.response) for row in (*fresh, *rows)]
    assert run.cost.tokens - cost == 3 * sum(read[:6]) + 3 * sum(read)
    answered = [len(row.response) for row in (*fresh, *rows)]
    assert metrics["replay/token_share"] == pytest.approx(sum(answered[6:]) / sum(answered))
    assert metrics["replay/staleness"] == 1


@pytest.mark.usefixtures("small")
def test_stored_groups_fill_the_places_of_those_without_signal(
    made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_settled(texts: list[str], rows: list[Any], options: dict[str, Any]) -> list[dict[str, float]]:
        return [{"score": 1.0, "refused": 0.0, "rouge": 0.0}] * 3 + by_length(texts, rows, options)[3:]

    run = run_of("half_filled", made)
    run.step(made.world.train[:4], 1)
    monkeypatch.setattr(minimal, "rewards_of", half_settled)
    model, taken = copy.deepcopy(run.policy.model).double(), gradients_of(run)
    _, groups = run.step(made.world.train[4:6], 2)
    drawn = run.replay.log.draws[0].groups
    assert len(drawn) == 3
    expected = by_hand(model, rows_of(groups[1]), [row for group in drawn for row in rows_of(group)])
    for grad, weight in zip(taken[0], expected.parameters(), strict=True):
        torch.testing.assert_close(grad.double(), weight.grad, atol=2e-6, rtol=1e-4)


def rows_of(group: Any) -> list[SimpleNamespace]:
    """The responses of a group, one by one."""
    found = []
    for row in range(group.n):
        begin, end = int(group.lengths[:row].sum()), int(group.lengths[: row + 1].sum())
        planes = {name: getattr(group, name)[begin:end] for name in ("advantages", "old_log_probs")}
        found.append(
            SimpleNamespace(
                prompt=group.prompt_ids.long(),
                response=group.response_ids[begin:end].long(),
                reference=group.ref_log_probs[begin:end].double(),
                **{name: plane.double() for name, plane in planes.items()},
            )
        )
    return found


def by_hand(model: Any, fresh: list[SimpleNamespace], replayed: list[SimpleNamespace]) -> Any:
    """Backward, in float64, of the sum over all tokens of -w A log pi + 0.01 k3, over their number.

    w is 1 for new tokens, and clip(ratio, 0.8, 1.3) over its mean over the stored tokens for those.
    """
    log_probs = []
    for row in (*fresh, *replayed):
        ids = torch.cat([row.prompt, row.response])
        logits = model(ids[None]).logits[0, len(row.prompt) - 1 : -1]
        log_probs.append(logits.log_softmax(-1).gather(-1, row.response[:, None])[:, 0])
    old = torch.cat([row.old_log_probs for row in replayed])
    weight = (torch.cat(log_probs[len(fresh) :]).detach() - old).exp().clamp(0.8, 1.3)
    new = sum(len(row.response) for row in fresh)
    weights = torch.cat([torch.ones(new, dtype=torch.float64), weight / weight.mean()])
    log_prob = torch.cat(log_probs)
    advantages = torch.cat([row.advantages for row in (*fresh, *replayed)])
    away = torch.cat([row.reference for row in (*fresh, *replayed)]) - log_prob
    (-weights * advantages * log_prob + 0.01 * (away.exp() - away - 1)).mean().backward()
    return model


@pytest.mark.usefixtures("small")
def test_epochs_update_again_on_the_same_responses(made: SimpleNamespace) -> None:
    off = ReplayConfig.from_dict({**REPLAY, "enable": False})
    steps = {}
    for idea in ("", "epochs2", "epochs4"):
        run = run_of(idea, made, replay=off)
        taken = gradients_of(run)
        _, groups = run.step(made.world.train[:4], 1)
        steps[idea] = taken
        tokens = sum(group.total_tokens for group in groups)
        assert run.cost.tokens == 3 * tokens * (1 + len(taken))
    assert [len(taken) for taken in steps.values()] == [1, 2, 4]
    for one, other in zip(steps[""][0], steps["epochs2"][0], strict=True):
        torch.testing.assert_close(one, other)
    assert any(not torch.equal(one, other) for one, other in zip(*steps["epochs2"], strict=True))


@pytest.mark.usefixtures("small")
def test_groups_without_signal_are_resampled_a_few_times(
    made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_in_four(texts: list[str], rows: list[Any], options: dict[str, Any]) -> list[dict[str, float]]:
        return by_length(texts, rows, options)[:3] + [{"score": 0.0, "refused": 0.0, "rouge": 0.0}] * 9

    monkeypatch.setattr(minimal, "rewards_of", one_in_four)
    run = run_of("resampled", made, replay=ReplayConfig.from_dict({**REPLAY, "enable": False}))
    asked: list[int] = []
    stream = iter(made.world.train[4:])
    run.more = lambda count: asked.append(count) or [next(stream) for _ in range(count)]
    model, taken = copy.deepcopy(run.policy.model).double(), gradients_of(run)
    metrics, groups = run.step(made.world.train[:4], 1)
    assert (asked, metrics["asked"], len(groups)) == ([4, 4], 12, 12)
    alive = [group for group in groups if group.has_signal]
    assert [groups.index(group) for group in alive] == [0, 4, 8]
    expected = by_hand_fresh(model, [row for group in alive for row in rows_of(group)])
    for grad, weight in zip(taken[0], expected.parameters(), strict=True):
        torch.testing.assert_close(grad.double(), weight.grad, atol=2e-6, rtol=1e-4)
    tokens = [sum(group.total_tokens for group in some) for some in (groups, alive)]
    assert run.cost.tokens == 3 * sum(tokens)
    assert run.cost.generated == sum(int(group.lengths.sum()) for group in groups)


def by_hand_fresh(model: Any, rows: list[SimpleNamespace]) -> Any:
    """Of new tokens alone."""
    total = sum(len(row.response) for row in rows)
    for row in rows:
        ids = torch.cat([row.prompt, row.response])
        logits = model(ids[None]).logits[0, len(row.prompt) - 1 : -1]
        log_prob = logits.log_softmax(-1).gather(-1, row.response[:, None])[:, 0]
        away = row.reference - log_prob
        ((-row.advantages * log_prob + 0.01 * (away.exp() - away - 1)).sum() / total).backward()
    return model


def test_a_stream_gives_the_rows_that_the_study_gives_in_any_portions() -> None:
    rows = [{"number": number} for number in range(8)]
    stream, source = Stream(rows, 5), batches(rows, 4, 5)
    portions = [row for count in (4, 1, 2, 1, 4, 4) for row in stream.take(count)]
    assert portions == [row for _ in range(4) for row in next(source)]


def test_a_budget_counts_its_own_unit() -> None:
    cost = Cost(300.0, 20)
    assert [Budget(unit, 40).spent(cost, 10) for unit in ("steps", "compute", "generated")] == [
        0.25,
        7.5,
        0.5,
    ]
    assert replace(Budget("steps", 10)).spent(cost, 10) == 1


SIZES_OF_THREE = st.lists(st.sampled_from([-1.5, -0.5, 0.25, 1.0]), min_size=3, max_size=3)
STORED = st.lists(
    st.tuples(st.integers(1, 4), SIZES_OF_THREE.filter(lambda sizes: len(set(sizes)) > 1)),
    min_size=1,
    max_size=8,
)


def two_memories(rows: Any, **options: Any) -> tuple[Replay, Replay]:
    """The groups of these (step, advantages) in the recipe's own replay, and in that of the study."""
    common = {"admission": "all", "min_groups": 1, "warmup_steps": 0, "groups_per_update": 2, "capacity": 9}
    own, studied = Replay(ReplayConfig(**common, **options)), Replay(ReplayConfig(**common))
    for step in range(1, 5):
        groups = [
            make_group(place, step, rewards=[0.0] * 3, advantages=advantages)
            for place, (at, advantages) in enumerate(rows)
            if at == step
        ]
        own.offer(groups, step)
        studied.offer(groups, step)
    return own, studied


@settings(deadline=None)
@given(rows=STORED)
def test_the_recipe_draws_groups_by_use_and_age_as_the_study_did(rows: Any) -> None:
    own, studied = two_memories(
        rows, sampling="highest", priority_half_life=HALF_LIFE, priority_use_half_life=1.0
    )
    studied._sampler = EarlierSampler(use_and_age, places=2)
    for step in range(5, 9):
        found, expected = own.draw(step), studied.draw(step)
        assert [(group.prompt_index, group.step) for group in found] == [
            (group.prompt_index, group.step) for group in expected
        ]


@settings(deadline=None)
@given(rows=STORED)
def test_the_recipe_draws_the_single_rollouts_that_the_study_did(rows: Any) -> None:
    own, studied = two_memories(rows, sampling="highest", priority_half_life=math.inf, unit="rollout")
    studied._sampler = EarlierSampler(newest, places=saving.ALL)
    found, everything = pad_groups(own.draw(5), 0), pad_groups(studied.draw(5), 0)
    chosen = largest_rows(everything["advantages"], min(2, len(rows)) * 3)
    for name in ("advantages", "old_log_probs", "ref_log_prob"):
        width = found[name].shape[1]
        assert torch.equal(found[name], everything[name][chosen, :width]), name
        assert not everything[name][chosen, width:].any()
