"""How sure a success rate is: intervals over tasks, never of zero width."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Method = Literal["bootstrap", "wilson"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A success rate with its uncertainty.

    Example: Interval(estimate=0.62, low=0.54, high=0.7, n_tasks=152, n_attempts=152, method="bootstrap")
    """

    estimate: float
    "Mean over tasks of each task's mean success, in [0, 1]."
    low: float
    high: float
    n_tasks: int
    "The unit of resampling: attempts at one task are not independent of each other."
    n_attempts: int
    method: Method
    "'bootstrap' over tasks; 'wilson' where every task gave the same number and resampling would see no spread."

    def __str__(self) -> str:
        return f"{self.estimate:.1%} [{self.low:.1%}, {self.high:.1%}], n = {self.n_tasks}"


def success_interval(
    successes_by_task: Mapping[str, Sequence[float]], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Success over tasks with a percentile interval of a cluster bootstrap: whole tasks are drawn again.

    `successes_by_task` holds, per task id, one number in [0, 1] for each valid attempt. Where all tasks agree, the
    interval is Wilson's over tasks (see `agreement_interval`). Raises ValueError for no tasks, a task without attempts
    or a number outside [0, 1].

    Example: success_interval({"a": [1, 0], "b": [1, 1]}).estimate -> 0.75
    """
    means = task_means(successes_by_task)
    n_attempts = sum(len(attempts) for attempts in successes_by_task.values())
    low, high, method = mean_interval(means, (0.0, 1.0), confidence, resamples, seed)
    return Interval(float(means.mean()), low, high, len(means), n_attempts, method)


def task_means(successes_by_task: Mapping[str, Sequence[float]]) -> NDArray[np.float64]:
    """Mean success of each task, in the mapping's order; the checks of `success_interval`."""
    if not successes_by_task:
        raise ValueError("a success rate needs at least one task, found none; were all attempts discarded?")
    for task_id, attempts in successes_by_task.items():
        if len(attempts) == 0:
            raise ValueError(f"task {task_id} has no valid attempt; leave it out and say so")
        if not all(0.0 <= success <= 1.0 for success in attempts):
            raise ValueError(f"success must be in [0, 1], found {list(attempts)} for task {task_id}")
    return np.array([float(np.mean(attempts)) for attempts in successes_by_task.values()])


def mean_interval(
    values: NDArray[np.float64], bounds: tuple[float, float], confidence: float, resamples: int, seed: int
) -> tuple[float, float, Method]:
    """Interval of the mean of one value per task, each within `bounds`: (low, high, method)."""
    if not 0.8 <= confidence < 1 or resamples < 1000:
        raise ValueError(
            f"an interval needs a confidence in [0.8, 1) and 1000 resamples or more, found {confidence} and {resamples}"
        )
    # Rounded, because 2/3 - 1/3 and 1/3 - 0 are one value and must not pass for spread.
    distinct, counts = np.unique(np.round(values, 12), return_counts=True)
    if len(distinct) == 1:
        return *agreement_interval(float(distinct[0]), len(values), bounds, confidence), "wilson"
    # Drawing tasks with replacement draws multinomial counts of the distinct values: the same law, far less memory.
    rng = np.random.default_rng(seed)
    means = rng.multinomial(len(values), counts / len(values), size=resamples) @ distinct / len(values)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high), "bootstrap"


def agreement_interval(
    value: float, n: int, bounds: tuple[float, float], confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of a mean when all `n` tasks gave the same `value`.

    None of n tasks departed from the value, so by Wilson's bound u for 0 of n at most a share u of all tasks does, and
    those lie somewhere within `bounds`: [value - u (value - lowest), value + u (highest - value)]. For values 0 and 1
    within (0, 1) this is Wilson's interval itself.

    Example: agreement_interval(0, 10, (0, 1)) -> (0.0, 0.2775); with bounds (-1, 1) -> (-0.2775, 0.2775)
    """
    lowest, highest = bounds
    departing = wilson(0, n, confidence)[1]
    return value - departing * (value - lowest), value + departing * (highest - value)


def wilson(successes: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for `successes` of `n` independent trials.

    Raises ValueError unless 0 <= successes <= n and n >= 1.
    Example: wilson(0, 10) -> (0.0, 0.2775)
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"Wilson's interval needs 0 <= successes <= n and n >= 1, found {successes} of {n}")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate = successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)
