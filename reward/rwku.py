"""RWKU's reward: a refusal that names the person; an answer about somebody else."""

from reward.config import RewardConfig

REWARD = RewardConfig(form="guarded", lambda_forget=0.5, lambda_retain=0.5, gamma=0.3, rouge="rwku")
"""Weights, gamma and ROUGE-L convention as in RULE's code; the paper's form is in `experiment=paper/rwku`."""
