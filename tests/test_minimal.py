"""The method in one file: its settings are the recipe's, its updates are right, and its command runs."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import (
    agg_loss,
    compute_grpo_outcome_advantage,
    compute_policy_loss_vanilla,
    kl_penalty,
)
from verl.workers.config import ActorConfig

from data_prep.contract import rl_row
from data_prep.world import stage1
from data_prep.world.model import one_thread
from data_prep.world.stage1 import Steering
from recipe.rerule import minimal
from recipe.rerule.minimal import Policy, Run, Settings, batches, group_advantages
from recipe.rerule.replay import ReplayConfig, RolloutGroup, low_var_kl
from recipe.rerule.training import minimal_command
from tests.made_worlds import MICRO, REPLAY, SIZES, SMALL, by_length, untrained

ROOT = Path(__file__).parents[1]
MOST_LINES = 220
NOT_NEEDED = ("ray", "verl", "vllm")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def made() -> SimpleNamespace:
    """An untrained model, its tokenizer and the rows of a small world."""
    return untrained(SMALL)


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The micro world and its stage-1 model."""
    folder = tmp_path_factory.mktemp("micro")
    with one_thread():
        world, model = stage1.prepare(folder, MICRO, Steering())
    return SimpleNamespace(world=world, model=model)


def new_run(made: SimpleNamespace, settings: Settings) -> Run:
    return Run(copy.deepcopy(made.model), made.model, made.tokenizer, settings)


def moved(model: Any) -> Any:
    """A copy with other weights, the same ones each time."""
    generator, other = torch.Generator().manual_seed(5), copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=generator)
    return other


def test_it_is_short() -> None:
    assert len(Path(minimal.__file__).read_text().splitlines()) <= MOST_LINES


def test_its_settings_are_those_of_the_tiny_experiment() -> None:
    """Under the keys that stand behind them in its source."""
    with initialize_config_module("recipe.rerule.config", version_base=None):
        config = compose("rerule_trainer", ["experiment=tiny"])
    keys = re.findall(r"^    (\w+): .*# ([\w.]+)", Path(minimal.__file__).read_text(), re.MULTILINE)
    assert [name for name, _ in keys] == list(vars(Settings()))
    for name, key in keys:
        value = OmegaConf.select(config, key)
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        if name == "replay":
            assert ReplayConfig.from_dict(value) == Settings().replay
        elif name == "reward":
            assert {key for key, given in value.items() if given is not None} == set(Settings().reward)
        else:
            assert value == getattr(Settings(), name), name


def test_the_algorithm_on_paper_is_short_and_its_options_exist() -> None:
    page = (ROOT / "README.md").read_text("utf-8")
    (block,) = re.findall(r"^    for step = 1 .*?(?=\n\n)", page, re.MULTILINE | re.DOTALL)
    lines = [re.split(r" {2,}", line.strip()) for line in block.splitlines()]
    assert 10 <= len(lines) <= 15
    with initialize_config_module("recipe.rerule.config", version_base=None):
        config = compose("rerule_trainer", ["experiment=tiny"])
    for line in lines:
        before = ""
        for key in line[-1].split(", "):
            key = before.rpartition(".")[0] + key if key.startswith(".") else key
            section, _, name = key.rpartition(".")
            assert name in OmegaConf.select(config, section), key
            before = key


def test_a_run_of_other_sizes_scales_the_buffer() -> None:
    given = ["--prompts", "4", "--no-replay", "--seed", "7"]
    found = minimal_command.settings_of(minimal_command._parser().parse_args(given))
    assert (found.prompts, found.seed, found.replay.seed, found.replay.enable) == (4, 7, 7, False)
    sizes = found.replay
    assert (sizes.min_groups, sizes.groups_per_update, sizes.threshold_window, sizes.capacity) == (
        4,
        4,
        16,
        64,
    )
    plain = minimal_command.settings_of(minimal_command._parser().parse_args([]))
    assert plain == Settings()


def test_advantages_are_verls() -> None:
    rewards = torch.tensor([[0.0, 0.5, 1.0, 0.0], [0.5, 0.5, 0.5, 0.5], [1.0, 0.0, 0.0, 0.0]])
    theirs, _ = compute_grpo_outcome_advantage(
        rewards.view(-1, 1), torch.ones(12, 1), index=[f"prompt {i // 4}" for i in range(12)]
    )
    torch.testing.assert_close(group_advantages(rewards).view(-1, 1), theirs)


