"""The replay loss in verl's form, and its metrics, without a cluster; through the worker: tests/e2e.

And the first weights, dtype and highest rank of adapters; test_memory has sizes, tests/refused refused ones.
"""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from peft import LoraConfig, get_peft_model
from tensordict import TensorDict
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM
from verl.models.transformers.monkey_patch import patch_forward_with_backends
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import FSDPActorConfig, FSDPEngineConfig
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.padding import no_padding_2_padding

from recipe.rerule.preflight import settings
from recipe.rerule.replay import ReplayConfig
from recipe.rerule.training import fsdp2, worker
from recipe.rerule.training.worker import (
    ReplayUpdate,
    _replay_metrics,
    is_one_micro_batch,
    micro_batch_size,
)

TOKENS = 7
"""Response tokens of the whole batch of `micro_batch`."""


@pytest.mark.parametrize(
    ("rows", "limit", "size"),
    [(128, 8, 8), (40, 16, 10), (7, 4, 1), (6, 99, 6), (10**24, 10**12, 2**16), (12, None, None)],
)
def test_micro_batches_are_as_large_as_allowed(rows: int, limit: int | None, size: int | None) -> None:
    assert micro_batch_size(rows, limit) == size


@pytest.mark.parametrize(
    ("settings", "one"),
    [
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 14}, True),
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 13}, False),
        ({"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 4}, True),
        ({"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 9}, True),
        ({"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 3}, False),
    ],
)
def test_one_micro_batch_is_told_from_several(settings: dict[str, Any], one: bool) -> None:
    """4 rows on each of two ranks: 12 tokens on this one, 14 on the other."""
    _, data = micro_batch(slice(0, 4))
    tu.assign_non_tensor_data(data, "global_token_num", [3, 3, 3, 3, 2, 4, 3, 5])
    assert is_one_micro_batch(SimpleNamespace(**settings), data, ranks=2) == one


def test_a_batch_without_weights_is_weighed_by_its_own_log_probs_and_must_not_be_split() -> None:
    """All ratios are exp(0.1), within the clip range: normalised, every weight is 1.

    A second micro-batch would be normalised by its own weights alone.
    """
    update = ReplayUpdate(ReplayConfig(), actor_config(), group=None)
    output, data = not_weighed(slice(0, 4))
    loss, _ = update.loss(output, data)
    assert data["replay_weights"].tolist() == [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]
    assert "replay/seconds/weigh" in update.seconds
    assert update.ratio_metrics is not None
    assert update.ratio_metrics["replay/ratio_mean"] == pytest.approx(math.exp(0.1))
    weighed, same = micro_batch(slice(0, 4))
    same["replay_weights"] = data["replay_weights"]
    expected, _ = engine_loss(actor_config(), True, weighed, same)
    assert float(loss) == pytest.approx(float(expected), rel=1e-12)
    with pytest.raises(RuntimeError, match="was split into micro-batches"):
        update.loss(*not_weighed(slice(2, 4)))


def not_weighed(rows: slice) -> tuple[dict[str, torch.Tensor], TensorDict]:
    """As `micro_batch`, before it is weighed; every log ratio is 0.1."""
    output, data = micro_batch(rows)
    del data["replay_weights"]
    log_probs = no_padding_2_padding(output["log_probs"], data)
    data["old_log_probs"] = log_probs.detach().float() - 0.1
    return output, data


def actor_config() -> FSDPActorConfig:
    return FSDPActorConfig(
        strategy="fsdp2", rollout_n=2, ppo_mini_batch_size=2, ppo_micro_batch_size_per_gpu=2,
        loss_agg_mode="token-mean", use_kl_loss=True, kl_loss_coef=0.5, kl_loss_type="low_var_kl",
    )  # fmt: skip


def micro_batch(rows: slice, dp_size: int = 1) -> tuple[dict[str, torch.Tensor], TensorDict]:
    """Rows of a batch of 4 with 1-token prompts and 2-token responses; row 3 has 1 response token."""
    generator = torch.Generator().manual_seed(1)

    def random() -> torch.Tensor:
        return torch.randn(4, 2, generator=generator, dtype=torch.float64)

    log_probs, weights, advantages, ref = -random().abs(), random().abs(), random(), -random().abs()
    mask = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0]])
    data = TensorDict(
        {
            "prompts": torch.ones(4, 1, dtype=torch.long),
            "responses": torch.ones(4, 2, dtype=torch.long),
            "attention_mask": torch.cat([torch.ones(4, 1, dtype=torch.long), mask], dim=1),
            "response_mask": mask,
            "replay_weights": weights,
            "advantages": advantages,
            "ref_log_prob": ref,
        },
        batch_size=[4],
    )[rows].clone()
    tu.assign_non_tensor(data, dp_size=dp_size, batch_num_tokens=TOKENS, global_batch_size=4)
    flat = []
    for row in range(4)[rows]:
        length = int(mask[row].sum())
        # verl's model output: one value a position, the response's shifted left by one.
        flat.append(torch.cat([log_probs[row, :length], torch.zeros(1, dtype=torch.float64)]))
    output = torch.nested.as_nested_tensor(flat, layout=torch.jagged).requires_grad_()
    return {"log_probs": output}, data


def engine_loss(
    config: FSDPActorConfig, use_kl: bool, output: dict[str, torch.Tensor], data: TensorDict
) -> tuple[torch.Tensor, dict[str, Metric]]:
    """The loss as verl's engine calls it."""
    return ReplayUpdate(ReplayConfig(use_kl_loss=use_kl), config, group=None).loss(output, data)


def test_loss_and_metrics_of_the_whole_batch_are_those_of_its_rows() -> None:
    """Against sums over the tokens; tests/e2e has the gradient, of any micro-batches and ranks."""
    output, data = micro_batch(slice(0, 4))
    mask = data["response_mask"].bool()
    log_probs = torch.cat([values[:-1] for values in output["log_probs"].unbind()]).detach()
    weight, advantage, ref = (data[name][mask] for name in ("replay_weights", "advantages", "ref_log_prob"))
    policy_gradient = float(-(weight * advantage * log_probs).sum() / TOKENS)
    kl = float(((ref - log_probs).exp() - (ref - log_probs) - 1).sum() / TOKENS)
    loss, metrics = engine_loss(actor_config(), True, output, data)
    assert float(loss) == pytest.approx(policy_gradient + 0.5 * kl, rel=1e-12)
    assert metrics["replay/pg_loss"].aggregate() == pytest.approx(policy_gradient, rel=1e-12)
    assert metrics["replay/kl_loss"].aggregate() == pytest.approx(kl, rel=1e-12)
    assert signal(metrics) == pytest.approx(float((weight * advantage / TOKENS).norm()), rel=1e-12)
    parts = [engine_loss(actor_config(), True, *micro_batch(rows)) for rows in (slice(0, 1), slice(1, 4))]
    assert float(sum(loss for loss, _ in parts)) == pytest.approx(policy_gradient + 0.5 * kl, rel=1e-12)
    halves = (slice(0, 2), slice(2, 4))
    ranks = [engine_loss(actor_config(), True, *micro_batch(rows, dp_size=2))[1] for rows in halves]
    squared = Metric.aggregate_dp([of_rank["replay/pg_signal_squared"] for of_rank in ranks])
    assert squared**0.5 == pytest.approx(signal(metrics), rel=1e-12)
    del data["ref_log_prob"]  # which is not read without KL
    assert float(engine_loss(actor_config(), False, output, data)[0]) == pytest.approx(policy_gradient)


def signal(metrics: dict[str, Metric]) -> float:
    return _replay_metrics({**metrics, "grad_norm": 3.0}, use_kl=True)["replay/pg_signal_norm"]


def summed(*values: float) -> Metric:
    """What verl makes of one metric over the micro-batches of a rank."""
    metric = Metric(AggregationType.SUM)
    metric.extend(list(values))
    return metric


def test_metrics_of_ranks_and_micro_batches_are_reduced() -> None:
    names = ("replay/pg_loss", "replay/pg_signal_squared", "replay/kl_loss")
    one = {**dict.fromkeys(names, summed(1.0, 3.0)), "grad_norm": 2.5}
    found = _replay_metrics(one, use_kl=True)
    assert found == {
        "replay/pg_loss": 4.0, "replay/pg_signal_norm": 2.0, "replay/kl_loss": 4.0, "replay/grad_norm": 2.5
    }  # fmt: skip
    several = {**{name: [summed(1.0, 3.0), summed(2.0, 6.0)] for name in names}, "grad_norm": 2.5}
    assert _replay_metrics(several, use_kl=False)["replay/pg_loss"] == 6.0  # verl's mean over ranks


@pytest.mark.full  # importing vllm takes long
def test_vllm_s_highest_rank() -> None:
    from typing import get_args

    from vllm.config.lora import MaxLoRARanks

    assert max(get_args(MaxLoRARanks)) == settings._HIGHEST_RANK


@pytest.fixture
def of_fsdp2(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Puts verl's functions back at the end of the test; to be called before the first stand-in."""
    for name in ("_build_lora_module", "_build_fsdp_module"):
        monkeypatch.setattr(FSDPEngine, name, getattr(FSDPEngine, name))
    fsdp2.install.cache_clear()
    return monkeypatch


@pytest.mark.parametrize(("strategy", "dtype"), [("fsdp2", torch.float32), ("fsdp", torch.bfloat16)])
def test_adapters_are_trained_in_float32_on_a_base_in_bfloat16(
    strategy: str, dtype: torch.dtype, of_fsdp2: pytest.MonkeyPatch
) -> None:
    """Steps of 1e-6 beside weights of 0.1 vanish in bfloat16. FSDP1's weights have to have one type."""
    of_fsdp2.setattr(FSDPEngine, "_build_lora_module", lambda engine, module: module)
    fsdp2.install()
    module = torch.nn.ModuleDict({"base": torch.nn.Linear(2, 2), "lora_A": torch.nn.Linear(2, 2)}).bfloat16()
    module["base"].requires_grad_(False)
    engine = SimpleNamespace(engine_config=SimpleNamespace(strategy=strategy))
    built = FSDPEngine._build_lora_module(engine, module)
    assert {weight.dtype for weight in built["base"].parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in built["lora_A"].parameters()} == {dtype}


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_verls_fused_forward_finds_the_output_matrix_whole(
    tied: bool, adapter: bool, of_fsdp2: pytest.MonkeyPatch, one_rank: None
) -> None:
    """verl's own engine, sharding and forward, against log_softmax of the model as it was."""
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, tie_word_embeddings=tied, **shape))
    ids, labels = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[2, 3, 4, 5, 6]])
    if adapter:
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    expected = model(input_ids=ids).logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    slopes = torch.autograd.grad(expected.sum(), trained)
    of_fsdp2.setattr(LlamaForCausalLM, "forward", LlamaForCausalLM.forward)
    patch_forward_with_backends(model.get_base_model() if adapter else model, True, "torch")
    fsdp2.install()
    engine = object.__new__(FSDPEngine)
    engine.engine_config = FSDPEngineConfig(strategy="fsdp2", mixed_precision={"param_dtype": "fp32"})
    engine.model_config = SimpleNamespace(
        use_fused_kernels=True,
        lora_rank=0,
        enable_activation_offload=False,
        enable_gradient_checkpointing=False,
    )
    engine.device_mesh = init_device_mesh("cpu", (1,))
    # It would load the weights, which are there, onto a GPU.
    of_fsdp2.setattr(transformer_impl, "fsdp2_load_full_state_dict", lambda *of: None)
    module = engine._build_fsdp_module(model)
    for _ in range(2):  # the second pass meets what the first one left
        found = module(input_ids=ids, shift_labels=labels, return_dict=True, temperature=1.0).log_probs
        torch.testing.assert_close(found, expected.detach())
        found.sum().backward()
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    for weight, slope in zip(weights, slopes, strict=True):
        torch.testing.assert_close(weight.grad.full_tensor(), 2 * slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", [7, 8])
def test_the_seed_decides_a_new_adapter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's engine makes it while the worker is set up; expected is what peft draws with that seed."""
    shape = {"hidden_size": 4, "intermediate_size": 4, "num_attention_heads": 1, "num_hidden_layers": 1}
    one, other = (LlamaForCausalLM(LlamaConfig(vocab_size=8, **shape)) for _ in range(2))
    adapter = {"lora_adapter_path": None, "lora_rank": 2, "lora_alpha": 2, "target_modules": "all-linear"}
    model = SimpleNamespace(**adapter, target_parameters=None, exclude_modules=None)
    engine = SimpleNamespace(model_config=model, engine_config=SimpleNamespace(strategy="fsdp2"))
    monkeypatch.setattr(worker, "initialize_global_process_group_ray", lambda timeout_second: None)
    build = lambda _: FSDPEngine._build_lora_module(engine, one)  # noqa: E731
    monkeypatch.setattr(ActorRolloutRefWorker, "init_model", build)
    torch.manual_seed(seed + 1)
    actor = object.__new__(worker.ReplayActorWorker)
    actor.config = OmegaConf.create({"nccl_timeout": 60, "actor": {"fsdp_config": {"seed": seed}}})
    actor.rollout = None
    actor.init_model()
    torch.manual_seed(seed)
    expected = get_peft_model(other, LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear"))
    found = {name: weight for name, weight in one.named_parameters() if "lora_A" in name}
    assert len(found) == 7
    for name, weight in found.items():
        assert torch.equal(weight, expected.base_model.model.get_parameter(name)), name
