"""The layers of a language model below its head: trees in, the hidden states that sampled tokens follow out.

Axes: U unique tokens of the trees, end to end, P sampled positions over all rows, F distinct positions that those
follow (twice where they are sampled at two temperatures), D width of the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from practicum.errors import UserError
from practicum.learning.attention import use_in
from practicum.learning.forest import Tree


@dataclass(frozen=True)
class Sampled:
    """Where the sampled tokens of some trees stand: tree by tree, row by row."""

    ranks_P: NDArray[np.int64]
    "Which of the F hidden states each token follows: rows that share a beginning share its states."
    tokens_P: NDArray[np.int64]
    temperatures_F: NDArray[np.float32]


class Trunk:
    """A transformers causal LM with float32 weights, computing in bfloat16 under autocast where `autocast` says so.

    It stays in evaluation mode: what samples and what learns are one policy, without dropout. `passes` counts what it
    computed, in forward passes of one token: 1 for a token that was read, 3 for one that was trained on, whose backward
    pass costs about two more, and 4 where layers are computed again on the way.
    """

    def __init__(self, model: Any, autocast: bool) -> None:
        self.model = model.float().eval()
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

        The trees pass end to end; each token sees its ancestors only and stands at its depth. Raises UserError for a
        row beyond the model's attention window.
        """
        tokens_U, depths_U = (
            np.concatenate([getattr(tree, name) for tree in trees]) for name in ("tokens_U", "depths_U")
        )
        starts = np.cumsum([0, *map(len, trees)])
        ends_U = np.concatenate([start + tree.ends_U for start, tree in zip(starts, trees, strict=False)])
        deepest = depths_U.max()
        if self.window is not None and deepest >= self.window:
            raise UserError(
                f"a row of {deepest + 1} tokens exceeds the model's attention window of {self.window}, which the "
                "trainer does not compute; lower simulator.context_tokens"
            )
        again = any(tree.recomputed for tree in trees)
        self.passes += (3 + again if torch.is_grad_enabled() else 1) * len(tokens_U)
        followed_F, sampled = sampled_positions(trees, starts)
        with self.precision(), recomputed(self.model, again):
            hidden_1UD = self.model.base_model(
                input_ids=self.tensor(tokens_U)[None],
                position_ids=self.tensor(depths_U)[None],
                attention_mask=self.tensor(ends_U)[None, None, None],
                use_cache=False,
            ).last_hidden_state
        return hidden_1UD[0, self.tensor(followed_F)], sampled

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """An array on the model's device."""
        return torch.from_numpy(array).to(self.device)


@contextlib.contextmanager
def recomputed(model: Any, on: bool) -> Iterator[None]:
    """Within it, where `on`, layers keep what comes in and compute the rest again on the way back."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [layer for layer in model.modules() if on and isinstance(layer, GradientCheckpointingLayer)]
    for layer in layers:
        layer.gradient_checkpointing = layer.training = True  # of the layer alone: what is in it stays as it is
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for layer in layers:
            layer.gradient_checkpointing = layer.training = False


def sampled_positions(trees: Sequence[Tree], starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], Sampled]:
    """Distinct positions that a sampled token follows, shape (F,), and the tokens that follow them."""
    before, token, temperature = [], [], []
    for start, tree in zip(starts, trees, strict=False):
        for row, path in zip(tree.rows, tree.paths, strict=True):
            positions = np.array(row.positions)
            before.append(start + path[positions - 1])
            token.append(np.array(row.tokens)[positions])
            temperature.append(np.full(len(positions), row.temperature))
    pairs_2P = np.stack([np.concatenate(before), np.concatenate(temperature)])
    (followed_F, warmth_F), ranks_P = np.unique(pairs_2P, axis=1, return_inverse=True)
    return followed_F.astype(np.int64), Sampled(ranks_P.ravel(), np.concatenate(token), warmth_F.astype(np.float32))


def window_of(model: Any) -> int | None:
    """Tokens that the narrowest layer looks back; None where every layer sees all."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None)
    return window if window and (layers is None or "sliding_attention" in layers) else None
