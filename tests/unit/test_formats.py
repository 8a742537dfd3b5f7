"""Tools and calls as text, and the schema behind them."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.environments.tools import Toolbox, tool
from practicum.errors import ToolError, UserError
from practicum.sampling.formats import CompactCalls
from practicum.types import Message, ToolCall

CALLS = CompactCalls()


class Shop:
    @tool
    def refund(self, order_id: str, cents: int = 100, why: Literal["late", "broken"] = "late") -> str:
        """Refund part of an order."""
        return f"{order_id} {cents} {why}"

    @tool
    def tag(self, names: list[str], weight: float, urgent: bool, note: str | None = None, more: dict = None) -> str:  # noqa: RUF013
        """Tag."""
        return "tagged"

    def not_a_tool(self):
        """Hidden."""


TOOLS = Toolbox(Shop()).specs


def test_a_tool_is_one_line_with_types_choices_and_defaults():
    assert CALLS.describe(TOOLS).splitlines() == [
        'refund(order_id, cents: int=100, why: "late"|"broken"="late"): Refund part of an order.',
        "tag(names: list, weight: float, urgent: bool, note=None, more: dict=None): Tag.",
        "done(): End, when all that was asked is done.",
    ]
    assert CALLS.describe(()) == ""


literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.text(), max_size=3), literals, literals, st.sampled_from(["names", "urgent", "weight"]))
def test_what_is_written_reads_back_equal_in_any_order_and_with_gaps(names, weight, more, left_out):
    arguments = {"more": more, "weight": weight, "names": names, "urgent": True}
    del arguments[left_out]
    written = CALLS.write(Message("assistant", "", tool_calls=(ToolCall("tag", arguments),)), TOOLS)
    (call,) = CALLS.read(written, TOOLS).tool_calls
    assert call.arguments == arguments


def test_an_answer_is_said_with_done_and_what_could_not_be_read_stays_as_it_was():
    for answer in ("", 'it is "done"', "two\nlines"):
        assert CALLS.read(CALLS.write(Message("assistant", answer), TOOLS), TOOLS) == Message("assistant", answer)
    assert CALLS.write(Message("assistant", "hm", problem="not a call"), TOOLS) == "hm"


@given(st.text(max_size=60))
def test_no_text_makes_the_reader_raise(text):
    message = CALLS.read(text, TOOLS)
    assert message.problem or message.tool_calls or text.strip().startswith("done")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (ToolCall("refund", {}), "refund needs order_id, which is missing"),
        (ToolCall("refund", {"order_id": 7}), "order_id must be string, found 7"),
        (ToolCall("refund", {"order_id": "a", "cents": True}), "cents must be integer, found True"),
        (ToolCall("refund", {"order_id": "a", "why": "old"}), "why must be one of 'late', 'broken', found 'old'"),
        (ToolCall("tag", {"names": ["a", 1], "weight": 1, "urgent": False}), r"names must be a list of string"),
        (ToolCall("not_a_tool", {}), "there is no tool not_a_tool; tools: refund, tag"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_words_for_the_model(call, words):
    with pytest.raises(ToolError, match=words):
        Toolbox(Shop()).call(call)


def test_a_call_that_fits_is_made():
    assert Toolbox(Shop()).call(ToolCall("refund", {"order_id": "a", "cents": 5})) == "a 5 late"


def broken(annotation):
    def method(self, x): ...

    method.__annotations__ = {} if annotation is None else {"x": annotation}
    return type("Broken", (), {"method": tool(method)})


@pytest.mark.parametrize(
    ("annotation", "words"),
    [(None, "no type annotation"), (set, "found <class 'set'>"), (int | str, "found int | str")],
)
def test_a_tool_that_cannot_be_described_is_refused_when_the_toolbox_is_made(annotation, words):
    with pytest.raises(UserError, match=words.replace("|", r"\|")):
        Toolbox(broken(annotation)())


def test_a_coroutine_and_a_tool_named_done_are_refused():
    class Waits:
        @tool
        async def wait(self) -> str:
            """Wait."""

    class Ends:
        @tool
        def done(self) -> str:
            """End."""

    with pytest.raises(UserError, match="write it as a plain method"):
        Toolbox(Waits())
    with pytest.raises(UserError, match="named done"):
        CALLS.describe(Toolbox(Ends()).specs)
