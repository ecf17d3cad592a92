"""What two runs must have in common for one to go on with rollouts that the other stored."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from omegaconf import DictConfig


def run_identity(config: DictConfig, tokenizer: Any) -> dict[str, str | int]:
    """Group size, response length and tokenizer of a run, by setting.

    Stored groups are token ids, and replay batches are padded and normalised as groups of one size; under
    another value the buffer would be misread rather than merely stale. Of the tokenizer it is a digest of its
    map from token to id, 16 hexadecimal digits.
    """
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return {
        "actor_rollout_ref.rollout.n": config.actor_rollout_ref.rollout.n,
        "data.max_response_length": config.data.max_response_length,
        "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest()[:16],
    }
