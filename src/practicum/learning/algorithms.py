"""Algorithms side by side: each a credit function, a loss and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from practicum.errors import UserError
from practicum.learning.advantages import leave_one_out

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Algorithm:
    """A value made of functions."""

    name: str
    credit: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    "Rewards of one group's valid trajectories, shape (G,), to their advantages, shape (G,)."
    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    "(logprobs_P, sampled_logprobs_P, advantages_P) -> loss_P."
    needs_critic: bool = False
    needs_reference: bool = False


def loop(clip: float) -> Algorithm:
    """PPO without critic and reference: leave-one-out advantages, token ratio clipped to [1/(1+clip), 1+clip].

    Source: LOOP, arXiv 2502.01600 and its code, with the mean over all action tokens of the batch.
    """
    from practicum.learning.losses import clipped

    return Algorithm("loop", leave_one_out, partial(clipped, low=1 / (1 + clip), high=1 + clip))


ALGORITHMS: dict[str, Callable[[float], Algorithm]] = {"loop": loop}


def algorithm(name: str, clip: float) -> Algorithm:
    """The algorithm of that name. Raises UserError naming the known ones."""
    if name not in ALGORITHMS:
        raise UserError(f"there is no algorithm {name!r}; known: {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name](clip)
