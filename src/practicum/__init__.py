"""practicum: a language model practises an organisation's tasks and learns from whether they were really done.

Every public name is met late: `import practicum` costs milliseconds and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from practicum.agents.agent import Agent
    from practicum.config import RunConfig
    from practicum.environments.environment import Environment
    from practicum.environments.tools import tool
    from practicum.errors import MissingExtra, PracticumError, ToolError, UserError
    from practicum.sampling.sampler import Sampler
    from practicum.types import (
        Completion,
        Ending,
        Group,
        Message,
        SamplingParams,
        Task,
        ToolCall,
        Trajectory,
        Turn,
        Weights,
    )
    from practicum.verbs.checking import check
    from practicum.verbs.comparing import compare
    from practicum.verbs.evaluating import evaluate
    from practicum.verbs.profiling import profile
    from practicum.verbs.stepping import steps
    from practicum.verbs.training import train

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Completion",
    "Ending",
    "Environment",
    "Group",
    "Message",
    "MissingExtra",
    "PracticumError",
    "RunConfig",
    "Sampler",
    "SamplingParams",
    "Task",
    "ToolCall",
    "ToolError",
    "Trajectory",
    "Turn",
    "UserError",
    "Weights",
    "check",
    "compare",
    "evaluate",
    "profile",
    "steps",
    "tool",
    "train",
]

_NAMES_IN = {
    "types": "Completion Ending Group Message SamplingParams Task ToolCall Trajectory Turn Weights",
    "errors": "MissingExtra PracticumError ToolError UserError",
    "config": "RunConfig",
    "agents.agent": "Agent",
    "environments.environment": "Environment",
    "environments.tools": "tool",
    "sampling.sampler": "Sampler",
    "verbs.checking": "check",
    "verbs.comparing": "compare",
    "verbs.evaluating": "evaluate",
    "verbs.profiling": "profile",
    "verbs.stepping": "steps",
    "verbs.training": "train",
}
_HOMES = {name: f"practicum.{module}" for module, names in _NAMES_IN.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import the module that defines a public name when the name is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'practicum' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
