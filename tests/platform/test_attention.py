"""Packed rows attend as they do alone, or in transformers' own padded batch; prompts may be shared.

The reference is transformers as it is: its sdpa for Llama, in float64. For Gemma-2, whose scores are capped,
it is eager attention, which computes in float32.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface
from verl.utils import tensordict_utils as tu
from verl.utils import torch_functional

from recipe.rerule.platform import attention, log_probs, sdpa, shared_prompts
from recipe.rerule.platform.log_probs import label_log_probs
from recipe.rerule.training import sizes
from tests.families.made import FAMILIES, Family
from tests.families.made import SHAPE as OF_FAMILIES

ROWS = [[5, 6, 7, 8, 9], [10], [14], [11, 12, 13]]
SHAPE: dict[str, Any] = {
    **{"vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "pad_token_id": 0, "eos_token_id": None},
}
LLAMA = {"rtol": 1e-10, "atol": 1e-12}
GEMMA = {"rtol": 1e-3, "atol": 1e-4}
Build = Callable[[str], torch.nn.Module]


@pytest.fixture
def install() -> Iterator[Callable[[], None]]:
    """Puts our attention in place of transformers' until the end of the test; to be called in its middle."""
    yield attention.install
    AttentionInterface.register("sdpa", sdpa_attention_forward)
    AttentionMaskInterface.register("sdpa", sdpa_mask)


def llama(kv_heads: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPE, num_key_value_heads=kv_heads, attn_implementation="sdpa")
    return LlamaForCausalLM(config).double()


def gemma2(implementation: str, window: int) -> Gemma2ForCausalLM:
    """With scores far above the cap, in a layer with a window and one without."""
    torch.manual_seed(0)
    own = {"num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 8, "initializer_range": 0.5}
    cap = {"attn_logit_softcapping": 0.5, "sliding_window": window}
    return Gemma2ForCausalLM(Gemma2Config(**SHAPE, **own, **cap, attn_implementation=implementation))


MODELS = pytest.mark.parametrize(
    ("build", "tolerance"),
    [
        (lambda kind: llama(kv_heads=4), LLAMA),
        (lambda kind: llama(kv_heads=2), LLAMA),
        (lambda kind: gemma2(kind, window=64), GEMMA),
        (lambda kind: gemma2(kind, window=2), GEMMA),
    ],
    ids=["llama", "llama, grouped", "gemma 2", "gemma 2, window"],
)
"""A model with sdpa or, for the reference, with another attention where sdpa leaves the cap out."""


def packed(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.tensor([[token for row in rows for token in row]]),
        "position_ids": torch.tensor([[place for row in rows for place in range(len(row))]]),
    }


def gradient(of: torch.nn.Module, logits: torch.Tensor) -> torch.Tensor:
    of.zero_grad()
    logits.logsumexp(-1).square().sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in of.parameters()])


@MODELS
def test_packed_rows_give_the_logits_and_gradient_of_each_row_alone(
    build: Build, tolerance: dict[str, float], install: Callable[[], None]
) -> None:
    reference, model = build("eager"), build("sdpa")
    rows = [torch.tensor([row]) for row in ROWS]
    alone = torch.cat([reference(input_ids=row, use_cache=False).logits[0] for row in rows])
    expected = gradient(reference, alone)
    install()
    together = model(**packed(ROWS), use_cache=False).logits[0]
    torch.testing.assert_close(together, alone, **tolerance)
    torch.testing.assert_close(gradient(model, together), expected, **tolerance)


@MODELS
def test_padded_rows_are_left_as_they_are(
    build: Build, tolerance: dict[str, float], install: Callable[[], None]
) -> None:
    """Padding before a row and behind one, as prompts and answers have it."""
    ids = torch.tensor([[0, 0, 5, 6, 7], [8, 9, 10, 0, 0]])
    mask = ids.ne(0).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    row = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": False}
    expected = build("eager")(**row).logits
    install()
    found = build("sdpa")(**row).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], **tolerance)


