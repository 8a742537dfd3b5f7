"""`@tool`: a method becomes something a model can call, described by its signature and docstring."""

from __future__ import annotations

import functools
import inspect
import types as pytypes
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from practicum.errors import ToolError, UserError
from practicum.types import ToolCall, ToolSpec

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__practicum_tool__"
JSON_NAMES: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def tool(method: F) -> F:
    """Mark a method as callable by the agent; its docstring and parameters are shown to the model.

    Example:
        @tool
        def refund(self, order_id: str, cents: int) -> str:
            "Refund `cents` of an order; at most what was paid."
    """
    setattr(method, MARK, True)
    return method


def schema_of(annotation: Any, where: str) -> dict[str, Any]:
    """JSON schema of one parameter's annotation: str, int, float, bool, list[...], dict, Literal or X | None.

    Raises UserError naming `where` for anything else, when the toolbox is made and not when a model calls.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in JSON_NAMES:
        return {"type": JSON_NAMES[annotation]}
    if origin is list or annotation is list:
        return {"type": "array", "items": schema_of(arguments[0], where)} if arguments else {"type": "array"}
    if origin is dict or annotation is dict:
        return {"type": "object"}
    if origin is Literal:
        kinds = {type(choice) for choice in arguments}
        if len(kinds) == 1 and kinds <= JSON_NAMES.keys():
            return {"type": JSON_NAMES[kinds.pop()], "enum": list(arguments)}
    if origin in (Union, pytypes.UnionType) and type(None) in arguments and len(arguments) == 2:
        return schema_of(next(a for a in arguments if a is not type(None)), where) | {"nullable": True}
    raise UserError(
        f"{where}: a tool's parameter needs one of str, int, float, bool, list, dict, Literal; found {annotation!r}"
    )


@functools.lru_cache(maxsize=1024)
def spec_of(method: Callable[..., Any]) -> ToolSpec:
    """What a model is told about one marked method, worked out once for all episodes.

    Raises UserError for an unusable annotation or a coroutine.
    """
    if inspect.iscoroutinefunction(method):
        raise UserError(f"tool {method.__name__} is `async`; write it as a plain method: it is run off the event loop")
    hints = get_type_hints(method)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, parameter in inspect.signature(method).parameters.items():
        if name == "self":
            continue
        where = f"tool {method.__name__}, parameter {name}"
        if name not in hints:
            raise UserError(f"{where}: it has no type annotation; write for example `{name}: str`")
        properties[name] = schema_of(hints[name], where)
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        else:
            properties[name]["default"] = parameter.default
    parameters = {"type": "object", "properties": properties, "required": required}
    return ToolSpec(method.__name__, inspect.getdoc(method) or "", parameters)


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """True when a JSON value has the type that the schema asks for."""
    if value is None:
        return bool(schema.get("nullable"))
    kind = schema["type"]
    if "enum" in schema:
        return value in schema["enum"]
    if kind == "array":
        return isinstance(value, list) and all(fits(item, schema["items"]) for item in value if "items" in schema)
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, {"string": str, "boolean": bool, "object": dict}[kind])


def expected(schema: Mapping[str, Any]) -> str:
    """A schema in words: 'a list of string', 'one of …', 'integer'."""
    if "enum" in schema:
        return "one of " + ", ".join(repr(choice) for choice in schema["enum"])
    if schema["type"] == "array":
        return f"a list of {schema['items']['type']}" if "items" in schema else "a list"
    return str(schema["type"])


class Toolbox:
    """The marked methods of one environment, ready to be shown to a model and called by it.

    Example: Toolbox(shop).call(ToolCall("refund", {"order_id": "#W1", "cents": 500})) -> "refunded 500 cents of #W1"
    """

    def __init__(self, environment: Any, only: tuple[str, ...] | None = None) -> None:
        names = [name for name, value in inspect.getmembers(type(environment), callable) if getattr(value, MARK, False)]
        names.sort(key=lambda name: getattr(type(environment), name).__code__.co_firstlineno)
        chosen = only if only is not None else tuple(getattr(environment, "tool_names", names))
        self.environment = environment
        self.methods = {name: getattr(environment, name) for name in names if name in chosen}
        self.specs = tuple(spec_of(getattr(type(environment), name)) for name in self.methods)

    @property
    def over(self) -> bool:
        """True when the environment says, by an optional attribute `done`, that nothing is left to do in it."""
        return bool(getattr(self.environment, "done", False))

    def check(self, call: ToolCall) -> None:
        """Raise ToolError, worded for the model, when the call names no tool or its arguments do not fit."""
        spec = next((s for s in self.specs if s.name == call.name), None)
        if spec is None:
            raise ToolError(f"there is no tool {call.name}; tools: {', '.join(self.methods)}")
        properties = spec.parameters["properties"]
        for name in call.arguments:
            if name not in properties:
                raise ToolError(f"{call.name} has no argument {name}; it takes {', '.join(properties) or 'none'}")
        for name in spec.parameters["required"]:
            if name not in call.arguments:
                raise ToolError(f"{call.name} needs {name}, which is missing; it takes {', '.join(properties)}")
        for name, value in call.arguments.items():
            if not fits(value, properties[name]):
                raise ToolError(f"{call.name}: {name} must be {expected(properties[name])}, found {value!r}")

    def call(self, call: ToolCall) -> str:
        """Check, then run. A ToolError is for the model to read; anything else raised is the tool's own crash."""
        self.check(call)
        return str(self.methods[call.name](**call.arguments))
