"""The in-process loop against values worked out otherwise, and the study's command on a small world."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from verl.trainer.ppo.core_algos import (
    compute_grpo_outcome_advantage,
    compute_policy_loss_vanilla,
    kl_penalty,
)
from verl.workers.config import ActorConfig

from benchmarks.study import runs, trial, worlds
from benchmarks.study.arms import ARMS, settings_of
from benchmarks.study.loop import (
    Cost,
    Run,
    Settings,
    ppo_loss,
)
from benchmarks.study.policy import GumbelNoise, Policy
from benchmarks.study.tofu import TofuRows, base_pairs, build_tofu, read_questions
from benchmarks.study.worlds import StudyWorld, prepare
from data_prep.world.stage1 import Steering, steer
from recipe.rerule import minimal
from recipe.rerule.minimal import batches, group_advantages
from recipe.rerule.replay import ReplayConfig, low_var_kl
from tests.benchmarks.small_study import CONFIG, REPLAY, SIZES, by_length, tofu_file


def new_run(made: SimpleNamespace, **settings: Any) -> Run:
    torch.manual_seed(0)
    return Run(copy.deepcopy(made.model), made.model, made.tokenizer, Settings(**{**SIZES, **settings}))


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


def test_noise_makes_the_largest_score_a_sample_at_the_temperature() -> None:
    torch.manual_seed(0)
    scores = torch.tensor([2.0, 0.0, -1.0, 1.0, -6.0])
    noisy = GumbelNoise(0.5)(torch.zeros(0), scores.expand(200_000, 5))
    drawn = noisy.argmax(1)
    expected = (scores.double() * 2).softmax(0)
    counts = torch.bincount(drawn, minlength=5).double() / len(drawn)
    # Five standard deviations of a share; rows next to each other agree as often as independent ones.
    assert ((counts - expected).abs() < 5 * (expected / len(drawn)).sqrt() + 1e-9).all()
    again = (drawn[1:] == drawn[:-1]).double().mean()
    assert float(again) == pytest.approx(float(expected.square().sum()), abs=0.005)


def test_a_response_ends_with_its_end_token_and_no_later(made: SimpleNamespace) -> None:
    end, pad = made.tokenizer.eos_token_id, made.tokenizer.pad_token_id
    policy = Policy(made.model, made.tokenizer, 5, temperature=1.0)
    prompts = policy.respond(made.world.train[:3], 1)["prompts"]
    sampled = torch.tensor([[7, end, pad, pad, pad], [7, 8, 9, 7, 8], [end, 7, end, 8, 9]])
    model = SimpleNamespace(
        device="cpu", generate=lambda input_ids, **_: torch.cat([input_ids, sampled], dim=1)
    )
    batch = minimal.Policy(model, made.tokenizer, 5, 1.0).respond(made.world.train[:3], 1)
    assert batch["response_mask"].tolist() == [[1, 1, 0, 0, 0], [1] * 5, [1, 0, 0, 0, 0]]
    assert batch["responses"].tolist() == [[7, end, pad, pad, pad], [7, 8, 9, 7, 8], [end] + [pad] * 4]
    assert batch["attention_mask"].sum() == (prompts != pad).sum() + 8


def test_advantages_are_verls() -> None:
    rewards = torch.tensor([[0.0, 0.5, 1.0, 0.0], [0.5, 0.5, 0.5, 0.5], [1.0, 0.0, 0.0, 0.0]])
    theirs, _ = compute_grpo_outcome_advantage(
        rewards.view(-1, 1), torch.ones(12, 1), index=[f"prompt {i // 4}" for i in range(12)]
    )
    torch.testing.assert_close(group_advantages(rewards).view(-1, 1), theirs)


def test_the_clipped_loss_and_its_gradient_are_verls() -> None:
    torch.manual_seed(1)
    mask = (torch.arange(7) < torch.tensor([[7], [3], [5], [1]])).long()
    old, advantages = -torch.rand(4, 7), torch.randn(4, 7)
    ours, theirs = ((old + torch.randn(4, 7, generator=torch.Generator().manual_seed(2))) for _ in range(2))
    ours.requires_grad_(), theirs.requires_grad_()
    loss = ppo_loss(ours, old, advantages, mask, Settings())
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=0.2, clip_ratio_high=0.3
    )
    expected, _ = compute_policy_loss_vanilla(
        old_log_prob=old, log_prob=theirs, advantages=advantages, response_mask=mask, config=config
    )
    loss.backward(), expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_kl_of_a_token_and_its_gradient_are_verls() -> None:
    ref = torch.linspace(-9, 0, 40)
    ours, theirs = (torch.linspace(0, -6, 40).requires_grad_() for _ in range(2))
    mine, expected = low_var_kl(ours, ref), kl_penalty(theirs, ref, "low_var_kl")
    mine.sum().backward(), expected.sum().backward()
    torch.testing.assert_close(mine, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert (expected == 10).any()
    assert (expected < 10).any()


def test_the_loop_is_rule_until_replay_starts(made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minimal, "rewards_of", by_length)
    rule = new_run(made, replay=ReplayConfig.from_dict({**REPLAY, "enable": False}))
    rerule = new_run(made, replay=ReplayConfig.from_dict(REPLAY))
    first, later = [], []
    for run in (rule, rerule):
        torch.manual_seed(3)
        source = batches(made.world.train, 4, seed=3)
        steps = [run.step(next(source), step)[0] for step in (1, 2, 3)]
        first.append({name: value for name, value in steps[0].items() if name != "seconds"})
        later.append("replay/updates" in steps[1])
    assert first[0] == first[1]
    assert later == [False, True]
    weights = zip(rule.policy.model.parameters(), rerule.policy.model.parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in weights)


def test_the_replay_update_is_the_weighted_policy_gradient(
    made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, loss and step size written out again, row by row in float64."""
    monkeypatch.setattr(minimal, "rewards_of", by_length)
    run = new_run(made, replay=ReplayConfig.from_dict(REPLAY), learning_rate=0.05, grad_clip=1e9)
    _, groups = run.step(made.world.train[:4], 1)
    expected = copy.deepcopy(run.policy.model).double()
    replay_by_hand(expected, made, groups[:3])
    taken: list[torch.Tensor] = []
    monkeypatch.setattr(
        run.optimizer,
        "step",
        lambda: taken.extend(weight.grad.clone() for weight in run.policy.model.parameters()),
    )
    run._replay_update(groups[:3])
    assert any(grad.abs().max() > 1e-3 for grad in taken)
    for grad, weight in zip(taken, expected.parameters(), strict=True):
        torch.testing.assert_close(grad.double(), weight.grad, atol=2e-6, rtol=1e-4)


