"""The actor: a language model whose sampled tokens are scored under the distribution they were drawn from.

Axes: P sampled positions over all rows, F distinct positions that those follow, L tokens of a plain row, V vocabulary.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from practicum.errors import UserError
from practicum.learning.batches import Row
from practicum.learning.forest import Tree, tree_of
from practicum.learning.head import Said
from practicum.learning.trunk import Trunk
from practicum.types import Weights


@dataclass(frozen=True)
class Scores:
    """What the policy says of a batch's sampled tokens."""

    logprobs_P: Tensor
    "Log-probs of the sampled tokens at the temperature they were sampled at, with gradient."
    entropy_P: Tensor
    "Entropy of the whole distribution there, nats, without gradient."


class Policy:
    """A transformers causal LM that learns, in full or by its adapter, and can be asked what it would have said before.

    Example:
        policy = Policy(model, autocast=False)
        start = policy.copied()
        with policy.as_of(start):
            reference = policy.score(trees)
    """

    def __init__(self, model: Any, autocast: bool) -> None:
        plain = plain_logits(model.float().eval())
        self.trunk = Trunk(model, autocast=False)
        self.model = self.trunk.model
        self.check_same(plain)
        self.trunk.autocast = autocast

    def score(self, trees: Sequence[Tree]) -> Scores:
        """Log-probs of the sampled positions of all rows, tree by tree, row by row, shape (P,).

        The output layer runs once for each position that a sampled token follows, however many rows share it.
        """
        hidden_FD, sampled = self.trunk.hidden(trees)
        head, tensor = self.model.get_output_embeddings(), self.trunk.tensor
        ranks_P, dtype = tensor(sampled.ranks_P), torch.bfloat16 if self.trunk.autocast else torch.float32
        logprobs_P, entropy_F = Said.apply(
            hidden_FD,
            head.weight,
            head.bias,
            tensor(sampled.temperatures_F),
            ranks_P,
            tensor(sampled.tokens_P),
            dtype,
        )
        return Scores(logprobs_P, entropy_F[ranks_P])

    def copied(self) -> dict[str, Tensor]:
        """What it has learned so far: copies of the parameters that learn, by name."""
        return {name: parameter.detach().clone() for name, parameter in self.trunk.trained.items()}

    @contextmanager
    def as_of(self, before: Mapping[str, Tensor]) -> Iterator[None]:
        """Within it the policy is the one that `before` was copied from, and nothing is recorded for gradients."""
        trained = self.trunk.trained
        now = {name: parameter.data for name, parameter in trained.items()}
        try:
            with torch.no_grad():
                for name, parameter in trained.items():
                    parameter.data = before[name]
                yield
        finally:
            for name, parameter in trained.items():
                parameter.data = now[name]

    def check_same(self, plain: Mapping[tuple[int, ...], Tensor]) -> None:
        """Raise UserError where a tree gives other log-probs than the model itself: its architecture does more."""
        rows = [Row(tokens, tuple(range(1, len(tokens))), (0.0,) * (len(tokens) - 1), 1.0) for tokens in plain]
        tree = tree_of(rows)
        with torch.no_grad():
            ours_P = self.score([tree]).logprobs_P
        theirs_P = torch.cat(
            [plain[row.tokens].log_softmax(-1)[range(len(row.positions)), row.tokens[1:]] for row in tree.rows]
        )
        if not torch.allclose(ours_P, theirs_P, atol=1e-3):
            gap = float((ours_P - theirs_P).abs().max())
            raise UserError(
                f"the trainer cannot train {type(self.model).__name__}: its log-probs differ by {gap:.3g} from the "
                "model's own, which scales or caps its scores; choose a model of another family, such as Llama or Qwen"
            )


def plain_logits(model: Any) -> dict[tuple[int, ...], Tensor]:
    """What the untouched model says of two rows that begin alike: their tokens -> logits of all but the first."""
    model.set_attn_implementation("sdpa")
    rows = tuple(range(1, 25)), (*range(1, 13), *range(2, 14))
    with torch.no_grad():
        logits_2LV = model(torch.tensor(rows, device=model.device)).logits[:, :-1].float()
    return dict(zip(rows, logits_2LV, strict=True))


def weights_of(tensors: Mapping[str, Tensor], version: int) -> Weights:
    """Parameters as they stand; whoever loads them copies before the next update."""
    detached = {name: tensor.detach() for name, tensor in tensors.items()}
    return Weights(version, digest_of(detached), detached)


def digest_of(tensors: Mapping[str, Tensor]) -> str:
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
    row = Row(tuple(n % vocabulary for n in range(tokens)), tuple(range(half, tokens)), (0.0,) * half, 1.0)
    tree, policy = tree_of([row]), Policy(model, autocast=False)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(1 + rounds):
        for autocast, taken in seconds.items():
            policy.trunk.autocast = autocast
            began = time.perf_counter()
            policy.score([tree]).logprobs_P.sum().backward()
            model.zero_grad(set_to_none=True)
            taken.append(time.perf_counter() - began)
    fastest = {autocast: min(taken[1:]) for autocast, taken in seconds.items()}  # the first pass of each warms up
    return fastest[True] < fastest[False]
