"""Draws completions by vLLM, on the CPU or a GPU: the same contract as the local sampler, another engine under it.

One thread owns the engine: it runs one step at a time, and between two steps takes new requests, weights and scores.
The event loop only hands requests over and delivers completions.

Axis: T tokens of a prompt or completion.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import math
import os
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from practicum.errors import Failure, MissingExtra, UserError, boundary
from practicum.sampling.model_folder import ModelFolder
from practicum.sampling.sampler import check_start, checked, context_of
from practicum.types import Completion, SamplingParams, Weights

BLOCK = 32
"Keys and values are kept in blocks of so many tokens: vLLM's kernels for CPUs want multiples of 32."
LEAST_TEMPERATURE = 0.01
"Below it vLLM would draw at this one, or greedily."
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"The adapter ranks that vLLM makes room for."
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"Read by vLLM as it starts, unless set already: silent, sends nothing home, leaves the trainer its cores."


@dataclass(eq=False)
class _Request:
    """One question to the engine on its way through it."""

    prompt: list[int]
    params: dict[str, Any]
    "Of vLLM's SamplingParams."
    future: asyncio.Future[Any]
    "vLLM's RequestOutput."


def check_installed() -> None:
    """Raise MissingExtra where vLLM is not there; takes no time."""
    if importlib.util.find_spec("vllm") is None:
        raise MissingExtra("vllm", "vllm", 'without a GPU say "make vllm" in a clone instead: docs/samplers.md')


class VllmSampler:
    """A `Sampler` over a copy of a causal language model of transformers, in vLLM.

    `weights` says where the engine is and how new ones reach it: "process" is this process, where they are handed over;
    under "memory" and "folder" it has a process of its own and reads them from shared memory or a temporary folder.
    A model under an adapter keeps its base, and each publication replaces the adapter beside it. `dtype` "auto" is as
    for the local sampler. `counts` and `seconds` are as of `Counting`; a step that takes new requests is a "prefill".

    Example:
        sampler = VllmSampler(model, slots=64, context_length=896)
        completion = await sampler.sample((257, 104, 105), SamplingParams(max_tokens=64, stop_tokens=(258,), seed=7))
        await sampler.load(Weights(version=1, digest="…", tensors=dict(trained.named_parameters())))
    """

    def __init__(
        self,
        model: Any,
        *,
        slots: int = 64,
        context_length: int | None = None,
        dtype: str = "auto",
        weights: str = "process",
        version: int = 0,
    ) -> None:
        """Raises MissingExtra without vLLM, UserError for unfit settings, Failure where it does not start."""
        check_installed()
        config = model.config.get_text_config()
        self._vocabulary = int(config.vocab_size)
        self._context_length = context_of(context_length, int(config.max_position_embeddings))
        self._version = version
        self._shares_process = weights == "process"
        self._folder = ModelFolder(model, _dtype(model, dtype), in_memory=weights == "memory")
        self._arrivals: deque[_Request] = deque()
        self._running: dict[str, _Request] = {}
        self._unanswered: set[_Request] = set()
        self._ids = count()
        self._worker: asyncio.Task[None] | None = None
        # One thread for the engine's whole life, so that it is never entered twice at once.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sampler")
        self._closed = False
        self.counts = {"prefilled": 0, "reused": 0, "decoded": 0}
        self.seconds = {"prefill": 0.0, "decode": 0.0, "draw": 0.0}
        self._engine: Any = None
        with boundary("vllm", UserError), ExitStack() as failed:
            failed.callback(self._thread.shutdown)
            failed.callback(self._folder.remove)
            self._thread.submit(self._open, slots).result()
            failed.pop_all()

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

        The random numbers are those of `params.seed` alone; the last bits of logits may depend on what else is sampled
        beside it, so that in bfloat16 company may now and then change a token.
        Raises ValueError for a prompt or parameters that no model could continue, and Failure("sampler") when a step
        failed: the sampler has then dropped all requests.
        """
        self._check_open()
        prompt = checked(tokens, self._vocabulary)
        _check_temperature(params.temperature, least=0.0)
        limit = min(params.max_tokens, self._context_length - len(prompt))
        if limit <= 0:
            return Completion((), (), (), "length")
        drawn = {
            "temperature": params.temperature,
            "seed": params.seed % 2**63,
            "stop_token_ids": [*params.stop_tokens],
        }
        found = await self._answer(prompt, max_tokens=limit, logprobs=0, **drawn)
        self.counts["reused"] += found.num_cached_tokens or 0
        self.counts["prefilled"] += len(prompt) - (found.num_cached_tokens or 0)
        self.counts["decoded"] += len(found.outputs[0].token_ids)
        return _completion(found.outputs[0], params)

    async def score(self, tokens: Sequence[int], start: int, temperature: float = 1.0) -> tuple[float, ...]:
        """Log-probs in nats of tokens[start:], shape (T - start,), all by the weights in use when it returns.

        At a temperature other than 1 each token costs up to a block of prompt tokens.
        """
        self._check_open()
        given = checked(tokens, self._vocabulary)
        check_start(start, len(given), self._context_length)
        _check_temperature(temperature, least=LEAST_TEMPERATURE)
        if start == len(given):
            return ()
        scored = self._scored_as_prompt if temperature == 1 else self._scored_one_by_one
        while True:
            version, scores = self._version, await scored(given, start, temperature)
            if version == self._version:
                return scores

    async def load(self, weights: Weights) -> None:
        """Use these weights from the next token on; requests under way go on with them, from the tokens they have.

        `tensors` are named as in the model's state dict; of tied parameters one name is enough. Of a model under an
        adapter they are the adapter's. Raises UserError where names or shapes differ, and has then changed nothing.
        """
        self._check_open()
        await self._in_thread(self._load, weights)

    async def close(self) -> None:
        """Release memory, thread and processes; calls under way fail. Calling it twice does no harm."""
        if self._closed:
            return
        self._closed = True
        self._fail_all(Failure("sampler", RuntimeError("closed while sampling")))
        await self._in_thread(self._shut_down)
        self._thread.shutdown(wait=False)

    # On the event loop ------------------------------------------------------------------------------------------------

    async def _answer(self, prompt: list[int], **params: Any) -> Any:
        loop = asyncio.get_running_loop()
        request = _Request(prompt, params, loop.create_future())
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

    async def _scored_as_prompt(self, given: list[int], start: int, temperature: float) -> tuple[float, ...]:
        """All in one pass, at temperature 1: vLLM knows no other for prompts."""
        *before, last = given
        asked = {"temperature": temperature, "max_tokens": 1, "seed": 0, "logprob_token_ids": [last]}
        found = await self._answer(before, prompt_logprobs=0, **asked)
        of_prompt = [found.prompt_logprobs[n][given[n]].logprob for n in range(start, len(before))]
        return (*of_prompt, found.outputs[0].logprobs[0][last].logprob)

    async def _scored_one_by_one(self, given: list[int], start: int, temperature: float) -> tuple[float, ...]:
        """Each as if it were about to be drawn. The longest prompt comes first: the others find its blocks."""
        ends = range(len(given) - 1, start - 1, -1)
        asked = {"temperature": temperature, "max_tokens": 1, "seed": 0}
        answers = (self._answer(given[:end], logprob_token_ids=[given[end]], **asked) for end in ends)
        found = zip(ends, await asyncio.gather(*answers), strict=True)
        return tuple(reversed([each.outputs[0].logprobs[0][given[end]].logprob for end, each in found]))

    async def _work(self) -> None:
        try:
            while self._unanswered and not self._closed:
                for request, output in await self._in_thread(self._step):
                    if not request.future.done():
                        request.future.set_result(output)
                # The callers run now; what they ask next can still join the coming step.
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

    # In the sampler's thread ------------------------------------------------------------------------------------------

    def _open(self, slots: int) -> None:
        """Start the engine, with the model's weights as they stand."""
        vllm = _vllm()
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor

        # vLLM takes a CPU's engine out of the process again unless this is set before its config is made.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(not self._shares_process))
        folder, blocks = self._folder, slots * math.ceil(self._context_length / BLOCK) + 1  # one is set aside
        arguments = vllm.EngineArgs(
            model=str(folder.path),
            skip_tokenizer_init=True,
            dtype=folder.dtype,
            seed=0,
            max_model_len=self._context_length,
            max_num_seqs=slots,
            block_size=BLOCK,
            kv_cache_memory_bytes=blocks * BLOCK * folder.token_bytes,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            enforce_eager=current_platform.is_cpu(),  # compiling takes minutes there and gains little
            enable_lora=folder.lora is not None,
            max_lora_rank=_room_for(folder.lora.r) if folder.lora else RANKS[0],
            distributed_executor_backend="uni" if self._shares_process else None,
            disable_log_stats=True,
            use_tqdm_on_load=False,
        )
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of vLLM's own use of torch
            config = arguments.create_engine_config()
            kind = Executor.get_class(config)
            self._engine = LLMEngine(config, kind, log_stats=False, multiprocess_mode=not self._shares_process)
        self._engine.set_weight_version(str(self._version))

    def _step(self) -> list[tuple[_Request, Any]]:
        """One step of the engine. Returns who is done."""
        began, done = time.perf_counter(), False
        try:
            kind = "prefill" if self._admit() else "decode"
            outputs = self._engine.step() if self._running else []
            done = True
        finally:
            if not done:
                self._abort(list(self._running))
        self.seconds[kind] += time.perf_counter() - began
        return [(self._running.pop(output.request_id), output) for output in outputs if output.finished]

    def _admit(self) -> int:
        """Take back what nobody waits for any more, then hand over new requests in order of arrival, so many."""
        from vllm.sampling_params import RequestOutputKind

        self._abort([name for name, request in self._running.items() if request.future.done()])
        shared = {"ignore_eos": True, "detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY}
        came = 0
        while self._arrivals:
            request = self._arrivals.popleft()
            if request.future.done():
                continue
            came += 1
            self._running[name := str(next(self._ids))] = request
            params = _vllm().SamplingParams(**shared, **request.params)
            self._engine.add_request(name, {"prompt_token_ids": request.prompt}, params, lora_request=self._adapter())
        return came

    def _abort(self, names: list[str]) -> None:
        for name in names:
            del self._running[name]
        if names:
            self._engine.abort_request(names)

    def _load(self, weights: Weights) -> None:
        """Put weights in place; what was kept of older ones is dropped, requests under way read their tokens again."""
        self._folder.check(weights)
        with self._paused():
            if self._folder.lora is not None:
                self._folder.write(weights.tensors)
                self._engine.add_lora(self._adapter(replaces=True))
            elif self._shares_process:
                new = {"weights_iterator": self._folder.cast(weights.tensors)}
                self._engine.collective_rpc("reload_weights", kwargs=new)
            else:
                self._folder.write(weights.tensors)
                self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(self._folder.path)})
            self._engine.set_weight_version(str(weights.version))
            self._engine.reset_prefix_cache(reset_running_requests=True)
        self._version = weights.version

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Within it an engine in another process stands still; one in this process does so between two steps."""
        if self._shares_process:
            yield
            return
        self._engine.engine_core.call_utility("pause_scheduler", "keep", False)
        try:
            yield
        finally:
            self._engine.engine_core.call_utility("resume_scheduler")

    def _adapter(self, replaces: bool = False) -> Any:
        """vLLM's name for the adapter in the folder; None for a model without one."""
        if self._folder.lora is None:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest("policy", 1, str(self._folder.adapter), load_inplace=replaces)

    def _shut_down(self) -> None:
        self._abort(list(self._running))
        self._engine.engine_core.shutdown()
        self._engine = None
        gc.collect()  # the engine holds itself in cycles, and its keys and values with it
        self._folder.remove()


