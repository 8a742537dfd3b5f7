"""Qwen2.5-Coder, whose template has a place for tools: second tier (PRACTICUM_REAL_MODEL=1), 1.1 GB are fetched."""

import asyncio
import os

import pytest

from practicum import build, config
from practicum.environments.tools import Toolbox
from practicum.sampling.hermes import HermesCalls, as_function
from practicum.types import Message, SamplingParams, ToolCall

pytestmark = pytest.mark.skipif(
    os.environ.get("PRACTICUM_REAL_MODEL") != "1", reason="fetches 1.1 GB of weights; set PRACTICUM_REAL_MODEL=1"
)
NAME = "Qwen2.5-Coder-1.5B-Instruct"
CALLS = (
    ToolCall("get_order", {"order_id": "#W6067464"}, "a"),
    ToolCall("return_items", {"order_id": "#W1", "item_ids": ["1", "2"], "payment_id": "paypal_ß"}, "b"),
)


@pytest.fixture(scope="module")
def recipe():
    return config.load(
        "recipes/retail.toml", [f"model.name={NAME}", "simulator.context_tokens=1024", "sampler.slots=2"]
    )


@pytest.fixture(scope="module")
def renderer(recipe):
    return build.renderer_of(recipe, scripted=False)


@pytest.fixture(scope="module")
def tools(recipe):
    return Toolbox(build.world(recipe).open()).specs


@pytest.fixture(scope="module")
def template():
    from transformers import AutoTokenizer

    from practicum.models.known import find

    return AutoTokenizer.from_pretrained(find(NAME).folder)


def in_their_words(template, messages, tools, reply_follows=True):
    """What transformers makes of a conversation by the model's own template, in tokens."""
    told = [
        {"role": m.role, "content": m.content}
        | (
            {"tool_calls": [{"function": {"name": c.name, "arguments": c.arguments}} for c in m.tool_calls]}
            if m.tool_calls
            else {}
        )
        for m in messages
    ]
    shown = [as_function(tool) for tool in tools] or None
    whole = template.apply_chat_template(told, tools=shown, add_generation_prompt=reply_follows, tokenize=False)
    return tuple(template(whole, add_special_tokens=False)["input_ids"])


HISTORIES = {
    "a request": [Message("user", "Return #W12, please. sûr?  ok\n\n12")],
    "with a system message": [Message("system", "Serve the customer."), Message("user", "hi")],
    "a call and its result": [
        Message("system", "Serve the customer."),
        Message("user", "hi"),
        Message("assistant", "", tool_calls=CALLS[:1]),
        Message("tool", "delivered; paid by paypal_ß"),
    ],
    "two calls after words, and a second request": [
        Message("user", "hi"),
        Message("assistant", "Let me see.", tool_calls=CALLS),
        Message("tool", "one"),
        Message("tool", "two\nlines"),
        Message("assistant", "All done."),
        Message("user", "thanks"),
    ],
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize("with_tools", [False, True])
def test_our_rendering_is_the_models_own_template_token_for_token(renderer, template, tools, history, with_tools):
    shown = tools if with_tools else ()
    assert isinstance(renderer.calls, HermesCalls)
    assert renderer.opening(history, shown) == in_their_words(template, history, shown)


def test_what_was_sampled_and_what_follows_is_the_template_of_the_longer_history(renderer, template, tools):
    history = HISTORIES["two calls after words, and a second request"]
    tokens = renderer.opening(history[:1], tools)
    for said, told in ((history[1], history[2:4]), (history[4], history[5:])):
        sampled = renderer.write(said, tools)
        assert renderer.read(sampled, tools).content == said.content
        grown = tokens + sampled + renderer.continuation(sampled, told)
        assert grown[: len(tokens) + len(sampled)] == tokens + sampled
        tokens = grown
    assert tokens == in_their_words(template, history, tools)


def test_the_model_answers_a_question(recipe, renderer):
    from practicum.models.load import load_model

    sampler = build.local_sampler(recipe, load_model(NAME, "auto"))
    question = renderer.opening([Message("user", "What is 17 + 25? Answer with the number only.")], ())

    async def ask():
        try:
            return await sampler.sample(question, SamplingParams(0.0, 8, renderer.stop_tokens))
        finally:
            await sampler.close()

    assert renderer.read(asyncio.run(ask()).tokens, ()).content.strip().startswith("42")
