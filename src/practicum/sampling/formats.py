"""How a call is written inside a message: the contract, and one line of Python for models that know no tools."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Protocol

from practicum.errors import UserError
from practicum.types import Message, ToolCall, ToolSpec

PYTHON_NAMES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
}
DONE = ToolSpec(
    "done",
    "End, when all that was asked is done.",
    {"type": "object", "properties": {"message": {"type": "string"}}, "required": []},
)


class CallFormat(Protocol):
    """Tools, calls and what came back, as text."""

    def system(self, text: str, tools: Sequence[ToolSpec]) -> str:
        """The system message: what an agent says there and what is said of the tools; empty when there is nothing."""
        ...

    def answers(self, texts: Sequence[str]) -> list[str]:
        """What tools answered, one after another, as the messages in which a model is told of it."""
        ...

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """An assistant message as the model would have to say it."""
        ...

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """What the model said; where no action can be read, `problem` says exactly why."""
        ...


class CompactCalls:
    """One call per turn in Python call syntax; `done()` ends the episode, its text is the answer.

    Example: get_order("#W6067464")
    """

    def system(self, text: str, tools: Sequence[ToolSpec]) -> str:
        """The text, then a line per tool."""
        return "\n".join(part for part in (text, self.describe(tools)) if part)

    def answers(self, texts: Sequence[str]) -> list[str]:
        """Each as it is."""
        return list(texts)

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """One line per tool: signature and description. Raises UserError for a tool named done."""
        if not tools:
            return ""
        if any(tool.name == "done" for tool in tools):
            raise UserError("a tool is named done, which in this format ends the episode; give it another name")
        lines = [f"{signature(tool)}: {tool.description}" for tool in tools]
        return "\n".join([*lines, f"done(): {DONE.description}"])

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The call; a message without one is an answer, said with done(), or was unreadable and stays as it was."""
        if message.problem:
            return message.content
        if not message.tool_calls:
            return f"done({quoted(message.content)})" if message.content else "done()"
        return "\n".join(written(call, tools) for call in message.tool_calls)

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """A call, an answer, or a problem in words that help the model. Without tools, any text is an answer."""
        said = Message("assistant", text)
        if not tools:
            return said
        try:
            name, positional, named = parsed(text)
        except ValueError as reason:
            return replace(said, problem=str(reason))
        spec = DONE if name == "done" else next((tool for tool in tools if tool.name == name), None)
        if spec is None:
            known = ", ".join([*(tool.name for tool in tools), "done"])
            return replace(said, problem=f"there is no tool {name}; tools: {known}")
        names = list(spec.parameters["properties"])
        if len(positional) > len(names):
            found = f"{name} takes {len(names)} arguments ({', '.join(names)}), found {len(positional)}"
            return replace(said, problem=found)
        arguments = dict(zip(names[: len(positional)], positional, strict=True))
        for key in named:
            if key in arguments or (spec is DONE and key not in names):
                found = "twice" if key in arguments else f"but done takes {', '.join(names)} only"
                return replace(said, problem=f"{name} was given {key} {found}")
        arguments |= named
        if spec is DONE:
            return Message("assistant", str(arguments.get("message", "")))
        return Message("assistant", text, tool_calls=(ToolCall(name, arguments),))


def conversation(
    messages: Sequence[Message], tools: Sequence[ToolSpec], calls: CallFormat, tool_role: str = "user"
) -> list[tuple[str, str]]:
    """A whole conversation as (role, text), for a model that is told of tools in words.

    Example: [Message("system", "Be brief."), Message("user", "hi")] -> [("system", "Be brief."), ("user", "hi")]
    """
    rest = list(messages)
    system = calls.system(rest.pop(0).content if rest and rest[0].role == "system" else "", tools)
    return ([("system", system)] if system else []) + told(rest, tools, calls, tool_role)


def told(
    messages: Sequence[Message], tools: Sequence[ToolSpec], calls: CallFormat, tool_role: str
) -> list[tuple[str, str]]:
    """Messages further on as (role, text); `tool_role` says what tools answered."""
    said: list[tuple[str, str]] = []
    for is_tool, run in groupby(messages, key=lambda message: message.role == "tool"):
        if is_tool:
            said += [(tool_role, text) for text in calls.answers([message.content for message in run])]
        else:
            said += [(m.role, calls.write(m, tools) if m.role == "assistant" else m.content) for m in run]
    return said


def called(name: Any, arguments: Any, tools: Sequence[ToolSpec]) -> ToolCall:
    """A call from the JSON values that a model wrote. Raises ValueError, worded for the model."""
    if not isinstance(name, str):
        raise ValueError(f'"name" must be the name of a tool, found {name!r}')
    if all(tool.name != name for tool in tools):
        raise ValueError(f"there is no tool {name}; tools: {', '.join(tool.name for tool in tools)}")
    if not isinstance(arguments, Mapping):
        raise ValueError(f"the arguments of {name} must be a JSON object, found {arguments!r}")
    return ToolCall(name, dict(arguments))


def signature(tool: ToolSpec) -> str:
    """`cancel_order(order_id, reason)`; types that are not text are shown, so are choices and defaults."""
    shown = []
    for name, schema in tool.parameters["properties"].items():
        choices = "|".join(quoted(choice) for choice in schema.get("enum", ()))
        kind = choices or ("" if schema["type"] == "string" else PYTHON_NAMES[schema["type"]])
        default = "" if name in tool.parameters["required"] else f"={quoted(schema.get('default'))}"
        shown.append(name + (f": {kind}" if kind else "") + default)
    return f"{tool.name}({', '.join(shown)})"


def quoted(value: Any) -> str:
    """A literal as Python writes it, text in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(quoted(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{quoted(key)}:{quoted(item)}" for key, item in value.items()) + "}"
    return repr(value)


def written(call: ToolCall, tools: Sequence[ToolSpec]) -> str:
    """`cancel_order("#W7602708","no longer needed")`: no blanks between arguments, since each costs a token.

    Arguments stand by position for as long as the tool's signature has no gap, by name behind one.
    """
    spec = next((tool for tool in tools if tool.name == call.name), None)
    left = dict(call.arguments)
    parts = []
    for name in spec.parameters["properties"] if spec else ():
        if name not in left:
            break
        parts.append(quoted(left.pop(name)))
    return f"{call.name}({','.join([*parts, *(f'{name}={quoted(value)}' for name, value in left.items())])})"


def parsed(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Name, positional and named arguments of the one call in a text. Raises ValueError saying what is wrong."""
    source = text.strip()
    if not source:
        raise ValueError("the reply was empty; write one call")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
        raise ValueError(f"the reply is not a Python call ({reason}); write one call, text in quotes") from None
    if len(tree.body) != 1:
        raise ValueError(f"write one call per turn, found {len(tree.body)}")
    statement = tree.body[0]
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError("the reply is not a call; write one call such as done()")
    if any(keyword.arg is None for keyword in call.keywords):
        raise ValueError("arguments cannot be unpacked with **; write them one by one")
    try:
        positional = [ast.literal_eval(argument) for argument in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise ValueError("arguments must be literals: text in quotes, numbers, lists") from None
    return call.func.id, positional, named
