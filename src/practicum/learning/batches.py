"""From trajectories to rows: what the trainer sees of an attempt."""

from __future__ import annotations

from dataclasses import dataclass

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
    advantage: float
    group: str = ""
    "Rows of one group probably begin alike, and are packed together; empty for a row that stands alone."


def rows_of(trajectory: Trajectory, advantage: float, group: str = "") -> list[Row]:
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
        for turn in reversed(chain):
            tokens += turn.added
            if turn.delivered and turn.index not in trained:
                trained.add(turn.index)
                positions += range(len(tokens), len(tokens) + len(turn.completion.tokens))
                logprobs += turn.completion.logprobs
            tokens += turn.completion.tokens
        if positions:
            length = positions[-1] + 1
            kept, temperature = tuple(tokens[:length]), leaf.sampling.temperature
            rows.append(Row(kept, tuple(positions), tuple(logprobs), temperature, advantage, group))
    return rows
