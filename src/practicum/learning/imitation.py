"""Warm-up: learn to say what an expert said, with the same rows and masks as reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from practicum.learning.batches import Row, rows_of
from practicum.learning.forest import LEANER, Tree, micro_batches, trees_of
from practicum.learning.losses import imitation
from practicum.learning.policy import Policy
from practicum.learning.updater import Objective, Updater, UpdateSettings
from practicum.types import Trajectory


def imitate(
    policy: Policy,
    demonstrations: Sequence[Trajectory],
    dev: Sequence[Trajectory],
    settings: UpdateSettings,
    *,
    rows_per_update: int,
    epochs: int,
    plateau: float,
    seed: int,
) -> Iterator[dict[str, float]]:
    """Train on demonstrations epoch by epoch, yielding {"epoch", "loss", "dev_loss"}; stop at a plateau on dev.

    An epoch that lowers the dev loss (mean nats per expert token) by less than the share `plateau` is the last.
    """
    rows = [row for trajectory in demonstrations for row in rows_of(trajectory)]
    dev_rows = [row for trajectory in dev for row in rows_of(trajectory)]
    updater, objective = Updater(policy.trunk.trained, settings), likelihood(policy)
    order = np.random.default_rng(seed)
    best = mean_loss(policy, dev_rows, settings.tokens_per_microbatch)
    for epoch in range(1, epochs + 1):
        parts = np.array_split(order.permutation(len(rows)), max(1, round(len(rows) / rows_per_update)))
        losses = [updater.update([rows[n] for n in part], objective)["loss"] for part in parts]
        dev_loss = mean_loss(policy, dev_rows, settings.tokens_per_microbatch)
        yield {"epoch": float(epoch), "loss": float(np.mean(losses)), "dev_loss": dev_loss}
        if dev_loss > best * (1 - plateau):
            return
        best = dev_loss


def likelihood(policy: Policy) -> Objective:
    """The loss of imitation: how unlikely each of the expert's tokens is to the policy."""

    def objective(trees: Sequence[Tree], rows: Sequence[Row]) -> tuple[Tensor, dict[str, Tensor]]:
        return imitation(policy.score(trees).logprobs_P), {}

    return objective


@torch.no_grad()
def mean_loss(policy: Policy, rows: Sequence[Row], tokens_per_microbatch: int) -> float:
    """Mean nats per expert token, without learning from them; nan for no rows."""
    batches = micro_batches(trees_of(rows), tokens_per_microbatch, kept=LEANER * tokens_per_microbatch)
    total = sum(float(imitation(policy.score(batch).logprobs_P).sum()) for batch in batches)
    return total / sum(len(row.positions) for row in rows) if rows else float("nan")
