"""Off-policy replay of rollout groups (ReRULE): plain Python and torch, usable from any trainer.

``Replay`` keeps groups and hands them out; ``uncollate`` and ``collate`` take padding off and put it on;
``log_ratios`` and ``weigh`` weigh them; ``replay_loss`` is the loss;
``save`` and ``load`` carry a ``Replay`` over a restart.
Each strategy (threshold, admission, eviction, sampling, truncation) is a small class in the module of its
name, chosen by ``ReplayConfig``.
"""

from .buffer import ReplayBuffer
from .collate import collate
from .config import ImportanceConfig, ReplayConfig, ReplayConfigError
from .gate import Gate
from .group import PromptIdentity, RolloutGroup
from .importance import RatioMoments, build_truncation, log_ratios, unit_ratios, weigh, weights
from .loss import (
    ReplayLoss,
    k3,
    low_var_kl,
    replay_loss,
    seq_mean_token_mean,
    seq_mean_token_sum,
    token_mean,
)
from .metrics import StepLog, offer_metrics
from .replay import Replay, ReplayStateError
from .state import load, save
from .stored import StoredGroup
from .threshold import build_threshold, is_hard
from .uncollate import uncollate

__all__ = [
    "Gate",
    "ImportanceConfig",
    "PromptIdentity",
    "RatioMoments",
    "Replay",
    "ReplayBuffer",
    "ReplayConfig",
    "ReplayConfigError",
    "ReplayLoss",
    "ReplayStateError",
    "RolloutGroup",
    "StepLog",
    "StoredGroup",
    "build_threshold",
    "build_truncation",
    "collate",
    "is_hard",
    "k3",
    "load",
    "log_ratios",
    "low_var_kl",
    "offer_metrics",
    "replay_loss",
    "save",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "token_mean",
    "uncollate",
    "unit_ratios",
    "weigh",
    "weights",
]
