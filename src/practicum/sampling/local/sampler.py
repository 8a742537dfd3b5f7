"""Draws completions from a transformers model in this process: batched continuously, never computing a token twice.

One thread owns the model, the slots and the store; it runs one forward pass at a time, and between two passes whatever
else was asked for (new weights, a score). The event loop only hands requests over and delivers completions.

Axes: T tokens of a prompt or pass, R requests of a pass, B sampled rows, V vocabulary.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import deque
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from practicum.errors import Failure, UserError, boundary
from practicum.sampling.local.attention import ATTENTION, KeyValueStore, Pass
from practicum.sampling.local.draw import draw
from practicum.sampling.local.slots import Slots, Tokens
from practicum.types import Completion, SamplingParams, StopReason, Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PREFILL_TOKENS = 2048
"The most tokens of prompts in one forward pass: enough to keep every core busy, and a bound on memory."
SCORE_POSITIONS = 512
"Positions whose log-probs over the whole vocabulary are in memory at once."


@dataclass(eq=False)
class _Request:
    """One call of `sample` on its way through the sampler."""

    prompt_T: Tokens
    params: SamplingParams
    limit: int
    future: asyncio.Future[Completion]
    uniforms: np.random.Generator
    "Philox keyed by the request's own seed: its nth number draws its nth token."
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def completion(self, stop_reason: StopReason) -> Completion:
        return Completion(tuple(self.tokens), tuple(self.logprobs), tuple(self.versions), stop_reason)


class LocalSampler:
    """A `Sampler` over its own copy of a causal language model.

    The model needs ordinary full or sliding-window attention in every layer (Llama, Qwen, Gemma 3 and their like).
    `dtype` "auto" is bfloat16 where the processor computes in it (CUDA, AVX512-BF16, AMX), else float32.
    `counts` says how many prompt tokens were computed ("prefilled"), how many had keys and values already ("reused")
    and how many tokens were drawn ("decoded"); `seconds` says where the time went.

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
    ) -> None:
        self._model = _own_copy(model, dtype)
        self._learns = frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad)
        self._device = next(self._model.parameters()).device
        config = self._model.config.get_text_config()
        self._vocabulary = int(config.vocab_size)
        self._context_length = context_length or int(config.max_position_embeddings)
        if self._context_length > config.max_position_embeddings:
            raise UserError(
                f"context_length {context_length} is more than the {config.max_position_embeddings} positions "
                "that the model has; ask for at most that many"
            )
        self._version = version
        self._slots = Slots(slots, self._context_length)
        self._store = KeyValueStore(slots, self._context_length)
        self._arrivals: deque[_Request] = deque()
        self._waiting: deque[_Request] = deque()
        self._running: dict[int, _Request] = {}
        self._unanswered: set[_Request] = set()
        self._worker: asyncio.Task[None] | None = None
        # One thread for the sampler's whole life: steps, loads and scores take turns without a lock, and a tool that
        # fills asyncio's shared threads cannot stop the sampler that it waits for.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sampler")
        self._closed = False
        self.counts = {"prefilled": 0, "reused": 0, "decoded": 0}
        self.seconds = {"prefill": 0.0, "decode": 0.0, "draw": 0.0}

    @property
    def version(self) -> int:
        """Version of the weights in use."""
        return self._version

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
        prompt_T = self._checked(tokens)
        if not 0 <= params.temperature < float("inf"):
            raise ValueError(f"temperature must be a number from 0 upwards, found {params.temperature}")
        limit = min(params.max_tokens, self._context_length - len(prompt_T))
        if limit <= 0:
            return Completion((), (), (), "length")
        loop = asyncio.get_running_loop()
        uniforms = np.random.Generator(np.random.Philox(key=params.seed % 2**64))
        request = _Request(prompt_T, params, limit, loop.create_future(), uniforms)
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
        tokens_T = self._checked(tokens)
        if not 1 <= start <= len(tokens_T) <= self._context_length:
            raise ValueError(
                f"start must lie between 1 and the number of tokens, and these within the context of "
                f"{self._context_length}; found start {start} and {len(tokens_T)} tokens"
            )
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be above 0 to score, found {temperature}")
        return await self._in_thread(self._score, tokens_T, start, temperature)

    async def load(self, weights: Weights) -> None:
        """Use these weights from the next token on; requests under way go on with them, from the tokens they have.

        `tensors` are named as in the model's state dict; of tied parameters one name is enough, and what was frozen in
        the model that this one was copied from (the base under an adapter) may be left out. Raises UserError where
        names or shapes differ, and has then changed nothing.
        """
        self._check_open()
        await self._in_thread(self._load, weights)

    async def close(self) -> None:
        """Release memory and the thread; calls under way fail. Calling it twice does no harm."""
        if self._closed:
            return
        self._closed = True
        self._fail_all(Failure("sampler", RuntimeError("closed while sampling")))
        await self._in_thread(self._reset)
        self._thread.shutdown(wait=False)
        del self._model

    # On the event loop ------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            while self._unanswered and not self._closed:
                for request, completion in await self._in_thread(self._step):
                    if not request.future.done():
                        request.future.set_result(completion)
                # The callers run now; what they ask next can still join the coming pass.
                await asyncio.sleep(0)
        except Failure as failure:
            self._fail_all(failure)
        finally:
            self._worker = None

    async def _in_thread(self, function: Any, *args: Any) -> Any:
        with boundary("sampler", UserError):
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    def _fail_all(self, failure: Failure) -> None:
        for request in self._unanswered:
            if not request.future.done():
                request.future.set_exception(failure)
        self._unanswered.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this sampler was closed and can sample no more")

    def _checked(self, tokens: Sequence[int]) -> Tokens:
        if len(tokens) == 0:
            raise ValueError("the prompt is empty; give at least one token to continue")
        array = np.asarray(tokens, np.int64)
        if array.min() < 0 or array.max() >= self._vocabulary:
            raise ValueError(f"tokens must lie in 0 … {self._vocabulary - 1}, found {array.min()} … {array.max()}")
        return array.astype(np.int32)

    # In the sampler's thread ------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _step(self) -> list[tuple[_Request, Completion]]:
        """One forward pass: prompts first, so that the next decoding pass has all rows. Returns who is done."""
        done = False
        try:
            self._admit()
            slots = sorted(self._running)
            prompts = [slot for slot in self._running if self._slots.pending(slot) > 1]
            finished = self._advance(prompts or slots, "prefill" if prompts else "decode") if slots else []
            done = True
        finally:
            if not done:
                self._reset()
        return finished

    def _admit(self) -> None:
        """Free the slots of those who no longer wait, then place new requests, in order of arrival."""
        for slot in [slot for slot, request in self._running.items() if request.future.done()]:
            self._release(slot)
        while self._arrivals:
            self._waiting.append(self._arrivals.popleft())
        still_waiting: deque[_Request] = deque()
        for request in self._waiting:
            if request.future.done():
                continue
            placement = self._slots.place(request.prompt_T)
            if placement is None:
                still_waiting.append(request)
                continue
            if placement.source != placement.slot:
                self._store.copy(placement.source, placement.slot, placement.reused)
            self._slots.take(placement.slot, request.prompt_T, placement.reused)
            self._running[placement.slot] = request
            self.counts["reused"] += placement.reused
        self._waiting = still_waiting

    def _advance(self, slots: list[int], kind: str) -> list[tuple[_Request, Completion]]:
        began = time.perf_counter()
        logits_BV, complete = self._forward(slots)
        drawing = time.perf_counter()
        self.seconds[kind] += drawing - began
        if not complete:
            return []
        requests = [self._running[slot] for slot in complete]
        tokens, logprobs = draw(
            logits_BV,
            torch.tensor([request.params.temperature for request in requests], device=self._device),
            torch.tensor([request.uniforms.random() for request in requests], dtype=torch.float64, device=self._device),
        )
        finished = []
        for slot, request, token, logprob in zip(complete, requests, tokens, logprobs, strict=True):
            request.tokens.append(token)
            request.logprobs.append(logprob)
            request.versions.append(self._version)
            stopped = token in request.params.stop_tokens
            if stopped or len(request.tokens) == request.limit:
                finished.append((request, request.completion("stop" if stopped else "length")))
                self._release(slot)
            else:
                self._slots.append(slot, token)
        self.counts["decoded"] += len(tokens)
        self.seconds["draw"] += time.perf_counter() - drawing
        return finished

    def _forward(self, slots: list[int]) -> tuple[Tensor, list[int]]:
        """Compute what these slots know but have not computed, within the budget.

        Returns logits (B, V) behind the last known token of the slots that were completed, and those slots.
        """
        budget = max(PREFILL_TOKENS, len(slots))
        chosen, starts, counts = [], [], []
        for slot in slots:
            count = min(self._slots.pending(slot), budget)
            if count:
                chosen.append(slot)
                starts.append(int(self._slots.kept_S[slot]))
                counts.append(count)
                budget -= count
        step = Pass(tuple(chosen), tuple(starts), tuple(counts), self._device)
        tokens_T = np.concatenate(
            [self._slots.tokens_SL[s, a : a + n] for s, a, n in zip(chosen, starts, counts, strict=True)]
        )
        ends = np.cumsum(counts) - 1
        complete = [row for row, slot in enumerate(chosen) if self._slots.pending(slot) == counts[row]]
        self._store.begin(step)
        output = self._model(
            input_ids=torch.from_numpy(tokens_T).long().to(self._device)[None],
            position_ids=step.positions_T[None],
            # Four axes tell transformers to build no mask of its own; the attention function reads `step` instead.
            attention_mask=torch.empty(1, 1, 1, 1, device=self._device),
            cache=self._store,
            use_cache=True,
            logits_to_keep=torch.from_numpy(ends[complete]).to(self._device),
            step=step,
        )
        for slot, start, count in zip(chosen, starts, counts, strict=True):
            self._slots.kept_S[slot] += count
            self.counts["prefilled"] += min(count, max(0, len(self._running[slot].prompt_T) - start))
        return output.logits[0], [chosen[row] for row in complete]

    def _release(self, slot: int) -> None:
        del self._running[slot]
        self._slots.release(slot)

    def _reset(self) -> None:
        """Forget every request and everything kept."""
        self._arrivals.clear()
        self._waiting.clear()
        for slot in list(self._running):
            self._release(slot)
        self._slots.forget()
        self._store = KeyValueStore(self._store.slots, self._context_length)

    @torch.inference_mode()
    def _score(self, tokens_T: Tokens, start: int, temperature: float) -> tuple[float, ...]:
        ids_T = torch.from_numpy(tokens_T).long().to(self._device)
        wanted_T = torch.arange(start - 1, len(ids_T) - 1, device=self._device)
        logits_TV = self._model(input_ids=ids_T[None], use_cache=False, logits_to_keep=wanted_T).logits[0]
        logprobs: list[float] = []
        for begin in range(0, len(wanted_T), SCORE_POSITIONS):
            scaled_TV = logits_TV[begin : begin + SCORE_POSITIONS].float() / temperature
            targets_T = ids_T[start + begin : start + begin + SCORE_POSITIONS]
            logprobs += torch.log_softmax(scaled_TV, dim=-1).gather(1, targets_T[:, None])[:, 0].tolist()
        return tuple(logprobs)

    def _load(self, weights: Weights) -> None:
        _copy_weights(self._model, weights, self._learns)
        self._version = weights.version
        self._slots.forget()


