"""What verl's FSDP2 engines do otherwise here, in both stages and `unlearn`.

**Adapters stay in float32.** verl gives an adapter the dtype of the base weights. With a bfloat16 base
(`model_dtype=bf16`) the optimizer would keep bfloat16 weights, in which an update below 0.2 to 0.4 % of a
weight vanishes. FSDP2 needs one dtype for trained weights alone.

**With `use_fused_kernels` the output matrix is no unit of its own.** verl shards it apart where it is not
tied to the embedding (Llama-3-8B, Mistral, Qwen2.5-7B), and such a unit is gathered when its module is
called. verl's fused forward reads the matrix and does not call the module, so that the first pass would end
with torch's "mixed torch.Tensor and DTensor". As a part of the root unit it is gathered with the first layer.
"""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def install() -> None:
    """Install both in this process; to be called before verl builds a model."""
    from verl.utils import fsdp_utils
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    add_adapter, shard = FSDPEngine._build_lora_module, FSDPEngine._build_fsdp_module
    units_of = fsdp_utils._select_fsdp2_wrap_targets

    def add_adapter_in_float32(engine: Any, module: Any) -> Any:
        adapted = add_adapter(engine, module)
        if engine.engine_config.strategy == "fsdp2":
            for weight in filter(lambda weight: weight.requires_grad, adapted.parameters()):
                weight.data = weight.data.float()
        return adapted

    def shard_with_head_in_root(engine: Any, module: Any) -> Any:
        if not engine.model_config.use_fused_kernels:
            return shard(engine, module)
        head = module.get_output_embeddings()
        fsdp_utils._select_fsdp2_wrap_targets = lambda *of: [
            unit for unit in units_of(*of) if unit is not head
        ]
        try:
            return shard(engine, module)
        finally:
            fsdp_utils._select_fsdp2_wrap_targets = units_of

    FSDPEngine._build_lora_module = add_adapter_in_float32
    FSDPEngine._build_fsdp_module = shard_with_head_in_root
