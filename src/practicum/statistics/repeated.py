"""Several attempts at each task: solved at least once in k (pass@k), solved every time in k (pass^k)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from practicum.statistics.intervals import Interval, mean_interval, task_means

Estimator = Callable[[int, int, int], float]
"(attempts, solved attempts, k) -> unbiased estimate for one task."


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of `k` attempts solves the task, from `c` solved ones of `n`; unbiased.

    1 - C(n - c, k) / C(n, k): the share of the k-subsets of the n attempts that hold a solved one. Raises ValueError
    unless 1 <= k <= n and 0 <= c <= n. Source: arXiv 2107.03374, equation 1.

    Example: pass_at_k(4, 1, 2) -> 0.5, since 3 of the 6 pairs hold the solved attempt
    """
    check_counts(n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Chance that all of `k` attempts solve the task (pass^k), from `c` solved ones of `n`; unbiased.

    C(c, k) / C(n, k): the share of the k-subsets of the n attempts that are solved throughout. Raises as `pass_at_k`.
    Source: arXiv 2406.12045 (tau-bench, which asks how reliable an agent is).

    Example: pass_hat_k(4, 3, 2) -> 0.5
    """
    check_counts(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def check_counts(n: int, c: int, k: int) -> None:
    """Raise ValueError unless 1 <= k <= n and 0 <= c <= n."""
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"k attempts are drawn from n of which c are solved; found k = {k}, n = {n}, c = {c}")


def repeated_interval(
    successes_by_task: Mapping[str, Sequence[float]],
    k: int,
    estimator: Estimator = pass_at_k,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Mean over tasks of pass@k, or of pass^k, with a cluster bootstrap interval over tasks.

    `successes_by_task` holds, per task id, 0 or 1 for each valid attempt, at least `k` of them. For k = 1 both are the
    success rate. The interval is made as by `success_interval`. Raises ValueError for fewer attempts, or a success that
    is neither 0 nor 1.

    Example: repeated_interval({"a": [1, 0], "b": [1, 1]}, 2, pass_hat_k).estimate -> 0.5
    """
    task_means(successes_by_task)
    for task_id, attempts in successes_by_task.items():
        if not set(attempts) <= {0, 1}:
            raise ValueError(f"pass@k counts solved attempts, found success {list(attempts)} for task {task_id}")
        if len(attempts) < k:
            raise ValueError(f"k = {k} needs as many attempts at every task, {task_id} has {len(attempts)}")
    values = np.array([estimator(len(found), round(sum(found)), k) for found in successes_by_task.values()])
    n_attempts = sum(map(len, successes_by_task.values()))
    low, high, method = mean_interval(values, (0.0, 1.0), confidence, resamples, seed)
    return Interval(float(values.mean()), low, high, len(values), n_attempts, method)
