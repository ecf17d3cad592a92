"""replay.unit=rollout: which single responses are drawn, and that each stays as its group was stored."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import (
    Replay,
    ReplayConfig,
    ReplayStateError,
    RolloutGroup,
    load,
    log_ratios,
    pad_groups,
    replay_loss,
    save,
    token_mean,
    weigh,
)
from tests.replay.groups import contents, make_group
from tests.replay.runs import configs, groups_of, offers

SINGLE: dict[str, Any] = {
    "unit": "rollout",
    "sampling": "highest",
    "priority_half_life": math.inf,
    "admission": "all",
    "min_groups": 1,
    "warmup_steps": 0,
    "groups_per_update": 1,
    "capacity": 8,
}


def memory(**changes: Any) -> Replay:
    return Replay(ReplayConfig(**{**SINGLE, **changes}))


def offer(replay: Replay, step: int, *advantages: tuple[float, ...]) -> list[RolloutGroup]:
    """Groups of these advantages, one a row; prompt indices are places."""
    groups = [
        make_group(index, step, rewards=[0.0] * len(own), advantages=own)
        for index, own in enumerate(advantages)
    ]
    replay.offer(groups, step)
    return groups


def drawn(replay: Replay, step: int, ranks: int = 1) -> list[tuple[int, int, int]]:
    """(prompt index, step of storing, rollout) of each response of a draw, as the record says."""
    if not replay.draw(step, ranks):
        return []
    record = replay.log.record()
    return [(*key, place) for key, place in zip(record["drawn"][-1], record["rollouts"][-1], strict=True)]


def test_the_largest_advantages_are_drawn_whatever_their_group() -> None:
    """One group of three is drawn as three rollouts: of size 2.0 and 1.5, and the first of those of 1.0."""
    replay = memory()
    offer(replay, 1, (1.0, -2.0, 1.0), (0.25, 0.5, -1.5))
    assert drawn(replay, 1) == [(0, 1, 1), (1, 1, 2), (0, 1, 0)]


def test_of_equal_sizes_the_newest_group_comes_first_and_in_it_the_first_rollout() -> None:
    replay = memory(groups_per_update=2)
    offer(replay, 1, (1.0, -1.0), (1.0, -1.0))
    offer(replay, 2, (0.5, 1.0))
    assert drawn(replay, 2) == [(0, 2, 1), (1, 1, 0), (1, 1, 1), (0, 1, 0)]


def test_a_rollouts_own_uses_and_its_age_lower_its_priority() -> None:
    """Both half-lives 1. At step 1 |A| is (4, 3); then by hand, two of three rollouts at each draw."""
    replay = memory(priority_half_life=1.0, priority_use_half_life=1.0)
    offer(replay, 1, (4.0, -3.0))
    assert drawn(replay, 1) == [(0, 1, 0), (0, 1, 1)]
    # Step 2: 4 / 2 / 2 = 1, 3 / 4 = 0.75; of the new group 0.9 and 0.3.
    offer(replay, 2, (0.9, -0.3))
    assert drawn(replay, 2) == [(0, 1, 0), (0, 2, 0)]
    # Again: 4 / 2 / 4 = 0.5, 0.75, 0.45, 0.3: the sibling of what was drawn twice is now first.
    assert drawn(replay, 2) == [(0, 1, 1), (0, 1, 0)]
    assert [(stored.rollout_uses, stored.reuse_count) for stored in replay.buffer] == [
        ((3, 2), 5),
        ((1, 0), 1),
    ]
    assert replay.log.metrics()["replay/reuse_mean"] == (1 + 0 + 1 + 2) / 4


def test_groups_leave_whole_by_age() -> None:
    replay = memory(max_staleness=1, groups_per_update=2)
    offer(replay, 1, (4.0, -3.0))
    offer(replay, 2, (1.0, -0.5))
    assert drawn(replay, 2) == [(0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1)]
    assert drawn(replay, 3) == [(0, 2, 0), (0, 2, 1)]


def test_the_number_is_that_of_the_groups_rounded_down_to_the_ranks() -> None:
    replay = memory(groups_per_update=5)
    assert drawn(replay, 1) == []
    offer(replay, 1, *[(1.0, -1.0, 0.5)] * 4)
    assert [len(drawn(replay, 1, ranks)) for ranks in (1, 2, 3, 5)] == [12, 12, 9, 0]


def test_metrics_and_record_by_hand() -> None:
    """Three rollouts of two groups; prompts have 3 tokens, row r has 2 + r."""
    replay = memory(require_signal=False)
    offer(replay, 1, (1.0, -2.0, 0.0), (0.0, 0.0, 0.0))
    offer(replay, 3, (0.0, 0.0, 0.0))
    replay.draw(3)
    metrics = replay.log.metrics()
    assert replay.log.record()["drawn"] == [[[0, 1], [0, 1], [0, 3]]]
    assert replay.log.record()["rollouts"] == [[1, 0, 0]]
    assert metrics["replay/drawn_rollouts"] == 3
    assert metrics["replay/drawn_groups"] == 2
    assert metrics["replay/drawn_zero_signal"] == 1
    assert metrics["replay/drawn_tokens"] == (3 + 3) + (3 + 2) + (3 + 2)
    assert metrics["replay/staleness_mean"] == 4 / 3
    whole = memory(require_signal=False, groups_per_update=3)
    offer(whole, 1, (1.0, -2.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    whole.draw(1)
    counts = [whole.log.metrics()[f"replay/drawn_{name}"] for name in ("rollouts", "groups", "zero_signal")]
    assert counts == [9, 3, 2]


def test_whole_groups_are_recorded_as_before() -> None:
    replay = memory(unit="group")
    offer(replay, 1, (1.0, -2.0))
    replay.draw(1)
    assert "rollouts" not in replay.log.record()
    assert "replay/drawn_rollouts" not in replay.log.metrics()
    assert [stored.rollout_uses for stored in replay.buffer] == [()]


def test_a_rounding_that_all_rollouts_share_is_no_signal() -> None:
    """GRPO's advantages of equal rewards need not be 0; see RolloutGroup.has_signal."""
    replay = memory(require_signal=False)
    offer(replay, 1, (0.03, 0.03), (0.01, -0.01))
    assert drawn(replay, 1) == [(1, 1, 0), (1, 1, 1)]


