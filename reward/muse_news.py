"""MUSE-News' reward: as MUSE-Books'."""

from reward.muse_books import REWARD

__all__ = ["REWARD"]