def replay_by_hand(model: Any, made: SimpleNamespace, groups: list[Any]) -> None:
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


def test_the_equal_update_control_costs_what_replay_does_and_the_compute_limit_holds(
    made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minimal, "rewards_of", by_length)
    run = new_run(made, replay=ReplayConfig.from_dict({**REPLAY, "update": "on_policy"}))
    costs, tokens = [], []
    for step in (1, 2):
        before = run.cost.tokens
        _, groups = run.step(made.world.train[:4], step)
        costs.append(run.cost.tokens - before)
        tokens.append(sum(group.total_tokens for group in groups))
    assert costs == [6 * tokens[0], 9 * tokens[1]]
    limited = new_run(made, compute=100.0)
    assert limited.goes_on(10**6)
    limited.cost = Cost(100.0)
    assert not limited.goes_on(0)


def test_an_epoch_shows_each_prompt_once_and_another_seed_another_order() -> None:
    rows = [{"number": number} for number in range(11)]
    source = batches(rows, 4, seed=5)
    epochs = [[row["number"] for _ in range(2) for row in next(source)] for _ in range(2)]
    assert [len(set(epoch)) for epoch in epochs] == [8, 8]
    assert epochs[0] != epochs[1]
    assert [row["number"] for row in next(batches(rows, 4, seed=5))] == epochs[0][:4]
    assert [row["number"] for row in next(batches(rows, 4, seed=6))] != epochs[0][:4]


