"""How tasks are done, shown through the same loop, recorder and renderer as a model's: by a script or another model."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from practicum.environments.environment import Environment, Solvable, close
from practicum.environments.tools import Toolbox
from practicum.errors import PracticumError, UserError, boundary, counted
from practicum.sampling.scripted import ScriptedSampler
from practicum.simulator.episode import Stage, run_episode
from practicum.simulator.recorder import REFUSAL
from practicum.types import Message, Task, ToolCall, ToolSpec, Trajectory, stream_seed

Policy = Callable[[Environment, Task, int], list[ToolCall]]
"(a reset environment of its own, task, attempt) -> the calls to make before ending."


def expert(environment: Environment, task: Task, attempt: int) -> list[ToolCall]:
    """What the environment's own `solve` says."""
    if not isinstance(environment, Solvable):
        raise UserError(f"{type(environment).__name__} has no expert: it needs a method solve(secret) -> calls")
    return list(environment.solve(task.secret))


def noop(environment: Environment, task: Task, attempt: int) -> list[ToolCall]:
    """Nothing, and done."""
    return []


def at_random(environment: Environment, task: Task, attempt: int) -> list[ToolCall]:
    """One to four calls of any tools, with words of the request as arguments."""
    draw = random.Random(stream_seed("random policy", task.id, attempt))
    words = re.findall(r"[#\w]+", task.prompt) or [""]
    specs = Toolbox(environment).specs

    def value(schema: dict[str, Any]) -> Any:
        if "enum" in schema:
            return draw.choice(schema["enum"])
        if schema["type"] == "array":
            return [value(schema.get("items", {"type": "string"})) for _ in range(draw.randint(1, 2))]
        return {
            "integer": draw.randint(0, 9),
            "number": draw.random(),
            "boolean": draw.random() < 0.5,
            "object": {},
        }.get(schema["type"], draw.choice(words))

    chosen = [draw.choice(specs) for _ in range(draw.randint(1, 4))] if specs else []
    return [ToolCall(s.name, {name: value(p) for name, p in s.parameters["properties"].items()}) for s in chosen]


POLICIES: dict[str, Policy] = {"expert": expert, "noop": noop, "random": at_random}


async def demonstrate(stage: Stage, policy: Policy, task: Task, attempt: int) -> Trajectory:
    """An episode in which a script speaks: the same tokens a model would have had to sample.

    The policy looks at an environment of its own, so that nothing it does is seen by the episode. Raises UserError for
    an environment without an expert, Failure where that environment fails.
    """
    if stage.open_environment is None:
        raise UserError("a scripted policy needs an environment to play in")
    with boundary(f"the script's environment for {task.id}", UserError):
        environment = stage.open_environment()
        try:
            environment.reset(task)
            specs = Toolbox(environment).specs
            calls = policy(environment, task, attempt)
        finally:
            close(environment)
    return await spoken(stage, specs, calls, "", task, attempt)


async def spoken(
    stage: Stage, tools: Sequence[ToolSpec], calls: Sequence[ToolCall], answer: str, task: Task, attempt: int
) -> Trajectory:
    """The episode in which these calls are made, one a turn, and then the answer is given."""
    messages = [Message("assistant", "", tool_calls=(call,)) for call in calls] + [Message("assistant", answer)]
    replies = [stage.renderer.write(message, tools) for message in messages]
    script = ScriptedSampler(replies, context_length=10**9)
    limits = replace(
        stage.limits, turns=max(stage.limits.turns, len(messages)), tokens_per_turn=100_000, context_tokens=10**9
    )
    return await run_episode(replace(stage, sampler=script, limits=limits), task, attempt)


async def shown_by_expert(stage: Stage, tasks: Sequence[Task]) -> list[Trajectory]:
    """Every task as the expert does it. Raises PracticumError where it fails."""
    shown = [await demonstrate(stage, expert, task, 0) for task in tasks]
    for trajectory in shown:
        if trajectory.success < 1.0:
            raise PracticumError(
                f"the expert fails {trajectory.task_id} ({trajectory.ending}, rewards {dict(trajectory.rewards)}), "
                f"so it cannot be imitated there; correct the task or its solve(). {trajectory.error}"
            )
    return shown


async def shown_by_model(
    stage: Stage, ask: Callable[[], Stage], attempts: int, concurrency: int, tasks: Sequence[Task]
) -> list[Trajectory]:
    """What another model did where it succeeded, at most so many `attempts` a task, in the tokens of `stage`.

    `ask` opens the stage in which that model speaks; its sampler is closed at the end. What it was refused and what
    could not be read is left out. Raises PracticumError when it succeeds nowhere.
    """
    asked, places = ask(), asyncio.Semaphore(concurrency)
    tries: list[Trajectory] = []

    async def shown(task: Task) -> Trajectory | None:
        async with places:
            for attempt in range(attempts):
                tries.append(await run_episode(asked, task, attempt))
                if tries[-1].success == 1.0 and (again := await retold(stage, tries[-1], task)).success == 1.0:
                    return again
        return None

    jobs = [asyncio.ensure_future(shown(task)) for task in tasks]
    try:
        found = [trajectory for trajectory in await asyncio.gather(*jobs) if trajectory is not None]
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await asked.sampler.close()
    if not found:
        endings = dict(Counter(trajectory.ending.value for trajectory in tries))
        first = next((f"; the first failure was: {t.error}" for t in tries if t.error), "")
        raise PracticumError(
            f"the demonstrating model did none of {counted(len(tasks), 'task')} in {counted(attempts, 'attempt')} "
            f"each; endings: {endings}{first}. Name a stronger one in imitation.model, or let the expert demonstrate"
        )
    return found


async def retold(stage: Stage, trajectory: Trajectory, task: Task) -> Trajectory:
    """The calls of an attempt that were carried out, and its answer, as an episode in the tokens of `stage`."""
    told = [message for turn in trajectory.turns for message in turn.messages]
    refused = {message.tool_call_id for message in told if message.content.startswith(REFUSAL)}
    calls = [call for turn in trajectory.turns for call in turn.action.tool_calls if call.id not in refused]
    if stage.open_environment is None:
        raise UserError("a demonstration needs an environment to play in")
    environment = stage.open_environment()
    try:
        tools = Toolbox(environment).specs
    finally:
        close(environment)
    return await spoken(stage, tools, calls, trajectory.answer, task, 0)


async def worked_examples(stage: Stage, tasks: Sequence[Task]) -> tuple[Message, ...]:
    """How the expert does these tasks, as conversations one after another: what a model can be shown in its prompt.

    Raises PracticumError where the expert fails.
    """
    messages: list[Message] = []
    for number, trajectory in enumerate(await shown_by_expert(stage, tasks)):
        said = [message for turn in trajectory.turns for message in (*turn.messages, turn.action)]
        messages += [renamed(message, f"example_{number}") for message in said if message.role != "system"]
    return tuple(messages)


def renamed(message: Message, prefix: str) -> Message:
    """The same with call ids that no episode mints."""
    calls = tuple(replace(call, id=f"{prefix}_{call.id}") for call in message.tool_calls)
    answered = f"{prefix}_{message.tool_call_id}" if message.tool_call_id else ""
    return replace(message, tool_calls=calls, tool_call_id=answered)
