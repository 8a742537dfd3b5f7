"""From trajectories to rows, and from rows to micro-batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def rows_of(trajectory: Trajectory, advantage: float) -> list[Row]:
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
            row = Row(tuple(tokens[:length]), tuple(positions), tuple(logprobs), leaf.sampling.temperature, advantage)
            rows.append(row)
    return rows


def micro_batches(rows: Sequence[Row], budget: int) -> Iterator[list[Row]]:
    """Rows of similar length together, each batch at most `budget` padded tokens (a longer row goes alone).

    Every row comes exactly once; the split changes no gradient, since sums are divided by global counts.
    """
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: (-len(row.tokens), row.tokens)):
        if batch and (len(batch) + 1) * len(batch[0].tokens) > budget:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
