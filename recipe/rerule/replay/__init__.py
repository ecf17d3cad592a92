"""Off-policy replay of rollout groups (ReRULE): plain Python and torch, usable from any trainer.

``ReplayHook`` is what ReRULE adds to a training step. Around it: ``unpad_rows`` and ``pad_groups`` take
padding off and put it on; ``log_ratios`` and ``weigh`` weigh drawn groups; ``replay_loss`` is the loss;
``save`` and ``load`` carry a ``Replay`` over a restart.
Each rule (threshold, admission, eviction, sampling) is chosen by ``ReplayConfig``; ``custom`` takes those of
the user's own.
"""

from .buffer import StoredGroup, Threshold, is_hard
from .config import ImportanceConfig, ReplayConfig, ReplayConfigError
from .custom import ReplayRuleError
from .group import PromptIdentity, RolloutGroup, pad_groups, unpad_rows
from .log import StepLog, offer_metrics
from .loss import (
    ImportanceStats,
    ReplayLoss,
    importance_ratios,
    log_ratios,
    low_var_kl,
    replay_loss,
    token_mean,
    weigh,
)
from .replay import Replay, ReplayHook, ReplayStateError
from .state import load, save

__all__ = [
    "ImportanceConfig",
    "ImportanceStats",
    "PromptIdentity",
    "Replay",
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
    "load",
    "log_ratios",
    "low_var_kl",
    "offer_metrics",
    "pad_groups",
    "replay_loss",
    "save",
    "token_mean",
    "unpad_rows",
    "weigh",
]
