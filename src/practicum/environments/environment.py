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
            def close(self): ...
    """

    def reset(self, task: Task) -> str | None:
        """Start over for `task`; what it returns is told to the agent after the task's prompt."""
        ...

    def verify(self, secret: Mapping[str, Any]) -> Mapping[str, float]:
        """Score the state as it stands: {name: number}, each finite and in [0, 1], 'success' among them."""
        ...

    def close(self) -> None:
        """Release what the environment holds."""
        ...


@runtime_checkable
class Solvable(Protocol):
    """An environment that knows how its tasks are done: for demonstrations, `--policy expert` and `check` only."""

    def solve(self, secret: Mapping[str, Any]) -> Sequence[ToolCall]:
        """The calls an honest expert makes, look-ups included, in order."""
        ...