def test_the_size_is_over_valid_tokens_only() -> None:
    group = make_group(lengths=[1, 3, 0], rewards=[0.0] * 3, advantages=[0.5, 2.0, 7.0])
    assert group.rollout_signals() == [0.5, 2.0, 0.0]
    masked = dataclasses.replace(group, response_mask=torch.tensor([True, False, False, False]))
    assert masked.rollout_signals() == [0.0] * 3  # one number is no signal
    uneven = dataclasses.replace(group, advantages=torch.tensor([0.5, 0.25, -1.5, 1.0]))
    assert uneven.rollout_signals() == [0.5, 1.5, 0.0]
    hidden = dataclasses.replace(uneven, response_mask=torch.tensor([True, True, False, False]))
    assert hidden.rollout_signals() == [0.5, 0.25, 0.0]


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any),
    with_ref=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rollouts_are_the_rows_of_their_group(lengths: list[int], with_ref: bool, seed: int) -> None:
    """One after the other they are the group again, bit for bit, with its advantages."""
    advantages = [float(row - seed % 3) for row in range(len(lengths))]
    rewards = [float(row) for row in range(len(lengths))]
    group = make_group(seed, lengths=lengths, rewards=rewards, advantages=advantages, with_ref=with_ref)
    ones = [group.rollout(place) for place in range(group.n)]
    for name, plane in group.planes().items():
        if name != "prompt_ids":
            assert torch.equal(torch.cat([one.planes()[name] for one in ones]), plane), name
    assert [one.n for one in ones] == [1] * len(lengths)
    assert {contents(one)["prompt_ids"] for one in ones} == {contents(group)["prompt_ids"]}
    assert {contents(one)["scalars"] for one in ones} == {contents(group)["scalars"]}
    assert all((one.ref_log_probs is not None) == with_ref for one in ones)


def rows_of(groups: list[RolloutGroup]) -> dict[str, torch.Tensor]:
    """Padded rows in the order of their responses, which are all different."""
    rows = pad_groups(groups, pad_token_id=0)
    order = sorted(range(len(rows["responses"])), key=lambda row: rows["responses"][row].tolist())
    return {name: plane[order] for name, plane in rows.items()}


def test_all_rollouts_have_the_weights_and_the_loss_of_their_groups() -> None:
    """Drawn as rollouts or as groups, the same rows make the same replay batch, in another order."""
    singles, wholes = memory(groups_per_update=3), memory(groups_per_update=3, unit="group")
    for replay in (singles, wholes):
        offer(replay, 1, (1.0, -2.0, 0.5), (0.25, 0.5, -1.5), (3.0, 0.0, -1.0))
    batches = [rows_of(replay.draw(2)) for replay in (singles, wholes)]
    losses = []
    for rows in batches:
        log_probs = (rows["old_log_probs"] + 0.3 * torch.sin(rows["responses"].float())).double()
        mask = rows["response_mask"]
        weights, metrics = weigh(
            log_ratios(log_probs, rows["old_log_probs"], mask), mask, ReplayConfig().importance
        )
        assert metrics["replay/clipped_high"] > 0
        loss = replay_loss(log_probs, weights, rows["advantages"], mask, token_mean)
        losses.append((weights, loss.total))
    for name, plane in batches[0].items():
        assert torch.equal(plane, batches[1][name]), name
    assert torch.equal(losses[0][0], losses[1][0])
    assert losses[0][1] == losses[1][1]


