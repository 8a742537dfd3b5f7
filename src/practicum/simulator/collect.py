"""Many episodes at once: groups of attempts, as they are finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext

from practicum.simulator.lockstep import Rounds
from practicum.types import Group, Task, Trajectory

Episode = Callable[[Task, int], Awaitable[Trajectory]]


async def collect(
    tasks: Sequence[Task],
    attempts: int,
    episode: Episode,
    *,
    concurrency: int,
    first_attempt: int = 0,
    lockstep: bool = False,
) -> AsyncIterator[Group]:
    """Play every task `attempts` times, at most `concurrency` episodes at once; yield each group when it is whole.

    Episodes start in (task, attempt) order; groups come in the order in which they finish. When the consumer stops
    or an error passes through, running episodes are cancelled and awaited. In `lockstep` they sample in rounds.

    Example: async for group in collect(tasks, 8, partial(run_episode, stage), concurrency=64)
    """
    places = asyncio.Semaphore(concurrency)
    rounds = Rounds(len(tasks) * attempts, concurrency)

    async def placed(number: int, task: Task, attempt: int) -> Trajectory:
        async with places:
            with rounds.joined((number, attempt)) if lockstep else nullcontext():
                return await episode(task, attempt)

    async def group(number: int, task: Task) -> Group:
        numbers = range(first_attempt, first_attempt + attempts)
        members = [asyncio.ensure_future(placed(number, task, attempt)) for attempt in numbers]
        try:
            trajectories = await asyncio.gather(*members)
        finally:
            for member in members:
                member.cancel()
            await asyncio.gather(*members, return_exceptions=True)
        return Group(id=f"{number}:{task.id}", task_id=task.id, trajectories=tuple(trajectories))

    jobs = [asyncio.ensure_future(group(number, task)) for number, task in enumerate(tasks)]
    running = set(jobs)
    try:
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for job in sorted(done, key=lambda job: job.result().id):
                yield job.result()
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)  # also of those that failed beside the first
