"""Losses: pure functions over sampled positions, one value per position; aggregation is the trainer's.

Axes: P sampled positions of a batch (prompt and environment tokens are not among them).
"""

from __future__ import annotations

import torch
from torch import Tensor

FAR = 20.0
"Log-ratios are held within so many nats, so that no gap between two policies makes a loss infinite."


def clipped(logprobs_P: Tensor, sampled_logprobs_P: Tensor, advantages_P: Tensor, low: float, high: float) -> Tensor:
    """-min(ratio * A, clip(ratio, low, high) * A), shape (P,), ratio = exp(logprob - logprob when sampled).

    Source: PPO, arXiv 1707.06347, clips to [1 - eps, 1 + eps]; LOOP (arXiv 2502.01600) to [1 / (1 + eps), 1 + eps].
    """
    ratio_P = (logprobs_P - sampled_logprobs_P).clamp(-FAR, FAR).exp()
    return -torch.minimum(ratio_P * advantages_P, ratio_P.clamp(low, high) * advantages_P)


def weighted(logprobs_P: Tensor, sampled_logprobs_P: Tensor, advantages_P: Tensor) -> Tensor:
    """-ratio * A, shape (P,): the policy gradient, importance-weighted where the policy has moved since it sampled.

    Source: REINFORCE as in RLOO, arXiv 2402.14740; at ratio 1 its gradient is that of -A * logprob.
    """
    return -(logprobs_P - sampled_logprobs_P).clamp(-FAR, FAR).exp() * advantages_P


def k1(logprobs_P: Tensor, reference_P: Tensor) -> Tensor:
    """logprob - reference, shape (P,): an unbiased estimate of the KL divergence; for rewards, not for losses."""
    return logprobs_P - reference_P


def k3(logprobs_P: Tensor, reference_P: Tensor) -> Tensor:
    """exp(reference - logprob) - 1 - (reference - logprob), shape (P,), at most 10: never negative, for losses.

    Source: GRPO, arXiv 2402.03300. Example: k3(-1, -1.5) -> 0.106531; k3(-2, -1) -> 0.718282
    """
    gap_P = (reference_P - logprobs_P).clamp(-FAR, FAR)
    return (gap_P.exp() - 1 - gap_P).clamp(max=10.0)


def value(values_P: Tensor, values_before_P: Tensor, returns_P: Tensor, clip: float) -> Tensor:
    """0.5 * max((V - R)^2, (clip(V, V_before - c, V_before + c) - R)^2), shape (P,).

    Source: PPO's reference code and verl. Example: V .3, before .2, R .9, c .5 -> 0.18
    """
    held_P = values_before_P + (values_P - values_before_P).clamp(-clip, clip)
    return 0.5 * torch.maximum((values_P - returns_P).square(), (held_P - returns_P).square())


def imitation(logprobs_P: Tensor) -> Tensor:
    """-log-prob of what the expert said, shape (P,)."""
    return -logprobs_P