@settings(deadline=None)
@given(
    config=st.sampled_from([None, 0.5]).flatmap(
        lambda uses: configs(unit="rollout", priority_half_life=0.5, priority_use_half_life=uses)
    ),
    run=offers(20, minimum=8),
    ranks=st.integers(1, 3),
)
def test_what_holds_of_every_draw(config: ReplayConfig, run: list[list[int]], ranks: int) -> None:
    """The groups of `runs` have two rollouts each; half-lives of 0.5 keep all priorities exact."""
    replay = Replay(config)
    for step, kinds in enumerate(run, start=1):
        replay.offer(groups_of(kinds, step), step)
        for _ in range(config.updates_per_step):
            ranked = {}
            for order, one in enumerate(replay.buffer):
                group, uses = one.group(), one.rollout_uses or (0, 0)
                for place in range(2):
                    size = float(group.rollout(place).advantages.abs().max()) if group.has_signal else 0.0
                    halvings = (step - group.step) / config.priority_half_life
                    halvings += uses[place] / (config.priority_use_half_life or math.inf)
                    ranked[group.prompt_index, group.step, place] = (size * 0.5**halvings, order, -place)
            places = min(config.groups_per_update, len(replay.buffer)) // ranks * ranks
            found = drawn(replay, step, ranks)
            assert len(found) == (2 * places if replay.gate.is_open else 0)
            assert found == sorted(ranked, key=lambda key: ranked[key], reverse=True)[: len(found)]
            assert len(replay.buffer) <= config.capacity


def filled() -> Replay:
    replay = memory(priority_use_half_life=1.0)
    offer(replay, 1, (4.0, -3.0), (0.5, -0.5))
    replay.draw(1)
    replay.draw(2)
    return replay


def test_the_uses_are_saved_and_a_resumed_run_draws_what_follows(tmp_path: Path) -> None:
    replay, resumed = filled(), memory(priority_use_half_life=1.0)
    save(replay, tmp_path)
    # 4 and 3 are drawn; then 4 / 2 and 3 / 2; the group of 0.5 never.
    assert json.loads((tmp_path / "state.json").read_text())["rollout_draws"] == [[2, 2], []]
    load(resumed, tmp_path)
    # 4 / 4 and 3 / 4 are drawn; then 0.5 is no less than 4 / 8 and newer; then 4 / 8 and 3 / 8 are more.
    followed = [[(0, 1, 0), (0, 1, 1)], [(1, 1, 0), (1, 1, 1)], [(0, 1, 0), (0, 1, 1)]]
    for one in (replay, resumed):
        assert [drawn(one, step) for step in (3, 4, 5)] == followed
        assert [stored.rollout_uses for stored in one.buffer] == [(4, 4), (1, 1)]


def test_a_state_without_single_draws_has_the_form_that_it_had(tmp_path: Path) -> None:
    replay = memory(unit="group")
    offer(replay, 1, (4.0, -3.0))
    replay.draw(1)
    save(replay, tmp_path)
    assert "rollout_draws" not in json.loads((tmp_path / "state.json").read_text())
    single = memory()
    load(single, tmp_path)  # its rollouts were not yet drawn by themselves
    assert drawn(single, 2) == [(0, 1, 0), (0, 1, 1)]
    assert [(stored.reuse_count, stored.rollout_uses) for stored in single.buffer] == [(3, (1, 1))]


@pytest.mark.parametrize(
    "damaged", [[[1], []], [[1, 2]], [[1, 2], [], []], [[1, "2"], []], [[1, 0.5], []], [[1, -1], []], 3]
)
def test_uses_that_do_not_fit_the_groups_are_refused(damaged: Any, tmp_path: Path) -> None:
    save(filled(), tmp_path)
    record = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / "state.json").write_text(json.dumps({**record, "rollout_draws": damaged}))
    replay = memory()
    with pytest.raises(ReplayStateError, match="does not hold whole rollout groups") as caught:
        load(replay, tmp_path)
    assert "\n" not in str(caught.value)
    assert len(replay.buffer) == 0
