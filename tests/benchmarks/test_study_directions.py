"""Where an extra update points: gradients and their metric against values worked out otherwise."""

from __future__ import annotations

import copy
from math import sqrt
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.study import directions
from benchmarks.study.directions import FOLLOWED, NEW_PROMPTS, Compared, Followed, cosines
from benchmarks.study.loop import Run, Settings
from recipe.rerule import minimal
from recipe.rerule.replay import Replay, ReplayConfig
from tests.benchmarks.small_study import REPLAY, SIZES, by_length


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares at every step, on few fresh responses, with rewards that an untrained model earns."""
    monkeypatch.setattr(minimal, "rewards_of", by_length)
    monkeypatch.setattr(directions, "EVERY", 1)
    monkeypatch.setattr(directions, "BATCHES", 2)


def made_run(kind: type[Run], made: SimpleNamespace, **settings: Any) -> Any:
    torch.manual_seed(0)
    replay = ReplayConfig.from_dict(REPLAY | {"update": "on_policy"})
    run = kind(
        copy.deepcopy(made.model), made.model, made.tokenizer, Settings(**SIZES, **settings, replay=replay)
    )
    if isinstance(run, Followed):
        run.prompts = made.world.train
        run.replays = {"newest": Replay(ReplayConfig.from_dict(REPLAY | {"sampling": "recent"}))}
    return run


def two_sides(made: SimpleNamespace) -> list[Any]:
    rows = made.world.train
    return [rows[0], rows[-1], rows[1], rows[-2]]


def weights_of(run: Run) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.policy.model.parameters()])


def gradient_left(run: Run) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in run.policy.model.parameters()])


def test_comparing_leaves_the_run_as_it_would_have_been(made: SimpleNamespace) -> None:
    plain, watched = made_run(Run, made), made_run(Followed, made)
    for run in (plain, watched):
        torch.manual_seed(1)
        for step in (1, 2, 3):
            run.step(two_sides(made), step)
    assert {each.update for each in watched.found} == {FOLLOWED, "newest", NEW_PROMPTS}
    assert {each.step for each in watched.found} == {2, 3}
    assert torch.equal(weights_of(plain), weights_of(watched))


def test_its_gradients_are_those_the_updates_descend(made: SimpleNamespace) -> None:
    run = made_run(Followed, made, grad_clip=1e9)
    run.step(two_sides(made), 1)
    batch = run.policy.respond(two_sides(made), 3)
    log_probs = run.policy.log_probs(batch)
    groups, _ = run._rollouts(batch, log_probs.detach(), two_sides(made), 2)
    kept = copy.deepcopy(run)
    updates = run._updates(batch)

    kept._update(batch, kept.policy.log_probs(batch))
    torch.testing.assert_close(updates[FOLLOWED], gradient_left(kept))
    kept.policy.model.load_state_dict(run.policy.model.state_dict())
    kept._replay_update(kept.replays["newest"].draw(2))
    torch.testing.assert_close(updates["newest"], gradient_left(kept))
    assert groups[0].step == 2


def test_the_sides_rewards_and_kl_make_up_the_whole(made: SimpleNamespace) -> None:
    run = made_run(Followed, made, kl_coef=0.0)
    run.step(two_sides(made), 1)
    whole, forget, retain = run._fresh(two_sides(made))
    torch.testing.assert_close(forget + retain, whole, rtol=1e-4, atol=1e-7)
    assert forget.norm() > 0 < retain.norm()


def test_the_metric_is_adams(made: SimpleNamespace) -> None:
    """Without momentum Adam moves by the learning rate times the gradient times the scale's square."""
    run = made_run(Followed, made, learning_rate=1e-3, weight_decay=0.0, grad_clip=1e9)
    run.optimizer.param_groups[0]["betas"] = (0.0, 0.999)
    for step in (1, 2):
        before = weights_of(run).double()
        torch.manual_seed(step)
        batch = run.policy.respond(two_sides(made), 3)
        log_probs = run.policy.log_probs(batch)
        run._rollouts(batch, log_probs.detach(), two_sides(made), step)
        run._update(batch, log_probs)
    moved = weights_of(run).double() - before
    expected = -1e-3 * gradient_left(run).double() * run._scale().double() ** 2
    torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-7)


def test_cosines_by_hand() -> None:
    own = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]])
    found = cosines(7, {"a": torch.tensor([1.0, 1.0])}, own, torch.tensor([1.0, 0.5]))
    # Scaled: (3, 2), (1, 0), (0, 0) and (1, 0.5).
    length = sqrt(1.25)
    assert found == [Compared(7, "a", pytest.approx((4 / (length * sqrt(13)), 1 / length, 0.0)))]


def test_means_are_over_the_steps_of_a_run() -> None:
    found = [
        Compared(5, "a", (0.1, 0.2, 0.3)),
        Compared(10, "a", (0.3, 0.4, 0.5)),
        Compared(10, "b", (9, 9, 9)),
    ]
    assert directions.of_update(found, "a") == pytest.approx([0.2, 0.3, 0.4])
    assert directions.number([0.1, 0.3]) == "0.200 ± 0.141"
    assert directions.number([0.1]) == "0.100"
