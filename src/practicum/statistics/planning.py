"""Before a comparison: what difference so many tasks can show, how many tasks a difference needs, and whether a group
of attempts will teach anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

ALPHA, POWER = 0.05, 0.8
"Two-sided level of a test, and the wanted chance that it shows a difference that is there."


@dataclass(frozen=True, slots=True)
class Design:
    """A paired comparison as it is planned, with what is assumed of the tasks: Design(n_tasks=160, rate=0.5).

    With K attempts, rates p and p + d and V(x) = x (1 - x), the difference of two means at one task has the variance
    (1 - same) (V(p) + V(p + d)) / K  +  same (V(p) + V(p + d)) - 2 across sqrt(V(p) V(p + d)).
    """

    n_tasks: int
    attempts: int = 1
    "K: of each system at each task."
    rate: float = 0.5
    "p: assumed success of the weaker system; one half is nearly the least favourable."
    same: float = 0.6
    "Assumed correlation between two attempts of one system at the same task: at 1 the task alone decides."
    across: float = 0.5
    "Assumed correlation between attempts of the two systems at the same task: what pairing gains; at most `same`."

    def __post_init__(self) -> None:
        if self.n_tasks < 1 or self.attempts < 1:
            raise ValueError(f"a comparison needs tasks and attempts, found {self.n_tasks} and {self.attempts}")
        if not 0 < self.rate < 1 or not 0 <= self.across <= self.same <= 1:
            raise ValueError(f"rate must lie in (0, 1) and 0 <= across <= same <= 1, found {self}")


def task_variance(design: Design, difference: float) -> float:
    """Variance over tasks of the difference of two means, as `Design` says.

    Example: task_variance(Design(100, rate=0.5, same=0, across=0), 0) -> 0.5
    """
    a, b = (rate * (1 - rate) for rate in (design.rate, design.rate + difference))
    chance = (1 - design.same) * (a + b) / design.attempts
    return chance + max(0.0, design.same * (a + b) - 2 * design.across * math.sqrt(a * b))


def needed(variance: float, difference: float, unit: float) -> float:
    """By how much, times sqrt(n), a difference d must exceed chance: z(alpha) sqrt(V + d²) + z(power) sqrt(V).

    A sign-flip or McNemar test measures against V + d², the mean square of the tasks' differences; with one attempt,
    where that is the share of discordant tasks, this is Connor's formula of 1987 for McNemar's test. Differences of
    single tasks are multiples of `unit`, so their mean square is at least unit · d, whatever was assumed of V.
    """
    square = max(variance + difference**2, unit * difference)
    z_alpha, z_power = NormalDist().inv_cdf(1 - ALPHA / 2), NormalDist().inv_cdf(POWER)
    return z_alpha * math.sqrt(square) + z_power * math.sqrt(square - difference**2)


def detectable(design: Design) -> float | None:
    """The least improvement that the planned comparison shows with 80 % power at the 5 % level, as a fraction.

    None where not even one to 100 % would be shown. Example: detectable(Design(n_tasks=160)) -> 0.1113
    """
    return least_shown(
        design.n_tasks, 1.0 - design.rate, lambda difference: task_variance(design, difference), 1 / design.attempts
    )


def was_detectable(variance: float, n_tasks: int, unit: float) -> float | None:
    """The difference that a comparison with this variance of task differences would have shown with 80 % power.

    None where that is none. Example: was_detectable(0.25, 100, unit=1) -> 0.1439
    """
    return least_shown(n_tasks, 1.0, lambda difference: variance, unit)


def least_shown(n_tasks: int, most: float, variance: Callable[[float], float], unit: float) -> float | None:
    """The least difference up to `most` that `n_tasks` show, by bisection; None where `most` is not shown.

    Under six tasks nothing is: even if one system wins all of them, that has p = 2 / 2^n > 0.05.
    """
    low, high = 0.0, most
    if 2 / 2**n_tasks > ALPHA or high * math.sqrt(n_tasks) < needed(variance(high), high, unit):
        return None
    for _ in range(60):
        middle = (low + high) / 2
        shown = middle * math.sqrt(n_tasks) >= needed(variance(middle), middle, unit)
        low, high = (low, middle) if shown else (middle, high)
    return high


def tasks_needed(design: Design, difference: float) -> int:
    """Tasks that showing `difference` needs, all else as in `design`, whose own n_tasks does not count.

    Raises ValueError unless the difference is above 0 and leads to at most 100 %.
    Example: tasks_needed(Design(n_tasks=160), 0.1) -> 198
    """
    if not 0 < difference <= 1 - design.rate:
        raise ValueError(f"a difference in (0, {1 - design.rate:g}] is needed, found {difference}")
    return math.ceil((needed(task_variance(design, difference), difference, 1 / design.attempts) / difference) ** 2)


def signal_chance(rate: float, group_size: int) -> float:
    """Chance that a group of attempts is neither all solved nor all failed: 1 - p^n - (1 - p)^n.

    Only such a group teaches anything: where all members did alike, none has an advantage over the others.

    Example: signal_chance(0.05, 8) -> 0.3366
    """
    if not 0 <= rate <= 1 or group_size < 1:
        raise ValueError(f"a rate in [0, 1] and a group of one or more are needed, found {rate} and {group_size}")
    return 1.0 - rate**group_size - (1.0 - rate) ** group_size