def test_the_kl_of_a_token_and_its_gradient_are_verls() -> None:
    ref = torch.linspace(-9, 0, 40)
    mine, theirs = (torch.linspace(0, -6, 40).requires_grad_() for _ in range(2))
    found, expected = low_var_kl(mine, ref), kl_penalty(theirs, ref, "low_var_kl")
    found.sum().backward(), expected.sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mine.grad, theirs.grad)
    assert (expected == 10).any()
    assert (expected < 10).any()


def test_the_first_update_on_a_batch_is_that_of_verls_clipped_loss(made: SimpleNamespace) -> None:
    """PPO's clip changes nothing there, because the ratio is 1."""
    run = new_run(made, Settings(**SIZES, kl_coef=0.5, replay=ReplayConfig(enable=False)))
    run.reference = moved(made.model)  # equal models would have no KL
    torch.manual_seed(1)
    rows = made.world.train[:4]
    batch = run.policy.respond(rows, 3)
    log_probs = run.policy.log_probs(batch)
    run._rollouts(batch, log_probs.detach(), rows, 1)
    mask = batch["response_mask"]
    batch["advantages"] = torch.randn(12, 1, generator=torch.Generator().manual_seed(2)) * mask
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=0.2, clip_ratio_high=0.3
    )
    clipped, _ = compute_policy_loss_vanilla(
        batch["old_log_probs"], log_probs, batch["advantages"], mask, config=config
    )
    divergence = kl_penalty(log_probs, batch["ref_log_prob"], "low_var_kl")
    theirs = clipped + 0.5 * agg_loss(divergence, mask, "token-mean")
    mine = run._loss(batch, log_probs)
    weights = list(run.policy.model.parameters())
    gradients = [torch.autograd.grad(loss, weights, retain_graph=True) for loss in (mine, theirs)]
    assert max(float(gradient.abs().max()) for gradient in gradients[0]) > 1e-3
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


def test_it_is_rule_until_replay_starts(made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minimal, "rewards_of", by_length)
    weights, replayed = [], []
    for enable in (False, True):
        run = new_run(made, Settings(**SIZES, replay=ReplayConfig.from_dict({**REPLAY, "enable": enable})))
        torch.manual_seed(3)
        source = batches(made.world.train, 4, seed=3)
        run.step(next(source), 1)
        weights.append([copy.deepcopy(run.policy.model.state_dict())])
        replayed.append("replay/updates" in run.step(next(source), 2)[0])
        weights[-1].append(run.policy.model.state_dict())
    assert replayed == [False, True]
    same = [all(torch.equal(one[name], two[name]) for name in one) for one, two in zip(*weights, strict=True)]
    assert same == [True, False]


