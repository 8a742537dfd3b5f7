"""What a world must offer to be practised in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from practicum.types import Task, ToolCall


@runtime_checkable
class Environment(Protocol):
    """A plain class; its methods marked `@tool` are what an agent can do in it.

    One instance serves one episode after another: `reset` must leave nothing of the last one. An optional attribute
    `done`, once true, ends the episode as finished: no further model call is answered.

    Example:
        class Shop:
            def reset(self, task): self.refunds = []
            @tool
            def refund(self, order_id: str, cents: int) -> str:
                "Refund `cents` of an order; at most what was paid."
            def verify(self, secret): return {"success": float(self.refunds == secret["refunds"])}
    """

    def reset(self, task: Task) -> str | None:
        """Start over for `task`; what it returns is told to the agent after the task's prompt."""
        ...

    def verify(self, secret: Mapping[str, Any]) -> Mapping[str, float]:
        """Score the state as it stands: {name: number}, each finite and in [0, 1], 'success' among them."""
        ...


@runtime_checkable
class Solvable(Protocol):
    """An environment that knows how its tasks are done: for demonstrations, `--policy expert` and `check` only."""

    def solve(self, secret: Mapping[str, Any]) -> Sequence[ToolCall]:
        """The calls an honest expert makes, look-ups included, in order."""
        ...


@runtime_checkable
class Listening(Protocol):
    """An environment whose verdict depends on what the agent said at the end."""

    def hear(self, answer: str) -> None:
        """The agent's answer, told once, after the last tool call and before `verify`."""
        ...


@runtime_checkable
class Closable(Protocol):
    """An environment that holds something: a file, a connection, a process."""

    def close(self) -> None:
        """Release it."""
        ...


def close(environment: Environment) -> None:
    """Let an environment release what it holds, if it holds anything."""
    if isinstance(environment, Closable):
        environment.close()
