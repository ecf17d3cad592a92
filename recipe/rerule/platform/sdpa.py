"""torch's own attention ("sdpa") in place of the package flash-attn, for verl's FSDP workers.

verl's default is flash_attention_2. `model.override_config.attn_implementation=sdpa` needs no other package,
on any device, with two stand-ins in each worker process: packed rows attend apart (`attention`), and
log-probs are float32 (`log_probs`).
"""

from __future__ import annotations

from typing import Any

from recipe.rerule.platform import attention
from recipe.rerule.platform.log_probs import label_log_probs

NAME = "sdpa"


def is_chosen(model: Any) -> bool:
    """Whether verl's configuration of a model chooses "sdpa".

    Args:
        model: the section `model` (stage 1) or `actor_rollout_ref.model`, a DictConfig or verl's dataclass.
    """
    return dict(model.override_config).get("attn_implementation") == NAME


def install() -> None:
    """Install both stand-ins in this process; to be called before verl builds a model."""
    from verl.utils import torch_functional

    # verl: loops over rows, here single tokens, in the logits' own dtype. Where flash-attn is installed verl
    # takes its cross-entropy, float32 too, and does not call this.
    torch_functional.logprobs_from_logits_v2 = label_log_probs
    attention.install()
