"""From a loss to a step: micro-batches, clipping, AdamW; a gradient that is not finite never reaches the parameters.

Axes: P sampled positions of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from practicum.learning.batches import Row
from practicum.learning.forest import Tree, micro_batches, trees_of
from practicum.models.memory import give_back_freed

Objective = Callable[[Sequence[Tree], Sequence[Row]], tuple[Tensor, Mapping[str, Tensor]]]
"Trees of a micro-batch and their rows to a loss per sampled position, and other numbers by name, shape (P,) each."


@dataclass(frozen=True)
class UpdateSettings:
    """How gradients become steps."""

    learning_rate: float
    warmup_updates: int
    "The rate rises linearly over so many updates."
    weight_decay: float
    max_grad_norm: float
    tokens_per_microbatch: int
    "Unique tokens of one forward pass; changes memory, not the gradient."
    tokens_kept: int = 0
    "Of a single tree, if that is more: a larger one is computed in parts, or again on the way back."


class Updater:
    """AdamW over named parameters.

    Example: Updater(policy.trunk.trained, settings).update(rows, objective) -> {"loss": 0.02, "grad_norm": 0.8, …}
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], settings: UpdateSettings) -> None:
        self.parameters, self.settings = dict(parameters), settings
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            betas=(0.9, 0.95),
            fused=True,
        )
        self.updates = 0
        self.refused = 0
        "Updates left out because their gradient was not finite."

    def update(self, rows: Sequence[Row], objective: Objective) -> dict[str, float]:
        """One step on the mean loss over all sampled tokens of `rows`, whatever the micro-batches."""
        tokens = sum(len(row.positions) for row in rows)
        sums: dict[str, float] = {"loss": 0.0}
        trees = trees_of(rows)
        settings = self.settings
        for trees_of_batch in micro_batches(trees, settings.tokens_per_microbatch, settings.tokens_kept):
            loss_P, numbers = objective(trees_of_batch, [row for tree in trees_of_batch for row in tree.rows])
            (loss_P.sum() / tokens).backward()
            for name, number_P in {"loss": loss_P, **numbers}.items():
                sums[name] = sums.get(name, 0.0) + float(number_P.detach().sum())
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.max_grad_norm))
        means = {name: total / tokens for name, total in sums.items()}
        if np.isfinite(norm) and np.isfinite(means["loss"]):
            share = min(1.0, (self.updates + 1) / max(1, self.settings.warmup_updates))
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.learning_rate * share
            self.optimizer.step()
            self.updates += 1
        else:
            self.refused += 1
        self.optimizer.zero_grad(set_to_none=True)
        give_back_freed()
        return means | {"grad_norm": norm, "unique_tokens": float(sum(len(tree.tokens_U) for tree in trees))}

    def state(self) -> dict[str, Tensor]:
        """Parameters, moments and counters as named tensors; what is live is not copied."""
        tensors = {f"parameter.{name}": parameter.detach() for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            for kind, tensor in self.optimizer.state[parameter].items():
                tensors[f"{kind}.{name}"] = tensor
        return tensors | {"updates": torch.tensor(self.updates), "refused": torch.tensor(self.refused)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave, for parameters of the same names."""
        self.updates, self.refused = int(tensors["updates"]), int(tensors["refused"])
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[f"parameter.{name}"])
                moments = {
                    kind: tensors[f"{kind}.{name}"].clone()
                    for kind in ("step", "exp_avg", "exp_avg_sq")
                    if f"{kind}.{name}" in tensors
                }
                if moments:
                    self.optimizer.state[parameter] = moments
