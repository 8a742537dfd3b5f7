"""The actor: a language model whose sampled tokens are scored under the distribution they were drawn from.

Axes: B rows, L padded length, P sampled positions over all rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from practicum.learning.batches import Row
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
        self.autocast = autocast
        self.device = next(model.parameters()).device

    def score(self, rows: Sequence[Row]) -> Scores:
        """Log-probs of the rows' sampled positions, row by row in order; shape (P,).

        Rows are padded on the right, where causal attention makes padding invisible; the output layer runs at
        sampled positions only.
        """
        length = max(len(row.tokens) for row in rows)
        padded = [list(row.tokens) + [0] * (length - len(row.tokens)) for row in rows]
        tokens_BL = torch.tensor(padded, device=self.device)
        row_P = torch.tensor([b for b, row in enumerate(rows) for _ in row.positions], device=self.device)
        position_P = torch.tensor([p for row in rows for p in row.positions], device=self.device)
        temperature_P1 = torch.tensor([[row.temperature] for row in rows for _ in row.positions], device=self.device)
        reduced = torch.autocast(self.device.type, torch.bfloat16) if self.autocast else contextlib.nullcontext()
        with reduced:
            hidden_BLD = self.model.base_model(input_ids=tokens_BL, use_cache=False).last_hidden_state
            logits_PV = self.model.get_output_embeddings()(hidden_BLD[row_P, position_P - 1])
        logprobs_PV = (logits_PV.float() / temperature_P1).log_softmax(-1)
        with torch.no_grad():
            entropy_P = -(logprobs_PV.exp() * logprobs_PV).sum(-1)
        return Scores(logprobs_PV.gather(1, tokens_BL[row_P, position_P].unsqueeze(1)).squeeze(1), entropy_P)

    def weights(self, version: int) -> Weights:
        """The parameters as they stand; whoever loads them copies before the next update."""
        tensors = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        return Weights(version, digest_of(tensors), tensors)


def digest_of(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over names and bytes, in name order."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


def faster_with_autocast(model: Any, tokens: int = 256) -> bool:
    """Measure one forward and backward pass each way; True when bfloat16 autocast takes less time."""
    vocabulary = model.config.vocab_size
    row = Row(
        tuple(n % vocabulary for n in range(tokens)),
        tuple(range(tokens // 2, tokens)),
        (0.0,) * (tokens // 2),
        1.0,
        1.0,
    )
    seconds = {}
    for autocast in (False, True):
        policy = Policy(model, autocast)
        for attempt in range(2):
            began = time.perf_counter()
            policy.score([row]).logprobs_P.sum().backward()
            model.zero_grad(set_to_none=True)
            seconds[autocast] = time.perf_counter() - began if attempt else 0.0
    return seconds[True] < seconds[False]
