"""Intervals and comparisons against values that can be derived by hand or simulated."""

from __future__ import annotations

import math
from itertools import combinations, product
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.errors import UserError
from practicum.statistics.comparison import (
    DRAWS,
    common_denominator,
    holm,
    mcnemar_p,
    paired_difference,
    sign_flip_p,
)
from practicum.statistics.intervals import agreement_interval, success_interval, wilson
from practicum.statistics.repeated import pass_at_k, pass_hat_k, repeated_interval
from practicum.statistics.seeds import seed_interval, t_cdf, t_quantile


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


def test_differences_with_a_common_unit_have_the_p_value_that_the_binomial_gives_however_many_they_are():
    # 14 of 20 unit differences positive: P(|2 Binomial(20, 1/2) - 20| >= 8) = 0.11532.
    assert sign_flip_p(np.array([1.0] * 14 + [-1.0] * 6)) == pytest.approx(0.11532, abs=5e-6)
    assert sign_flip_p(np.ones(200)) == 2 / 2**200
    assert sign_flip_p(np.full(200, 1 / 3)) == 2 / 2**200


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(-12, 12), min_size=1, max_size=11))
def test_the_p_value_counts_the_sign_patterns_that_reach_the_observed_sum(twelfths):
    patterns = [sum(map(math.prod, zip(twelfths, s, strict=True))) for s in product((1, -1), repeat=len(twelfths))]
    reached = sum(abs(pattern) >= abs(sum(twelfths)) for pattern in patterns) / len(patterns)
    assert sign_flip_p(np.array(twelfths) / 12) == pytest.approx(reached, rel=1e-12)


def test_differences_without_a_common_unit_are_enumerated_and_beyond_sixteen_drawn():
    odd = np.random.default_rng(5).random(12) - 0.3
    assert common_denominator(odd) is None and common_denominator(np.array([0.5, -0.75])) == 4
    signs = np.array(list(product((1, -1), repeat=12)))
    assert sign_flip_p(odd) == np.mean(np.abs(signs @ odd) >= abs(odd.sum()) - 1e-9)
    many = np.concatenate([odd, odd, -odd / 2])
    wanted = 2 * (1 - NormalDist().cdf(abs(many.sum()) / math.sqrt((many**2).sum())))
    assert sign_flip_p(many) == pytest.approx(wanted, abs=0.02)
    assert sign_flip_p(np.full(30, math.pi / 4)) == 1 / (DRAWS + 1)  # the observed pattern is one of those counted


def test_mcnemars_test_has_the_values_of_its_binomial():
    assert mcnemar_p(15, 3) == mcnemar_p(3, 15) == 2 * (1 + 18 + 153 + 816) / 2**18
    assert mcnemar_p(0, 5) == 2 / 2**5
    assert (mcnemar_p(4, 4), mcnemar_p(0, 0)) == (1.0, 1.0)
    with pytest.raises(ValueError, match="not negative"):
        mcnemar_p(-1, 2)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 5))
def test_with_one_attempt_each_the_permutation_test_is_mcnemars(only_a, only_b, alike):
    differences = np.array([1.0] * only_a + [-1.0] * only_b + [0.0] * alike)
    assert sign_flip_p(differences) == pytest.approx(mcnemar_p(only_a, only_b), rel=1e-9)


def test_holms_adjustment_is_the_one_done_by_hand():
    # Sorted 0.01 · 4, 0.02 · 3, 0.03 · 2, 0.5 · 1, none below the one before; 0.005 · 4 and so on.
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert (holm([]), holm([0.2])) == ([], [0.2])
    with pytest.raises(ValueError, match="lie in"):
        holm([0.1, 1.1])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_the_raw_p_value_and_bonferronis_and_keeps_the_order(p_values):
    adjusted = holm(p_values)
    bonferroni = [min(1.0, p * len(p_values)) for p in p_values]
    assert all(p <= a <= b for p, a, b in zip(p_values, adjusted, bonferroni, strict=True))
    in_order = [a for _, a in sorted(zip(p_values, adjusted, strict=True))]
    assert in_order == sorted(adjusted)
    assert min(adjusted) == min(bonferroni)


def test_without_any_difference_holm_finds_one_somewhere_in_at_most_five_tables_of_a_hundred():
    rng = np.random.default_rng(1)
    found = [min(holm(rng.random(5).tolist())) < 0.05 for _ in range(4000)]
    assert 0.035 < np.mean(found) < 0.06  # 1 - 0.95^5 = 0.23 without it


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


# --- several attempts at each task ----------------------------------------------------------------------------------


