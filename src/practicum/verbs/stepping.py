"""Training with the loop in the caller's hands: one step, then whatever the caller does, then the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from practicum import build
from practicum.agents.agent import Agent
from practicum.environments.environment import Environment
from practicum.environments.own import Reward
from practicum.types import Step
from practicum.verbs.interruption import Loop
from practicum.verbs.training import asked


def steps(
    recipe: build.Recipe,
    folder: str | Path | None = None,
    *,
    tasks: build.Tasks | None = None,
    environment: Callable[[], Environment] | None = None,
    agent: Agent | None = None,
    reward: Reward | None = None,
    name: str | None = None,
    resume: bool = False,
) -> Iterator[Step]:
    """Train as `train` does, one step at a time, without the test at the end; arguments and errors are its own.

    The warm-up comes before the first step; dev is measured and checkpoints are kept as the recipe says. Nothing is
    computed while the caller works. Leaving the loop, by `break` or by an exception, keeps a checkpoint of the last
    step and closes everything; the run folder can then be evaluated, and resumed by `steps` or `train`.

    Example:
        for step in practicum.steps("refunds.toml", "runs/mine", tasks=tasks, environment=Shop):
            if step.metrics["success"] > 0.9:
                break
    """
    config, own, folder = asked(recipe, folder, name, resume, tasks, environment, agent, reward)
    with build.parts_of(config, folder, resume, own) as parts, Loop() as loop:
        from practicum.training import steps as live

        living = live(parts, build.plan_of(config), resume, {}, {})

        async def following() -> Step | None:
            return await anext(living, None)

        async def ended() -> None:
            try:
                await living.aclose()
            finally:
                await parts.sampler.close()

        try:
            while (step := loop.run(following())) is not None:
                yield step
        finally:
            loop.run(ended())