def _completion(drawn: Any, params: SamplingParams) -> Completion:
    """vLLM's CompletionOutput as ours; its weight versions are spans of tokens."""
    tokens = tuple(int(token) for token in drawn.token_ids)
    logprobs = tuple(float(at[token].logprob) for token, at in zip(tokens, drawn.logprobs, strict=True))
    if not all(map(math.isfinite, logprobs)):
        problem = "the model's logits are not finite: the weights it was given are broken"
        raise Failure("sampler", FloatingPointError(problem))
    versions = tuple(int(span.version) for span in drawn.weight_versions for _ in range(span.start, span.end))
    return Completion(tokens, logprobs, versions, "stop" if tokens[-1] in params.stop_tokens else "length")


def _check_temperature(temperature: float, least: float) -> None:
    if not least <= temperature < math.inf or 0 < temperature < LEAST_TEMPERATURE:
        zero = "0 or " if least == 0 else ""
        raise ValueError(f"temperature must be {zero}a number from {LEAST_TEMPERATURE} upwards, found {temperature}")


def _dtype(model: Any, dtype: str) -> str:
    if dtype != "auto":
        return dtype
    from practicum.sampling.local.own_copy import fast_dtype

    return str(fast_dtype(model.device)).removeprefix("torch.")


def _room_for(rank: int) -> int:
    if fitting := [most for most in RANKS if most >= rank]:
        return fitting[0]
    raise UserError(f"vLLM serves adapters up to rank {RANKS[-1]}, found lora.rank {rank}; train with a lower one")


def _vllm() -> Any:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])  # it speaks before it reads the variable
    import vllm

    return vllm
