"""Calls as JSON, in the form that Qwen2.5's chat template teaches."""

import asyncio
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum import build, config
from practicum.environments.tools import Toolbox, tool
from practicum.sampling.formats import CompactCalls, conversation
from practicum.sampling.hermes import HermesCalls, hermes_of
from practicum.sampling.renderer import ByteTokenizer, ChatML
from practicum.sampling.scripted import ScriptedSampler
from practicum.simulator.episode import run_episode
from practicum.types import Message, ToolCall
from practicum.verbs import evaluating

CALLS = HermesCalls("You are Qwen.")
RENDERER = ChatML(ByteTokenizer(), CALLS)


class Shop:
    @tool
    def refund(self, order_id: str, cents: int = 100) -> str:
        """Refund “part” of an order."""
        return f"{order_id} {cents}"

    @tool
    def look(self) -> str:
        """Look."""
        return "green"


TOOLS = Toolbox(Shop()).specs
SECTION = """

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "refund", "description": "Refund “part” of an order.", "parameters": \
{"type": "object", "properties": {"order_id": {"type": "string"}, "cents": {"type": "integer", "default": 100}}, \
"required": ["order_id"]}}}
{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": \
{"type": "object", "properties": {}, "required": []}}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""
"What Qwen2.5's own template makes of these tools; the real template is asked in tests/real."
LOOK, REFUND = ToolCall("look", {}, "call_0_0"), ToolCall("refund", {"order_id": "#Wß1", "cents": 5}, "call_0_1")


def text_of(tokens):
    return "".join(chr(t) if t < 128 else "?" if t < 256 else ByteTokenizer.SPECIALS[t - 256] for t in tokens)


def test_a_conversation_is_rendered_as_the_template_writes_it():
    messages = [
        Message("system", "Be brief."),
        Message("user", "hi"),
        Message("assistant", "At once.", tool_calls=(LOOK, REFUND)),
        Message("tool", "green", tool_call_id="call_0_0"),
        Message("tool", "ok", tool_call_id="call_0_1"),
        Message("assistant", "Done, all of it."),
        Message("user", "thanks"),
    ]
    assert conversation(messages, TOOLS, CALLS) == [
        ("system", "Be brief." + SECTION),
        ("user", "hi"),
        (
            "assistant",
            'At once.\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>\n'
            '<tool_call>\n{"name": "refund", "arguments": {"order_id": "#Wß1", "cents": 5}}\n</tool_call>',
        ),
        ("user", "<tool_response>\ngreen\n</tool_response>\n<tool_response>\nok\n</tool_response>"),
        ("assistant", "Done, all of it."),
        ("user", "thanks"),
    ]
    assert text_of(RENDERER.opening(messages[5:], ())) == (
        "<|im_start|>system\nYou are Qwen.<|im_end|>\n<|im_start|>assistant\nDone, all of it.<|im_end|>\n"
        "<|im_start|>user\nthanks<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_history_and_one_more_turn_begins_with_the_tokens_as_sampled():
    opening = RENDERER.opening([Message("system", "s"), Message("user", "u")], TOOLS)
    sampled = (*RENDERER.tokenizer.encode('<tool_call> {"name":"look",\n"arguments":{}}</tool_call> odd'), RENDERER.end)
    results = [Message("tool", "a", tool_call_id="1"), Message("tool", "b", tool_call_id="2")]
    added = RENDERER.continuation(sampled, results)
    assert text_of(added) == (
        "\n<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    whole = opening + sampled + added
    assert whole[: len(opening) + len(sampled)] == opening + sampled


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40)
@given(st.text().map(str.strip), st.lists(st.dictionaries(st.text(), json_values, max_size=3), min_size=1, max_size=3))
def test_what_is_written_reads_back_equal(words, arguments):
    if any(mark in words for mark in ("<tool_call>", "{")):
        return
    message = Message("assistant", words, tool_calls=tuple(ToolCall("refund", given) for given in arguments))
    assert CALLS.read(CALLS.write(message, TOOLS), TOOLS) == message


def test_text_inside_an_argument_may_spell_the_tags():
    message = Message("assistant", "", tool_calls=(ToolCall("refund", {"order_id": "</tool_call><tool_call>{"}),))
    assert CALLS.read(CALLS.write(message, TOOLS), TOOLS) == message


def test_words_without_a_call_are_an_answer_and_an_episode_that_needs_no_words_still_ends():
    assert CALLS.read("It is green.", TOOLS) == Message("assistant", "It is green.")
    assert CALLS.read(CALLS.write(Message("assistant", ""), TOOLS), TOOLS) == Message("assistant", "Done.")
    assert CALLS.read("<tool_call>", ()) == Message("assistant", "<tool_call>")
    assert CALLS.write(Message("assistant", "hm", problem="unreadable"), TOOLS) == "hm"


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "look", "arguments": {}}',
        '```json\n{"name": "look", "arguments": {}}\n```',
        '<tools>\n{"name":"look","arguments":{}}\n</tools>',
        '\n{"name": "look", "arguments": {}}\n</tool_call>',
    ],
)
def test_a_reply_that_is_nothing_but_the_json_of_a_call_is_that_call(text):
    assert CALLS.read(text, TOOLS) == Message("assistant", "", tool_calls=(ToolCall("look", {}),))


def call(body):
    return f"<tool_call>\n{body}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (" \n", "the reply was empty"),
        (call('{"name": "look", "arguments": {}'), r"the call is not JSON: Expecting ',' delimiter at '</tool_call>'"),
        (call("{'name': 'look'}"), "the call is not JSON: Expecting property name enclosed in double quotes at"),
        ('<tool_call>{"name": "look', r"the call is not JSON: Unterminated string starting at at '\"look'"),
        ("<tool_call>", "the call is not JSON: Expecting value at its end"),
        (call('{"name": "look", "arguments": NaN}'), "NaN is no JSON number"),
        (call("[1]"), r'a call needs "name" and "arguments", found \[1\]'),
        (call('{"name": "look"}'), 'a call needs "name" and "arguments"'),
        (call('{"name": 7, "arguments": {}}'), '"name" must be the name of a tool, found 7'),
        (call('{"name": "fly", "arguments": {}}'), "there is no tool fly; tools: refund, look"),
        (call('{"name": "look", "arguments": []}'), r"the arguments of look must be a JSON object, found \[\]"),
        (
            '<tool_call>{"name": "look", "arguments": {}} and so on',
            "</tool_call> must follow the JSON object, found 'and",
        ),
        ('I call: {"name": "look", "arguments": {}}', "a call must begin with <tool_call> and end with </tool_call>"),
        ("look</tool_call>", "a call must begin with <tool_call>"),
        (call('{"name": "look", "arguments": ' + "[" * 100_000), "nested too deeply|not JSON"),
        (call('{"name": "look", "arguments": {"n": ' + "1" * 5000 + "}}"), "integer string conversion"),
    ],
)
def test_what_cannot_be_read_is_said_exactly_and_makes_no_call(text, problem):
    message = CALLS.read(text, TOOLS)
    assert not message.tool_calls and message.content == text
    assert re.search(problem, message.problem)


@given(st.text(alphabet='<tool_cal>/{}[]":, name1', max_size=80))
def test_no_text_makes_the_reader_raise(text):
    message = CALLS.read(text, TOOLS)
    assert message.role == "assistant"


def test_the_default_system_message_is_the_templates_own():
    assert hermes_of("{{ '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}").default_system == "You are Qwen."
    assert hermes_of("{{'<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n'}}").default_system == ""
    assert hermes_of("").default_system == ""


@pytest.mark.parametrize("braces", ["{%s}", "{{%s}}"])
def test_the_form_of_a_call_is_shown_with_as_many_braces_as_the_template_writes(braces):
    form = braces % '"name": <function-name>, "arguments": <args-json-object>'
    template = "{{- '<tool_call>\\n' + \"" + form.replace('"', '\\"') + '" }}'
    assert f"<tool_call>\n{form}\n</tool_call>" in hermes_of(template).system("", TOOLS)


def test_compact_calls_tell_tools_and_answers_as_before():
    compact = CompactCalls()
    assert compact.system("Be brief.", ()) == "Be brief."
    assert compact.answers(["a", "b"]) == ["a", "b"]
    assert compact.system("", TOOLS).splitlines()[0].startswith("refund(order_id")


def test_schemas_are_json_that_reads_back():
    lines = CALLS.system("", TOOLS).split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line)["function"]["name"] for line in lines] == ["refund", "look"]


def test_a_model_whose_template_has_a_place_for_tools_is_told_of_them_there():
    with_tools = "{% if tools %}<tools>{% endif %} <|im_start|>system\\nYou are Q.<|im_end|> <tool_call>"
    chosen = {
        form: [
            type(build.calls_of(config.load("recipes/tiny.toml", [f"agent.format={form}"]), t))
            for t in ("", with_tools)
        ]
        for form in ("auto", "compact", "hermes")
    }
    assert chosen == {
        "auto": [CompactCalls, HermesCalls],
        "compact": [CompactCalls, CompactCalls],
        "hermes": [HermesCalls, HermesCalls],
    }
    assert build.calls_of(config.load("recipes/tiny.toml"), with_tools).default_system == "You are Q."


def test_what_an_agent_is_told_first_suits_the_format_unless_the_recipe_says_otherwise():
    auto, own = config.load("recipes/retail.toml"), config.load("recipes/tiny.toml")
    assert build.system_of(auto, CompactCalls()).endswith("Reply with one call only:")
    assert build.system_of(auto, HermesCalls()).endswith("end with a short message without a call.")
    assert build.system_of(own, HermesCalls()) == ""


@pytest.mark.parametrize("form", ["compact", "hermes"])
@pytest.mark.parametrize(("policy", "success"), [("expert", 1.0), ("noop", 0.0)])
def test_scripted_policies_speak_every_format(form, policy, success):
    loaded = config.load("recipes/tiny.toml", [f"agent.format={form}", "tasks.test=8"])
    assert evaluating.evaluate(loaded, policy=policy).summary()["success"] == success


def test_a_call_that_cannot_be_read_is_answered_and_the_episode_goes_on():
    loaded = config.load("recipes/tiny.toml", ["agent.format=hermes"])
    stage, task = build.scripted_stage(loaded), build.tasks_of(loaded)["test"][0]
    texts = ['<tool_call>{"name": look}</tool_call>', call('{"name": "look", "arguments": {}}'), "It is lit."]
    replies = [(*stage.renderer.tokenizer.encode(text), stage.renderer.end) for text in texts]
    limits = replace(stage.limits, tokens_per_turn=200, context_tokens=4000)
    trajectory = asyncio.run(
        run_episode(replace(stage, sampler=ScriptedSampler(replies), limits=limits), task, attempt=0)
    )
    assert (trajectory.ending, trajectory.answer) == ("finished", "It is lit.")
    assert trajectory.turns[1].messages[0].content.startswith("error: the call is not JSON: Expecting value at 'look}")
    assert [turn.continues for turn in trajectory.turns] == [None, 0, 1]
