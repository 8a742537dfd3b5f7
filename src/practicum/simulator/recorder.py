"""What an agent calls "the model": it answers, and remembers each call as a `Turn`, in tokens as sampled."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from practicum.environments.tools import Toolbox
from practicum.errors import EpisodeOver, Failure, ToolError, UserError, boundary, traced
from practicum.sampling.renderer import Renderer
from practicum.sampling.sampler import MessageSampler, Sampler
from practicum.simulator.lockstep import sample
from practicum.simulator.stopwatch import Stopwatch
from practicum.types import Ending, Message, SamplingParams, ToolCall, ToolSpec, Turn, stream_seed

T = TypeVar("T")

REFUSAL = "error: "
"What the text of a tool message begins with where the call was refused."


@dataclass(frozen=True)
class Limits:
    """What one episode may use."""

    turns: int
    "Model calls."
    tokens_per_turn: int
    "Sampled tokens of one call; a longer reply is cut and the model told so."
    context_tokens: int
    "The longest context a call may start from, plus what it samples."
    seconds: float
    "The agent's own time; waiting for the sampler or a tool is not charged."
    tool_seconds: float
    reset_seconds: float
    "Also for closing."
    verify_seconds: float


class Recorder:
    """The model of one episode.

    A call whose messages begin with all messages of an earlier call and its reply continues that call's turn;
    among several, the longest. Any other call begins a context of its own (first turn, rewritten history,
    sub-agent). Assistant messages with calls are known by the call ids minted here, whatever else a client made
    of them. Parallel calls branch.
    """

    def __init__(
        self,
        sampler: Sampler | MessageSampler,
        renderer: Renderer,
        limits: Limits,
        *,
        temperature: float,
        seed: int,
        toolbox: Toolbox | None = None,
        opening: str = "",
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self.sampler, self.renderer, self.limits = sampler, renderer, limits
        self.temperature, self.seed = temperature, seed
        self.toolbox = toolbox
        self.opening = opening
        self.stopwatch = stopwatch or Stopwatch()
        self.started = 0
        "Calls begun; each reserves its index when it starts."
        self.turns: dict[int, Turn] = {}
        self.heads: dict[tuple[Hashable, ...], int] = {}
        "Normalised history up to and with a reply -> the turn that sampled the reply."
        self.contexts: dict[int, tuple[int, ...]] = {}
        "All tokens up to and with a turn's completion."
        self.tool_seconds: dict[int, float] = {}
        self.flag: Ending | None = None
        "The first limit or failure met; sticky, whatever the agent's code made of the exception."
        self.error = ""
        self.mistake: UserError | None = None
        "What is wrong with the run as a whole, met in a call: no episode of it can go on."
        self.waited, self.waiting, self.since = 0.0, 0, 0.0

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools of the episode's environment."""
        return self.toolbox.specs if self.toolbox else ()

    def not_charged(self) -> float:
        """Seconds during which the agent had no choice but to wait, for the sampler or a tool."""
        return self.waited + (time.monotonic() - self.since if self.waiting else 0.0)

    def over(self, ending: Ending, reason: str) -> EpisodeOver:
        """Set the sticky flag; the first reason stays."""
        if self.flag is None:
            self.flag, self.error = ending, "" if ending.truncated else reason
        return EpisodeOver(reason)

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), policy: str = "agent") -> Message:
        """Answer one call and record it. Raises EpisodeOver at a limit, Failure when the sampler fails."""
        if self.flag is not None:
            raise EpisodeOver(f"this episode is over: {self.flag}")
        if self.started >= self.limits.turns:
            raise self.over(Ending.OUT_OF_TURNS, f"the limit of {self.limits.turns} model calls is reached")
        index, self.started = self.started, self.started + 1
        keys = (tuple(tool.name for tool in tools), *map(normalised, messages))
        continues, seen = self.place(keys)
        new = tuple(messages[seen:])
        began = time.monotonic()
        if isinstance(self.sampler, MessageSampler):
            added: tuple[int, ...] = ()
            context: tuple[int, ...] = ()
            params = self.sampling(index, self.limits.tokens_per_turn)
            with self.stopwatch.sampler():
                said = self.sampler.converse(messages, tools, params)
                answer = await self.wait(said, "endpoint", Ending.SAMPLER_FAILED)
            completion, reply = answer.completion, answer.message
        else:
            added, context = self.rendered(continues, messages, new, tools)
            room = min(self.limits.context_tokens, self.sampler.context_length) - len(context)
            if room < 1:
                raise self.over(Ending.OUT_OF_TOKENS, f"a context of {len(context)} tokens leaves no room for a reply")
            params = self.sampling(index, min(self.limits.tokens_per_turn, room), self.renderer.stop_tokens)
            drawn = sample(self.sampler, context, params, self.stopwatch)
            completion = await self.wait(drawn, "sampler", Ending.SAMPLER_FAILED)
            reply = self.renderer.read(completion.tokens, tools)
        if completion.stop_reason == "length":
            reply = replace(reply, tool_calls=(), problem=f"the reply was cut after {completion.size} tokens")
        calls = tuple(replace(call, id=f"call_{index}_{n}") for n, call in enumerate(reply.tool_calls))
        reply = replace(reply, tool_calls=calls)
        self.turns[index] = Turn(
            index=index,
            continues=continues,
            added=added,
            completion=completion,
            messages=new,
            action=reply,
            policy=policy,
            sampling=params,
            observation_key=digest(new),
            seconds={"sample": time.monotonic() - began},
        )
        self.heads[(*keys, normalised(reply))] = index
        self.contexts[index] = context + completion.tokens
        if completion.stop_reason == "length" and completion.size < self.limits.tokens_per_turn:
            raise self.over(Ending.OUT_OF_TOKENS, "the context is full")
        return reply

    def rendered(
        self, continues: int | None, messages: Sequence[Message], new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tokens that a call adds, and the whole context that it samples from."""
        if continues is None:
            opening = self.renderer.opening(messages, tools)
            return opening, opening
        added = self.renderer.continuation(self.turns[continues].completion.tokens, new)
        return added, self.contexts[continues] + added

    def sampling(self, index: int, max_tokens: int, stop_tokens: tuple[int, ...] = ()) -> SamplingParams:
        """How a call is drawn, from a stream of its own."""
        return SamplingParams(self.temperature, max_tokens, stop_tokens, stream_seed(self.seed, index))

    def place(self, keys: tuple[Hashable, ...]) -> tuple[int | None, int]:
        """The turn with the longest known history that a request begins with, and how many messages that is."""
        for length in range(len(keys) - 1, 1, -1):
            index = self.heads.get(keys[:length])
            if index is not None:
                return index, length - 1
        return None, 0

    async def use(self, call: ToolCall) -> Message:
        """Run one tool off the event loop. A ToolError becomes the answer; anything else ends the episode."""
        if self.toolbox is None:
            raise ValueError("this episode has no environment, so there are no tools to use")
        if self.flag is not None:
            raise EpisodeOver(f"this episode is over: {self.flag}")
        began = time.monotonic()
        job = asyncio.wait_for(asyncio.to_thread(self.timed, self.toolbox, call), self.limits.tool_seconds)
        try:
            content = str(await self.wait(job, f"tool {call.name}", Ending.TOOL_CRASHED))
        except ToolError as refusal:
            content = f"{REFUSAL}{refusal}"
        if self.toolbox.over and self.flag is None:
            self.flag = Ending.FINISHED
        turn = turn_of(call.id)
        self.tool_seconds[turn] = self.tool_seconds.get(turn, 0.0) + time.monotonic() - began
        return Message("tool", content, tool_call_id=call.id)

    def timed(self, toolbox: Toolbox, call: ToolCall) -> str:
        """`toolbox.call`, counted as the environment's time."""
        with self.stopwatch.environment():
            return toolbox.call(call)

    async def wait(self, job: Awaitable[T], whose: str, ending: Ending) -> T:
        """Await without charging the agent; a failure sets the sticky flag and is raised on."""
        if self.waiting == 0:
            self.since = time.monotonic()
        self.waiting += 1
        try:
            with boundary(whose, ToolError, *((UserError,) if whose == "endpoint" else ())):
                return await job
        except Failure as failure:
            self.over(ending, traced(failure))
            raise
        except UserError as mistake:
            self.over(ending, str(mistake))
            self.mistake = mistake
            raise
        finally:
            self.waiting -= 1
            if self.waiting == 0:
                self.waited += time.monotonic() - self.since

    def record(self) -> tuple[Turn, ...]:
        """The answered calls in the order in which they started, renumbered without the ones never answered."""
        kept = sorted(self.turns)
        number = {index: position for position, index in enumerate(kept)}
        return tuple(
            replace(
                turn,
                index=number[turn.index],
                continues=None if turn.continues is None else number[turn.continues],
                seconds={**turn.seconds, "tool": self.tool_seconds.get(turn.index, 0.0)},
            )
            for turn in (self.turns[index] for index in kept)
        )


def normalised(message: Message) -> Hashable:
    """What makes two messages the same: our call ids where there are any, else role, text and the call answered."""
    ids = tuple(call.id for call in message.tool_calls if call.id)
    return ("assistant", ids) if ids else (message.role, message.content, message.tool_call_id)


def turn_of(call_id: str) -> int:
    """The turn that minted a call id: call_3_0 -> 3; calls that we did not mint count for the first turn."""
    parts = call_id.split("_")
    return int(parts[1]) if len(parts) == 3 and parts[0] == "call" and parts[1].isdigit() else 0


def digest(messages: Sequence[Message]) -> str:
    """A short name for what the agent saw."""
    return hashlib.sha256("\x1f".join(f"{m.role}:{m.content}" for m in messages).encode()).hexdigest()[:16]
