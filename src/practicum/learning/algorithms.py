"""Algorithms side by side: each a credit function, a loss and what it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from practicum.errors import UserError
from practicum.learning.advantages import (
    Attempt,
    Credit,
    Numbers,
    generalised,
    leave_one_out,
    normalised,
    of_group,
    returns_to_go,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Algorithm:
    """A value made of functions."""

    name: str
    credit: Credit
    "Attempts of one group to the advantage of each of their sampled tokens."
    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    "(logprobs_P, sampled_logprobs_P, advantages_P) -> loss_P."
    compares_siblings: bool = True
    "A group whose rewards are all equal teaches nothing, and is left out."
    whitens: bool = False
    "Advantages are brought to mean 0 and variance 1 over all tokens of a step."
    needs_critic: bool = False
    knobs: tuple[str, ...] = ()
    "Those of `Knobs` that it reads."


@dataclass(frozen=True)
class Knobs:
    """The numbers that algorithms take; each uses those that it has."""

    clip: float = 0.1
    "How far a token's probability may move in one step, as a ratio."
    gamma: float = 1.0
    "Discount per sampled token."
    lam: float = 1.0
    "GAE's lambda: 1 trusts the outcome, 0 the critic."


def loop(knobs: Knobs) -> Algorithm:
    """PPO without critic and reference: leave-one-out advantages, token ratio clipped to [1/(1+clip), 1+clip].

    Source: LOOP, arXiv 2502.01600 and its code, with the mean over all action tokens of the batch.
    """
    from practicum.learning.losses import clipped

    low, high = 1 / (1 + knobs.clip), 1 + knobs.clip
    return Algorithm("loop", of_group(leave_one_out), partial(clipped, low=low, high=high), knobs=("clip",))


def grpo(knobs: Knobs) -> Algorithm:
    """Rewards normalised within the group, ratio clipped to [1-clip, 1+clip]. Source: arXiv 2402.03300.

    With the mean over all action tokens of the batch (DAPO, arXiv 2503.14476) and not per attempt.
    """
    from practicum.learning.losses import clipped

    loss = partial(clipped, low=1 - knobs.clip, high=1 + knobs.clip)
    return Algorithm("grpo", of_group(normalised), loss, knobs=("clip",))


def rloo(knobs: Knobs) -> Algorithm:
    """Leave-one-out advantages and the plain policy gradient, nothing clipped. Source: arXiv 2402.14740."""
    from practicum.learning.losses import weighted

    return Algorithm("rloo", of_group(leave_one_out), weighted)


def reinforce(knobs: Knobs) -> Algorithm:
    """Discounted reward to go, whitened over the step, plain policy gradient. Source: REINFORCE++, arXiv 2501.03262."""
    from practicum.learning.losses import weighted

    def credit(attempts: Sequence[Attempt]) -> list[Numbers]:
        return [returns_to_go(attempt.rewards_T, knobs.gamma) for attempt in attempts]

    return Algorithm("reinforce", credit, weighted, compares_siblings=False, whitens=True, knobs=("gamma",))


def ppo(knobs: Knobs) -> Algorithm:
    """Actor and critic: GAE over sampled tokens, whitened over the step, ratio clipped to [1-clip, 1+clip].

    Source: arXiv 1707.06347. With one outcome at the end lambda 1 was the stable choice (LOOP, arXiv 2502.01600).
    """
    from practicum.learning.losses import clipped

    def credit(attempts: Sequence[Attempt]) -> list[Numbers]:
        return [generalised(attempt.rewards_T, attempt.values_T, knobs.gamma, knobs.lam) for attempt in attempts]

    loss = partial(clipped, low=1 - knobs.clip, high=1 + knobs.clip)
    return Algorithm(
        "ppo",
        credit,
        loss,
        compares_siblings=False,
        whitens=True,
        needs_critic=True,
        knobs=("clip", "gamma", "lam"),
    )


ALGORITHMS: dict[str, Callable[[Knobs], Algorithm]] = {
    "loop": loop,
    "grpo": grpo,
    "rloo": rloo,
    "reinforce": reinforce,
    "ppo": ppo,
}


def algorithm(name: str, knobs: Knobs) -> Algorithm:
    """The algorithm of that name. Raises UserError naming the known ones."""
    if name not in ALGORITHMS:
        raise UserError(f"there is no algorithm {name!r}; known: {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name](knobs)
