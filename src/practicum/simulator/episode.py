"""One attempt at one task: open the environment, let the agent work, verify what was really done."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from practicum.agents.agent import Agent
from practicum.environments.environment import Environment, Listening, close
from practicum.environments.tools import Toolbox
from practicum.errors import EpisodeOver, Failure, boundary, traced
from practicum.rewards.reward import weighted
from practicum.sampling.renderer import Renderer
from practicum.sampling.sampler import MessageSampler, Sampler
from practicum.simulator.recorder import Limits, Recorder
from practicum.simulator.stopwatch import Stopwatch
from practicum.types import Ending, Task, Trajectory, stream_seed

T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """What every episode of a collection has in common."""

    open_environment: Callable[[], Environment] | None
    "A fresh environment; None for agents that bring their own world."
    agent: Agent
    sampler: Sampler | MessageSampler
    renderer: Renderer
    "Not used with a sampler that takes messages."
    limits: Limits
    temperature: float
    seed: int
    "Of the run; each episode's stream follows from it, the task and the attempt."
    reward_weights: Mapping[str, float]
    "How the named rewards are summed into the one number learned from."
    turn_discount: float
    "Factor on that number for every turn: success in fewer turns is worth more."
    truncated_reward: float
    "Factor on that number where a limit cut the attempt short."
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    "Adds up where the time of all episodes goes."


async def run_episode(stage: Stage, task: Task, attempt: int) -> Trajectory:
    """Play one attempt to its ending. What happened inside is not raised, the ending says it.

    Raises UserError where an endpoint met a mistake in what was asked, which every other attempt would meet, too.

    Example: await run_episode(stage, task, attempt=0) -> Trajectory(..., ending=Ending.FINISHED)
    """
    began = time.monotonic()
    # Attempts share a task, and a world may well change what it is handed.
    task = replace(task, data=copy.deepcopy(task.data), secret=copy.deepcopy(task.secret))

    def ended(ending: Ending, recorder: Recorder | None, error: str = "", **rest: Any) -> Trajectory:
        return Trajectory(
            task_id=task.id,
            attempt=attempt,
            turns=recorder.record() if recorder else (),
            ending=ending,
            scenario_id=task.scenario_id,
            seconds=time.monotonic() - began,
            error=error,
            **rest,
        )

    try:
        environment, opening = await opened(stage, task)
    except Failure as failure:
        return ended(Ending.ENVIRONMENT_FAILED, None, traced(failure))
    try:
        recorder = Recorder(
            stage.sampler,
            stage.renderer,
            stage.limits,
            temperature=stage.temperature,
            seed=stream_seed(stage.seed, task.id, attempt),
            toolbox=Toolbox(environment) if environment else None,
            opening=opening or "",
            stopwatch=stage.stopwatch,
        )
        told = replace(task, data=copy.deepcopy(task.data), secret={})
        ending, answer, error = await played(stage.agent, told, recorder, stage.limits.seconds)
        if recorder.mistake is not None:
            raise recorder.mistake
        if ending.discarded:
            return ended(ending, recorder, error, answer=answer)
        try:
            if answer and isinstance(environment, Listening):
                with boundary("verifier"):
                    environment.hear(answer)
            rewards, reward = await verified(environment, task, stage)
        except Failure as failure:
            return ended(Ending.VERIFIER_FAILED, recorder, traced(failure), answer=answer)
        reward *= stage.turn_discount ** len(recorder.turns) * (stage.truncated_reward if ending.truncated else 1.0)
        return ended(ending, recorder, error, answer=answer, rewards=rewards, reward=reward)
    finally:
        await closed(stage, environment)


async def closed(stage: Stage, environment: Environment | None) -> None:
    """Let go of an environment. What happens there comes after the verdict, so that it changes nothing."""
    if environment is not None:
        with contextlib.suppress(Failure), boundary("environment close"):
            await world(stage, stage.limits.reset_seconds, close, environment)


async def opened(stage: Stage, task: Task) -> tuple[Environment | None, str | None]:
    """A reset environment; one retry with a fresh one. Raises Failure when both fail."""
    if stage.open_environment is None:
        return None, None
    make = stage.open_environment
    for last in (False, True):
        environment = None
        try:
            with boundary("environment reset"):
                environment = await world(stage, stage.limits.reset_seconds, make)
                opening = await world(stage, stage.limits.reset_seconds, environment.reset, task)
                return environment, opening
        except Failure:
            await closed(stage, environment)
            if last:
                raise
    raise AssertionError("the loop above returns or raises")


async def played(agent: Agent, task: Task, recorder: Recorder, seconds: float) -> tuple[Ending, str, str]:
    """Ending, answer and error of the agent's work. The recorder's sticky flag decides before the agent's return."""
    job = asyncio.ensure_future(agent(task, recorder))
    began = time.monotonic()
    try:
        while not job.done():
            left = seconds - (time.monotonic() - began - recorder.not_charged())
            if left <= 0:
                recorder.over(Ending.TIMED_OUT, f"the agent used more than {seconds} s")
                job.cancel()
                await asyncio.wait({job}, timeout=1.0)
                return recorder.flag or Ending.TIMED_OUT, "", recorder.error
            await asyncio.wait({job}, timeout=left)
    finally:
        job.cancel()
    raised = None if job.cancelled() else job.exception()
    answer = "" if raised is not None or job.cancelled() or job.result() is None else job.result()
    text = answer if isinstance(answer, str) else None
    if recorder.flag is not None:
        unlike_limit = raised is not None and not isinstance(raised, EpisodeOver)
        error = recorder.error or (traced(raised) if unlike_limit and raised else "")
        return recorder.flag, text or "", error
    if raised is not None:
        if not isinstance(raised, Exception):
            raise raised
        return Ending.AGENT_FAILED, "", traced(raised)
    if text is None:
        return Ending.AGENT_FAILED, "", f"the agent returned {answer!r}, a {type(answer).__name__}; an answer is a str"
    return Ending.FINISHED, text, ""


async def verified(environment: Environment | None, task: Task, stage: Stage) -> tuple[dict[str, float], float]:
    """The verifier's named rewards and their weighted sum; one more try. Raises Failure for whatever is wrong there."""
    if environment is None:
        return {}, 0.0
    for last in (False, True):
        try:
            with boundary("verifier"):
                rewards = dict(await world(stage, stage.limits.verify_seconds, environment.verify, task.secret))
                for name, value in rewards.items():
                    if not math.isfinite(value) or not 0.0 <= value <= 1.0:
                        raise ValueError(f"reward {name} of {task.id} is {value}; rewards are finite and within [0, 1]")
                if "success" not in rewards:
                    raise ValueError(f"no reward 'success' among {sorted(rewards)}; it says whether the task was done")
                return {name: float(value) for name, value in rewards.items()}, weighted(rewards, stage.reward_weights)
        except Failure:
            if last:
                raise
    raise AssertionError("the loop above returns or raises")


async def world(stage: Stage, seconds: float, function: Callable[..., T], *arguments: Any) -> T:
    """What a function of an environment gives, off the event loop and timed. TimeoutError when it takes longer."""

    def timed() -> T:
        with stage.stopwatch.environment():
            return function(*arguments)

    return await within(seconds, asyncio.to_thread(timed))


async def within(seconds: float, job: Awaitable[T]) -> T:
    """Await with a deadline; TimeoutError says how long it was."""
    try:
        return await asyncio.wait_for(job, seconds)
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds} s") from None
