"""The language head on the states that sampled tokens follow, some states at a time.

Log-probs over a vocabulary are the largest thing that training computes: 100 MB for 512 states and 49,152 tokens. Those
of so many states exist at once; on the way back they are computed again.

Axes: F states, V vocabulary, D width of the model, P sampled positions over all rows, N of them in a chunk of C states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from practicum.learning.budget import STATES


class Said(torch.autograd.Function):
    """Log-probs of sampled tokens, (P,), and entropies of the distributions that these come from, (F,), no gradient.

    Takes states (F, D) and the temperature at each (F,), the head's weight (V, D) and bias (V,) or None, for each
    token the rank of the state that it follows and the token itself (P,), and the type in which to multiply matrices.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states_FD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        warmth_F: Tensor,
        ranks_P: Tensor,
        tokens_P: Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Chunk by chunk; if there is only one, its log-probs are kept for the way back."""
        head = weight_VD.to(dtype), None if bias_V is None else bias_V.to(dtype)
        cast_FD, kept_CV = states_FD.to(dtype), None
        logprobs_P, entropy_F = (warmth_F.new_empty(len(of)) for of in (ranks_P, states_FD))
        for chunk, places_N in chunks(ranks_P, len(states_FD)):
            logprobs_CV = distributions(cast_FD[chunk], *head, warmth_F[chunk])
            logprobs_P[places_N] = logprobs_CV[ranks_P[places_N] - chunk.start, tokens_P[places_N]]
            entropy_F[chunk] = -torch.linalg.vecdot(logprobs_CV.exp(), logprobs_CV)
            kept_CV = logprobs_CV if len(states_FD) <= STATES else None
        ctx.types = states_FD.dtype, weight_VD.dtype
        ctx.save_for_backward(cast_FD, *head, warmth_F, ranks_P, tokens_P, kept_CV)
        ctx.mark_non_differentiable(entropy_F)
        return logprobs_P, entropy_F

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_P: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """A log-prob's gradient in its logits is 1 at the token, less the probability of each."""
        cast_FD, weight_VD, bias_V, warmth_F, ranks_P, tokens_P, kept_CV = ctx.saved_tensors
        states_type, weight_type = ctx.types
        of_states_FD, of_weight_VD, of_bias_V = torch.empty_like(cast_FD), None, None
        for chunk, places_N in chunks(ranks_P, len(cast_FD)):
            logprobs_CV = (
                distributions(cast_FD[chunk], weight_VD, bias_V, warmth_F[chunk]) if kept_CV is None else kept_CV
            )
            ranks_N, grad_N = ranks_P[places_N] - chunk.start, grad_P[places_N]
            pull_C = torch.zeros_like(warmth_F[chunk]).index_add_(0, ranks_N, grad_N)
            of_logits_CV = logprobs_CV.exp().mul_(-pull_C[:, None])
            of_logits_CV.index_put_((ranks_N, tokens_P[places_N]), grad_N, accumulate=True)
            of_logits_CV = of_logits_CV.div_(warmth_F[chunk, None]).to(cast_FD.dtype)
            of_states_FD[chunk] = of_logits_CV @ weight_VD
            if ctx.needs_input_grad[1]:
                of_weight_VD = added(of_weight_VD, (of_logits_CV.T @ cast_FD[chunk]).to(weight_type))
            if ctx.needs_input_grad[2]:
                of_bias_V = added(of_bias_V, of_logits_CV.sum(0).to(weight_type))
        return of_states_FD.to(states_type), of_weight_VD, of_bias_V, None, None, None, None


def distributions(states_CD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, warmth_C: Tensor) -> Tensor:
    """Log-probs of every token of the vocabulary at each state's temperature, shape (C, V), float32."""
    with torch.autocast(states_CD.device.type, enabled=False):
        return (linear(states_CD, weight_VD, bias_V) / warmth_C[:, None]).log_softmax(-1)


def chunks(ranks_P: Tensor, states: int) -> Iterator[tuple[slice, Tensor]]:
    """Some of the states at a time, and where among the P tokens those that follow them stand, shape (N,)."""
    for start in range(0, states, STATES):
        stop = min(start + STATES, states)
        yield slice(start, stop), ((ranks_P >= start) & (ranks_P < stop)).nonzero()[:, 0]


def added(total: Tensor | None, part: Tensor) -> Tensor:
    """The sum, in place where there is one already."""
    return part if total is None else total.add_(part)
