"""Logistic regression with an L2 penalty, for probes of hidden states and of texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor

_FLAT = 1e-10
"""Largest slope of a point that is taken for the minimum."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Classifier:
    """A linear classifier of standardised features.

    Attributes:
        means, scales: of the training features, [features]; a feature that does not vary has the scale 1.
        weights: of the standardised features, [features].
        bias: what is added.
    """

    means: Tensor
    scales: Tensor
    weights: Tensor
    bias: float

    def scores(self, features: Tensor) -> Tensor:
        """The log-odds of the positive class, [rows], for features of shape [rows, features]."""
        return ((features.double() - self.means) / self.scales) @ self.weights + self.bias


def fit(features: Tensor, labels: Tensor, penalty: float = 1.0) -> Classifier:
    """The weights that minimise the summed log-loss plus penalty / 2 times their squared norm, in float64.

    The bias is not penalised. Features are standardised with the means and deviations of the training rows.
    The minimum is unique, and nothing is left to chance. The weights are a combination of the rows, so that
    the search is in the space of the rows, which has no more dimensions than there are rows or features.

    Args:
        features: [rows, features].
        labels: [rows], 0 or 1; both must occur.
        penalty: above 0. 1 is what scikit-learn calls C = 1.
    """
    rows = features.double()
    means, deviations = rows.mean(0), rows.std(0, correction=0)
    scales = deviations.where(deviations > 1e-12 * (1 + means.abs()), 1.0)
    left, singular, right = torch.linalg.svd((rows - means) / scales, full_matrices=False)
    given = torch.cat([left * singular, torch.ones(len(rows), 1, dtype=rows.dtype)], 1).numpy()
    wanted, penalties = labels.double().numpy(), np.full(given.shape[1], penalty)
    penalties[-1] = 0

    def loss(at: Array) -> tuple[float, Array]:
        odds = given @ at
        value = np.logaddexp(0, odds).sum() - wanted @ odds + (penalties * at * at).sum() / 2
        return float(value), given.T @ (expit(odds) - wanted) + penalties * at

    def curvature(at: Array) -> Array:
        odds = expit(given @ at)
        return given.T @ (given * (odds * (1 - odds))[:, None]) + np.diag(penalties)

    start = np.zeros(given.shape[1])
    found = minimize(loss, start, jac=True, hess=curvature, method="trust-exact", options={"gtol": _FLAT})
    point = torch.from_numpy(found.x)
    return Classifier(means, scales, right.T @ point[:-1], float(point[-1]))
