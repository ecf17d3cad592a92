"""A reward by which the answers of an untrained model differ at every step: half a point for odd lengths."""

from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **options: Any
) -> dict[str, float]:
    """0.5 or 0: below the threshold of replay, whichever. Nothing is a refusal; a right answer is chance."""
    length = len(solution_str)
    return {"score": 0.5 * (length % 2), "refused": 0.0, "right": float(length % 3 == 0)}
