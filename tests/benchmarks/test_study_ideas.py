"""Our own replays: what each changes, against values worked out by hand; and the same arms through verl."""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from benchmarks.study import ideas, loop, verl_path
from benchmarks.study.arms import ARMS, settings_of
from benchmarks.study.ideas import IDEAS, BalancedSampler
from benchmarks.study.loop import Run, Settings
from benchmarks.study.worlds import WORLDS
from recipe.rerule import minimal
from recipe.rerule.replay import ReplayConfig
from tests.benchmarks.small_study import REPLAY, SIZES, by_length


def run_of(idea: str, made: SimpleNamespace, **replay: Any) -> Run:
    torch.manual_seed(0)
    settings = Settings(**SIZES, replay=ReplayConfig.from_dict(REPLAY | replay))
    return IDEAS[idea](copy.deepcopy(made.model), made.model, made.tokenizer, settings)


@pytest.fixture
def by_length_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minimal, "rewards_of", by_length)


@pytest.mark.usefixtures("by_length_rewards")
@pytest.mark.parametrize("idea", sorted(set(IDEAS) - {"filled"}))
def test_every_idea_replays_once_the_gate_is_open(idea: str, made: SimpleNamespace) -> None:
    run = run_of(idea, made)
    before = copy.deepcopy(run.policy.model.state_dict())
    steps = [run.step(made.world.train[:4], step)[0] for step in (1, 2)]
    assert ["replay/updates" in metrics for metrics in steps] == [False, True]
    after = run.policy.model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.usefixtures("by_length_rewards")
