"""Draws completions from a transformers model in this process: batched continuously, never computing a token twice.

Passes run in the thread of the event loop, which gets its turn between two of them. A second thread that computes
would cost more than it saves: each has threads of its own to compute with (OpenMP), and as soon as these are more than
the processor has, they sleep between two products instead of waiting: a pass of 16 rows took 85 ms instead of 35.

Axes: T tokens of a prompt or pass, R requests of a pass, B sampled rows, V vocabulary.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from practicum.errors import Failure, UserError, boundary
from practicum.sampling.local.batch import Batch, Finished, Request
from practicum.sampling.local.contexts import BLOCK, REMEMBERED, Contexts
from practicum.sampling.local.own_copy import own_copy
from practicum.sampling.sampler import check_start, checked, context_of
from practicum.types import Completion, SamplingParams, Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MEMORY_GB = 2.0
A_QUICK_TOOL = 0.001
"Seconds that a pass waits for those who were just answered."


class LocalSampler:
    """A `Sampler` over its own copy of a causal language model.

    The model needs ordinary full or sliding-window attention in every layer (Llama, Qwen, Gemma 3 and their like).
    `dtype` "auto" is bfloat16 where the processor computes in it (CUDA, AVX512-BF16, AMX), else float32.
    Keys and values of at most `memory_gb` are kept; a context that had to give its own up for others is computed again.
    With `exact` what a request draws does not depend, to the bit, on what else is sampled beside it or was before.
    `counts` says how many prompt tokens were computed ("prefilled"), how many of them not for the first time
    ("recomputed"), how many had keys and values already ("reused") and how many tokens were drawn ("decoded");
    `seconds` says where the time went.

    Example:
        sampler = LocalSampler(model, slots=64)
        completion = await sampler.sample((257, 104, 105), SamplingParams(max_tokens=64, stop_tokens=(258,), seed=7))
        await sampler.load(Weights(version=1, digest="…", tensors=dict(trained.named_parameters())))
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        slots: int = 64,
        context_length: int | None = None,
        dtype: str = "auto",
        version: int = 0,
        memory_gb: float = MEMORY_GB,
        exact: bool = False,
    ) -> None:
        own = own_copy(model, dtype)
        learns = frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad)
        config = own.config.get_text_config()
        self._vocabulary = int(config.vocab_size)
        self._context_length = context_of(context_length, int(config.max_position_embeddings))
        blocks = int(memory_gb * 1e9 / block_bytes(own))
        # One block belongs to nobody, and one is needed to branch.
        if (blocks - 2) * BLOCK < self._context_length:
            raise UserError(
                f"{memory_gb:g} GB hold the keys and values of {max(0, blocks - 2) * BLOCK} tokens of this model, "
                f"fewer than one context of {self._context_length}; raise sampler.memory_gb or lower "
                "simulator.context_tokens"
            )
        # No more than all contexts fill.
        blocks = min(blocks, 2 + (REMEMBERED * slots + 1) * -(-self._context_length // BLOCK))
        self._batch = Batch(own, learns, Contexts(slots, self._context_length, blocks), version, exact)
        self._arrivals: deque[Request] = deque()
        self._unanswered: set[Request] = set()
        self._worker: asyncio.Task[None] | None = None
        self._closed = False
        self.counts, self.seconds = self._batch.counts, self._batch.seconds

    @property
    def version(self) -> int:
        """Version of the weights in use."""
        return self._batch.version

    @property
    def context_length(self) -> int:
        """The most tokens that a prompt and its completion may have together."""
        return self._context_length

    async def sample(self, tokens: Sequence[int], params: SamplingParams) -> Completion:
        """Continue `tokens`, shape (T,); as many as `max_tokens` and the context allow.

        Raises ValueError for a prompt or parameters that no model could continue, and Failure("sampler") when a pass
        failed: the sampler has then dropped all requests and whatever was kept, and can be used again.
        """
        self._check_open()
        prompt_T = np.array(checked(tokens, self._vocabulary), np.int32)
        if not 0 <= params.temperature < float("inf"):
            raise ValueError(f"temperature must be a number from 0 upwards, found {params.temperature}")
        limit = min(params.max_tokens, self._context_length - len(prompt_T))
        if limit <= 0:
            return Completion((), (), (), "length")
        loop = asyncio.get_running_loop()
        uniforms = np.random.Generator(np.random.Philox(key=params.seed % 2**64))
        request = Request(prompt_T, params, limit, loop.create_future(), uniforms)
        self._unanswered.add(request)
        self._arrivals.append(request)
        if self._worker is None or self._worker.done() or self._worker.get_loop().is_closed():
            self._worker = loop.create_task(self._work())
        elif self._worker.get_loop() is not loop:
            raise RuntimeError("this sampler is in use by another event loop; give each running loop its own sampler")
        try:
            return await request.future
        finally:
            self._unanswered.discard(request)

    async def score(self, tokens: Sequence[int], start: int, temperature: float = 1.0) -> tuple[float, ...]:
        """Log-probs in nats of tokens[start:], shape (T - start,), by a plain forward pass that uses nothing kept."""
        self._check_open()
        tokens_T = np.array(checked(tokens, self._vocabulary), np.int32)
        check_start(start, len(tokens_T), self._context_length)
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be above 0 to score, found {temperature}")
        return self._computed(self._batch.score, tokens_T, start, temperature)

    async def load(self, weights: Weights) -> None:
        """Use these weights from the next token on; requests under way go on with them, from the tokens they have.

        `tensors` are named as in the model's state dict; of tied parameters one name is enough, and what was frozen in
        the model that this one was copied from (the base under an adapter) may be left out. Raises UserError where
        names or shapes differ, and has then changed nothing.
        """
        self._check_open()
        self._computed(self._batch.load, weights)

    async def close(self) -> None:
        """Release memory; calls under way fail. Calling it twice does no harm."""
        if self._closed:
            return
        self._closed = True
        self._fail_all(Failure("sampler", RuntimeError("closed while sampling")))
        del self._batch

    # On the event loop ------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            while self._unanswered and not self._closed:
                finished = self._computed(self._step)
                for request, completion in finished:
                    if not request.future.done():
                        request.future.set_result(completion)
                # The callers run now; what they ask next, after a quick tool, can still join the coming pass.
                await asyncio.sleep(A_QUICK_TOOL if finished else 0)
        except Failure as failure:
            self._fail_all(failure)
        finally:
            self._worker = None

    def _computed(self, function: Any, *args: Any) -> Any:
        with boundary("sampler", UserError):
            return function(*args)

    def _fail_all(self, failure: Failure) -> None:
        for request in self._unanswered:
            if not request.future.done():
                request.future.set_exception(failure)
        self._unanswered.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this sampler was closed and can sample no more")

    def _step(self) -> Finished:
        """Whoever arrived takes part in the coming pass."""
        while self._arrivals:
            self._batch.waiting.append(self._arrivals.popleft())
        return self._batch.step()


def block_bytes(model: PreTrainedModel) -> int:
    """Bytes of the keys and values of one block, in all layers."""
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * BLOCK * model.dtype.itemsize)
