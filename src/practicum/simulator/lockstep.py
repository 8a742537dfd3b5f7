"""Episodes that sample in rounds, so that who shares a batch with whom does not depend on who was faster.

The last bits of a log-prob depend on the company in its forward pass. In rounds a batch is always the same: nobody
samples before every running episode has asked or ended, and then all are sampled in the order of task and attempt. So a
step that is collected again, after the process was killed, gives the same tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field

from practicum.sampling.sampler import Sampler
from practicum.simulator.stopwatch import Stopwatch
from practicum.types import Completion, SamplingParams

Place = tuple[int, int]
"(number of the group, number of the attempt) of an episode: the order in which a round is sampled."


@dataclass
class Rounds:
    """The rounds of one collection of `episodes`, `concurrency` of which run at once.

    Example: with rounds.joined((0, 3)): await run_episode(stage, task, 3)
    """

    episodes: int
    concurrency: int
    ended: int = 0
    waiting: list[tuple[Place, int, asyncio.Future[None]]] = field(default_factory=list)
    "Place, number of the call within its episode's round, and what wakes the caller."

    @contextmanager
    def joined(self, place: Place) -> Iterator[None]:
        """Within it the running task is the episode at `place`; whatever it starts belongs to it."""
        token = PLACE.set((self, place))
        try:
            yield
        finally:
            PLACE.reset(token)
            self.ended += 1
            self.begin_if_complete()

    async def turn(self, place: Place) -> None:
        """Wait until every running episode has asked or ended."""
        before = sum(other == place for other, _, _ in self.waiting)
        asked = (place, before, asyncio.get_running_loop().create_future())
        self.waiting.append(asked)
        self.begin_if_complete()
        try:
            await asked[2]
        finally:
            if asked in self.waiting:
                self.waiting.remove(asked)

    def begin_if_complete(self) -> None:
        """Wake everybody, in order, when the last running episode has asked."""
        running = min(self.concurrency, self.episodes - self.ended)
        if len({place for place, _, _ in self.waiting}) < running:
            return
        asked, self.waiting = sorted(self.waiting, key=lambda entry: entry[:2]), []

        def wake() -> None:
            for _, _, future in asked:
                if not future.done():
                    future.set_result(None)

        if asked:  # not at once: who asked last is to wait like the others, or it would go first
            asyncio.get_running_loop().call_soon(wake)


PLACE: ContextVar[tuple[Rounds, Place] | None] = ContextVar("place", default=None)


async def sample(
    sampler: Sampler, tokens: Sequence[int], params: SamplingParams, stopwatch: Stopwatch | None = None
) -> Completion:
    """`sampler.sample`, in its round where the episode belongs to one; waiting for the round is not timed."""
    joined = PLACE.get()
    if joined is not None:
        rounds, place = joined
        await rounds.turn(place)
    with stopwatch.sampler() if stopwatch else nullcontext():
        return await sampler.sample(tokens, params)
