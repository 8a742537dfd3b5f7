"""Advantages, losses and KL estimates against published values and what can be derived."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from practicum.errors import UserError
from practicum.learning import losses
from practicum.learning.advantages import (
    Attempt,
    explained_variance,
    generalised,
    leave_one_out,
    normalised,
    of_group,
    returns_to_go,
    whitened,
)
from practicum.learning.algorithms import ALGORITHMS, Knobs, algorithm

VALUES = np.array([0.2, 0.3, 0.4, 0.5, 0.6])
"Of the five action tokens of verl's mask 1 1 0 0 1 1 0 1; what stands on environment tokens is no part of the input."
REWARDS = np.array([0.0, 0.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("gamma", "lam", "advantages", "white"),
    [
        (1.0, 1.0, [0.8, 0.7, 0.6, 0.5, 0.4], [1.264911, 0.632455, 0.0, -0.632455, -1.264911]),
        (1.0, 0.95, [0.69679, 0.6282, 0.556, 0.48, 0.4], [1.232252, 0.647709, 0.032402, -0.615290, -1.297071]),
        (
            0.99,
            0.95,
            [0.662483, 0.601258, 0.537223, 0.4702, 0.4],
            [1.235977, 0.645937, 0.028816, -0.617099, -1.293631],
        ),
    ],
)
def test_gae_over_action_tokens_equals_what_verl_gives(gamma, lam, advantages, white):
    found = generalised(REWARDS, VALUES, gamma, lam)
    np.testing.assert_allclose(found, advantages, atol=1e-6)
    np.testing.assert_allclose(whitened([found[:2], found[2:]])[0], white[:2], atol=1e-5)
    np.testing.assert_allclose(np.concatenate(whitened([found[:2], found[2:]])), white, atol=1e-5)


def test_gae_equals_the_published_vectors_without_masks():
    """SkyRL's tests: rewards 1 2 3, values .5 1 1.5; verl's test: rewards and values at the five unmasked places."""
    values = np.array([0.5, 1.0, 1.5])
    for gamma, lam, returns in [(0.5, 1.0, [2.75, 3.5, 3.0]), (1.0, 0.5, [3.625, 4.25, 3.0])]:
        np.testing.assert_allclose(generalised(np.array([1.0, 2.0, 3.0]), values, gamma, lam) + values, returns)
    found = generalised(np.array([0.1, 0.1, 0.1, 0.1, 1.0]), np.array([0.3, 0.4, 0.5, 0.8, 0.9]), 1.0, 1.0)
    np.testing.assert_allclose(found, [1.1, 0.9, 0.7, 0.3, 0.1])
    np.testing.assert_allclose(
        np.concatenate(whitened([found])), [1.157383, 0.67514, 0.192897, -0.771588, -1.253831], atol=1e-5
    )


def test_with_lambda_one_gae_is_the_return_less_the_value():
    draw = np.random.default_rng(0)
    rewards, values = draw.normal(size=9), draw.normal(size=9)
    np.testing.assert_allclose(generalised(rewards, values, 0.9, 1.0), returns_to_go(rewards, 0.9) - values)


def test_whitening_leaves_a_single_token_alone():
    """ROLL's tests: one token is left, two become plus and minus 0.7071."""
    assert whitened([np.array([3.0])])[0].tolist() == [3.0]
    np.testing.assert_allclose(whitened([np.array([1.0, 3.0])])[0], [-0.70710677, 0.70710677], atol=1e-6)


def test_reinforce_equals_the_published_vector():
    """verl's REINFORCE++: reward 2 at the end, three action tokens, gamma 0.5."""
    returns = returns_to_go(np.array([0.0, 0.0, 2.0]), 0.5)
    np.testing.assert_allclose(returns, [0.5, 1.0, 2.0])
    np.testing.assert_allclose(whitened([returns])[0], [-0.8729, -0.2182, 1.0911], atol=1e-4)


def test_grpo_divides_by_the_sample_deviation():
    """GRPO, arXiv 2402.03300: a single success among n, as verl computes it."""
    np.testing.assert_allclose(normalised([1, 0, 0]), [1.154699, -0.577349, -0.577349], atol=1e-5)
    for size, advantage in [(8, 2.474867), (16, 3.749985), (32, 5.480047)]:
        assert normalised([1.0] + [0.0] * (size - 1))[0] == pytest.approx(advantage, abs=1e-5)


