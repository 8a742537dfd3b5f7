"""The layers of a language model below its head: trees in, the hidden states that sampled tokens follow out.

Axes: T trees, U unique tokens of a tree (padded), P sampled positions over all rows, F distinct positions that those
follow, D width of the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from practicum.errors import UserError
from practicum.learning.attention import additive, use_in
from practicum.learning.forest import Tree


@dataclass(frozen=True)
class Sampled:
    """Where the sampled tokens of some trees stand: tree by tree, row by row, shape (P,) each."""

    ranks_P: NDArray[np.int64]
    "Which of the F hidden states each token follows: rows that share a beginning share its states."
    tokens_P: NDArray[np.int64]
    temperatures_P: NDArray[np.float32]


class Trunk:
    """A transformers causal LM with float32 weights, computing in bfloat16 under autocast where `autocast` says so.

    `passes` counts what it computed, in forward passes of one token: 1 for a token that was read, 3 for one that
    was trained on, whose backward pass costs about two more. Padding is not counted.
    """

    def __init__(self, model: Any, autocast: bool) -> None:
        self.model = model.float()
        self.autocast = autocast
        self.window = window_of(model)
        self.device = next(model.parameters()).device
        self.passes = 0.0
        use_in(self.model)

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that learn, by name: all of them, or those of an adapter."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Within it, matrix products are computed as the trunk computes."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.autocast else contextlib.nullcontext()

    def hidden(self, trees: Sequence[Tree]) -> tuple[Tensor, Sampled]:
        """Hidden states (F, D) that sampled tokens follow, each once, and where the tokens of all rows stand.

        Trees are padded to the same size; each token sees its ancestors only and stands at its depth. Raises UserError
        for a row beyond the model's attention window.
        """
        self.passes += (3 if torch.is_grad_enabled() else 1) * sum(len(tree.tokens_U) for tree in trees)
        size = max(len(tree.tokens_U) for tree in trees)
        deepest = max(int(tree.depths_U.max()) for tree in trees)
        if self.window is not None and deepest >= self.window:
            raise UserError(
                f"a row of {deepest + 1} tokens exceeds the model's attention window of {self.window}, which the "
                "trainer does not compute; lower simulator.context_tokens"
            )
        tokens_TU = np.zeros((len(trees), size), dtype=np.int64)
        depths_TU = np.zeros_like(tokens_TU)
        sees_TUU = np.broadcast_to(np.eye(size, dtype=bool), (len(trees), size, size)).copy()
        for t, tree in enumerate(trees):
            unique = len(tree.tokens_U)
            tokens_TU[t, :unique], depths_TU[t, :unique] = tree.tokens_U, tree.depths_U
            sees_TUU[t, :unique, :unique] = tree.sees_UU
        followed_F, sampled = sampled_positions(trees, size)
        with self.precision():
            hidden_TUD = self.model.base_model(
                input_ids=self.tensor(tokens_TU),
                position_ids=self.tensor(depths_TU),
                attention_mask=additive(self.tensor(sees_TUU)),
                use_cache=False,
            ).last_hidden_state
        return hidden_TUD.flatten(0, 1)[self.tensor(followed_F)], sampled

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """An array on the model's device."""
        return torch.from_numpy(array).to(self.device)


def sampled_positions(trees: Sequence[Tree], size: int) -> tuple[NDArray[np.int64], Sampled]:
    """Distinct flat positions that a sampled token follows, shape (F,), and the tokens that follow them."""
    before, token, temperature = [], [], []
    for t, tree in enumerate(trees):
        for row, path in zip(tree.rows, tree.paths, strict=True):
            positions = np.array(row.positions)
            before.append(t * size + path[positions - 1])
            token.append(np.array(row.tokens)[positions])
            temperature.append(np.full(len(positions), row.temperature, dtype=np.float32))
    followed_F, ranks_P = np.unique(np.concatenate(before), return_inverse=True)
    return followed_F, Sampled(ranks_P, np.concatenate(token), np.concatenate(temperature))


def window_of(model: Any) -> int | None:
    """Tokens that the narrowest layer looks back; None where every layer sees all."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None)
    return window if window and (layers is None or "sliding_attention" in layers) else None
