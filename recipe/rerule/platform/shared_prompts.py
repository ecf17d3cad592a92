"""verl's FSDP engine on a processor: a prompt is computed once, and the head for responses alone.

The responses of a group begin with the same prompt, which takes most of the tokens where answers are short.
Here a micro-batch packs each prompt once, before its responses; `attention` reads from the positions which
response continues which prompt. Logits are computed where a log-prob is asked for, in chunks that are not
kept. Losses, gradients and log-probs are those of verl's plain engine but for rounding.

It acts with `use_fused_kernels`, whose place on a processor it takes; false is verl's plain engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import MethodType
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.models.transformers.dense_common import CausalLMOutputForPPO
from verl.utils import tensordict_utils as tu
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine.utils import prepare_micro_batches

from recipe.rerule.platform.log_probs import head_log_probs


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cuda", vendor="cpu")
class SharedPromptEngine(FSDPEngineWithLMHead):
    """Chosen on platform=cpu, by the vendor's name."""

    def _build_module(self) -> Any:
        module = super()._build_module()
        # Packed rows on one device, with an attention that is ours: else verl's fused forward stays.
        self._packs = (
            self.model_config.use_fused_kernels
            and self.use_remove_padding
            and module.config._attn_implementation == "sdpa"
        )
        self._shares = self._packs and attends_to_all(module.config)
        if self._packs:
            module.forward = MethodType(forward, module)
            module.lm_head.forward = MethodType(head, module.lm_head)
        return module

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """verl's, with shared prompts packed once, and the places whose log-probs are asked for."""
        inputs, arguments = super().prepare_model_inputs(micro_batch)
        if not self._packs:
            return inputs, arguments
        ids, positions = inputs["input_ids"][0], inputs["position_ids"][0]
        places = label_places(micro_batch)
        kept, packed = torch.arange(len(ids)), torch.arange(len(ids))
        if self._shares and "prompts" in micro_batch.keys():  # noqa: SIM118  (a TensorDict iterates over rows)
            kept, packed = pack(micro_batch["input_ids"], prompt_lengths(micro_batch))
        inputs |= {
            "input_ids": ids[None, kept],
            "position_ids": positions[None, kept],
            "places": packed[places],
            "shift_labels": inputs["shift_labels"][0, places],
            "with_entropy": tu.get_non_tensor_data(micro_batch, "calculate_entropy", default=False),
        }
        return inputs, arguments | {"places": places}

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        """{log_probs, entropy}: nested [rows, tokens], 0 at the places that were not asked for."""
        if not self._packs:
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        offsets = micro_batch["input_ids"].offsets()
        found = {"log_probs": output.log_probs, "entropy": output.entropy}
        return {
            name: torch.nested.nested_tensor_from_jagged(
                values.new_zeros(int(offsets[-1])).index_copy(0, output_args["places"], values), offsets
            )
            for name, values in found.items()
            if values is not None
        }


def forward(
    self: Any,
    input_ids: Tensor,
    position_ids: Tensor,
    places: Tensor,
    shift_labels: Tensor,
    temperature: float,
    with_entropy: bool,
    **_: Any,
) -> CausalLMOutputForPPO:
    """Log-probs after some tokens, of a transformers model with a decoder `model` and a head `lm_head`.

    Args:
        input_ids, position_ids: [1, tokens], packed.
        places: [labels], tokens after which a label stands.
        shift_labels: [labels].
    """
    hidden = self.model(input_ids=input_ids, position_ids=position_ids, use_cache=False)[0][0]
    log_probs, entropy = self.lm_head(hidden[places], shift_labels, temperature, with_entropy)
    return CausalLMOutputForPPO(log_probs=log_probs, entropy=entropy)


def head(self: torch.nn.Linear, hidden: Tensor, *labels: Any) -> Any:
    """A head without a bias: `head_log_probs` where labels and their arguments are given, else logits.

    FSDP2 shards a head that is not tied to the embedding on its own. Its weight is whole within this call
    alone.
    """
    if labels:
        return head_log_probs(hidden, self.weight, *labels)
    return torch.nn.functional.linear(hidden, self.weight)


