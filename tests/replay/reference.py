"""The weights of a replay update by the paper's formulae, in plain Python, row by row of its valid tokens."""

import itertools
import math

from recipe.rerule.replay import ImportanceConfig

Rows = list[list[float]]
"""Of each row a number for each valid token; of `ratios` at a level of sequences one number alone."""


def ratios(log_ratios: Rows, level: str) -> Rows:
    logs = {
        "token": log_ratios,
        "sequence": [[sum(row) / len(row)] for row in log_ratios],
        "sequence_sum": [[sum(row)] for row in log_ratios],
    }[level]
    return [[math.exp(value) for value in row] for row in logs]


def weights(log_ratios: Rows, config: ImportanceConfig, advantages: Rows) -> Rows:
    """rho~ of every valid token."""
    units = ratios(log_ratios, config.level)
    clipped = [[min(max(unit, config.clip_low), config.clip_high) for unit in row] for row in units]
    every = list(itertools.chain(*clipped))
    divisor = sum(every) / len(every) if config.normalize else 1.0
    found = []
    for own, cut, row in zip(units, clipped, advantages, strict=True):
        tokens = len(row) // len(own)
        found.append([])
        for unit, weight, advantage in zip(own * tokens, cut * tokens, row, strict=True):
            pushed_on = unit > config.clip_high if advantage > 0 else unit < config.clip_low
            ends = config.trust_region and pushed_on and advantage
            found[-1].append(0.0 if ends else weight / divisor)
    return found


def share(aggregate: str, lengths: list[int], row: int) -> float:
    """What one valid token of a row counts in the aggregate of the whole batch."""
    return {
        "token-mean": 1 / sum(lengths),
        "seq-mean-token-sum": 1 / len(lengths),
        "seq-mean-token-mean": 1 / (len(lengths) * lengths[row]),
    }[aggregate]