@MODELS
def test_generation_with_a_cache_still_works(
    build: Build, tolerance: dict[str, float], install: Callable[[], None]
) -> None:
    prompt = torch.tensor([[5, 6, 7]])
    how = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}

    def logits(kind: str) -> torch.Tensor:
        model: Any = build(kind)
        return torch.stack(model.generate(prompt, attention_mask=torch.ones_like(prompt), **how).logits)

    expected = logits("eager")
    install()
    torch.testing.assert_close(logits("sdpa"), expected, **tolerance)


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("mask", ["causal", "seen", "added", "one query"])
def test_product_attention_is_torchs(heads: int, key_heads: int, mask: str) -> None:
    """In float64, with its gradients."""
    torch.manual_seed(0)
    queries = 1 if mask == "one query" else 5
    shapes = ((2, heads, queries, 8), (2, key_heads, 5, 8), (2, key_heads, 5, 8))
    parts = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    seen = torch.ones(5, 5, dtype=torch.bool).tril() & (torch.rand(2, 1, 5, 5) < 0.5) | torch.eye(5).bool()
    given = {"seen": seen, "added": torch.randn(2, 1, 5, 5, dtype=torch.float64)}.get(mask)
    found, _ = attention.product_attention(torch.nn.Linear(1, 1), *parts, given, scaling=0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *parts, attn_mask=given, is_causal=mask == "causal", scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    torch.testing.assert_close(found, expected, **LLAMA)
    weights = torch.randn_like(expected)
    for one, other in zip(
        *(torch.autograd.grad((of * weights).sum(), parts) for of in (found, expected)), strict=True
    ):
        torch.testing.assert_close(one, other, **LLAMA)


@pytest.mark.parametrize("longest", [attention.SHORT_ROW, attention.SHORT_ROW + 1])
def test_short_rows_in_bfloat16_are_attended_to_by_products(
    longest: int, install: Callable[[], None], monkeypatch: Any
) -> None:
    calls: list[int] = []
    product = attention.product_attention

    def noting(module: Any, query: Tensor, *parts: Any, **others: Any) -> Any:
        calls.append(query.shape[2])
        return product(module, query, *parts, **others)

    monkeypatch.setattr(attention, "product_attention", noting)
    rows = [[5, 6, 7], [token % 32 for token in range(longest)]]
    rounded = llama().to(torch.bfloat16)
    reference = llama()
    reference.load_state_dict(rounded.state_dict())
    expected = torch.cat(
        [reference(input_ids=torch.tensor([row]), use_cache=False).logits[0] for row in rows]
    )
    install()
    found = rounded(**packed(rows), use_cache=False).logits[0]
    assert calls == ([longest] * 2 if longest == attention.SHORT_ROW else [])  # two layers
    torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0.02)


def test_without_positions_packed_rows_are_refused() -> None:
    rows = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match="use_remove_padding=false"):
        attention.packed_sdpa(torch.nn.Linear(1, 1), rows, rows, rows, None)


