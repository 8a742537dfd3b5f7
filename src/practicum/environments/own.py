"""What a user brings: a world of their own, checked before the first episode, or a judge of answers as a world."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from practicum.environments.environment import Environment, close
from practicum.environments.tools import Toolbox
from practicum.errors import UserError, boundary
from practicum.types import Task


class Reward(Protocol):
    """A user's own judge, for agents that need no environment: how good was this answer?"""

    def __call__(self, task: Task, answer: str) -> float | Mapping[str, float]:
        """A number in [0, 1], or several by name with 'success' among them. It may read `task.secret`."""
        ...


class Answers:
    """A world without tools, in which only the agent's answer counts.

    Example: Answers(lambda task, answer: float(answer == task.secret["answer"]))
    """

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self.answer = ""

    def reset(self, task: Task) -> None:
        """Another task; nothing is said yet."""
        self.task, self.answer = task, ""

    def hear(self, answer: str) -> None:
        """What the agent answered."""
        self.answer = answer

    def verify(self, secret: Mapping[str, Any]) -> Mapping[str, float]:
        """What the judge says; one number is the success."""
        found = self.reward(self.task, self.answer)
        return found if isinstance(found, Mapping) else {"success": float(found)}


def check_environment(opener: Any) -> None:
    """Raise UserError for what cannot be opened without arguments into a world with `reset` and `verify`."""
    if not callable(opener):
        raise UserError(
            f"environment= needs a class, or a function that makes an environment, found {opener!r:.80}: every episode "
            f"has one of its own; give {type(opener).__name__} itself"
        )
    required = [
        name
        for name, parameter in inspect.signature(opener).parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    if required:
        raise UserError(
            f"environment= is opened without arguments, but {name_of(opener)} needs {', '.join(required)}; give "
            f"`lambda: {name_of(opener)}(…)`"
        )
    with boundary(f"environment= {name_of(opener)}", UserError):
        environment = opener()
    try:
        for name in ("reset", "verify", "close", "hear", "solve"):
            method = getattr(environment, name, None)
            if not callable(method) and name in ("reset", "verify"):
                raise UserError(
                    f"{type(environment).__name__} is no environment: it has no method {name}; it needs reset(task) "
                    "and verify(secret)"
                )
            check_plain(method, f"{type(environment).__name__}.{name}")
        _ = Toolbox(environment).specs
    finally:
        close(environment)


def check_plain(method: Any, name: str) -> None:
    """Raise UserError for a coroutine where a plain function is called."""
    if inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None)):  # noqa: B004
        raise UserError(f"{name} is `async`; write it as a plain function: it is run off the event loop")


def check_agent(agent: Any) -> None:
    """Raise UserError for what is not `async (task, model) -> answer`."""
    if not (inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(getattr(agent, "__call__", None))):  # noqa: B004
        raise UserError(f"agent= needs a function `async def agent(task, model)`, found {agent!r:.80}")
    check_takes(agent, "agent", "task, model")


def check_reward(reward: Any) -> None:
    """Raise UserError for what is not `(task, answer) -> number`."""
    if not callable(reward):
        raise UserError(f"reward= needs a function `def reward(task, answer)`, found {reward!r:.80}")
    check_plain(reward, f"reward= {name_of(reward)}")
    check_takes(reward, "reward", "task, answer")


def check_takes(function: Callable[..., Any], argument: str, names: str) -> None:
    """Raise UserError where a function cannot be called with two arguments."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise UserError(
            f"{argument}= is called as {name_of(function)}({names}), which it does not take: {error}"
        ) from None


def name_of(given: Any) -> str:
    """What a class or a function is called: 'Shop'."""
    return str(getattr(given, "__qualname__", type(given).__qualname__)).rpartition(".<locals>.")[2]


def opener_of(environment: Callable[[], Environment] | None, reward: Reward | None) -> Callable[[], Environment] | None:
    """How an episode's world is opened; None where neither a world nor a judge was brought. Raises UserError."""
    if reward is not None:
        check_reward(reward)
        return lambda: Answers(reward)
    if environment is not None:
        check_environment(environment)
    return environment
