"""Policy losses: pure functions over sampled positions, one value per position; aggregation is the trainer's.

Axes: P sampled positions of a batch (prompt and environment tokens are not among them).
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped(logprobs_P: Tensor, sampled_logprobs_P: Tensor, advantages_P: Tensor, low: float, high: float) -> Tensor:
    """-min(ratio * A, clip(ratio, low, high) * A), shape (P,), ratio = exp(logprob - logprob when sampled).

    Source: PPO, arXiv 1707.06347; LOOP (arXiv 2502.01600) clips to [1 / (1 + eps), 1 + eps].
    The log-ratio is held within +-20 so that no gap between the two makes the loss infinite.
    """
    ratio_P = (logprobs_P - sampled_logprobs_P).clamp(-20.0, 20.0).exp()
    return -torch.minimum(ratio_P * advantages_P, ratio_P.clamp(low, high) * advantages_P)


def imitation(logprobs_P: Tensor) -> Tensor:
    """-log-prob of what the expert said, shape (P,)."""
    return -logprobs_P
