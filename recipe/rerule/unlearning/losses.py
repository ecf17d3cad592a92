"""The losses of unlearning methods that are not reinforcement, each as its paper writes it.

Everything is pure torch and keeps the dtype that it is given. Log-probs are natural logarithms. A sequence is
the answer of one row, its end-of-sequence token included. docs/methods.md says which public code departs from
which formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

Conjugate = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]

DIVERGENCES: MappingProxyType[str, Conjugate] = MappingProxyType(
    {
        "pearson": (lambda v: v, lambda u: u.square() / 4 + u),
        "kl": (lambda v: v, lambda u: (u - 1).exp()),
        "tv": (lambda v: v.tanh() / 2, lambda u: u),
        "js": (lambda v: math.log(2) - softplus(-v), lambda u: -torch.log(2 - u.exp())),
    }
)
"""Of each f-divergence: the activation g, and the conjugate f* that is applied to g."""


def ga(sequence_log_probs: Tensor, lengths: Tensor) -> Tensor:
    """Gradient ascent: the mean log-prob of all tokens, which is minus their NLL.

    Args:
        sequence_log_probs: [rows], log pi(y|x), summed over the tokens of y.
        lengths: [rows], number of those tokens.
    """
    return sequence_log_probs.sum() / lengths.sum().to(sequence_log_probs.dtype)


def nll(sequence_log_probs: Tensor, lengths: Tensor) -> Tensor:
    """The negative log-likelihood of all tokens, averaged over them. Arguments as of `ga`."""
    return -ga(sequence_log_probs, lengths)


def wga(log_probs: Tensor, beta: float) -> Tensor:
    """Weighted gradient ascent: p^b log p of each token, where p^b counts as a constant.

    "Rethinking LLM Unlearning Objectives: A Gradient Perspective and Go Beyond", arXiv 2502.19301; formula
    also of its code (tmlr-group/G-effect, dataloader.py, `wga`). Gradient ascent goes on pushing tokens that
    are improbable already; here their weight goes to 0.

    Args:
        log_probs: [tokens], log p of the tokens to forget.
        beta: b, at least 0; 0 is gradient ascent.

    Returns:
        [tokens]; to be averaged over all tokens of the batch.
    """
    return satimp(log_probs, beta, 0.0)


def satimp(log_probs: Tensor, beta: float, beta2: float) -> Tensor:
    """SatImp: p^b (1 - p)^c log p of each token, where both powers count as constants.

    "Exploring Criteria of Loss Reweighting to Enhance LLM Unlearning", arXiv 2505.11953; formula also of its
    code (tmlr-group/SatImp, dataloader/dataloader_sat.py). p^b is its weight of saturation, (1 - p)^c that of
    importance.

    Args:
        log_probs: [tokens], log p of the tokens to forget.
        beta: b, at least 0.
        beta2: c, at least 0; 0 is `wga`.

    Returns:
        [tokens]; to be averaged over all tokens of the batch.
    """
    constant = log_probs.detach()
    # Rounding may leave a log-prob above 0, and no power of a negative number is wanted.
    improbable = (-constant.expm1()).clamp(min=0)
    return (beta * constant).exp() * improbable**beta2 * log_probs


def undial(start_logits: Tensor, logits: Tensor, tokens: Tensor, alpha: float) -> Tensor:
    """UNDIAL: cross-entropy with the labels softmax(z0 - a onehot(y)), where z0 are the start model's logits.

    "UNDIAL: Self-Distillation with Adjusted Logits for Robust Unlearning in Large Language Models", arXiv
    2402.10052; formula also of its code (dong-river/LLM_unlearning), whose `di_strength` is alpha. That
    code, and open-unlearning, average over prompt and padding too; here only tokens of answers count.

    Args:
        start_logits: [..., V], z0; no gradient flows into them.
        logits: [..., V], of the model that is trained.
        tokens: [...], y, the tokens to forget, as whole numbers below V.
        alpha: a, at least 0; 0 holds the model at the start model.

    Returns:
        [...]; to be averaged over all tokens of the batch.
    """
    places = tokens.unsqueeze(-1)
    lowered = start_logits.gather(-1, places) - alpha
    return loss_by_position(start_logits.scatter(-1, places, lowered), logits, "soft")


def ceu(logits: Tensor, tokens: Tensor) -> Tensor:
    """CE-U: cross-entropy with the model's own softmax from which the token to forget is left out.

    "CE-U: Cross Entropy Unlearning", arXiv 2503.01224. The labels are the softmax of the logits with that of
    the token at minus infinity, and count as constants. Code of its author (open-unlearning,
    src/trainer/unlearn/ceu.py) leaves the first token of each answer as it is; here every token counts.

    Args:
        logits: [..., V].
        tokens: [...], the tokens to forget, as whole numbers below V.

    Returns:
        [...]; to be averaged over all tokens of the batch.
    """
    labels = logits.detach().scatter(-1, tokens.unsqueeze(-1), -math.inf)
    return loss_by_position(labels, logits, "soft")


def pdu(logits: Tensor) -> Tensor:
    """PDU: the flattening of logit margins, (max z - mean z)^2 over the vocabulary.

    "Constrained Entropic Unlearning: A Primal-Dual Framework for Large Language Models", arXiv 2506.05314;
    formula also of its authors' code (open-unlearning, src/trainer/unlearn/pdu.py, which takes it one
    position later, since it does not shift its mask). It is 0 where all tokens
    are equally probable. `dual_ascent` is the other half of the method.

    Args:
        logits: [..., V].

    Returns:
        [...]; to be averaged over all tokens of the batch.
    """
    return (logits.amax(-1) - logits.mean(-1)).square()


def rmu(hidden: Tensor, direction: Tensor, steering: float) -> Tensor:
    """RMU: the distance of hidden states to the control vector c u, as of `distance_by_position`.

    "The WMDP Benchmark: Measuring and Reducing Malicious Use With Unlearning", arXiv 2403.03218; formula also
    of its code (centerforaisafety/wmdp, rmu/unlearn.py), whose mean is over prompt and padding too. The code
    has one u for each corpus to forget; here a run has one.

    Args:
        hidden: [..., H].
        direction: [H], u, of length 1; no gradient flows into it.
        steering: c, above 0.

    Returns:
        [...]; to be averaged over all tokens of the batch.
    """
    return distance_by_position(hidden, (steering * direction).expand_as(hidden))


def distance_by_position(hidden: Tensor, wanted: Tensor) -> Tensor:
    """The squared difference, averaged over the H features: [..., H] twice to [...].

    The paper of RMU has the sum over features; its code and open-unlearning have the mean, for both terms.
    No gradient flows into `wanted`.
    """
    return (hidden - wanted.detach()).square().mean(-1)


def dual_ascent(weight: float, retain: float, limit: float, rate: float) -> float:
    """The weight of the retain term for the next step: max(0, w + r (L - e)), of PDU (see `pdu`).

    Args:
        weight: w, of this step.
        retain: L, the retain term of this step.
        limit: e, which L should not exceed.
        rate: r.
    """
    return max(0.0, weight + rate * (retain - limit))


def whp(start_logits: Tensor, reinforced_logits: Tensor, logits: Tensor, alpha: float, labels: str) -> Tensor:
    """Who's Harry Potter (arXiv 2310.02238, section 2): cross-entropy with the labels of two frozen models.

    [..., V] three times to [...]. Arguments and errors as of `generic_logits` and `loss_by_position`.
    """
    return loss_by_position(generic_logits(start_logits, reinforced_logits, alpha), logits, labels)


def generic_logits(start: Tensor, reinforced: Tensor, alpha: float) -> Tensor:
    """z0 - alpha relu(z_reinforced - z0): lower for each token that training on what to forget has raised.

    Args:
        start: [..., V], z0, of the start model.
        reinforced: [..., V], of the start model trained further on what is to be forgotten.
        alpha: 0 or above; 0 gives the start model's logits.
    """
    return start - alpha * (reinforced - start).relu()


def loss_by_position(generic: Tensor, logits: Tensor, labels: str) -> Tensor:
    """Cross-entropy of each position with its labels: [..., V] and [..., V] to [...].

    Args:
        generic: [..., V], as of `generic_logits`; no gradient flows into them.
        logits: [..., V], of the model that is trained.
        labels: "argmax", the token with the highest generic logit, as in the paper; or "soft", the softmax.
    """
    generic, log_probs = generic.detach(), logits.log_softmax(-1)
    if labels == "argmax":
        return -log_probs.gather(-1, generic.argmax(-1, keepdim=True)).squeeze(-1)
    return -(generic.softmax(-1) * log_probs).sum(-1)


def npo(sequence_log_probs: Tensor, reference_log_probs: Tensor, beta: float) -> Tensor:
    """Negative preference optimisation (arXiv 2404.05868, eq. 3): -(2/b) E log sigma(-b (s - s0)).

    Args:
        sequence_log_probs: [rows], s = log pi(y|x), summed over the tokens of y.
        reference_log_probs: [rows], s0, the same under the reference model.
        beta: b, above 0; towards 0 the gradient becomes that of gradient ascent.
    """
    return -(2 / beta) * logsigmoid(-beta * (sequence_log_probs - reference_log_probs)).mean()


def simnpo(sequence_log_probs: Tensor, lengths: Tensor, beta: float, gamma: float) -> Tensor:
    """SimNPO (arXiv 2410.07163): -(2/b) E log sigma(-(b/n) s - gamma); it needs no reference.

    Args:
        sequence_log_probs: [rows], s, summed over the tokens of y.
        lengths: [rows], n, number of those tokens.
        beta: b, above 0.
        gamma: as in the paper, outside the product with beta. Public codes multiply theirs by beta, so that
            gamma is beta times theirs.
    """
    means = sequence_log_probs / lengths.to(sequence_log_probs.dtype)
    return -(2 / beta) * logsigmoid(-beta * means - gamma).mean()


def dpo(
    chosen: Tensor,
    chosen_reference: Tensor,
    rejected: Tensor,
    rejected_reference: Tensor,
    beta: float,
    scale: float | None = None,
) -> Tensor:
    """Direct preference optimisation: -scale E log sigma(b [(s - s0) of chosen - (s - s0) of rejected]).

    Args:
        chosen: [rows], s of the wanted answers (refusals), summed over tokens.
        chosen_reference: [rows], s0 of the same.
        rejected: [rows], s of the answers to forget.
        rejected_reference: [rows], s0 of the same.
        beta: b, above 0.
        scale: factor of the loss; None is 1, as in the DPO paper. Code that descends from NPO's has 2/beta.
    """
    margin = (chosen - chosen_reference) - (rejected - rejected_reference)
    return -(1 if scale is None else scale) * logsigmoid(beta * margin).mean()


def flat(chosen_probability: Tensor, rejected_probability: Tensor, divergence: str) -> Tensor:
    """FLAT (arXiv 2410.11143): E [-g(P_e) + f*(g(P_f))], which needs neither retain rows nor a reference.

    Args:
        chosen_probability: [rows], P_e: the mean probability of the template answer's tokens.
        rejected_probability: [rows], P_f: the same of the answer to forget.
        divergence: the name of an f-divergence.
    """
    activation, conjugate = DIVERGENCES[divergence]
    return (conjugate(activation(rejected_probability)) - activation(chosen_probability)).mean()


def kl_by_position(reference_logits: Tensor, logits: Tensor) -> Tensor:
    """KL(reference || model) over the full vocabulary of each position: [..., V] and [..., V] to [...].

    No gradient flows into the reference.
    """
    reference, model = reference_logits.detach().log_softmax(-1), logits.log_softmax(-1)
    return (reference.exp() * (reference - model)).sum(-1)


def smoothing_weights(rate: float, normal_rows: int) -> tuple[float, float]:
    """Weights of smoothed gradient ascent (arXiv 2510.22376), which sum to 1.

    Generalised label smoothing over K = normal_rows + 1 rows: the forget row gets 1 - r + r/K and each normal
    row r/K.

    Args:
        rate: r; 0 is gradient ascent, and negative rates are allowed.
        normal_rows: rows to be kept for each row to be forgotten, at least 1.

    Returns:
        The weight of gradient ascent on the forget row, and that of the mean NLL of the normal rows.
    """
    share = rate / (normal_rows + 1)
    return 1 - rate + share, share * normal_rows
