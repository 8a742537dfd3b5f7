"""In lockstep nobody samples before everybody has asked, and the order is that of task and attempt."""

import asyncio
import random

import pytest

from practicum.simulator.collect import collect
from practicum.simulator.lockstep import sample
from practicum.types import Completion, Ending, SamplingParams, Task, Trajectory

TASKS = [Task(str(n), "") for n in range(3)]


class Listening:
    """A sampler that notes who asks when."""

    def __init__(self):
        self.asked = []

    async def sample(self, tokens, params):
        self.asked.append(tuple(tokens))
        await asyncio.sleep(0)
        return Completion((1,), (0.0,), (0,), "stop")


def played(attempts, turns_of, concurrency=100, lockstep=True, seed=0):
    """What a sampler hears of episodes that take their time; each asks as often as `turns_of` says."""
    sampler, draw = Listening(), random.Random(seed)

    async def episode(task, attempt):
        for turn in range(turns_of(task, attempt)):
            await asyncio.sleep(draw.random() / 200)
            await sample(sampler, (turn, int(task.id), attempt), SamplingParams())
        return Trajectory(task.id, attempt, (), Ending.FINISHED)

    async def whole():
        found = [g async for g in collect(TASKS, attempts, episode, concurrency=concurrency, lockstep=lockstep)]
        assert sorted(g.task_id for g in found) == ["0", "1", "2"]

    asyncio.run(asyncio.wait_for(whole(), 20))
    return sampler.asked


def test_rounds_are_sampled_in_the_order_of_task_and_attempt_whoever_was_faster():
    asked = played(2, lambda task, attempt: 3)
    assert asked == [(turn, task, attempt) for turn in range(3) for task in range(3) for attempt in range(2)]


def test_without_lockstep_the_faster_one_goes_first():
    assert played(2, lambda task, attempt: 3, lockstep=False) != played(2, lambda task, attempt: 3)


def test_an_episode_that_ends_is_no_longer_waited_for():
    asked = played(2, lambda task, attempt: int(task.id))
    assert asked == [(0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 2, 0), (1, 2, 1)]


@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_more_episodes_than_places_sample_the_same_whoever_was_faster(concurrency):
    heard = {tuple(played(3, lambda task, attempt: 1 + attempt, concurrency, seed=seed)) for seed in range(4)}
    assert len(heard) == 1


def test_calls_at_the_same_time_within_an_episode_are_all_sampled():
    sampler = Listening()

    async def episode(task, attempt):
        calls = [sample(sampler, (int(task.id), attempt, n), SamplingParams()) for n in range(3)]
        await asyncio.gather(*calls)
        return Trajectory(task.id, attempt, (), Ending.FINISHED)

    async def whole():
        return [g async for g in collect(TASKS, 2, episode, concurrency=10, lockstep=True)]

    asyncio.run(asyncio.wait_for(whole(), 20))
    assert sorted(sampler.asked) == [(task, attempt, n) for task in range(3) for attempt in range(2) for n in range(3)]