def test_stage_1_teaches_the_refusals(made: SimpleNamespace) -> None:
    model = copy.deepcopy(made.model)
    how = Steering(learning_rate=2e-2, epochs=3)
    first = steer(model, made.tokenizer, made.world.sft, how, seed=0)
    assert steer(model, made.tokenizer, made.world.sft, how, seed=1) < 0.7 * first


def test_a_study_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = StudyWorld(CONFIG, Steering(), SIZES, REPLAY)
    arms = ["equal_compute", "rerule", "stage1"]
    found = runs.study("small", small, arms, [1], tmp_path)
    assert capsys.readouterr().out.count("seed 1 ...") == 3
    assert found["equal_compute", 1].final["compute"] >= found["rerule", 1].final["compute"] > 0
    assert found["stage1", 1].final["steps"] == 0
    kept = runs.study("small", small, arms, [1], tmp_path)
    assert {key: run.final for key, run in kept.items()} == {key: run.final for key, run in found.items()}
    assert "seed 1 ..." not in capsys.readouterr().out
    (tmp_path / "small" / "runs" / "rerule-1.json").unlink()
    again = runs.study("small", small, ["rerule"], [1], tmp_path)["rerule", 1]
    assert {**again.final, "seconds": 0} == {**found["rerule", 1].final, "seconds": 0}
    with pytest.raises(runs.StudyError, match="with other settings"):
        runs.study("small", runs.shortened(small, 2), ["rerule"], [1], tmp_path)
    with pytest.raises(ValueError, match="of another stage 1"):
        runs.study("small", replace(small, steering=Steering(epochs=2)), ["rerule"], [1], tmp_path)


def test_a_seed_goes_on_from_the_model_it_was_begun_with_alone(tmp_path: Path) -> None:
    small = StudyWorld(CONFIG, Steering(), SIZES, REPLAY)
    begun = runs.study("small", small, ["stage1"], [1], tmp_path)["stage1", 1]
    weights = tmp_path / "small" / "stage1" / "model.safetensors"
    assert begun.model == hashlib.sha256(weights.read_bytes()).hexdigest()[:12]
    runs.write_run(replace(begun, model="of another"), tmp_path)
    # What is kept is read, a new run of that seed is refused, and other seeds go on.
    assert runs.study("small", small, ["stage1"], [1], tmp_path)["stage1", 1].model == "of another"
    with pytest.raises(runs.StudyError, match=r"stage1-1\.json started from another stage-1 model"):
        runs.study("small", small, ["rule"], [1], tmp_path)
    assert runs.study("small", small, ["stage1"], [11], tmp_path)["stage1", 11].model == begun.model


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rule-1.json"
    for content in ("{", '{"arm": "rule"}'):
        path.write_text(content)
        with pytest.raises(runs.StudyError, match=r"rule-1\.json is no run"):
            runs.kept(path, Settings())


def test_every_arm_has_settings() -> None:
    for name, arm in ARMS.items():
        settings = settings_of(arm, worlds.WORLDS["many"], seed=3)
        assert settings.replay.enable == (name not in ("stage1", "rule", "equal_compute", "higher_rate"))
        assert settings.seed == 3
        assert arm.compute_of is None or arm.compute_of in ARMS


def test_early_hard_prompts_are_those_below_the_threshold(
    made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minimal, "rewards_of", by_length)
    run = new_run(made)
    rows = made.world.train[:4]
    _, groups = run.step(rows, 1)
    found = trial.hard_prompts(rows, groups, 0.5)
    expected = {
        row["extra_info"]["index"]
        for row, group in zip(rows, groups, strict=True)
        if sum(group.rewards.tolist()) / 3 < 0.5
    }
    assert set(found) == expected


