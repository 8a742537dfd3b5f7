"""What a comparison can show: the formula against simulated comparisons, and its limits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from practicum.statistics.comparison import paired_difference, sign_flip_p
from practicum.statistics.planning import (
    Design,
    detectable,
    signal_chance,
    task_variance,
    tasks_needed,
    was_detectable,
)


def simulated(design: Design, difference: float, rng: np.random.Generator) -> np.ndarray:
    """Differences of mean success at each task, shape (n_tasks,), in a world with the design's correlations.

    A share `same` of the tasks is decided by the task alone, for both systems; the others by chance. A decided task gives
    both systems the same luck as often as `across` asks for.
    """
    n, (p, q) = design.n_tasks, (design.rate, design.rate + difference)
    decided, luck = rng.random(n) < design.same, rng.random(n)
    wanted = design.across * math.sqrt(p * (1 - p) * q * (1 - q))
    shared = rng.random(n) < wanted / (design.same * p * (1 - q))
    a = np.where(decided[:, None], luck[:, None], rng.random((n, design.attempts))) < p
    own_luck = np.where(shared, luck, rng.random(n))
    b = np.where(decided[:, None], own_luck[:, None], rng.random((n, design.attempts))) < q
    return b.mean(1) - a.mean(1)


DESIGNS = [
    Design(160, across=0.4),
    Design(160, attempts=4, across=0.4),
    Design(100, rate=0.25, same=0.5, across=0.2),
    Design(300, rate=0.7, attempts=2, across=0.4),
]


@pytest.mark.parametrize("design", DESIGNS)
def test_the_variance_over_tasks_is_that_of_simulated_tasks(design):
    many = Design(400_000, design.attempts, design.rate, design.same, design.across)
    drawn = simulated(many, 0.1, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(0.1, abs=0.004)
    assert drawn.var() == pytest.approx(task_variance(design, 0.1), rel=0.01)


@pytest.mark.parametrize("design", DESIGNS)
def test_the_least_detectable_difference_is_shown_by_four_of_five_simulated_comparisons(design):
    rng, least = np.random.default_rng(1), detectable(design)
    shown = [sign_flip_p(simulated(design, least, rng)) < 0.05 for _ in range(400)]
    assert 0.73 < np.mean(shown) < 0.86
    nothing = [sign_flip_p(simulated(design, 0.0, rng)) < 0.05 for _ in range(400)]
    assert np.mean(nothing) < 0.08


def test_with_one_attempt_and_no_correlation_it_is_connors_formula():
    # p = 0.5, d = 0.2: the systems disagree with chance 0.5 · 0.3 + 0.7 · 0.5 = 0.5.
    design = Design(1, same=0.0, across=0.0)
    assert task_variance(design, 0.2) == pytest.approx(0.5 - 0.2**2)
    assert tasks_needed(design, 0.2) == math.ceil((1.959964 * 0.5**0.5 + 0.841621 * 0.46**0.5) ** 2 / 0.2**2)


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.8])
@pytest.mark.parametrize("attempts", [1, 4])
def test_so_many_tasks_as_are_needed_suffice_and_one_less_does_not(rate, attempts):
    needed = tasks_needed(Design(1, attempts, rate), 0.1)
    assert detectable(Design(needed, attempts, rate)) <= 0.1 < detectable(Design(needed - 1, attempts, rate))


def test_more_tasks_and_more_attempts_show_smaller_differences():
    assert detectable(Design(40)) > detectable(Design(160)) > detectable(Design(160, attempts=4)) > 0
    assert detectable(Design(160, across=0.0)) > detectable(Design(160, across=0.6))


def test_five_tasks_show_nothing_and_systems_that_always_agree_still_need_six_wins():
    assert detectable(Design(5)) is None and was_detectable(0.0, 5, unit=1) is None
    # Six tasks won and none lost give p = 2 / 64; five give 2 / 32, which shows nothing.
    assert detectable(Design(160, same=1.0, across=1.0)) > 6 / 160
    assert was_detectable(0.0, 160, unit=1) > 6 / 160


def test_a_comparison_knows_which_difference_it_would_have_shown():
    a = {str(n): [float(n % 3 == 0)] for n in range(150)}
    b = {str(n): [float(n % 2 == 0)] for n in range(150)}
    found = paired_difference(a, b)
    # 50 of a against 75 of b, 25 shared: the mean square is 75 / 150, the variance that less (1 / 6)².
    assert found.detectable == pytest.approx(was_detectable(0.5 - 1 / 36, 150, unit=1))
    wanted = 2.801585 * math.sqrt((0.5 - 1 / 36) / 150)  # the usual approximation
    assert found.detectable == pytest.approx(wanted, rel=0.03)
    assert paired_difference({"x": [1]}, {"x": [1]}).detectable is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_tasks": 0},
        {"attempts": 0},
        {"rate": 0.0},
        {"rate": 1.0},
        {"across": 0.7},
        {"same": 1.1},
    ],
)
def test_a_design_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="found"):
        Design(**{"n_tasks": 10, **wrong})


@pytest.mark.parametrize("difference", [0.0, -0.1, 0.51])
def test_a_difference_that_cannot_be_needs_no_number_of_tasks(difference):
    with pytest.raises(ValueError, match="is needed"):
        tasks_needed(Design(1), difference)


def test_the_chance_of_a_group_with_signal_has_its_known_values():
    known = {4: 0.1855, 6: 0.2649, 8: 0.3366, 16: 0.5599, 32: 0.8063}
    assert {n: round(signal_chance(0.05, n), 4) for n in known} == known
    assert signal_chance(0.5, 4) == 0.875
    assert signal_chance(0.0, 8) == signal_chance(1.0, 8) == signal_chance(0.3, 1) == 0.0
    with pytest.raises(ValueError, match="found"):
        signal_chance(1.1, 8)
