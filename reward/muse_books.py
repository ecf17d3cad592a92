"""MUSE-Books' reward: a refusal, named or not; an answer about something else."""

from reward.config import RewardConfig

REWARD = RewardConfig(form="guarded", lambda_forget=1.0, lambda_retain=0.5, gamma=0.3, rouge="rwku")
"""As RWKU's, but without the keyword term, as RULE's code; few of the questions name anybody."""
