"""Many episodes at once: groups of attempts, as they are finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from practicum.types import Group, Task, Trajectory

Episode = Callable[[Task, int], Awaitable[Trajectory]]


async def collect(
    tasks: Sequence[Task], attempts: int, episode: Episode, *, concurrency: int, first_attempt: int = 0
) -> AsyncIterator[Group]:
    """Play every task `attempts` times, at most `concurrency` episodes at once; yield each group when it is whole.

    Episodes start in (task, attempt) order; groups come in the order in which they finish. When the consumer stops
    or an error passes through, running episodes are cancelled and awaited.

    Example: async for group in collect(tasks, 8, partial(run_episode, stage), concurrency=64)
    """
    places = asyncio.Semaphore(concurrency)

    async def placed(task: Task, attempt: int) -> Trajectory:
        async with places:
            return await episode(task, attempt)

    async def group(number: int, task: Task) -> Group:
        numbers = range(first_attempt, first_attempt + attempts)
        members = [asyncio.ensure_future(placed(task, attempt)) for attempt in numbers]
        try:
            trajectories = await asyncio.gather(*members)
        finally:
            for member in members:
                member.cancel()
            await asyncio.gather(*members, return_exceptions=True)
        return Group(id=f"{number}:{task.id}", task_id=task.id, trajectories=tuple(trajectories))

    running = {asyncio.ensure_future(group(number, task)) for number, task in enumerate(tasks)}
    try:
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for job in sorted(done, key=lambda job: job.result().id):
                yield job.result()
    finally:
        for job in running:
            job.cancel()
        await asyncio.gather(*running, return_exceptions=True)