def _own_copy(model: PreTrainedModel, dtype: str) -> PreTrainedModel:
    config = model.config.get_text_config()
    odd = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if odd or getattr(config, "attn_logit_softcapping", None) is not None:
        raise UserError(
            f"the local sampler needs plain full or sliding-window attention; {type(model).__name__} has "
            f"{', '.join(sorted(odd)) or 'capped attention scores'}; use another sampler for it"
        )
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": _fast_dtype(model.device)}
    if dtype not in kinds:
        raise UserError(f"dtype must be one of {', '.join(sorted(kinds))}, found {dtype!r}")
    own = copy.deepcopy(model).eval().requires_grad_(False)
    own.zero_grad(set_to_none=True)
    own.set_attn_implementation(ATTENTION)
    # Parameters only: buffers hold the rotary frequencies, which bfloat16 would blur at far positions.
    for parameter in own.parameters():
        parameter.data = parameter.data.to(kinds[dtype])
    return own


def _fast_dtype(device: torch.device) -> torch.dtype:
    if device.type == "cuda":
        return torch.bfloat16
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return torch.bfloat16 if flags & {"avx512_bf16", "amx_bf16"} else torch.float32


def _copy_weights(model: PreTrainedModel, weights: Weights, needed: Set[str]) -> None:
    """Copy tensors into the model's parameters, after every name and shape was seen to fit and none needed to lack."""
    own = model.state_dict(keep_vars=True)
    unknown = sorted(set(weights.tensors) - set(own))
    given = {id(own[name]) for name in weights.tensors if name in own}
    missing = sorted(name for name, p in model.named_parameters() if name in needed and id(p) not in given)
    shapes = [
        f"{name} {tuple(tensor.shape)} for {tuple(own[name].shape)}"
        for name, tensor in weights.tensors.items()
        if name in own and tensor.shape != own[name].shape
    ]
    for problem, names in (("unknown", unknown), ("missing", missing), ("of another shape", shapes)):
        if names:
            raise UserError(
                f"weights version {weights.version} do not fit the sampler's model: {len(names)} tensors are "
                f"{problem}, such as {', '.join(names[:3])}; publish the tensors of the same architecture"
            )
    with torch.no_grad():
        for name, tensor in weights.tensors.items():
            own[name].copy_(tensor)