def test_rows_are_found_once_a_pass(install: Callable[[], None], monkeypatch: Any) -> None:
    """Of two layers, which the backward pass computes again; the next pass has other rows."""
    found: list[torch.Tensor] = []
    row_index = attention.row_index

    def noting(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found.append(positions)
        return row_index(positions)

    monkeypatch.setattr(attention, "row_index", noting)
    install()
    model = llama().train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for rows in (ROWS, ROWS[:2]):
        model(**packed(rows), use_cache=False).logits.sum().backward()
    assert [positions.shape[1] for positions in found] == [10, 6]
    found.clear()
    assert len(attention._indices) == 0


@pytest.mark.parametrize(("given", "chosen"), [("sdpa", True), ("flash_attention_2", False), (None, False)])
def test_which_attention_is_chosen(given: str | None, chosen: bool) -> None:
    settings = {"override_config": {"attn_implementation": given} if given else {}}
    assert sdpa.is_chosen(OmegaConf.create(settings)) == chosen


PROMPTS = [[5, 6, 7], [8], [5, 6, 7], [5, 6, 7], [8, 9]]
RESPONSES = [[10, 11], [12, 13, 14], [15], [10, 11, 12, 13], [16]]
"""Rows of one prompt are not neighbours; a prompt of one token; a prompt that begins like another."""


def rows(prompts: list[list[int]], responses: list[list[int]], **settings: object) -> TensorDict:
    """A batch as verl's workers get it."""
    together = [torch.tensor(p + r) for p, r in zip(prompts, responses, strict=True)]
    nested = {
        "input_ids": together,
        "position_ids": [torch.arange(len(row)) for row in together],
        "prompts": [torch.tensor(row) for row in prompts],
    }
    columns = {name: torch.nested.as_nested_tensor(of, layout=torch.jagged) for name, of in nested.items()}
    return tu.get_tensordict(columns, non_tensor_dict=settings)


def of_batch(
    model: torch.nn.Module, data: TensorDict, temperature: float, sharing: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of all responses, as the engine computes them."""
    ids, positions = data["input_ids"].values(), data["position_ids"].values()
    kept = packed = torch.arange(len(ids))
    if sharing:
        kept, packed = shared_prompts.pack(data["input_ids"], shared_prompts.prompt_lengths(data))
    places = shared_prompts.label_places(data)
    model.forward = MethodType(shared_prompts.forward, model)  # as the engine puts them there
    model.lm_head.forward = MethodType(shared_prompts.head, model.lm_head)
    output = model(
        input_ids=ids[None, kept],
        position_ids=positions[None, kept],
        places=packed[places],
        shift_labels=ids.roll(-1)[places],
        temperature=temperature,
        with_entropy=True,
    )
    return output.log_probs, output.entropy


@pytest.mark.parametrize(
    ("sharing", "temperature", "sharded"),
    [(True, 1.0, False), (True, 0.7, False), (False, 1.0, False), (False, 0.7, True), (True, 0.7, True)],
)
def test_log_probs_entropies_and_gradient_are_those_of_each_row_alone(
    sharing: bool, temperature: float, sharded: bool, install: Callable[[], None], one_rank: None
) -> None:
    """Sharded: as verl's FSDP2 does it, which shards a head that is not tied to the embedding on its own."""
    model = llama()
    alone, entropies = [], []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        logits = model(input_ids=torch.tensor([prompt + response]), use_cache=False).logits[0] / temperature
        of_response = logits[len(prompt) - 1 : -1].log_softmax(-1)
        alone.append(of_response[torch.arange(len(response)), torch.tensor(response)])
        entropies.append(-(of_response.exp() * of_response).sum(-1))
    expected = gradient(model, torch.stack([torch.cat(alone), torch.cat(entropies)], -1))
    install()
    if sharded:
        for part in (*model.model.layers, model.model.embed_tokens, model.lm_head, model):
            fully_shard(part)
    found, entropy = of_batch(model, rows(PROMPTS, RESPONSES), temperature, sharing)
    torch.testing.assert_close(found, torch.cat(alone), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy, torch.cat(entropies), rtol=1e-12, atol=1e-12)
    # Llama's norms are float32 whatever the model is, and there a shared prompt's gradients are summed.
    of_found = gradient(model, torch.stack([found, entropy], -1))
    error = ((of_found.full_tensor() if sharded else of_found) - expected).norm() / expected.norm()
    assert error < (1e-7 if sharing else 1e-14)


def test_a_prompt_is_packed_once() -> None:
    kept, packed = shared_prompts.pack(rows(PROMPTS, RESPONSES)["input_ids"], [len(p) for p in PROMPTS])
    ids = rows(PROMPTS, RESPONSES)["input_ids"].values()
    assert ids[kept].tolist() == [5, 6, 7, 10, 11, 15, 10, 11, 12, 13, 8, 12, 13, 14, 8, 9, 16]
    assert torch.equal(ids[kept][packed], ids)


PASSES = {"use_dynamic_bsz": True, "use_fused_kernels": True}
_TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@settings(deadline=None)
@given(st.lists(st.tuples(_TOKENS, _TOKENS), min_size=1, max_size=8), st.integers(8, 30))
def test_a_pass_has_no_more_tokens_than_it_may(pairs: list[tuple[list[int], list[int]]], limit: int) -> None:
    data = rows(*(list(of) for of in zip(*pairs, strict=True)), **PASSES, max_token_len_per_gpu=limit)
    batches, parts = shared_prompts.micro_batches(data)
    assert parts is not None
    assert sorted(row for part in parts for row in part) == list(range(len(pairs)))
    for batch, part in zip(batches, parts, strict=True):
        assert batch["input_ids"].offsets().diff().tolist() == [sum(map(len, pairs[row])) for row in part]
        kept, _ = shared_prompts.pack(batch["input_ids"], shared_prompts.prompt_lengths(batch))
        assert len(kept) <= limit


def test_responses_to_a_prompt_come_together_and_count_it_once() -> None:
    data = rows(PROMPTS, RESPONSES, **PASSES, max_token_len_per_gpu=10)
    assert shared_prompts.micro_batches(data)[1] == [[0, 2, 3], [1, 4]]


@pytest.mark.parametrize(
    ("given_settings", "all_of_them"),
    [
        ({}, True),
        ({"sliding_window": 8}, False),
        ({"layer_types": ["full_attention", "full_attention"], "sliding_window": 8}, True),
        ({"layer_types": ["full_attention", "sliding_attention"]}, False),
    ],
)
def test_models_with_windows_share_no_prompts(given_settings: dict[str, object], all_of_them: bool) -> None:
    assert shared_prompts.attends_to_all(LlamaConfig(num_hidden_layers=2, **given_settings)) == all_of_them


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_which_models_have_a_plain_head(family: Family, tmp_path: Path) -> None:
    """The choice by a model's type against its logits."""
    settings = {"vocab_size": 64, **OF_FAMILIES, **family.settings, "pad_token_id": 0}
    config = getattr(transformers, family.config)(**settings)
    config.save_pretrained(tmp_path)
    torch.manual_seed(0)
    built = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        logits, hidden = built(input_ids=ids).logits, built.model(input_ids=ids)[0]
    plain = torch.allclose(hidden @ built.lm_head.weight.t() + 0.0, logits, atol=1e-6)
    section = {"path": str(tmp_path), "lora_rank": 0, "target_modules": "all-linear"}
    assert sizes.fused_kernels("model", _root_=OmegaConf.create({"model": section})) == plain
    assert plain == (family.name != "Gemma-2")
    section |= {"lora_rank": 4, "target_modules": ["q_proj", "lm_head"]}
    assert not sizes.fused_kernels("model", _root_=OmegaConf.create({"model": section}))


# log-probs in chunks against log_softmax in float64: values, gradients, dtypes, memory


def by_log_softmax(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.double().log_softmax(-1).gather(-1, labels[..., None])[..., 0]


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(2, 7), st.integers(1, 200), st.integers(0, 2**31))
def test_values_and_gradient_are_those_of_log_softmax(rows: int, width: int, chunk: int, seed: int) -> None:
    """Whatever the chunks: of one row, of several, the last one shorter."""
    generator = torch.Generator().manual_seed(seed)
    logits = (10 * torch.randn(rows, width, generator=generator, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(width, (rows,), generator=generator)
    factors = torch.randn(rows, generator=generator, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_probs, "CHUNK_BYTES", chunk)
        found = label_log_probs(logits, labels)
        (gradient,) = torch.autograd.grad((factors * found).sum(), logits)
    expected = by_log_softmax(logits, labels)
    (expected_gradient,) = torch.autograd.grad((factors * expected).sum(), logits)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)


def test_bfloat16_logits_give_float32_log_probs_and_a_bfloat16_gradient() -> None:
    """The error is that of rounding to float32, far below bfloat16's step of 0.03 at these values."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(2, 50, 1000)).bfloat16().requires_grad_()
    labels = torch.randint(1000, (2, 50))
    before = logits.detach().clone()
    found = label_log_probs(logits, labels)
    assert (found.dtype, found.shape) == (torch.float32, (2, 50))
    expected = by_log_softmax(logits.detach(), labels)
    assert expected.abs().max() > 8
    torch.testing.assert_close(found.detach().double(), expected, rtol=0, atol=1e-5)
    found.sum().backward()
    assert torch.equal(logits, before)
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16
    one_hot = torch.nn.functional.one_hot(labels, 1000)
    exact = one_hot - logits.detach().double().softmax(-1)
    torch.testing.assert_close(logits.grad.double(), exact, rtol=2**-8, atol=1e-6)


def test_verls_log_probs_of_labels_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", None)  # put back after the test
    sdpa.install()
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 11, dtype=torch.float64) * 5, torch.randint(0, 11, (2, 3))
    found = torch_functional.logprobs_from_logits(logits, labels)
    torch.testing.assert_close(found, by_log_softmax(logits, labels))


class NewStorages(TorchDispatchMode):
    """Bytes of every storage that an operation allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given_storages = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if torch.is_tensor(t)}
        found = func(*args, **(kwargs or {}))
        for tensor in filter(torch.is_tensor, tree_leaves(found)):
            if tensor.untyped_storage().data_ptr() not in given_storages:
                self.sizes.append(tensor.untyped_storage().nbytes())
        return found


def test_no_float32_copy_of_all_logits_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest new tensor is a chunk forward, and the bfloat16 gradient backward."""
    chunk = 4 * 4096 * 4
    monkeypatch.setattr(log_probs, "CHUNK_BYTES", chunk)
    logits = torch.zeros(64, 4096, dtype=torch.bfloat16).requires_grad_()
    with NewStorages() as forward:
        found = label_log_probs(logits, torch.zeros(64, dtype=torch.int64))
    with NewStorages() as backward:
        found.sum().backward()
    assert max(forward.sizes) == chunk
    assert max(backward.sizes) == 64 * 4096 * 2
