"""Credit: pure functions from rewards to advantages, statistics in float64.

Axes: G trajectories of one group, T sampled tokens of one trajectory in the order of time. Prompt and environment
tokens are on no axis, so that whatever runs over T skips them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

NO_SIGNAL = 1e-6
"A group whose rewards differ by no more than this teaches nothing."


@dataclass(frozen=True)
class Attempt:
    """What credit sees of one trajectory.

    Example: five sampled tokens, success, a critic: Attempt(1.0, array([0, 0, 0, 0, 1.]), array([.2, .3, .4, .5, .6]))
    """

    outcome: float
    "What the attempt as a whole was paid."
    rewards_T: Numbers
    "Reward paid with each sampled token: the outcome with the last, a KL penalty, if any, with each."
    values_T: Numbers
    "What the critic expected before each token; zeros without a critic."

    @property
    def total(self) -> float:
        """All that was paid, also where nothing was sampled."""
        return float(self.rewards_T.sum()) if len(self.rewards_T) else self.outcome


Credit = Callable[[Sequence[Attempt]], list[Numbers]]
"Attempts of one group to the advantage of each of their tokens, (T,) each."


def leave_one_out(rewards_G: Numbers) -> Numbers:
    """Each reward less the mean of the others: G / (G - 1) * (R - mean(R)). Shape (G,) in and out.

    Source: LOOP, arXiv 2502.01600, and RLOO, arXiv 2402.14740: without division by the standard deviation.
    Exactly 0 for a group of one and for a constant group.
    Example: leave_one_out([1, 0, 0, 1, 0]) -> [0.75, -0.5, -0.5, 0.75, -0.5]
    """
    rewards_G = np.asarray(rewards_G, dtype=np.float64)
    if not has_signal(rewards_G):
        return np.zeros_like(rewards_G)
    size = len(rewards_G)
    return size / (size - 1) * (rewards_G - rewards_G.mean())


def normalised(rewards_G: Numbers) -> Numbers:
    """(R - mean(R)) / (std(R) + 1e-6), std with G - 1 in the denominator. Shape (G,) in and out.

    Source: GRPO, arXiv 2402.03300. Exactly 0 for a group of one and for a constant group.
    Example: normalised([1, 0, 0]) -> [1.154699, -0.577349, -0.577349]
    """
    rewards_G = np.asarray(rewards_G, dtype=np.float64)
    if not has_signal(rewards_G):
        return np.zeros_like(rewards_G)
    return (rewards_G - rewards_G.mean()) / (rewards_G.std(ddof=1) + 1e-6)


def has_signal(rewards_G: Numbers) -> bool:
    """True when a group has at least two members and their rewards differ."""
    return len(rewards_G) > 1 and float(np.ptp(rewards_G)) > NO_SIGNAL


def of_group(estimator: Callable[[Numbers], Numbers]) -> Credit:
    """Credit by comparison with siblings: every token of an attempt gets what the estimator gives its total reward.

    Example: of_group(leave_one_out)([won, lost]) -> [array([1, 1, 1]), array([-1, -1])]
    """

    def credit(attempts_G: Sequence[Attempt]) -> list[Numbers]:
        advantages_G = estimator(np.array([attempt.total for attempt in attempts_G]))
        return [
            np.full(len(attempt.rewards_T), advantage)
            for attempt, advantage in zip(attempts_G, advantages_G, strict=True)
        ]

    return credit


def returns_to_go(rewards_T: Numbers, gamma: float) -> Numbers:
    """What is still to come, discounted per sampled token: R_t = r_t + gamma * R_(t+1). Shape (T,) in and out.

    Source: REINFORCE++, arXiv 2501.03262.
    Example: returns_to_go([0, 0, 2], gamma=0.5) -> [0.5, 1, 2]
    """
    returns_T, coming = np.zeros(len(rewards_T)), 0.0
    for t in reversed(range(len(rewards_T))):
        returns_T[t] = coming = rewards_T[t] + gamma * coming
    return returns_T


def generalised(rewards_T: Numbers, values_T: Numbers, gamma: float, lam: float) -> Numbers:
    """GAE: delta_t = r_t + gamma * V_(t+1) - V_t; A_t = delta_t + gamma * lam * A_(t+1). Shape (T,) in and out.

    Source: arXiv 1506.02438, over sampled tokens only: what the environment says in between is no step. The state after
    the last token is worth 0.
    Example: generalised([0, 0, 0, 0, 1], [.2, .3, .4, .5, .6], 1, .95) -> [.69679, .6282, .556, .48, .4]
    """
    advantages_T, coming, value = np.zeros(len(rewards_T)), 0.0, 0.0
    for t in reversed(range(len(rewards_T))):
        coming = rewards_T[t] + gamma * value - values_T[t] + gamma * lam * coming
        advantages_T[t], value = coming, values_T[t]
    return advantages_T


def whitened(advantages: Sequence[Numbers]) -> list[Numbers]:
    """Mean 0 and variance 1 (denominator N - 1) over all tokens of several attempts; fewer than two stay as they are.

    Source: PPO as in verl's masked_whiten.
    Example: whitened([array([.8, .7]), array([.6, .5, .4])])[0] -> [1.264911, 0.632456]
    """
    together = np.concatenate([*advantages, np.zeros(0)])
    if len(together) < 2:
        return list(advantages)
    mean, scale = together.mean(), np.sqrt(together.var(ddof=1) + 1e-8)
    return [(advantages_T - mean) / scale for advantages_T in advantages]


def explained_variance(values: Numbers, returns: Numbers) -> float:
    """1 - var(returns - values) / var(returns): 1 for a critic that knows, 0 for a constant one; nan if returns are."""
    spread = float(np.var(returns))
    return 1.0 - float(np.var(returns - values)) / spread if spread > 0 else float("nan")