@pytest.mark.parametrize("rewards", [[], [1.0], [1.0, 1.0, 1.0]])
def test_singletons_and_constant_groups_give_grpo_exactly_nothing(rewards):
    assert list(normalised(rewards)) == [0.0] * len(rewards)


def test_siblings_are_compared_by_all_that_they_were_paid():
    """Also one that sampled nothing, and with penalties on single tokens."""
    paid = Attempt(1.0, np.array([-0.1, 0.9]), np.zeros(2))
    silent = Attempt(0.5, np.zeros(0), np.zeros(0))
    first, second = of_group(leave_one_out)([paid, silent])
    np.testing.assert_allclose(first, [0.3, 0.3])
    assert len(second) == 0


def test_explained_variance_is_one_for_a_critic_that_knows_and_nothing_for_a_constant():
    returns = np.array([0.0, 1.0, 1.0, 0.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(4, 0.5), returns) == 0.0
    assert math.isnan(explained_variance(returns, np.ones(4)))


def test_the_policy_loss_equals_the_published_vectors():
    """PPO with verl's numbers: ratios .5 1.1 1.5 .5 10, advantages 1 1 1 -1 -4, bounds 0.8 and 1.28."""
    ratios, advantages = torch.tensor([0.5, 1.1, 1.5, 0.5, 10.0]), torch.tensor([1.0, 1.0, 1.0, -1.0, -4.0])
    loss = losses.clipped(ratios.log(), torch.zeros(5), advantages, low=0.8, high=1.28)
    torch.testing.assert_close(loss, torch.tensor([-0.5, -1.1, -1.28, 0.8, 40.0]))


def test_the_value_loss_equals_the_published_vector():
    """verl: V 1 and .3, R .9, V before .2, clip .5: per token .02 and .18."""
    loss = losses.value(torch.tensor([1.0, 0.3]), torch.full((2,), 0.2), torch.full((2,), 0.9), 0.5)
    torch.testing.assert_close(loss, torch.tensor([0.02, 0.18]))


def test_kl_estimates_equal_the_published_vectors():
    """(logprob, reference): (-1, -1.5) and (-2, -1), and equal ones."""
    now, reference = torch.tensor([-1.0, -2.0, -1.0]), torch.tensor([-1.5, -1.0, -1.0])
    torch.testing.assert_close(losses.k1(now, reference), torch.tensor([0.5, -1.0, 0.0]))
    torch.testing.assert_close(losses.k3(now, reference), torch.tensor([0.106531, 0.718282, 0.0]), atol=1e-6, rtol=0)
    assert losses.k3(torch.tensor([-1000.0]), torch.zeros(1)).isfinite().all()


def test_k3_averaged_over_samples_is_the_kl_divergence():
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    expected = (p * (p / q).log()).sum()
    torch.testing.assert_close((p * losses.k3(p.log(), q.log())).sum(), expected)


def test_the_plain_policy_gradient_is_that_of_the_log_prob_times_the_advantage():
    logprobs = torch.tensor([-0.5, -1.5], requires_grad=True)
    advantages = torch.tensor([2.0, -1.0])
    losses.weighted(logprobs, logprobs.detach(), advantages).sum().backward()
    torch.testing.assert_close(logprobs.grad, -advantages)


def test_every_algorithm_says_which_knobs_it_reads():
    changed = {"clip": 0.3, "gamma": 0.5, "lam": 0.5}
    attempts = [Attempt(1.0, REWARDS, VALUES), Attempt(0.0, np.zeros(5), VALUES[::-1].copy())]
    logprobs = torch.tensor([-0.1, -3.0])

    def effect(name, knobs):
        built = ALGORITHMS[name](knobs)
        credit = np.concatenate(built.credit(attempts))
        return [*credit.tolist(), *built.loss(logprobs, torch.full((2,), -1.0), torch.tensor([1.0, -1.0])).tolist()]

    for name in ALGORITHMS:
        plain = Knobs()
        reads = [
            knob
            for knob in changed
            if effect(name, plain) != effect(name, Knobs(**{**plain.__dict__, knob: changed[knob]}))
        ]
        assert tuple(reads) == ALGORITHMS[name](plain).knobs, name


def test_an_unknown_algorithm_is_refused_by_name():
    with pytest.raises(UserError, match=r"no algorithm 'grop'; known: loop, grpo, rloo, reinforce, ppo"):
        algorithm("grop", Knobs())