def attends_to_all(config: Any) -> bool:
    """Whether every layer of a model attends to all earlier tokens, which sharing a prompt rests on."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return set(kinds) == {"full_attention"}
    return getattr(config, "sliding_window", None) is None


def prompt_lengths(data: TensorDict) -> list[int]:
    """Tokens of each row's prompt, whose columns are padded (verl's V0) or nested (V1)."""
    prompts = data["prompts"]
    if prompts.is_nested:
        lengths = prompts.offsets().diff()
    else:
        lengths = data["attention_mask"][:, : prompts.shape[1]].sum(1)
    return [int(length) for length in lengths]


def label_places(data: TensorDict) -> Tensor:
    """[labels] int64: the packed tokens before each token of a response, or, in stage 1, of the loss."""
    ids = data["input_ids"]
    if "prompts" not in data.keys():  # noqa: SIM118
        return torch.nonzero(torch.roll(data["loss_mask"].values(), -1)).flatten()
    rows = zip(pairwise(ids.offsets().tolist()), prompt_lengths(data), strict=True)
    return torch.cat([torch.arange(start + prompt - 1, end - 1) for (start, end), prompt in rows])


def pack(ids: Tensor, prompts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """How rows are packed that may share prompts.

    Args:
        ids: nested [rows, tokens].
        prompts: tokens of each row's prompt.

    Returns:
        kept: [packed] int64, the places in `ids.values()` that are packed, rows of one prompt together;
        packed: [tokens] int64, where each of the places is found among them.
    """
    starts = ids.offsets()[:-1].tolist()
    kept: list[Tensor] = []
    packed = torch.empty(len(ids.values()), dtype=torch.int64)
    length = 0
    for rows in of_one_prompt(ids, prompts):
        for row in rows:
            shared = 0 if row == rows[0] else prompts[row]
            own = torch.arange(starts[row] + shared, int(ids.offsets()[row + 1]))
            packed[own] = length + torch.arange(len(own))
            if shared:
                first = starts[rows[0]]
                packed[starts[row] : starts[row] + shared] = packed[first : first + shared]
            kept.append(own)
            length += len(own)
    return torch.cat(kept), packed


def of_one_prompt(ids: Tensor, prompts: Sequence[int]) -> list[list[int]]:
    """Row numbers by prompt, in order of first appearance."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, (tokens, prompt) in enumerate(zip(ids.unbind(), prompts, strict=True)):
        groups.setdefault(tuple(tokens[:prompt].tolist()), []).append(row)
    return list(groups.values())


def micro_batches(
    data: TensorDict, dp_group: Any = None, **others: Any
) -> tuple[list[TensorDict], list[list[int]] | None]:
    """verl's `prepare_micro_batches`, which keeps the rows of a prompt together and counts a prompt once.

    Only with passes by tokens (`use_dynamic_bsz`) of one rank; other batches are left to verl.
    """
    counted = tu.get_non_tensor_data(data, "use_dynamic_bsz", default=True)
    fused = tu.get_non_tensor_data(data, "use_fused_kernels", default=False)
    alone = dp_group is None or torch.distributed.get_world_size(dp_group) == 1
    if not (counted and fused and alone and "prompts" in data.keys()):  # noqa: SIM118
        return prepare_micro_batches(data, dp_group, **others)
    prompts, lengths = prompt_lengths(data), data["input_ids"].offsets().diff().tolist()
    parts: list[list[int]] = []
    room = 0
    for rows in of_one_prompt(data["input_ids"], prompts):
        shared = 0
        for row in rows:
            if lengths[row] - shared > room:
                parts.append([])
                shared, room = 0, data["max_token_len_per_gpu"]
            parts[-1].append(row)
            room -= lengths[row] - shared
            shared = prompts[row]
    return [tu.index_select_tensor_dict(data, rows) for rows in parts], parts
