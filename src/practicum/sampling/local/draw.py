"""One token per row from its logits, by inverting the cumulative distribution at a given uniform number.

Axes: B rows, V vocabulary, C blocks of the vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 64


def draw(logits_BV: Tensor, temperatures_B: Tensor, uniforms_B: Tensor) -> tuple[list[int], list[float]]:
    """Tokens and their log-probs in nats; temperature 0 takes the likeliest, with its log-prob at temperature 1.

    `uniforms_B` are float64 in [0, 1): the same number and logits give the same token, whoever else is in the batch.
    Raises FloatingPointError where the logits are not finite.

    Example: draw(logits_BV, torch.tensor([1.0, 0.0]), torch.tensor([0.25, 0.9], dtype=torch.float64))
    """
    greedy_B = temperatures_B == 0
    scaled_BV = logits_BV.float()
    if not bool(((temperatures_B == 1) | greedy_B).all()):
        scaled_BV = scaled_BV / torch.where(greedy_B, 1.0, temperatures_B)[:, None]
    probs_BV = torch.softmax(scaled_BV, dim=-1)
    tokens_B = _invert(probs_BV, uniforms_B)
    if bool(greedy_B.any()):
        tokens_B = torch.where(greedy_B, scaled_BV.argmax(dim=-1), tokens_B)
    drawn = probs_BV.gather(1, tokens_B[:, None])[:, 0].tolist()
    if not all(probability > 0 for probability in drawn):
        raise FloatingPointError("the model's logits are not finite: the weights it was given are broken")
    # One by one: the logarithm of a tensor rounds differently for the last few of its numbers.
    return tokens_B.tolist(), [math.log(probability) for probability in drawn]


def _invert(probs_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """First the block, then the token within it: one pass over the vocabulary, and sums exact enough for its tail."""
    vocabulary = probs_BV.shape[1]
    if vocabulary % BLOCK:
        probs_BV = torch.nn.functional.pad(probs_BV, (0, BLOCK - vocabulary % BLOCK))
    blocks_BCK = probs_BV.unflatten(1, (-1, BLOCK))
    block_B, within_B = _first_above(blocks_BCK.sum(dim=-1), uniforms_B)
    index_B11 = block_B[:, None, None].expand(-1, 1, BLOCK)
    token_B, _ = _first_above(blocks_BCK.gather(1, index_B11)[:, 0], within_B)
    return (block_B * BLOCK + token_B).clamp(max=vocabulary - 1)


def _first_above(weights_BC: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """The entry under which each number falls, never one of weight 0, and how far into it the number lies, 0 to 1."""
    cumulative_BC = weights_BC.double().cumsum(dim=-1)
    total_B = cumulative_BC[:, -1]
    target_B = torch.minimum(uniforms_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
    entry_B1 = torch.searchsorted(cumulative_BC, target_B[:, None], right=True).clamp(max=weights_BC.shape[1] - 1)
    weight_B = weights_BC.double().gather(1, entry_B1)[:, 0]
    before_B = cumulative_BC.gather(1, entry_B1)[:, 0] - weight_B
    return entry_B1[:, 0], ((target_B - before_B) / weight_B).clamp(0.0, 1.0)
