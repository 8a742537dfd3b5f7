"""Calls as JSON between `<tool_call>` and `</tool_call>`: the form that Qwen2.5's chat template teaches (Hermes)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from practicum.sampling.formats import called
from practicum.types import Message, ToolCall, ToolSpec

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORM = f'{OPEN}{{"name": ..., "arguments": {{...}}}}{CLOSE}'
DONE = "Done."
"What ends an episode where nothing else is to be said: in this form any words without a call do."
BEFORE = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
BEHIND = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n%s\n</tool_call>"
)
SHOWN = '{"name": <function-name>, "arguments": <args-json-object>}'
"The form of a call, as the template shows it."
TEMPLATE_DEFAULT = re.compile(r"""<\|im_start\|>system(?:\\n|\n)([^<{'"+]*)<\|im_end\|>""")
OBJECT = r'(?=\{\s*"name"\s*:)'
BARE = re.compile(rf"\s*(?:```\w*|<\w+>)?\s*{OBJECT}")
"A reply that begins with a call but without its tag: Qwen2.5-Coder leaves it out, whatever its template says."


class HermesCalls:
    """Calls as JSON, as many as wanted in one reply; a reply without one is an answer and ends the episode.

    A reply that is nothing but the JSON of one call counts as that call: some models leave the tags out.

    Example: <tool_call>{"name": "get_order", "arguments": {"order_id": "#W6067464"}}</tool_call>
    """

    def __init__(self, default_system: str = "", shown: str = SHOWN) -> None:
        self.default_system = default_system
        "Said where an agent has no system message of its own."
        self.shown = shown
        "The form of a call that the model is shown; Qwen2.5-Coder's own template writes its braces twice."

    def system(self, text: str, tools: Sequence[ToolSpec]) -> str:
        """The text, then the JSON schema of each tool between `<tools>` and `</tools>`."""
        text = text or self.default_system
        if not tools:
            return text
        return text + BEFORE + "".join(f"\n{in_json(as_function(tool))}" for tool in tools) + BEHIND % self.shown

    def answers(self, texts: Sequence[str]) -> list[str]:
        """All in one message, each between `<tool_response>` and `</tool_response>`."""
        return ["\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts)]

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The words, then the calls."""
        if message.problem or not message.tool_calls:
            return message.content or DONE
        calls = [f"{OPEN}\n{as_object(call)}\n{CLOSE}" for call in message.tool_calls]
        return "\n".join([message.content, *calls] if message.content else calls)

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Calls with the words before them, an answer, or a problem. Without tools, any text is an answer."""
        if not tools:
            return Message("assistant", text)
        try:
            words, calls = parsed(text, tools)
        except ValueError as reason:
            return Message("assistant", text, problem=str(reason))
        return Message("assistant", words, tool_calls=tuple(calls))


def hermes_of(template: str) -> HermesCalls:
    """The form as a model's own template writes it; as Qwen2.5 does where the template says nothing."""
    default = TEMPLATE_DEFAULT.search(template)
    doubled = f"{{{SHOWN}}}"
    is_doubled = doubled.replace('"', '\\"') in template or doubled in template
    return HermesCalls(default[1] if default else "", doubled if is_doubled else SHOWN)


def as_function(tool: ToolSpec) -> dict[str, Any]:
    """A tool as chat templates and endpoints are told of it."""
    described = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": described}


def as_object(call: ToolCall) -> str:
    """`{"name": "get_order", "arguments": {"order_id": "#W6067464"}}`."""
    return f'{{"name": "{call.name}", "arguments": {in_json(dict(call.arguments))}}}'


def in_json(value: Any) -> str:
    """JSON as chat templates write it: blanks behind commas and colons, every letter as it is."""
    return json.dumps(value, ensure_ascii=False)


def parsed(text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
    """The words before the first call, and the calls; the whole text where there is none. Raises ValueError."""
    if not text.strip():
        raise ValueError("the reply was empty; call a tool, or end with an answer in words")
    start, tag = text.find(OPEN), OPEN
    if start < 0 and (bare := BARE.match(text)):
        start, tag = bare.end(), ""
    if start < 0:
        if CLOSE in text or re.search(OBJECT, text):
            raise ValueError(f"a call must begin with {OPEN} and end with {CLOSE}; write {FORM}")
        return text, []
    words, calls = text[:start].strip() if tag else "", []
    while start >= 0:
        value, end = decoded(text, start + len(tag))
        if not isinstance(value, dict) or "name" not in value or "arguments" not in value:
            raise ValueError(f'a call needs "name" and "arguments", found {in_json(value)}; write {FORM}')
        rest = text[end:].lstrip()
        if tag and not rest.startswith(CLOSE):
            raise ValueError(f"{CLOSE} must follow the JSON object, found {rest[:20]!r}; write {FORM}")
        calls.append(called(value["name"], value["arguments"], tools))
        start = text.find(OPEN, end) if tag else -1
    return words, calls


def decoded(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start`, blanks left out, and where it ends. Raises ValueError saying where not."""
    start += len(text[start:]) - len(text[start:].lstrip())
    try:
        return JSON.raw_decode(text, start)
    except json.JSONDecodeError as error:
        place = f"at {text[error.pos : error.pos + 20]!r}" if error.pos < len(text) else "at its end"
        raise ValueError(f"the call is not JSON: {error.msg} {place}; write {FORM}") from None
    except RecursionError:
        raise ValueError(f"the call is nested too deeply; write {FORM}") from None


def not_json(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python would read and JSON does not know."""
    raise ValueError(f"{name} is no JSON number")


JSON = json.JSONDecoder(parse_constant=not_json)
