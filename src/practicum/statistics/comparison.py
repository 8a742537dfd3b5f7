"""Two systems on the same tasks: the difference, how sure it is, and whether chance explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from practicum.errors import UserError
from practicum.statistics.intervals import mean_interval, task_means

EXACT_UP_TO = 16
"Differing tasks up to which every sign pattern is tried (65,536 of them)."
DRAWS = 20_000
ROUNDING = 1e-9
"Sums closer than this count as equal: 1/3 + 2/3 must tie with 1."


@dataclass(frozen=True, slots=True)
class Difference:
    """Success of a minus success of b, task by task.

    Example: Difference(estimate=0.09, low=0.02, high=0.16, p_value=0.021, n_tasks=152, only_a=22, only_b=8)
    """

    estimate: float
    "Mean over tasks of (mean success of a - mean success of b), in [-1, 1]."
    low: float
    high: float
    p_value: float
    "Two-sided; how often signs given by chance make a difference at least this large."
    n_tasks: int
    only_a: int
    "Tasks on which a did better; with one attempt each, tasks that only a solved."
    only_b: int

    def __str__(self) -> str:
        span = f"[{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        return f"{100 * self.estimate:+.1f} points {span}, p = {self.p_value:.2g}, n = {self.n_tasks}"


def paired_difference(
    a: Mapping[str, Sequence[float]],
    b: Mapping[str, Sequence[float]],
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Difference:
    """Difference a - b in success on the same tasks, with a cluster bootstrap interval and a sign-flip p-value.

    `a` and `b` hold, per task id, one number in [0, 1] for each valid attempt; the numbers of attempts may differ.
    Where every task gave the same difference, resampling would see no spread: the interval then rests on Wilson's bound
    for 0 departing tasks of n, which may lie anywhere in [-1, 1] (see `agreement_interval`).
    Raises UserError, naming ids, when the tasks differ; ValueError as `success_interval` does.

    Example: paired_difference({"x": [1], "y": [1]}, {"x": [0], "y": [1]}).estimate -> 0.5
    """
    check_same_tasks(a, b)
    order = sorted(a)
    differences = task_means({i: a[i] for i in order}) - task_means({i: b[i] for i in order})
    differences[np.abs(differences) < ROUNDING] = 0.0
    low, high, _ = mean_interval(differences, (-1.0, 1.0), confidence, resamples, seed)
    return Difference(
        estimate=float(differences.mean()),
        low=low,
        high=high,
        p_value=sign_flip_p(differences, seed),
        n_tasks=len(order),
        only_a=int((differences > 0).sum()),
        only_b=int((differences < 0).sum()),
    )


def check_same_tasks(a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]]) -> None:
    """Raise UserError, naming up to ten ids of each side, unless both hold results of the same tasks."""
    missing = []
    for side, others in (("first", sorted(b.keys() - a.keys())), ("second", sorted(a.keys() - b.keys()))):
        if others:
            shown = ", ".join(others[:10]) + (f" and {len(others) - 10} more" if len(others) > 10 else "")
            missing.append(f"the {side} lacks {shown}")
    if missing:
        raise UserError(
            f"two systems are compared on the same tasks, but {'; '.join(missing)}; "
            "evaluate both on one task set, or compare only the tasks that both hold"
        )


def sign_flip_p(differences: NDArray[np.float64], seed: int = 0) -> float:
    """Two-sided p-value of a paired permutation test: under no difference, each task's sign is a coin toss.

    Exact for at most 16 differing tasks; else 20,000 seeded draws, the observed pattern counted as one more, so that p
    is never 0.

    Example: sign_flip_p(np.array([1.0, 1.0, 1.0, 0.0])) -> 2 / 8
    """
    differing = differences[differences != 0]
    k = len(differing)
    if k == 0:
        return 1.0
    exact = k <= EXACT_UP_TO
    if exact:
        flips = (np.arange(2**k)[:, None] >> np.arange(k)) & 1
        sums = (1.0 - 2.0 * flips) @ differing
    else:
        # Tasks with the same |difference| are interchangeable: how many of them keep their sign is binomial.
        sizes, counts = np.unique(np.abs(differing), return_counts=True)
        kept = np.random.default_rng(seed).binomial(counts, 0.5, size=(DRAWS, len(counts)))
        sums = (2.0 * kept - counts) @ sizes
    extreme = int((np.abs(sums) >= abs(differing.sum()) - ROUNDING).sum())
    return extreme / 2**k if exact else (extreme + 1) / (DRAWS + 1)
