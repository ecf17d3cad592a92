"""RWKU's reward: a refusal that names the person; an answer about somebody else."""

from reward.config import RewardConfig

REWARD = RewardConfig(form="additive", lambda_forget=0.5, lambda_retain=0.5, gamma=0.3, rouge="rwku")
"""The paper's form, which gives no numbers; weights, gamma and ROUGE-L convention as in RULE's code."""