def test_positive_only_keeps_what_was_better(
    made: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, seen = run_of("positive_only", made), []
    monkeypatch.setattr(Run, "_replay_update", lambda self, drawn: seen.extend(drawn) or {})
    _, groups = run.step(made.world.train[:4], 1)
    run._replay_update(groups)
    for one, other in zip(seen, groups, strict=True):
        expected = [max(0.0, value) for value in other.advantages.tolist()]
        assert one.advantages.tolist() == expected
    assert any(group.advantages.min() < 0 for group in groups)


@pytest.mark.usefixtures("by_length_rewards")
def test_pooled_advantages_are_against_the_sides_running_mean(
    made: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, seen = run_of("pooled", made), []
    monkeypatch.setattr(Run, "_replay_update", lambda self, drawn: seen.extend(drawn) or {})
    rows = [made.world.train[0], made.world.train[-1], made.world.train[1], made.world.train[-2]]
    steps = [run.step(rows, step)[1] for step in (1, 2)]
    seen.clear()
    run._replay_update(steps[1])
    for group in steps[1]:
        means, variances = [], []
        for groups in steps:
            pooled = torch.cat([other.rewards for other in groups if other.side == group.side]).double()
            means.append(float(pooled.mean()))
            variances.append(float(((pooled - pooled.mean()) ** 2).mean()))
        mean, variance = (0.8 * old + 0.2 * new for old, new in (means, variances))
        changed = next(other for other in seen if other.prompt_index == group.prompt_index)
        first = [int(group.lengths[:row].sum()) for row in range(group.n)]
        expected = (group.rewards.double() - mean) / (variance**0.5 + 1e-3)
        torch.testing.assert_close(changed.advantages[first].double(), expected, atol=1e-5, rtol=1e-4)


def test_the_trust_region_ends_where_ppo_clips(made: SimpleNamespace) -> None:
    run = run_of("trust_region", made)
    ratio = torch.tensor([[0.5, 0.79, 0.81, 1.0, 1.29, 1.31, 2.0]]).repeat(3, 1)
    advantages = torch.tensor([[1.0], [-1.0], [0.0]]).expand(3, 7)
    batch = {"advantages": advantages, "response_mask": torch.ones(3, 7)}
    kept = (run._weigh(batch, ratio.double().log())[0] != 0).float()
    assert kept.tolist() == [[1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1] * 7]
    # The same tokens have no gradient in PPO's own loss.
    log_ratio = ratio[:2].log().requires_grad_()
    mask = torch.ones(2, 7)
    loop.ppo_loss(log_ratio, torch.zeros(2, 7), advantages[:2], mask, run.settings).backward()
    assert (log_ratio.grad != 0).float().tolist() == kept[:2].tolist()


@pytest.mark.parametrize(
    ("forget", "retain", "drawn"), [(9, 9, (4, 4)), (9, 2, (6, 2)), (1, 9, (1, 7)), (0, 9, (0, 8))]
)
def test_a_balanced_draw_takes_half_from_each_side(forget: int, retain: int, drawn: tuple[int, int]) -> None:
    stored = [
        SimpleNamespace(group=lambda side=side: SimpleNamespace(side=side))
        for side, count in (("forget", forget), ("retain", retain))
        for _ in range(count)
    ]
    chosen = BalancedSampler(random.Random(0)).sample(stored, 8, 1)
    sides = [one.group().side for one in chosen]
    assert (sides.count("forget"), sides.count("retain")) == drawn
    assert len(set(map(id, chosen))) == 8


@pytest.mark.usefixtures("by_length_rewards")
def test_a_merged_step_descends_once_on_the_sum_of_both_gradients(made: SimpleNamespace) -> None:
    gradients = {}
    for idea in ("", "merged"):
        run = run_of(idea, made)
        run.step(made.world.train[:4], 1)
        weights = copy.deepcopy(run.policy.model.state_dict())
        gradients[idea] = recorded_gradients(run)
        torch.manual_seed(5)
        run.step(made.world.train[:4], 2)
    assert (len(gradients[""]), len(gradients["merged"])) == (2, 1)
    # The replay's gradient at the weights before the step, from a run of its own.
    plain = run_of("", made)
    plain.policy.model.load_state_dict(weights)
    alone = recorded_gradients(plain)
    assert run.replay is not None
    plain._replay_update(run.replay.log.draws[0].groups)
    for merged, own, replayed in zip(gradients["merged"][0], gradients[""][0], alone[0], strict=True):
        torch.testing.assert_close(merged, own + replayed, atol=1e-6, rtol=1e-4)
    assert max(float(grad.abs().max()) for grad in alone[0]) > 1e-4


@pytest.mark.usefixtures("by_length_rewards")
def test_stored_groups_fill_the_places_without_signal(
    made: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half_settled(texts: list[str], rows: list[Any], options: dict[str, Any]) -> list[dict[str, float]]:
        settled = [{"score": 1.0, "refused": 0.0, "rouge": 0.0}] * 6
        return settled + by_length(texts, rows, options)[6:]

    run = run_of("filled", made)
    run.step(made.world.train[:4], 1)
    monkeypatch.setattr(minimal, "rewards_of", half_settled)
    weights = copy.deepcopy(run.policy.model.state_dict())
    filled, batches = recorded_gradients(run), []
    update = run._update
    monkeypatch.setattr(run, "_update", lambda batch, lp: batches.append(batch) or update(batch, lp))
    spent = run.cost.tokens
    run.step(made.world.train[:4], 2)
    assert run.replay is not None
    drawn = [group for group in run.replay.log.draws[0].groups if group.step == 1][:2]
    kept = {name: plane[6:] for name, plane in batches[0].items()}
    # Each part alone, at the weights before the step.
    parts = []
    for update_alone in (
        lambda plain: plain._update(kept, plain.policy.log_probs(kept)),
        lambda plain: plain._replay_update(drawn),
    ):
        plain = run_of("", made)
        plain.policy.model.load_state_dict(weights)
        taken = recorded_gradients(plain)
        update_alone(plain)
        parts.append(taken[0])
    own, stored = int(kept["response_mask"].sum()), sum(int(group.lengths.sum()) for group in drawn)
    assert (len(filled), len(drawn)) == (1, 2)
    for both, mine, theirs in zip(filled[0], *parts, strict=True):
        torch.testing.assert_close(
            both, (own * mine + stored * theirs) / (own + stored), atol=1e-6, rtol=1e-4
        )
    prompts = sum(len(group.prompt_ids) * group.n for group in drawn)
    every, alive = (int(part["attention_mask"].sum()) for part in (batches[0], kept))
    assert run.cost.tokens - spent == 3 * every + 3 * (alive + prompts + stored)


def test_reestimated_advantages_are_those_of_the_current_policy(made: SimpleNamespace) -> None:
    run = run_of("reestimated", made)
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    # Of the first group, the policy has moved 4 : 1 : 1 to the response that was right; of the second, not.
    log_ratio = torch.zeros(6, 2, dtype=torch.float64)
    log_ratio[0] = torch.tensor([2.0, 2.0]).log()
    batch = {"rewards": rewards, "advantages": torch.zeros(6, 2), "response_mask": torch.ones(6, 2)}
    weight, _ = run._weigh(batch, log_ratio)
    first, second = (2 / 9) ** 0.5, 0.5**0.5
    mean = 2 / 3
    advantages = [(1 - mean) / first, -mean / first, -mean / first, second, second, -2 * second]
    assert batch["advantages"][:, 1].tolist() == pytest.approx(advantages, abs=1e-4)
    assert weight[:, 0].tolist() == pytest.approx([2, 0.5, 0.5, 1, 1, 1])


def recorded_gradients(run: Run) -> list[list[torch.Tensor]]:
    """The gradients of each optimiser step from here on, before clipping has a say: the bound is high."""
    taken: list[list[torch.Tensor]] = []
    run.settings = Settings(**SIZES, grad_clip=1e9, replay=run.settings.replay)
    step = run.optimizer.step

    def record() -> None:
        taken.append([weight.grad.clone() for weight in run.policy.model.parameters()])
        step()

    run.optimizer.step = record  # type: ignore[method-assign]
    return taken


@pytest.mark.usefixtures("by_length_rewards")
def test_fresh_responses_are_of_the_drawn_prompts(
    made: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, asked = run_of("fresh", made), []
    _, groups = run.step(made.world.train[:4], 1)
    respond = run.policy.respond
    monkeypatch.setattr(run.policy, "respond", lambda rows, n: asked.extend(rows) or respond(rows, n))
    before = run.cost.tokens
    run._replay_update(groups[1:3])
    assert [row["extra_info"]["index"] for row in asked] == [group.prompt_index for group in groups[1:3]]
    assert run.cost.tokens > before
    assert ideas.IDEAS["fresh"] is ideas.FreshResponses


def test_the_recipe_gets_the_loops_settings(tmp_path: Any) -> None:
    settings = settings_of(ARMS["second_moment"], WORLDS["many"], seed=7)
    overrides = verl_path.arguments(settings, tmp_path / "data", tmp_path / "model", tmp_path / "run")
    with initialize_config_module("recipe.rerule.config", version_base=None):
        config = compose("rerule_trainer", overrides)
    replay = OmegaConf.to_container(config.replay, resolve=True)
    assert ReplayConfig.from_dict(replay) == settings.replay
    actor = config.actor_rollout_ref.actor
    assert (actor.optim.lr, actor.optim.weight_decay, actor.optim.clip_grad) == (1e-4, 0.01, 1.0)
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.kl_loss_coef) == (0.2, 0.3, 0.01)
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n) == (16, 8)
    assert config.reward.custom_reward_function.reward_kwargs.lambda_forget == 1.0
    assert (config.data.seed, config.trainer.total_training_steps) == (7, 61)
    assert config.actor_rollout_ref.rollout.seed == 7
