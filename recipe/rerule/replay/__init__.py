"""Off-policy replay of rollout groups (ReRULE): plain Python and torch, usable from any trainer.

``ReplayHook`` is what ReRULE adds to a training step. Around it: ``unpad_rows`` and ``pad_groups`` take
padding off and put it on; ``log_ratios`` and ``weigh`` weigh drawn groups; ``replay_loss`` is the loss;
``save`` and ``load`` carry a ``Replay`` over a restart.
Each rule (threshold, admission, eviction, sampling) is chosen by ``ReplayConfig``; ``custom`` takes those of
the user's own.
"""

from .buffer import ReplayBuffer, StoredGroup
from .config import ImportanceConfig, ReplayConfig, ReplayConfigError
from .custom import ReplayRuleError
from .group import PromptIdentity, RolloutGroup, pad_groups, unpad_rows
from .hook import ReplayHook
from .importance import ImportanceStats, importance_ratios, log_ratios, weigh, weights
from .log import StepLog, offer_metrics
from .loss import (
    ReplayLoss,
    k3,
    low_var_kl,
    replay_loss,
    seq_mean_token_mean,
    seq_mean_token_sum,
    token_mean,
)
from .replay import Replay, ReplayStateError
from .selection import Gate, Threshold, is_hard
from .state import load, save

__all__ = [
    "Gate",
    "ImportanceConfig",
    "ImportanceStats",
    "PromptIdentity",
    "Replay",
    "ReplayBuffer",
    "ReplayConfig",
    "ReplayConfigError",
    "ReplayHook",
    "ReplayLoss",
    "ReplayRuleError",
    "ReplayStateError",
    "RolloutGroup",
    "StepLog",
    "StoredGroup",
    "Threshold",
    "importance_ratios",
    "is_hard",
    "k3",
    "load",
    "log_ratios",
    "low_var_kl",
    "offer_metrics",
    "pad_groups",
    "replay_loss",
    "save",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "token_mean",
    "unpad_rows",
    "weigh",
    "weights",
]
