"""The requests under way: who has a place, what the next pass computes, what its logits say.

Axes: T tokens of a pass, B sampled rows, V vocabulary.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from practicum.sampling.local.attention import KeyValueStore, Pass
from practicum.sampling.local.contexts import Contexts, Tokens
from practicum.sampling.local.decoder import WRITTEN_OUT, Decoder
from practicum.sampling.local.draw import draw
from practicum.sampling.local.own_copy import copy_weights
from practicum.types import Completion, SamplingParams, StopReason, Weights

PREFILL_TOKENS = 2048
"The most tokens of prompts in one forward pass: enough to keep every core busy, and a bound on memory."
EXACT_TOKENS = 192
"The same in the deterministic mode, where each of them has a row of scores."
EXACT_ROWS = 64
"In float32 a pass of the deterministic mode has a multiple of so many tokens: products of fewer round otherwise."
SCORE_POSITIONS = 512
"Positions whose log-probs over the whole vocabulary are in memory at once."


@dataclass(eq=False)
class Request:
    """One call of `sample` on its way through the sampler."""

    known_T: Tokens
    "The prompt; once it lost its place, with what was sampled before."
    params: SamplingParams
    limit: int
    future: asyncio.Future[Completion]
    uniforms: np.random.Generator
    "Philox keyed by the request's own seed: its nth number draws its nth token."
    computed_before: int = 0
    "First tokens that were computed for somebody before it was placed."
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def completion(self, stop_reason: StopReason) -> Completion:
        """What was sampled so far."""
        return Completion(tuple(self.tokens), tuple(self.logprobs), tuple(self.versions), stop_reason)


Finished = list[tuple[Request, Completion]]


class Batch:
    """A model, the contexts it knows, and the requests that sample from it.

    Example: batch.waiting.append(request); finished = batch.step()
    """

    def __init__(self, model: Any, learns: frozenset[str], contexts: Contexts, version: int, exact: bool) -> None:
        self.model, self.learns, self.contexts, self.version, self.exact = model, learns, contexts, version, exact
        parameter = next(model.parameters())
        self.device = parameter.device
        self.rows = EXACT_ROWS if exact and parameter.dtype == torch.float32 else 1
        self.decoder = Decoder(model) if model.config.model_type in WRITTEN_OUT else None
        self.store = KeyValueStore(len(contexts.users_P))
        self.waiting: deque[Request] = deque()
        self.running: dict[int, Request] = {}
        "By context, those that came first first."
        self.counts = {"prefilled": 0, "reused": 0, "recomputed": 0, "decoded": 0, "passes": 0}
        self.seconds = {"place": 0.0, "prefill": 0.0, "decode": 0.0, "draw": 0.0, "load": 0.0}

    @torch.inference_mode()
    def step(self) -> Finished:
        """One forward pass of everybody's next token, and of as many tokens of new prompts as fit. Returns who is done.

        When it fails, all requests are forgotten and whatever was kept.
        """
        done = False
        try:
            began = time.perf_counter()
            self.admit()
            chosen = self.chosen()
            self.seconds["place"] += time.perf_counter() - began
            finished = self.advance(chosen) if chosen else []
            done = True
        finally:
            if not done:
                self.reset()
        return finished

    def admit(self) -> None:
        """Free the places of those who no longer wait, then place requests in order of arrival."""
        for context in [context for context, request in self.running.items() if request.future.done()]:
            self.release(context)
        copied_from: dict[int, int] = {}
        still_waiting: deque[Request] = deque()
        for request in self.waiting:
            if request.future.done():
                continue
            placement = self.contexts.place(request.known_T)
            taken = self.contexts.take(placement, request.known_T) if placement else None
            if placement is None or taken is None:
                still_waiting.append(request)
                continue
            # What was taken from a request placed just now is not copied yet: it lies where that one took it from.
            copied_from |= {new: copied_from.get(old, old) for old, new in taken}
            self.running[placement.context] = request
            request.computed_before = placement.known
            self.counts["reused"] += placement.reused
        self.waiting = still_waiting
        self.store.copy([(old, new) for new, old in copied_from.items()])

    def chosen(self) -> list[tuple[int, int]]:
        """(context, positions) of the next pass, one position first. Where room lacks, the youngest lose theirs."""
        budget = EXACT_TOKENS if self.exact else PREFILL_TOKENS
        chosen: dict[int, int] = {}
        for context in list(self.running):
            pending = self.contexts.pending(context) if context in self.running else 0
            count = pending if pending <= 1 else min(pending, budget)
            if not count:
                continue
            while not self.contexts.grow(context, int(self.contexts.kept_S[context]) + count):
                youngest = next(reversed(self.running))
                chosen.pop(youngest, None)
                self.set_aside(youngest)
                if youngest == context:
                    break
            else:
                chosen[context] = count
                budget -= count if pending > 1 else 0
        return sorted(chosen.items(), key=lambda item: item[1] > 1)

    def advance(self, chosen: list[tuple[int, int]]) -> Finished:
        """Compute these positions and draw a token for everyone whose context is complete."""
        began = time.perf_counter()
        complete = [context for context, count in chosen if self.contexts.pending(context) == count]
        logits_BV = self.forward(chosen, set(complete))
        drawing = time.perf_counter()
        ones, tokens = sum(count == 1 for _, count in chosen), sum(count for _, count in chosen)
        self.seconds["decode"] += (drawing - began) * ones / tokens
        self.seconds["prefill"] += (drawing - began) * (1 - ones / tokens)
        if not complete:
            return []
        requests = [self.running[context] for context in complete]
        drawn = draw(
            logits_BV,
            torch.tensor([request.params.temperature for request in requests], device=self.device),
            torch.tensor([request.uniforms.random() for request in requests], dtype=torch.float64, device=self.device),
        )
        finished = []
        for context, request, token, logprob in zip(complete, requests, *drawn, strict=True):
            request.tokens.append(token)
            request.logprobs.append(logprob)
            request.versions.append(self.version)
            stopped = token in request.params.stop_tokens
            if stopped or len(request.tokens) == request.limit:
                finished.append((request, request.completion("stop" if stopped else "length")))
                self.release(context)
            else:
                self.contexts.append(context, token)
        self.counts["decoded"] += len(requests)
        self.seconds["draw"] += time.perf_counter() - drawing
        return finished

    def forward(self, chosen: list[tuple[int, int]], complete: set[int]) -> Tensor:
        """Logits (B, V) behind the last known token of the contexts that are complete with this pass."""
        contexts = self.contexts
        starts = [int(contexts.kept_S[context]) for context, _ in chosen]
        counts = [count for _, count in chosen]
        parts = [contexts.tokens_SL[c, a : a + n] for (c, n), a in zip(chosen, starts, strict=True)]
        last_B = [end - 1 for (c, _), end in zip(chosen, np.cumsum(counts), strict=True) if c in complete]
        blocks = [contexts.blocks_S[context] for context, _ in chosen]
        missing = -sum(counts) % self.rows
        step = Pass(
            (*starts, *(0,) * missing),
            (*counts, *(1,) * missing),
            (*blocks, *([0],) * missing),
            self.device,
            self.exact,
        )
        tokens_T = torch.from_numpy(np.concatenate([*parts, np.zeros(missing, np.int32)])).long().to(self.device)
        last = torch.tensor(last_B + [0] * (-len(last_B) % self.rows), dtype=torch.long, device=self.device)
        self.store.begin(step, contexts.touched)
        self.counts["passes"] += 1
        if self.decoder:
            logits_BV = self.decoder(tokens_T, step, self.store, last)
        else:
            logits_BV = self.model(
                input_ids=tokens_T[None],
                position_ids=step.positions_T[None],
                # Four axes tell transformers to build no mask of its own; the attention function reads `step` instead.
                attention_mask=torch.empty(1, 1, 1, 1, device=self.device),
                cache=self.store,
                use_cache=True,
                logits_to_keep=last,
                step=step,
            ).logits[0]
        for (context, count), start in zip(chosen, starts, strict=True):
            contexts.kept_S[context] += count
            request = self.running[context]
            self.counts["prefilled"] += min(count, max(0, len(request.known_T) - start))
            self.counts["recomputed"] += min(count, max(0, request.computed_before - start))
        return logits_BV[: len(last_B)]

    def release(self, context: int) -> None:
        """The request of this context is answered or gone."""
        del self.running[context]
        self.contexts.release(context)

    def set_aside(self, context: int) -> None:
        """Take the place of a request, which waits for another and goes on from the tokens it has."""
        request = self.running.pop(context)
        length = int(self.contexts.length_S[context])
        request.known_T = self.contexts.tokens_SL[context, :length].copy()
        self.contexts.drop(context)
        self.waiting.appendleft(request)

    def reset(self) -> None:
        """Forget every request and everything kept."""
        self.waiting.clear()
        self.running.clear()
        self.contexts.forget()
        self.store = KeyValueStore(self.store.blocks)

    @torch.inference_mode()
    def score(self, tokens_T: Tokens, start: int, temperature: float) -> tuple[float, ...]:
        """Log-probs of tokens[start:] by a plain forward pass of the model that uses nothing kept."""
        ids_T = torch.from_numpy(tokens_T).long().to(self.device)
        wanted_T = torch.arange(start - 1, len(ids_T) - 1, device=self.device)
        logits_TV = self.model(input_ids=ids_T[None], use_cache=False, logits_to_keep=wanted_T).logits[0]
        logprobs: list[float] = []
        for begin in range(0, len(wanted_T), SCORE_POSITIONS):
            scaled_TV = logits_TV[begin : begin + SCORE_POSITIONS].float() / temperature
            targets_T = ids_T[start + begin : start + begin + SCORE_POSITIONS]
            logprobs += torch.log_softmax(scaled_TV, dim=-1).gather(1, targets_T[:, None])[:, 0].tolist()
        return tuple(logprobs)

    def load(self, weights: Weights) -> None:
        """Use these weights from the next pass on: all that older ones computed is void."""
        began = time.perf_counter()
        copy_weights(self.model, weights, self.learns)
        if self.decoder:
            self.decoder.read_weights()
        self.version = weights.version
        for context in list(reversed(self.running)):
            self.set_aside(context)
        self.contexts.forget()
        self.seconds["load"] += time.perf_counter() - began
