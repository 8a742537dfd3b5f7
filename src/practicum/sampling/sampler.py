"""The ports behind which every engine stands: for models whose tokens are ours, and for those that take messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from practicum.errors import UserError
from practicum.types import Completion, Message, SamplingParams, ToolSpec, Weights


class Sampler(Protocol):
    """Draws completions from one model, whose weights can be replaced while it runs.

    Promises, held by `tests/contracts/test_samplers.py`:
    - a completion holds the tokens as sampled, each with its log-prob under the distribution it was drawn from
      (after temperature) and the weight version that drew it; a stop token that ended it is its last token;
    - the draw depends on tokens, params (seed included) and weights, never on order of arrival;
    - `score` gives log-probs of given tokens by the same weights;
    - calls may run concurrently; `load` waits for none of them to lose a token.
    """

    @property
    def version(self) -> int:
        """Version of the weights in use."""
        ...

    @property
    def context_length(self) -> int:
        """The most tokens that a prompt and its completion may have together."""
        ...

    async def sample(self, tokens: Sequence[int], params: SamplingParams) -> Completion:
        """Continue `tokens`, shape (T,). A prompt that leaves no room ends with stop_reason 'length' and no token."""
        ...

    async def score(self, tokens: Sequence[int], start: int, temperature: float = 1.0) -> tuple[float, ...]:
        """Log-probs in nats of tokens[start:], each given all before it; shape (T - start,)."""
        ...

    async def load(self, weights: Weights) -> None:
        """Use these weights from the next token on; whatever was kept of older ones is dropped."""
        ...

    async def close(self) -> None:
        """Release memory and threads; calling it twice does no harm."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A sampler that also says what it computed since it was made, and how long that took.

    Example: counts {"prefilled": 900, "reused": 5600, "decoded": 300}, seconds {"prefill": 0.4, "decode": 2.0, …}
    """

    @property
    def counts(self) -> Mapping[str, int]:
        """Tokens of prompts that were computed ("prefilled") or had been already ("reused"), and drawn ("decoded").

        Some also say which of the prefilled were evicted and computed once more ("recomputed"), and how many forward
        passes there were ("passes").
        """
        ...

    @property
    def seconds(self) -> Mapping[str, float]:
        """During which the model worked: on prompts ("prefill"), on sampled tokens ("decode"), on drawing ("draw")."""
        ...


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model that takes messages said: Reply(Message("assistant", "hi"), Completion((), (), (), "stop", 3))."""

    message: Message
    "The assistant's, its calls parsed; where they could not be, `problem` says why."
    completion: Completion
    "Without tokens: how many there were and why it ended."


@runtime_checkable
class MessageSampler(Protocol):
    """A model that is reached by messages and says messages: its tokens are not known here, so none is learned from.

    Promises, held by `tests/contracts/test_samplers.py`: calls may run concurrently, in event loops one after another;
    what a reply says depends on its own request only.
    """

    async def converse(self, messages: Sequence[Message], tools: Sequence[ToolSpec], params: SamplingParams) -> Reply:
        """Answer a conversation. No room for an answer ends with stop_reason 'length' and a size of 0.

        Raises EndpointError for one that cannot be had, UserError for a mistake that every call would meet.
        """
        ...

    async def close(self) -> None:
        """Release connections; calling it twice does no harm."""
        ...


def checked(tokens: Sequence[int], vocabulary: int) -> list[int]:
    """The tokens as plain integers, for every engine. Raises ValueError for none, and for one that no model knows."""
    if len(tokens) == 0:
        raise ValueError("the prompt is empty; give at least one token to continue")
    given = [int(token) for token in tokens]
    if min(given) < 0 or max(given) >= vocabulary:
        raise ValueError(f"tokens must lie in 0 … {vocabulary - 1}, found {min(given)} … {max(given)}")
    return given


def check_start(start: int, length: int, context_length: int) -> None:
    """Raise ValueError where `score` cannot begin at `start` of `length` tokens."""
    if not 1 <= start <= length <= context_length:
        raise ValueError(
            f"start must lie between 1 and the number of tokens, and these within the context of "
            f"{context_length}; found start {start} and {length} tokens"
        )


def context_of(asked: int | None, positions: int) -> int:
    """The context length asked for, or all that the model has. Raises UserError for more."""
    if asked and asked > positions:
        raise UserError(
            f"context_length {asked} is more than the {positions} positions that the model has; "
            "ask for at most that many"
        )
    return asked or positions
