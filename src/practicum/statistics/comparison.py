"""Two systems on the same tasks: the difference, how sure it is, and whether chance explains it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from practicum.errors import UserError
from practicum.statistics.intervals import mean_interval, task_means
from practicum.statistics.planning import was_detectable

DENOMINATOR = 1000
"Task differences are taken as fractions with at most this denominator, where that is exact."
UNITS = 200_000
"Sum of all |differences|, counted in their common unit, up to which the p-value is exact."
EXACT_UP_TO = 16
"Differing tasks up to which every sign pattern is tried (65,536 of them) where they have no common unit."
DRAWS = 20_000
ROUNDING = 1e-9
"Sums closer than this count as equal: 1/3 + 2/3 must tie with 1."


@dataclass(frozen=True, slots=True)
class Difference:
    """Success of a minus success of b, task by task.

    Example: Difference(estimate=0.09, low=0.02, high=0.16, p_value=0.016, n_tasks=152, only_a=22, only_b=8,
                        detectable=0.1)
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
    detectable: float | None
    "Difference that would have been shown four times in five, see `was_detectable`; None where none would."

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
    unit = 1 / (common_denominator(differences) or DENOMINATOR)
    return Difference(
        estimate=float(differences.mean()),
        low=low,
        high=high,
        p_value=sign_flip_p(differences, seed),
        n_tasks=len(order),
        only_a=int((differences > 0).sum()),
        only_b=int((differences < 0).sum()),
        detectable=was_detectable(float(differences.var()), len(order), unit),
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

    Exact where the differences, shape (tasks,), are multiples of a common unit, as success rates of a few attempts are
    (see `exact_p`), and for at most 16 differing tasks; else 20,000 seeded draws, the observed pattern counted as one
    more, so that p is never 0. With one attempt per task it is McNemar's exact test.

    Example: sign_flip_p(np.array([1.0, 1.0, 1.0, 0.0])) -> 2 / 8
    """
    differing = differences[differences != 0]
    k = len(differing)
    if k == 0:
        return 1.0
    unit = common_denominator(differing)
    if unit is not None and round(float(np.abs(differing).sum()) * unit) <= UNITS:
        return exact_p(np.rint(differing * unit).astype(np.int64))
    if k <= EXACT_UP_TO:
        flips = (np.arange(2**k)[:, None] >> np.arange(k)) & 1
        sums = (1.0 - 2.0 * flips) @ differing
        return float((np.abs(sums) >= abs(differing.sum()) - ROUNDING).mean())
    # Tasks with the same |difference| are interchangeable: how many of them keep their sign is binomial.
    sizes, counts = np.unique(np.abs(differing), return_counts=True)
    kept = np.random.default_rng(seed).binomial(counts, 0.5, size=(DRAWS, len(counts)))
    sums = (2.0 * kept - counts) @ sizes
    extreme = int((np.abs(sums) >= abs(differing.sum()) - ROUNDING).sum())
    return (extreme + 1) / (DRAWS + 1)


def common_denominator(differences: NDArray[np.float64]) -> int | None:
    """The least q up to 1000 for which all differences are multiples of 1 / q; None where there is none.

    Example: common_denominator(np.array([0.5, -0.75])) -> 4
    """
    fractions = [Fraction(value).limit_denominator(DENOMINATOR) for value in np.unique(differences).tolist()]
    if any(abs(float(near) - value) > ROUNDING for near, value in zip(fractions, np.unique(differences), strict=True)):
        return None
    unit = math.lcm(*(fraction.denominator for fraction in fractions))
    return unit if unit <= DENOMINATOR else None


def exact_p(whole: NDArray[np.int64]) -> float:
    """P(|sum of ±whole| >= |sum of whole|) for signs given by coin tosses, by dynamic programming over reachable sums.

    `whole`: nonzero, shape (tasks,). Entry s of `chance` is the probability that the numbers with sign + have sum s;
    the signed sum is then 2 s - total. Example: exact_p(np.array([1, 2, 3])) -> 2 / 8
    """
    total, observed = int(np.abs(whole).sum()), abs(int(whole.sum()))
    chance = np.zeros(total + 1)
    chance[0] = 1.0
    for size in np.abs(whole):
        chance[size:] = (chance[size:] + chance[:-size]) / 2
        chance[:size] /= 2
    return float(chance[np.abs(2 * np.arange(total + 1) - total) >= observed].sum())


def mcnemar_p(only_a: int, only_b: int) -> float:
    """Two-sided p-value of McNemar's exact test on discordant tasks: under no difference each is a coin toss.

    min(1, 2 P(Binomial(only_a + only_b, 1/2) <= the smaller)). Raises ValueError for a negative count.

    Example: mcnemar_p(15, 3) -> 0.0075
    """
    if min(only_a, only_b) < 0:
        raise ValueError(f"counts of tasks are not negative, found {only_a} and {only_b}")
    n = only_a + only_b
    tail = sum(math.comb(n, wins) for wins in range(min(only_a, only_b) + 1))
    return float(min(Fraction(1), Fraction(2 * tail, 2**n)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values of a table, in the order given: compare each with alpha, and the chance of a single false
    finding among all is at most alpha.

    Holm's step-down: the i-th smallest of m is multiplied by m - i + 1, none falls below a smaller one's. Raises
    ValueError for a number outside [0, 1].

    Example: holm([0.01, 0.04, 0.03]) -> [0.03, 0.06, 0.06]
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"p-values lie in [0, 1], found {list(p_values)}")
    adjusted, floor = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = floor
    return adjusted
