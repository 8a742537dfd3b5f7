"""The actor: a language model whose sampled tokens are scored under the distribution they were drawn from.

Axes: T trees, U unique tokens of a tree (padded), P sampled positions over all rows, F distinct positions that those
follow, V vocabulary.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from practicum.errors import UserError
from practicum.learning.attention import additive, use_in
from practicum.learning.batches import Row
from practicum.learning.forest import Tree, tree_of
from practicum.types import Weights


@dataclass(frozen=True)
class Scores:
    """What the policy says of a batch's sampled tokens."""

    logprobs_P: Tensor
    "Log-probs of the sampled tokens at the temperature they were sampled at, with gradient."
    entropy_P: Tensor
    "Entropy of the whole distribution there, nats, without gradient."


class Policy:
    """A transformers causal LM in float32, computing in bfloat16 under autocast where that is faster."""

    def __init__(self, model: Any, autocast: bool) -> None:
        self.model = model.float()
        self.window = window_of(model)
        plain = plain_logits(self.model)
        use_in(self.model)
        self.device = next(model.parameters()).device
        self.autocast = False
        self.check_same(plain)
        self.autocast = autocast

    def score(self, trees: Sequence[Tree]) -> Scores:
        """Log-probs of the sampled positions of all rows, tree by tree, row by row, shape (P,).

        Trees are padded to the same size; each token sees its ancestors only and stands at its depth. The output layer
        runs once for each position that a sampled token follows, however many rows share it.
        """
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
        followed, rank_P, token_P, temperature_P = sampled_positions(trees, size)
        with torch.autocast(self.device.type, torch.bfloat16) if self.autocast else contextlib.nullcontext():
            hidden_TUD = self.model.base_model(
                input_ids=self.tensor(tokens_TU),
                position_ids=self.tensor(depths_TU),
                attention_mask=additive(self.tensor(sees_TUU)),
                use_cache=False,
            ).last_hidden_state
            logits_FV = self.model.get_output_embeddings()(hidden_TUD.flatten(0, 1)[self.tensor(followed)])
        if len(np.unique(temperature_P)) == 1:
            logprobs_FV = (logits_FV.float() / float(temperature_P[0])).log_softmax(-1)
        else:
            logprobs_FV = (logits_FV.float()[self.tensor(rank_P)] / self.tensor(temperature_P)[:, None]).log_softmax(-1)
            rank_P = np.arange(len(rank_P))
        with torch.no_grad():
            entropy_F = -(logprobs_FV.exp() * logprobs_FV).sum(-1)
        which_P = self.tensor(rank_P)
        return Scores(logprobs_FV[which_P, self.tensor(token_P)], entropy_F[which_P])

    def check_same(self, plain_LV: Tensor) -> None:
        """Raise UserError where a tree gives other log-probs than the model itself: its architecture does more."""
        tokens = tuple(range(1, len(plain_LV) + 1))
        positions = tuple(range(1, len(tokens)))
        with torch.no_grad():
            ours_P = self.score([tree_of([Row(tokens, positions, (0.0,) * len(positions), 1.0, 0.0)])]).logprobs_P
        theirs_P = plain_LV.log_softmax(-1)[torch.arange(len(positions)), torch.tensor(tokens[1:])]
        if not torch.allclose(ours_P, theirs_P, atol=1e-3):
            gap = float((ours_P - theirs_P).abs().max())
            raise UserError(
                f"the trainer cannot train {type(self.model).__name__}: its log-probs differ by {gap:.3g} from the "
                "model's own, which scales or caps its scores; choose a model of another family, such as Llama or Qwen"
            )

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """An array on the policy's device."""
        return torch.from_numpy(array).to(self.device)


def sampled_positions(trees: Sequence[Tree], size: int) -> tuple[NDArray[Any], ...]:
    """(distinct flat positions that a sampled token follows, which of them each follows, the tokens, temperatures)."""
    before, token, temperature = [], [], []
    for t, tree in enumerate(trees):
        for row, path in zip(tree.rows, tree.paths, strict=True):
            positions = np.array(row.positions)
            before.append(t * size + path[positions - 1])
            token.append(np.array(row.tokens)[positions])
            temperature.append(np.full(len(positions), row.temperature, dtype=np.float32))
    followed, rank_P = np.unique(np.concatenate(before), return_inverse=True)
    return followed, rank_P, np.concatenate(token), np.concatenate(temperature)


def plain_logits(model: Any, tokens: int = 24) -> Tensor:
    """What the untouched model says of a few tokens, shape (L, V)."""
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        logits_1LV = model(torch.arange(1, tokens + 1, device=model.device)[None]).logits
    return logits_1LV[0].float()


def window_of(model: Any) -> int | None:
    """Tokens that the narrowest layer looks back; None where every layer sees all."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None)
    return window if window and (layers is None or "sliding_attention" in layers) else None


def weights_of(model: Any, version: int) -> Weights:
    """A model's parameters as they stand; whoever loads them copies before the next update."""
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return Weights(version, digest_of(tensors), tensors)


def digest_of(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over names and bytes, in name order."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


def faster_with_autocast(model: Any, tokens: int = 256, rounds: int = 3) -> bool:
    """Measure forward and backward passes both ways in turn; True when bfloat16 autocast takes less time.

    The fastest pass of each way counts: whatever else runs on the machine can only make a pass slower.
    """
    vocabulary, half = model.config.vocab_size, tokens // 2
    row = Row(tuple(n % vocabulary for n in range(tokens)), tuple(range(half, tokens)), (0.0,) * half, 1.0, 1.0)
    tree, policy = tree_of([row]), Policy(model, autocast=False)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(1 + rounds):
        for autocast, taken in seconds.items():
            policy.autocast = autocast
            began = time.perf_counter()
            policy.score([tree]).logprobs_P.sum().backward()
            model.zero_grad(set_to_none=True)
            taken.append(time.perf_counter() - began)
    fastest = {autocast: min(taken[1:]) for autocast, taken in seconds.items()}  # the first pass of each warms up
    return fastest[True] < fastest[False]
