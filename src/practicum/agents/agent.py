"""What an agent is, and what it is given as "the model"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from practicum.types import Message, Task, ToolCall, ToolSpec


class Model(Protocol):
    """The recording model that an agent talks to; every call becomes a turn at the moment it happens."""

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools of the episode's environment; empty where there is none."""
        ...

    @property
    def opening(self) -> str:
        """What the environment said at reset, to be told after the task's prompt."""
        ...

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), policy: str = "agent") -> Message:
        """One model call. Raises EpisodeOver when a limit is reached; an agent may just let it pass."""
        ...

    async def use(self, call: ToolCall) -> Message:
        """Do what the model called for; a refusal comes back as the text of the tool message."""
        ...


class Agent(Protocol):
    """`async (task, model) -> answer`: our own loops and a user's function alike."""

    async def __call__(self, task: Task, model: Model) -> str | None:
        """Work on the task until done; what is returned is the answer."""
        ...