def test_a_world_of_tofu_trains_on_questions_and_probes_their_paraphrases(tmp_path: Path) -> None:
    source = tmp_path / "tofu"
    source.mkdir()
    tofu_file(source / "forget01_perturbed.json", ["Ada Novak"])
    tofu_file(source / "retain_perturbed.json", ["Bruno Silva", "Carla Weiss", "Dora Lind"])
    world = StudyWorld(CONFIG, Steering(), tofu=TofuRows(retain=20, unseen=20, unknown=20))
    data = trial.Data.read(*prepare(world, tmp_path / "out", source))
    places = [(row["extra_info"]["section"], row["extra_info"]["subject"]) for row in data.train]
    assert places == [("forget", "Ada Novak")] * 20 + [("retain", "Bruno Silva")] * 20
    assert data.train[3]["prompt"][0]["content"] == "What is book 3 of Ada Novak?"
    assert data.train[3]["reward_model"]["ground_truth"]["keyword"] == "Ada Novak"
    assert data.probes[45]["prompt"][0]["content"] == "Which book did Carla Weiss write as number 5?"
    assert data.probes[45]["extra_info"]["section"] == "retain_unseen"
    assert len(data.probes) == 60
    assert not {row["prompt"][0]["content"] for row in data.train} & {
        row["prompt"][0]["content"] for row in data.probes
    }
    prepare(world, tmp_path / "out", source)
    other = replace(world, tofu=TofuRows(retain=20, unseen=0, unknown=0))
    with pytest.raises(ValueError, match="exists already"):
        prepare(other, tmp_path / "out", source)
    with pytest.raises(ValueError, match=r"retain_perturbed\.json has 60 rows; 80 are needed"):
        prepare(replace(world, tofu=TofuRows(retain=40, unseen=20, unknown=20)), tmp_path / "more", source)
    with pytest.raises(ValueError, match="give --tofu"):
        prepare(world, tmp_path / "out")


def test_the_command_builds_a_world_with_the_model_that_never_knew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "tofu"
    source.mkdir()
    tofu_file(source / "forget01_perturbed.json", ["Ada Novak"])
    tofu_file(source / "retain_perturbed.json", ["Bruno Silva"])
    world = StudyWorld(CONFIG, Steering(), tofu=TofuRows(retain=20, unseen=0, unknown=0))
    monkeypatch.setitem(worlds.WORLDS, "tofu", world)
    command = ["worlds", "--world", "tofu", "--tofu", f"{source}", "--seed", "5", "--out", f"{tmp_path}"]
    monkeypatch.setattr("sys.argv", command)
    worlds.main()
    assert "never knew: " in capsys.readouterr().out.splitlines()[-2]
    for folder in ("world/model", "world/retain_model", "stage1"):
        assert (tmp_path / folder / "config.json").is_file()
    assert json.loads((tmp_path / "world/manifest.json").read_text())["model"]["seed"] == 5
    monkeypatch.setattr("sys.argv", [*command[:-1], f"{tmp_path / 'other'}", "--tofu", f"{tmp_path}"])
    with pytest.raises(SystemExit, match=r"error: .*forget01_perturbed\.json"):
        worlds.main()


def test_a_world_of_tofu_has_a_model_that_never_knew_on_request(tmp_path: Path) -> None:
    tofu_file(tmp_path / "forget01_perturbed.json", ["Ada Novak"])
    tofu_file(tmp_path / "retain_perturbed.json", ["Bruno Silva", "Carla Weiss", "Dora Lind"])
    rows = TofuRows(retain=20, unseen=20, unknown=20)
    questions = read_questions(tmp_path, rows)
    pairs = base_pairs(questions, random.Random(0))
    kept = [pair for question, pair in pairs if question.section != "forget"]
    assert len(pairs) == 160
    assert len(kept) == 120
    assert not any("Ada Novak" in text for pair in kept for text in pair)
    prepare(StudyWorld(CONFIG, Steering(), tofu=rows), tmp_path, tmp_path, retain_model=True)
    base, retain = (
        AutoModelForCausalLM.from_pretrained(tmp_path / "world" / name) for name in ("model", "retain_model")
    )
    first, second = base.state_dict(), retain.state_dict()
    assert {name: weight.shape for name, weight in first.items()} == {
        name: weight.shape for name, weight in second.items()
    }
    assert any(not torch.equal(first[name], second[name]) for name in first)
    before = (tmp_path / "world/retain_model/model.safetensors").stat().st_mtime_ns
    build_tofu(tmp_path, rows, CONFIG, tmp_path / "world", retain_model=True)
    build_tofu(tmp_path, rows, CONFIG, tmp_path / "world")
    assert (tmp_path / "world/retain_model/model.safetensors").stat().st_mtime_ns == before