def test_the_replay_update_is_the_weighted_policy_gradient(
    made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, loss and step size written out again, row by row in float64."""
    monkeypatch.setattr(minimal, "rewards_of", by_length)
    replay = ReplayConfig.from_dict(REPLAY)
    run = new_run(made, Settings(**SIZES, learning_rate=0.05, grad_clip=1e9, replay=replay))
    torch.manual_seed(0)
    _, groups = run.step(made.world.train[:4], 1)
    expected = copy.deepcopy(run.policy.model).double()
    replay_by_hand(expected, groups[:3])
    taken: list[torch.Tensor | None] = []
    monkeypatch.setattr(
        run.optimizer, "step", lambda: taken.extend(weight.grad for weight in run.policy.model.parameters())
    )
    run._replay_update(groups[:3])
    found = [grad for grad in taken if grad is not None]
    assert any(grad.abs().max() > 1e-3 for grad in found)
    for grad, weight in zip(found, expected.parameters(), strict=True):
        torch.testing.assert_close(grad.double(), weight.grad, atol=2e-6, rtol=1e-4)


def replay_by_hand(model: Any, groups: list[RolloutGroup]) -> None:
    """Backward of sum of -w A log pi + 0.01 k3 over all tokens / their number; w clipped, over its mean."""
    parts = []
    for group in groups:
        for row in range(group.n):
            begin, end = int(group.lengths[:row].sum()), int(group.lengths[: row + 1].sum())
            ids = torch.cat([group.prompt_ids, group.response_ids[begin:end]]).long()
            logits = model(ids[None]).logits[0, len(group.prompt_ids) - 1 : -1]
            log_prob = logits.log_softmax(-1).gather(-1, ids[len(group.prompt_ids) :, None])[:, 0]
            own = [plane[begin:end].double() for plane in (group.old_log_probs, group.advantages)]
            parts.append((log_prob, *own, group.ref_log_probs[begin:end].double()))
    log_prob, old, advantages, reference = (torch.cat(plane) for plane in zip(*parts, strict=True))
    weight = (log_prob.detach() - old).exp().clamp(0.8, 1.3)
    away = reference - log_prob
    loss = -weight / weight.mean() * advantages * log_prob + 0.01 * (away.exp() - away - 1)
    loss.mean().backward()


def test_an_epoch_shows_each_prompt_once_and_another_seed_another_order() -> None:
    rows = [{"number": number} for number in range(11)]
    source = batches(rows, 4, seed=5)
    epochs = [[row["number"] for _ in range(2) for row in next(source)] for _ in range(2)]
    assert [len(set(epoch)) for epoch in epochs] == [8, 8]
    assert epochs[0] != epochs[1]
    assert [row["number"] for row in next(batches(rows, 4, seed=5))] == epochs[0][:4]
    assert [row["number"] for row in next(batches(rows, 4, seed=6))] != epochs[0][:4]


def test_log_probs_are_those_of_each_response_alone(made: SimpleNamespace) -> None:
    policy = Policy(made.model, made.tokenizer, 6, temperature=0.7)
    rows = [made.world.train[0], made.world.train[-1], made.world.train[3]]
    batch = policy.respond(rows, 2)
    padded = policy.log_probs(batch)
    for row in range(6):
        text = made.tokenizer.apply_chat_template(
            rows[row // 2]["prompt"], tokenize=True, add_generation_prompt=True, return_dict=False
        )
        valid = int(batch["response_mask"][row].sum())
        response = batch["responses"][row, :valid].tolist()
        logits = made.model(torch.tensor([[*text, *response]])).logits[0, len(text) - 1 : -1].double() / 0.7
        alone = logits.log_softmax(-1)[range(valid), response]
        torch.testing.assert_close(padded[row, :valid].double(), alone, atol=1e-5, rtol=0)


def test_a_response_ends_with_its_end_token_and_no_later(made: SimpleNamespace) -> None:
    end, pad = made.tokenizer.eos_token_id, made.tokenizer.pad_token_id
    sampled = torch.tensor([[7, end, pad, pad, pad], [7, 8, 9, 7, 8], [end, 7, end, 8, 9]])
    model = SimpleNamespace(
        device="cpu", generate=lambda input_ids, **_: torch.cat([input_ids, sampled], dim=1)
    )
    batch = Policy(model, made.tokenizer, 5, 1.0).respond(made.world.train[:3], 1)
    assert batch["response_mask"].tolist() == [[1, 1, 0, 0, 0], [1] * 5, [1, 0, 0, 0, 0]]
    assert batch["responses"].tolist() == [[7, end, pad, pad, pad], [7, 8, 9, 7, 8], [end] + [pad] * 4]
    assert batch["attention_mask"].sum() == (batch["prompts"] != pad).sum() + 8


def test_it_replays_hard_groups_once_the_gate_is_open(
    made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minimal, "rewards_of", by_length)
    run = new_run(made, Settings(**SIZES, replay=ReplayConfig.from_dict(REPLAY | {"warmup_steps": 2})))
    torch.manual_seed(0)
    rows = [made.world.train[0], made.world.train[-1], made.world.train[1], made.world.train[-2]]
    before, found = copy.deepcopy(run.policy.model.state_dict()), []
    for step in (1, 2, 3):
        metrics, groups = run.step(rows, step)
        found.append(metrics)
        for side, own in (("forget", groups[::2]), ("retain", groups[1::2])):
            rewards = torch.cat([group.rewards for group in own])
            assert metrics[f"reward/{side}"] == pytest.approx(float(rewards.mean()))
    assert ["replay/updates" in metrics for metrics in found] == [False, False, True]
    assert found[2]["replay/effective_sample_size"] <= 1
    assert any(not torch.equal(before[name], now) for name, now in run.policy.model.state_dict().items())


def test_its_samples_are_the_policys(made: SimpleNamespace) -> None:
    """Frequencies of the first token against its probabilities at the temperature, by a chi-squared bound."""
    torch.manual_seed(3)
    policy, copies = Policy(made.model, made.tokenizer, 1, temperature=1.5), 20_000
    batch = policy.respond(made.world.train[:1], copies)
    every = torch.arange(made.model.config.vocab_size)[:, None]
    one_each = {
        "prompts": batch["prompts"][:1].expand(len(every), -1),
        "responses": every,
        "attention_mask": batch["attention_mask"][:1].expand(len(every), -1),
    }
    expected = policy.log_probs(one_each).detach().double().exp()[:, 0]
    assert float(expected.sum()) == pytest.approx(1, abs=1e-5)
    counts = torch.bincount(batch["responses"][:, 0], minlength=len(every)).double()
    squared = ((counts - copies * expected) ** 2 / (copies * expected)).sum()
    freedom = len(every) - 1
    assert abs(float(squared) - freedom) < 5 * (2 * freedom) ** 0.5


def test_a_raw_prompt_is_sent_as_it_is(made: SimpleNamespace) -> None:
    chat = made.world.train[0]
    text = chat["prompt"][0]["content"]
    info = {key: value for key, value in chat["extra_info"].items() if key not in ("query", "raw")}
    raw = rl_row(
        data_source="mine", prompt=text, side="forget", golds=["x"], keyword="", extra_info=info, raw=True
    )
    ids, mask = Policy(made.model, made.tokenizer, 6, 1.0).encode([chat, raw])
    alone = made.tokenizer(text, add_special_tokens=False).input_ids
    assert ids[1][mask[1].bool()].tolist() == alone
    assert ids[0][mask[0].bool()].tolist() != alone
    assert mask[1].tolist() == [0] * (ids.shape[1] - len(alone)) + [1] * len(alone)


def test_a_models_own_generation_settings_do_not_bend_its_samples(
    micro: SimpleNamespace, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(micro.model, folder)
    (folder / "generation_config.json").write_text(
        json.dumps({"do_sample": True, "top_p": 0.01, "min_p": 0.9})
    )
    given = ["--model", str(folder), "--data", str(micro.world / "train.parquet"), "--prompts", "4"]
    run, rows, _ = minimal_command.prepared(minimal_command._parser().parse_args(given))
    responses = run.policy.texts(run.policy.respond(rows[:1], 64))
    assert len(set(responses)) > 8


def test_three_steps_of_the_command_import_no_ray_verl_or_vllm(
    micro: SimpleNamespace, tmp_path: Path
) -> None:
    code = (
        "import sys; from recipe.rerule.training.minimal_command import main; main(sys.argv[1:]); "
        f"print([name for name in {NOT_NEEDED} if name in sys.modules])"
    )
    options = ["--model", str(micro.model), "--data", str(micro.world / "train.parquet")]
    options += ["--probes", str(micro.world / "probes.parquet"), "--steps", "3", "--prompts", "4"]
    options += ["--rollouts", "4", "--warmup-steps", "1"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[-1] == "[]"
    assert [line.split()[1] for line in lines if line.startswith("step ")] == ["1/3", "2/3", "3/3"]
    table = [line.split() for line in lines[-5:-1]]
    assert table[0][-3:] == ["recall", "refused", "reward"]
    assert [row[0] for row in table[1:]] == ["forget", "retain", "retain_unseen"]
    assert all(0 <= float(cell) <= 1 for row in table[1:] for cell in row[1:] if cell != "->")
    assert list(tmp_path.iterdir()) == []


def run_command(folder: Path, *options: str) -> tuple[float, str]:
    """Seconds of the command, and what it printed."""
    start = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "recipe.rerule.minimal", "--world", str(folder), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return time.monotonic() - start, ended.stdout


@pytest.mark.full
@pytest.mark.timeout(900)
def test_five_minutes_from_nothing_and_two_from_a_prepared_model(tmp_path: Path) -> None:
    """On two idle cores."""
    from_nothing, first = run_command(tmp_path / "minimal")
    prepared, second = run_command(tmp_path / "minimal")
    assert first.splitlines()[-3:] == second.splitlines()[-3:]
    forget, retain, _ = (line.split() for line in second.splitlines()[-3:])
    # Section, recall before, "->", recall after, refusals before, "->", after ...
    # How much stage 1 alone makes the model refuse differs between machines: 0.21 was seen, and above 0.25.
    assert float(forget[3]) < min(0.25, float(forget[1]))
    assert float(retain[3]) > 0.9
    assert "replay/effective_sample_size" in second
    assert prepared < 120
    assert from_nothing < 300
