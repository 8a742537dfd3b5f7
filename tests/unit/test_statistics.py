"""Intervals and comparisons against values that can be derived by hand or simulated."""

from __future__ import annotations

import numpy as np
import pytest

from practicum.errors import UserError
from practicum.statistics.comparison import DRAWS, paired_difference, sign_flip_p
from practicum.statistics.intervals import agreement_interval, success_interval, wilson


def test_wilson_gives_the_values_that_its_formula_has_in_closed_form():
    z2 = 1.959963984540054**2
    assert wilson(0, 10) == pytest.approx((0.0, z2 / (10 + z2)))  # 0.2775
    assert wilson(10, 10) == pytest.approx((10 / (10 + z2), 1.0))
    half = (z2 / (10 + z2)) ** 0.5 / 2  # at one half the interval is symmetric
    assert wilson(5, 10) == pytest.approx((0.5 - half, 0.5 + half))
    assert wilson(0, 10)[1] == pytest.approx(0.2775, abs=5e-5)


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_counts_that_cannot_be(successes, n):
    with pytest.raises(ValueError, match="Wilson"):
        wilson(successes, n)


def test_tasks_count_equally_however_many_attempts_they_had():
    interval = success_interval({"a": [1.0] * 9, "b": [0.0]})
    assert interval.estimate == 0.5
    assert (interval.n_tasks, interval.n_attempts, interval.method) == (2, 10, "bootstrap")


@pytest.mark.parametrize("success", [0.0, 1.0])
def test_where_all_tasks_agree_the_interval_is_wilsons_over_tasks_not_attempts(success):
    interval = success_interval({str(task): [success] * 8 for task in range(10)})
    assert (interval.low, interval.high) == wilson(10 * success, 10)
    assert interval.method == "wilson"


@pytest.mark.parametrize("values", [[[1]], [[0.5]] * 3, [[1, 0], [0, 1], [0.5]], [[0]] * 399 + [[1]], [[1, 1, 0]] * 7])
def test_no_interval_has_zero_width_or_leaves_out_its_estimate(values):
    interval = success_interval({str(task): attempts for task, attempts in enumerate(values)})
    assert 0 <= interval.low < interval.high <= 1
    assert interval.low <= interval.estimate <= interval.high


def test_for_single_attempts_the_bootstrap_is_the_binomial_distribution():
    # 30 of 100 tasks: quantiles of Binomial(100, 0.3) / 100 at 2.5 % and 97.5 % are 0.21 and 0.39.
    interval = success_interval({str(task): [float(task < 30)] for task in range(100)})
    assert interval.low == pytest.approx(0.21, abs=0.0051)
    assert interval.high == pytest.approx(0.39, abs=0.0051)


def test_the_bootstrap_covers_the_truth_of_a_clustered_population_as_often_as_it_says():
    rng = np.random.default_rng(7)
    covered, naive, runs = 0, 0, 1500
    for run in range(runs):
        difficulty = rng.beta(0.8, 0.8, size=50)  # mean 0.5: attempts at one task resemble each other
        attempts = rng.random((50, 4)) < difficulty[:, None]
        interval = success_interval(dict(enumerate(attempts.astype(float).tolist())), resamples=1000, seed=run)
        covered += interval.low <= 0.5 <= interval.high
        low, high = wilson(attempts.sum(), attempts.size)
        naive += low <= 0.5 <= high
    assert 0.92 <= covered / runs <= 0.98
    assert naive / runs < 0.85  # what treating attempts as independent would have promised as 95 %


@pytest.mark.parametrize(
    ("successes", "complaint"),
    [
        ({}, "at least one task"),
        ({"a": []}, "task a has no valid attempt"),
        ({"a": [1.5]}, "task a"),
        ({"a": [float("nan")]}, "nan"),
    ],
)
def test_numbers_that_are_no_success_rate_are_refused_by_name(successes, complaint):
    with pytest.raises(ValueError, match=complaint):
        success_interval(successes)


def test_equal_seeds_give_equal_intervals_and_the_order_of_tasks_does_not_matter():
    successes = {str(task): [float(task % 3 == 0), float(task % 2)] for task in range(40)}
    backwards = dict(reversed(successes.items()))
    first, second = success_interval(successes), success_interval(backwards)
    assert (first.low, first.high) == (second.low, second.high)