def test_pass_at_k_and_pass_hat_k_have_the_values_of_their_counts():
    # Of the 6 pairs of 4 attempts, 3 hold a given one; 3 are pairs of 3 solved ones.
    assert (pass_at_k(4, 1, 2), pass_hat_k(4, 3, 2), pass_hat_k(4, 1, 2)) == (0.5, 0.5, 0.0)
    assert pass_at_k(10, 3, 5) == pytest.approx(1 - 21 / 252)
    assert pass_hat_k(10, 7, 5) == pytest.approx(21 / 252)
    assert pass_at_k(100, 1, 100) == 1.0 and pass_hat_k(100, 99, 100) == 0.0
    for n, c, k in ((3, 1, 4), (3, 4, 1), (3, -1, 1), (3, 1, 0)):
        with pytest.raises(ValueError, match="attempts are drawn"):
            pass_at_k(n, c, k)
        with pytest.raises(ValueError, match="attempts are drawn"):
            pass_hat_k(n, c, k)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_solved_attempt_and_pass_hat_k_of_those_solved_throughout(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 8), st.floats(0, 1), st.data())
def test_both_are_unbiased_whatever_the_true_rate(n, rate, data):
    k = data.draw(st.integers(1, n))
    weights = [math.comb(n, c) * rate**c * (1 - rate) ** (n - c) for c in range(n + 1)]
    at = sum(w * pass_at_k(n, c, k) for c, w in enumerate(weights))
    hat = sum(w * pass_hat_k(n, c, k) for c, w in enumerate(weights))
    assert at == pytest.approx(1 - (1 - rate) ** k, abs=1e-9)
    assert hat == pytest.approx(rate**k, abs=1e-9)


def test_over_tasks_they_are_means_with_an_interval_and_for_k_of_one_the_success():
    successes = {"a": [1, 0], "b": [1, 1], "c": [0, 0], "d": [1, 1, 0, 0]}
    at, hat = repeated_interval(successes, 2), repeated_interval(successes, 2, pass_hat_k)
    assert at.estimate == pytest.approx((1 + 1 + 0 + 5 / 6) / 4)
    assert hat.estimate == pytest.approx((0 + 1 + 0 + 1 / 6) / 4)
    assert hat.low < hat.estimate < hat.high < at.high
    assert repeated_interval(successes, 1) == repeated_interval(successes, 1, pass_hat_k) == success_interval(successes)
    always = repeated_interval({str(n): [1, 1] for n in range(10)}, 2, pass_hat_k)
    assert (always.low, always.high) == wilson(10, 10)


@pytest.mark.parametrize(
    ("successes", "complaint"), [({"a": [1]}, "a has 1"), ({"a": [0.5, 1]}, "solved attempts"), ({}, "at least one")]
)
def test_what_has_too_few_attempts_or_half_a_success_has_no_pass_at_k(successes, complaint):
    with pytest.raises(ValueError, match=complaint):
        repeated_interval(successes, 2)


# --- seeds ----------------------------------------------------------------------------------------------------------


def test_students_t_has_its_closed_forms_and_its_tabled_quantiles():
    for t in (-3.0, 0.0, 0.4, 2.0):
        assert t_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi)
        assert t_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)))
    tabled = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 30: 2.042, 120: 1.980}
    assert {freedom: round(t_quantile(0.975, freedom), 3) for freedom in tabled} == tabled
    assert t_quantile(0.9, 3000) == pytest.approx(NormalDist().inv_cdf(0.9), abs=1e-3)


def test_two_seeds_have_the_interval_of_the_cauchy_distribution():
    found = seed_interval([0.60, 0.62])
    half = math.tan(math.pi * 0.475) * 0.01
    assert (found.estimate, found.low, found.high) == pytest.approx((0.61, 0.61 - half, 0.61 + half))
    assert (seed_interval([0.6, 0.7]).low, seed_interval([0.6, 0.7]).high) == (pytest.approx(0.0147, abs=1e-4), 1.0)
    assert seed_interval([-0.1, 0.7], bounds=(-1, 1)).low == -1.0
    assert str(seed_interval([0.5, 0.6, 0.7])) == "60.0% [35.2%, 84.8%], 3 seeds"


def test_seeds_that_agree_still_leave_an_interval():
    assert seed_interval([1.0, 1.0, 1.0]).low == wilson(3, 3)[0]
    found = seed_interval([0.3] * 5)
    assert found.low < 0.3 < found.high and found.deviation == 0.0
    for values in ([0.5], [0.2, 1.2], [0.2, float("nan")]):
        with pytest.raises(ValueError, match="found"):
            seed_interval(values)


def test_the_interval_over_seeds_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(2)
    draws = rng.normal(0.5, 0.03, size=(2000, 3))
    covered = [found.low <= 0.5 <= found.high for found in map(seed_interval, draws.tolist())]
    assert 0.935 < np.mean(covered) < 0.965
