"""What every Sampler promises, and every MessageSampler. A new one joins by a line in MAKERS or MESSAGE_MAKERS."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from practicum.sampling.formats import CompactCalls
from practicum.sampling.sampler import MessageSampler, Reply, Sampler
from practicum.sampling.scripted import ScriptedSampler
from practicum.types import Completion, Message, SamplingParams, Weights

VOCABULARY = 259
CONTEXT_LENGTH = 128
SLOTS = 4
PROMPTS = [tuple(random.Random(i).choices(range(VOCABULARY), k=10 + 3 * i)) for i in range(12)]


def scripted() -> tuple[Sampler, Weights]:
    def babble(tokens: tuple[int, ...], params: SamplingParams) -> list[int]:
        return random.Random(f"{tokens} {params.seed}").choices(range(VOCABULARY), k=200)

    return ScriptedSampler(babble, context_length=CONTEXT_LENGTH), Weights(1, "another")


def tiny(seed: int):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT_LENGTH,
            initializer_range=0.15, pad_token_id=None, bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip


def local() -> tuple[Sampler, Weights]:
    model = tiny(0)
    from practicum.sampling.local.sampler import LocalSampler

    return LocalSampler(model, slots=SLOTS, dtype="float32"), Weights(1, "another", tiny(1).state_dict())


def vllm() -> tuple[Sampler, Weights]:
    pytest.importorskip("vllm", reason="the sampler vllm needs vLLM: make vllm")
    from practicum.sampling.vllm import VllmSampler

    return VllmSampler(tiny(0), slots=SLOTS, dtype="float32"), Weights(1, "another", tiny(1).state_dict())


MAKERS: dict[str, Callable[[], tuple[Sampler, Weights]]] = {"scripted": scripted, "local": local, "vllm": vllm}


@pytest.fixture(params=MAKERS.values(), ids=MAKERS.keys())
def made(request: pytest.FixtureRequest) -> Iterator[tuple[Sampler, Weights]]:
    sampler_and_weights = request.param()
    if torch := sys.modules.get("torch"):
        # On a busy machine threads that wait for one another cost a tiny model a hundred times what they save.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
    yield sampler_and_weights
    if torch:
        torch.set_num_threads(threads)


@pytest.fixture
def sampler(made: tuple[Sampler, Weights]) -> Sampler:
    return made[0]


async def ask(sampler: Sampler, i: int, **changes: object) -> Completion:
    return await sampler.sample(PROMPTS[i], SamplingParams(**{"max_tokens": 12, "seed": i} | changes))


async def test_a_stop_token_ends_a_completion_and_is_its_last_token(sampler: Sampler) -> None:
    free = await ask(sampler, 0)
    stop = free.tokens[5]
    end = free.tokens.index(stop) + 1
    stopped = await ask(sampler, 0, stop_tokens=(stop,))
    assert (stopped.tokens, stopped.stop_reason) == (free.tokens[:end], "stop")
    assert stopped.logprobs == pytest.approx(free.logprobs[:end], abs=1e-5)


async def test_a_stop_token_at_the_very_limit_still_counts_as_stopped(sampler: Sampler) -> None:
    free = await ask(sampler, 1)
    limit = free.tokens.index(free.tokens[4]) + 1
    stopped = await ask(sampler, 1, stop_tokens=(free.tokens[4],), max_tokens=limit)
    assert (len(stopped.tokens), stopped.stop_reason) == (limit, "stop")


async def test_a_completion_has_at_most_max_tokens(sampler: Sampler) -> None:
    assert [len((await ask(sampler, 0, max_tokens=n)).tokens) for n in (1, 2, 7)] == [1, 2, 7]
    assert (await ask(sampler, 0)).stop_reason == "length"
    assert await ask(sampler, 0, max_tokens=0) == Completion((), (), (), "length")


async def test_prompt_and_completion_fit_the_context_together(sampler: Sampler) -> None:
    prompt = (PROMPTS[11] * 4)[: CONTEXT_LENGTH - 3]
    cut = await sampler.sample(prompt, SamplingParams(max_tokens=50))
    assert sampler.context_length == CONTEXT_LENGTH
    assert (len(cut.tokens), cut.stop_reason) == (3, "length")


@pytest.mark.parametrize("too_many", [0, 1, 100])
async def test_a_prompt_that_leaves_no_room_ends_with_length_and_no_token(sampler: Sampler, too_many: int) -> None:
    prompt = (1,) * (CONTEXT_LENGTH + too_many)
    assert await sampler.sample(prompt, SamplingParams()) == Completion((), (), (), "length")


async def test_an_empty_prompt_is_refused_in_words(sampler: Sampler) -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        await sampler.sample((), SamplingParams())


async def test_more_requests_than_slots_in_any_order_draw_what_each_draws_alone(sampler: Sampler, made) -> None:
    lengths = [12 if i % 3 else 40 for i in range(12)]
    alone = [await ask(sampler, i, max_tokens=n) for i, n in enumerate(lengths)]
    for seed in range(2):
        order = random.Random(seed).sample(range(12), k=12)
        together = await asyncio.gather(*[ask(sampler, i, max_tokens=lengths[i]) for i in order])
        assert [completion.tokens for completion in together] == [alone[i].tokens for i in order]


async def test_another_seed_draws_something_else(sampler: Sampler) -> None:
    assert (await ask(sampler, 0, seed=1)).tokens != (await ask(sampler, 0, seed=2)).tokens


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
async def test_score_gives_the_logprobs_that_the_completion_was_drawn_with(
    sampler: Sampler, temperature: float
) -> None:
    completion = await ask(sampler, 2, temperature=temperature)
    scores = await sampler.score(PROMPTS[2] + completion.tokens, len(PROMPTS[2]), temperature)
    assert scores == pytest.approx(completion.logprobs, abs=1e-4)


async def test_score_refuses_a_first_token_and_a_start_behind_the_end(sampler: Sampler) -> None:
    assert await sampler.score((1, 2, 3), 3) == ()
    for start in (0, 4):
        with pytest.raises(ValueError, match="start must lie between"):
            await sampler.score((1, 2, 3), start)


async def test_each_token_carries_the_version_that_drew_it(made: tuple[Sampler, Weights]) -> None:
    sampler, weights = made
    before = await ask(sampler, 0)
    await sampler.load(weights)
    after = await ask(sampler, 0)
    assert sampler.version == weights.version == 1
    assert (set(before.versions), set(after.versions)) == ({0}, {1})


async def test_weights_loaded_under_way_cost_nobody_a_token(made: tuple[Sampler, Weights]) -> None:
    sampler, weights = made
    calls = [asyncio.ensure_future(ask(sampler, i, max_tokens=40)) for i in range(8)]
    await asyncio.sleep(0.02)
    await sampler.load(weights)
    for completion in await asyncio.gather(*calls):
        assert len(completion.tokens) == 40
        assert list(completion.versions) == sorted(completion.versions)


async def test_closing_twice_does_no_harm_and_a_closed_sampler_says_so(sampler: Sampler) -> None:
    await ask(sampler, 0)
    await sampler.close()
    await sampler.close()
    with pytest.raises(RuntimeError, match="closed"):
        await ask(sampler, 0)


def test_event_loops_one_after_another_may_share_a_sampler(sampler: Sampler) -> None:
    def in_a_new_loop(call: Awaitable[Completion]) -> Completion:
        async def run() -> Completion:
            return await call

        return asyncio.run(run())

    first, second = (in_a_new_loop(ask(sampler, 0)) for _ in range(2))
    assert first.tokens == second.tokens


async def test_a_script_that_is_over_says_so() -> None:
    from practicum.errors import UserError

    sampler = ScriptedSampler([(104, 105, 258)])
    params = SamplingParams(stop_tokens=(258,))
    assert await sampler.sample((257,), params) == Completion((104, 105, 258), (0.0,) * 3, (0,) * 3, "stop")
    with pytest.raises(UserError, match="has 1 replies and a further one was asked for"):
        await sampler.sample((257,), params)


# Samplers that take messages


def endpoints_own(url: str) -> MessageSampler:
    pytest.importorskip("httpx")
    from practicum.sampling.api import ApiSampler

    return ApiSampler(url, "echo", "")


def endpoint_in_words(url: str) -> MessageSampler:
    pytest.importorskip("httpx")
    from practicum.sampling.api import ApiSampler

    return ApiSampler(url, "echo", "", calls=CompactCalls())


MESSAGE_MAKERS = {"api": endpoints_own, "api in words": endpoint_in_words}


@pytest.fixture(params=MESSAGE_MAKERS.values(), ids=MESSAGE_MAKERS.keys())
def messenger(request: pytest.FixtureRequest, endpoint, said) -> MessageSampler:
    """A model that says the last message again, later the longer it is, and cannot read more than 100 characters."""

    def echo(body: dict) -> object:
        text = str(body["messages"][-1]["content"])
        if len(text) > 100:
            return 400, {}, "the context length is exceeded"
        time.sleep(len(text) * 0.002)
        limit = body["max_tokens"]
        return said(text[:limit], reason="length" if len(text) > limit else "stop", tokens=min(len(text), limit))

    endpoint.answers = [echo]
    return request.param(endpoint.url)


async def say(sampler: MessageSampler, text: str, max_tokens: int = 100) -> Reply:
    return await sampler.converse([Message("user", text)], (), SamplingParams(max_tokens=max_tokens))


def test_a_sampler_takes_tokens_or_messages_and_never_both(sampler: Sampler, messenger: MessageSampler) -> None:
    assert isinstance(messenger, MessageSampler) and not hasattr(messenger, "sample")
    assert not isinstance(sampler, MessageSampler)


async def test_many_conversations_at_once_are_answered_each_by_its_own(messenger: MessageSampler) -> None:
    texts = [str(n) * (1 + n % 7) for n in range(30)]
    replies = await asyncio.gather(*(say(messenger, text) for text in texts))
    await messenger.close()
    assert [reply.message for reply in replies] == [Message("assistant", text) for text in texts]
    assert [reply.completion for reply in replies] == [Completion((), (), (), "stop", len(text)) for text in texts]


async def test_a_reply_has_at_most_max_tokens_and_a_conversation_without_room_has_none(
    messenger: MessageSampler,
) -> None:
    assert (await say(messenger, "abcdef", 3)).completion == Completion((), (), (), "length", 3)
    assert (await say(messenger, "a" * 101)).completion == Completion((), (), (), "length", 0)
    await messenger.close()


async def test_an_empty_conversation_is_refused_in_words(messenger: MessageSampler) -> None:
    with pytest.raises(ValueError, match="conversation is empty"):
        await messenger.converse([], (), SamplingParams())


async def test_closing_a_message_sampler_twice_does_no_harm_and_it_says_so(messenger: MessageSampler) -> None:
    await say(messenger, "hello")
    await messenger.close()
    await messenger.close()
    with pytest.raises(RuntimeError, match="closed"):
        await say(messenger, "hello")


def test_event_loops_one_after_another_may_share_a_message_sampler(messenger: MessageSampler) -> None:
    assert [asyncio.run(say(messenger, text)).message.content for text in ("one", "two")] == ["one", "two"]