def test_the_sign_flip_p_value_is_the_count_done_by_hand():
    # Signs of (1, 2, 3): |sum| reaches 6 for +++ and ---, 2 of 8. Of (1, 1, 1, -1): |2| is reached by all but the
    # 6 of 16 patterns that sum to 0. Draws between systems do not count.
    assert sign_flip_p(np.array([1.0, 2.0, 3.0])) == 2 / 8
    assert sign_flip_p(np.array([1.0, 1.0, 0.0, 1.0, -1.0, 0.0])) == 10 / 16
    assert sign_flip_p(np.zeros(5)) == 1.0


def test_ties_are_found_in_spite_of_rounding():
    # 0.1 + 0.2 is not 0.3 in floating point: patterns -+ + and + - - sum to 0 and must tie with the observed 0.
    assert sign_flip_p(np.array([0.1, 0.2, -0.3])) == 1.0


def test_many_differing_tasks_are_drawn_from_the_distribution_that_the_binomial_gives():
    # 14 of 20 unit differences positive: P(|2 Binomial(20, 1/2) - 20| >= 8) = 0.1153.
    differences = np.array([1.0] * 14 + [-1.0] * 6)
    assert sign_flip_p(differences) == pytest.approx(0.11532, abs=0.008)
    assert sign_flip_p(np.ones(200)) == 1 / (DRAWS + 1)


def test_a_difference_counts_who_did_better_where():
    a = {"w": [1], "x": [1, 1], "y": [0], "z": [1, 0]}
    b = {"z": [0, 1], "y": [1], "x": [1, 0], "w": [0]}
    difference = paired_difference(a, b)
    assert difference.estimate == pytest.approx((1 + 0.5 - 1 + 0) / 4)
    assert (difference.only_a, difference.only_b, difference.n_tasks) == (2, 1, 4)
    assert (
        difference.p_value == 1.0
    )  # signs of (1, 0.5, 1) sum to 0.5, 1.5 or 2.5 in size: none is below the observed 0.5


def test_swapping_the_systems_mirrors_the_difference():
    a = {str(task): [float(task % 2)] for task in range(50)}
    b = {str(task): [float(task % 3 == 0)] for task in range(50)}
    ahead, behind = paired_difference(a, b), paired_difference(b, a)
    assert ahead.estimate == -behind.estimate
    assert (ahead.only_a, ahead.only_b) == (behind.only_b, behind.only_a)
    assert ahead.low == pytest.approx(-behind.high, abs=0.021)


def test_equal_differences_still_leave_an_interval():
    tasks = [str(task) for task in range(10)]
    ones, zeros, thirds = ({task: value for task in tasks} for value in ([1], [0], [1, 0, 0]))
    same, better, partly = (
        paired_difference(ones, ones),
        paired_difference(ones, zeros),
        paired_difference(thirds, zeros),
    )
    assert (same.low, same.high) == pytest.approx((-0.27753, 0.27753), abs=1e-5)
    assert (better.low, better.high) == pytest.approx((1 - 2 * 0.27753, 1), abs=1e-5)
    assert partly.low < partly.estimate < partly.high
    assert agreement_interval(0.0, 10, (0, 1)) == wilson(0, 10)


def test_differences_that_are_equal_but_for_rounding_do_not_pass_for_spread():
    a = {"x": [1, 1, 0], "y": [1, 0, 0]}  # 2/3 - 1/3 and 1/3 - 0 differ in the last bit
    b = {"x": [1, 0, 0], "y": [0, 0, 0]}
    difference = paired_difference(a, b)
    assert difference.high - difference.low > 0.5


def test_systems_evaluated_on_different_tasks_are_not_compared_and_the_ids_are_named():
    with pytest.raises(UserError, match="the first lacks only_b; the second lacks only_a"):
        paired_difference({"both": [1], "only_a": [1]}, {"both": [1], "only_b": [0]})


def test_the_interval_of_a_difference_covers_the_truth():
    rng = np.random.default_rng(3)
    covered, runs = 0, 250
    for run in range(runs):
        difficulty = rng.beta(1, 1, size=60)
        a = (rng.random(60) < np.minimum(difficulty + 0.1, 1)).astype(float)
        b = (rng.random(60) < difficulty).astype(float)
        truth = 0.095  # E[min(u + 0.1, 1) - u] = 0.1 - 0.1**2 / 2
        found = paired_difference(dict(enumerate(a[:, None])), dict(enumerate(b[:, None])), resamples=1000, seed=run)
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / runs <= 0.98
