"""A sampler that plays prepared replies: for scripted policies and for tests of whatever talks to a sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from practicum.errors import UserError
from practicum.types import Completion, SamplingParams, StopReason, Weights

Reply = Callable[[tuple[int, ...], SamplingParams], Sequence[int]]


class ScriptedSampler:
    """Plays replies in order, or asks a function for each.

    A reply is cut behind its first stop token (stop_reason 'stop'), and at max_tokens or the end of the context
    ('length'); one that ends by itself counts as stopped.

    Example:
        sampler = ScriptedSampler([(104, 105, 258)])
        await sampler.sample((257, 63), SamplingParams(stop_tokens=(258,)))
        # Completion(tokens=(104, 105, 258), logprobs=(0.0, 0.0, 0.0), versions=(0, 0, 0), stop_reason="stop")
    """

    def __init__(
        self,
        replies: Sequence[Sequence[int]] | Reply,
        *,
        logprob: float = 0.0,
        context_length: int = 1 << 20,
        version: int = 0,
    ) -> None:
        self._replies = replies
        self._logprob = logprob
        self._context_length = context_length
        self._version = version
        self._played = 0
        self._closed = False

    @property
    def version(self) -> int:
        """Version of the weights that were loaded last."""
        return self._version

    @property
    def context_length(self) -> int:
        """The most tokens that a prompt and its completion may have together."""
        return self._context_length

    async def sample(self, tokens: Sequence[int], params: SamplingParams) -> Completion:
        """The next reply. Raises ValueError for an empty prompt, UserError when the script is over."""
        if self._closed:
            raise RuntimeError("this sampler was closed and can sample no more")
        if len(tokens) == 0:
            raise ValueError("the prompt is empty; give at least one token to continue")
        limit = min(params.max_tokens, self._context_length - len(tokens))
        if limit <= 0:
            return Completion((), (), (), "length")
        reply = self._next_reply(tuple(tokens), params)
        ends = [position + 1 for position, token in enumerate(reply) if token in params.stop_tokens]
        whole = reply[: ends[0]] if ends else reply
        said = whole[:limit]
        stop_reason: StopReason = "stop" if len(said) == len(whole) else "length"
        return Completion(said, (self._logprob,) * len(said), (self._version,) * len(said), stop_reason)

    async def score(self, tokens: Sequence[int], start: int, temperature: float = 1.0) -> tuple[float, ...]:
        """0.0 for each of tokens[start:]: a script is certain of itself."""
        if not 1 <= start <= len(tokens):
            raise ValueError(f"start must lie between 1 and {len(tokens)}, the number of tokens; found {start}")
        return (0.0,) * (len(tokens) - start)

    async def load(self, weights: Weights) -> None:
        """Take over the version; a script has no weights."""
        self._version = weights.version

    async def close(self) -> None:
        """Refuse to sample from now on."""
        self._closed = True

    def _next_reply(self, tokens: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        if callable(self._replies):
            return tuple(self._replies(tokens, params))
        if self._played == len(self._replies):
            raise UserError(
                f"the script has {len(self._replies)} replies and a further one was asked for; "
                "add replies, or pass a function of (tokens, params)"
            )
        self._played += 1
        return tuple(self._replies[self._played - 1])
