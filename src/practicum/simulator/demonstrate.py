"""Scripted policies played through the same loop, recorder and renderer as a model: expert, noop, random."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from practicum.environments.environment import Environment, Solvable
from practicum.environments.tools import Toolbox
from practicum.errors import UserError, boundary
from practicum.sampling.scripted import ScriptedSampler
from practicum.simulator.episode import Stage, run_episode
from practicum.types import Message, Task, ToolCall, Trajectory, stream_seed

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

    chosen = [draw.choice(specs) for _ in range(draw.randint(1, 4))]
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
            environment.close()
    messages = [Message("assistant", "", tool_calls=(call,)) for call in calls] + [Message("assistant", "")]
    replies = [stage.renderer.write(message, specs) for message in messages]
    script = ScriptedSampler(replies, context_length=10**9)
    limits = replace(
        stage.limits, turns=max(stage.limits.turns, len(messages)), tokens_per_turn=100_000, context_tokens=10**9
    )
    return await run_episode(replace(stage, sampler=script, limits=limits), task, attempt)
