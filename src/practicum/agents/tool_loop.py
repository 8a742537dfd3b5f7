"""The default agent: ask, do the calls, tell what came back, until the model answers."""

from __future__ import annotations

from dataclasses import dataclass

from practicum.agents.agent import Model
from practicum.types import Message, Task


@dataclass(frozen=True)
class ToolLoop:
    """Runs the plain tool loop; a reply that cannot be read is answered with what was wrong, and the loop goes on.

    After `patience` such replies in a row it gives up, as a customer would.

    Example: await ToolLoop("You serve a shop's customers.", patience=3)(task, model)
    """

    system: str
    "What the model is told before its tools."
    patience: int
    "Replies in a row that cannot be read before it gives up."
    examples: tuple[Message, ...] = ()
    "Whole conversations that come before the request: how other tasks were done."

    async def __call__(self, task: Task, model: Model) -> str:
        """Return the model's answer. The limits on turns and tokens are the model's, not ours."""
        request = "\n".join(part for part in (task.prompt, model.opening) if part)
        messages = [Message("system", self.system), *self.examples, Message("user", request)]
        unread = 0
        while unread < self.patience:
            reply = await model.chat(messages, model.tools)
            if not reply.problem and not reply.tool_calls:
                return reply.content
            messages.append(reply)
            unread = unread + 1 if reply.problem else 0
            if reply.problem:
                messages.append(Message("tool", f"error: {reply.problem}"))
            for call in reply.tool_calls:
                messages.append(await model.use(call))
        return ""
