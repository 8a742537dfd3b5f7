"""From trajectories to rows: what the trainer sees of an attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from practicum.types import Trajectory


@dataclass(frozen=True)
class Row:
    """One context from its beginning to its last sampled token, as the trainer sees it.

    Example: system and request (20 tokens), call (9), result (12), call (5): length 46, 14 of them sampled.
    """

    tokens: tuple[int, ...]
    "Shape (L,)."
    positions: tuple[int, ...]
    "Where in `tokens` the trained tokens stand, shape (P,); never 0."
    logprobs: tuple[float, ...]
    "Log-probs recorded when they were sampled, shape (P,)."
    temperature: float
    "What they were sampled at; the trainer scores the same distribution."
    group: str = ""
    "Rows of one group probably begin alike, and are packed together; empty for a row that stands alone."
    attempt: int = 0
    "Number of the attempt within its group."
    turns: tuple[int, ...] = ()
    "Turn that sampled each token, shape (P,)."
    advantages: tuple[float, ...] = ()
    "Shape (P,), as are the following; empty until the trainer gave credit."
    values: tuple[float, ...] = ()
    "What the critic expected before each token."
    returns: tuple[float, ...] = ()
    "What the critic is to expect there."
    reference: tuple[float, ...] = ()
    "Log-probs under the reference policy."


def rows_of(trajectory: Trajectory, group: str = "") -> list[Row]:
    """One row per context; every delivered completion is trained exactly once, in the first row that holds it.

    A turn that two later turns continue (parallel calls) stands in both rows and is trained in one of them.
    """
    continued = {turn.continues for turn in trajectory.turns}
    trained: set[int] = set()
    rows = []
    for leaf in trajectory.turns:
        if leaf.index in continued:
            continue
        chain = [leaf]
        while chain[-1].continues is not None:
            chain.append(trajectory.turns[chain[-1].continues])
        tokens: list[int] = []
        positions: list[int] = []
        logprobs: list[float] = []
        turns: list[int] = []
        for turn in reversed(chain):
            tokens += turn.added
            if turn.delivered and turn.index not in trained:
                trained.add(turn.index)
                positions += range(len(tokens), len(tokens) + len(turn.completion.tokens))
                logprobs += turn.completion.logprobs
                turns += [turn.index] * len(turn.completion.tokens)
            tokens += turn.completion.tokens
        if positions:
            length = positions[-1] + 1
            kept, temperature = tuple(tokens[:length]), leaf.sampling.temperature
            sampled = tuple(positions), tuple(logprobs)
            rows.append(Row(kept, *sampled, temperature, group, trajectory.attempt, tuple(turns)))
    return rows


def in_time(rows: Sequence[Row]) -> NDArray[np.intp]:
    """Order of time of the sampled tokens of one trajectory's rows, laid end to end; shape (T,).

    A row is in order already; rows interleave by turn (sub-agents, parallel calls).
    Example: rows with turns (0, 0, 2) and (1,) -> [0, 1, 3, 2]
    """
    turns = np.array([turn for row in rows for turn in row.turns], dtype=np.intp)
    return np.argsort(turns, kind="stable")
