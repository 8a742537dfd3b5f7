"""Several runs of one recipe that differ by seed: their mean with a t interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from practicum.statistics.intervals import agreement_interval


@dataclass(frozen=True, slots=True)
class SeedInterval:
    """The mean over seeds: SeedInterval(estimate=0.65, low=0.45, high=0.85, n_seeds=3, deviation=0.08)."""

    estimate: float
    low: float
    high: float
    n_seeds: int
    deviation: float
    "Sample standard deviation over seeds, with n - 1 below."

    def __str__(self) -> str:
        return f"{self.estimate:.1%} [{self.low:.1%}, {self.high:.1%}], {self.n_seeds} seeds"


def seed_interval(
    values: Sequence[float], confidence: float = 0.95, bounds: tuple[float, float] = (0.0, 1.0)
) -> SeedInterval:
    """Mean of one value per seed with Student's t interval, cut to `bounds` (-1 and 1 for a difference of rates).

    mean ± t(n - 1) s / sqrt(n). It says how another seed of the whole run would fare, tasks fixed, where an interval
    over tasks says how other tasks would. Where all seeds gave the same value, s is 0 and says nothing: the interval
    then rests on Wilson's bound for 0 departing seeds of n (see `agreement_interval`), so that it never has width 0.
    Raises ValueError for fewer than two seeds, or a value that is not finite or out of bounds.

    Example: seed_interval([0.6, 0.7]) has the mean 0.65 and, before the cut, 0.65 ± 12.706 · 0.05
    """
    n, (lowest, highest) = len(values), bounds
    if n < 2:
        raise ValueError(f"an interval over seeds needs two seeds or more, found {n}")
    if not all(lowest <= value <= highest for value in values):
        raise ValueError(f"values must lie in [{lowest:g}, {highest:g}], found {list(values)}")
    mean = math.fsum(values) / n
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    if deviation < 1e-12:
        low, high = agreement_interval(mean, n, bounds, confidence)
        return SeedInterval(mean, low, high, n, 0.0)
    half = t_quantile((1 + confidence) / 2, n - 1) * deviation / math.sqrt(n)
    return SeedInterval(mean, max(lowest, mean - half), min(highest, mean + half), n, deviation)


def seed_p(values: Sequence[float]) -> float:
    """Two-sided p-value of one difference per seed: Student's paired t test of a mean of 0.

    Where all seeds gave the same difference, s is 0 and t says nothing: the p-value is then that of the signs,
    2 / 2^n, or 1 for no difference. Raises ValueError for fewer than two seeds.

    Example: seed_p([0.1, 0.2, 0.3]) -> 0.0742
    """
    n = len(values)
    if n < 2:
        raise ValueError(f"a test over seeds needs two seeds or more, found {n}")
    mean = math.fsum(values) / n
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    if deviation < 1e-12:
        return 1.0 if abs(mean) < 1e-12 else 2 / 2**n
    return 2 * (1 - t_cdf(abs(mean) / (deviation / math.sqrt(n)), n - 1))


def t_quantile(probability: float, freedom: int) -> float:
    """The number that Student's t with `freedom` degrees stays below with this probability, in (0.5, 1).

    Found by bisection of `t_cdf`. Example: t_quantile(0.975, 4) -> 2.776
    """
    if not 0.5 < probability < 1:
        raise ValueError(f"a probability above one half and below 1 is needed, found {probability}")
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def t_cdf(t: float, freedom: int) -> float:
    """P(T <= t) of Student's t with whole degrees of freedom, a finite sum (Abramowitz and Stegun 26.7.3, 26.7.4).

    Example: t_cdf(1, 1) -> 0.75, since one degree is Cauchy's distribution
    """
    if freedom < 1:
        raise ValueError(f"Student's t needs at least one degree of freedom, found {freedom}")
    angle = math.atan2(t, math.sqrt(freedom))
    cosine2 = math.cos(angle) ** 2
    term, total = 1.0, 0.0
    # Even degrees: 1 + 1/2 c² + 1·3/(2·4) c⁴ + …; odd ones: 1 + 2/3 c² + 2·4/(3·5) c⁴ + …
    for step in range(freedom // 2):
        total += term
        term *= cosine2 * ((2 * step + 1) / (2 * step + 2) if freedom % 2 == 0 else (2 * step + 2) / (2 * step + 3))
    if freedom % 2 == 0:
        return 0.5 + math.sin(angle) * total / 2
    return 0.5 + (angle + math.sin(angle) * math.cos(angle) * total) / math.pi
