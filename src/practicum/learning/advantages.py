"""Advantage estimators: pure functions over one group's rewards, statistics in float64.

Axes: G trajectories of one group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NO_SIGNAL = 1e-6
"A group whose rewards differ by no more than this teaches nothing."


def leave_one_out(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each reward less the mean of the others: G / (G - 1) * (R - mean(R)). Shape (G,) in and out.

    Source: LOOP, arXiv 2502.01600, without division by the standard deviation.
    Exactly 0 for a group of one and for a constant group.
    Example: leave_one_out([1, 0, 0, 1, 0]) -> [0.75, -0.5, -0.5, 0.75, -0.5]
    """
    rewards_G = np.asarray(rewards_G, dtype=np.float64)
    if not has_signal(rewards_G):
        return np.zeros_like(rewards_G)
    size = len(rewards_G)
    return size / (size - 1) * (rewards_G - rewards_G.mean())


def has_signal(rewards_G: NDArray[np.float64]) -> bool:
    """True when a group has at least two members and their rewards differ."""
    return len(rewards_G) > 1 and float(np.ptp(rewards_G)) > NO_SIGNAL
