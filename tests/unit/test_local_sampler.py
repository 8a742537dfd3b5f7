"""Kept keys and values, sharing, scheduling: every way of computing less must leave what is computed unchanged."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from practicum.errors import Failure, UserError
from practicum.types import Completion, SamplingParams, Weights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from practicum.sampling.local.attention import Pass, attended  # noqa: E402
from practicum.sampling.local.contexts import BLOCK, Contexts, Placement  # noqa: E402
from practicum.sampling.local.draw import draw  # noqa: E402
from practicum.sampling.local.sampler import LocalSampler  # noqa: E402

VOCABULARY = 259
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "initializer_range": 0.2,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
SHAPES = {
    "Llama": {},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 32},
    "Gemma3": {
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "final_logit_softcapping": 30.0,
    },
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """On a busy machine threads that wait for one another cost a tiny model a hundred times what they save."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny(shape: str = "Llama", seed: int = 0, **changes: object):
    config = getattr(transformers, f"{shape}TextConfig" if shape == "Gemma3" else f"{shape}Config")
    torch.manual_seed(seed)
    return getattr(transformers, f"{shape}ForCausalLM")(config(**SMALL | SHAPES[shape] | changes)).eval()


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(VOCABULARY), k=length))


def reference(model, tokens: tuple[int, ...], start: int, temperature: float = 1.0) -> torch.Tensor:
    ids = torch.tensor([tokens])
    with torch.no_grad():
        logprobs_TV = torch.log_softmax(model(ids).logits[0, start - 1 : -1].float() / temperature, -1)
    return logprobs_TV.gather(1, ids[0, start:, None])[:, 0]


async def converse(sampler: LocalSampler, seed: int, turns: int = 3) -> list[tuple[tuple[int, ...], Completion]]:
    context, said = prompt(40), []
    for turn in range(turns):
        completion = await sampler.sample(context, SamplingParams(max_tokens=10 + seed, seed=10 * seed + turn))
        said.append((context, completion))
        context = context + completion.tokens + prompt(7, seed=turn)
    return said


@pytest.mark.parametrize("shape", SHAPES)
async def test_keys_kept_between_turns_change_neither_tokens_nor_logprobs(shape: str) -> None:
    model = tiny(shape)
    sampler = LocalSampler(model, slots=8, dtype="float32")
    episodes = await asyncio.gather(*[converse(sampler, seed) for seed in range(5)])
    assert sampler.counts["reused"] > sampler.counts["prefilled"]
    for turn in range(3):
        for seed, episode in enumerate(episodes):
            context, completion = episode[turn]
            expected = reference(model, context + completion.tokens, len(context))
            assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-5)
            fresh = LocalSampler(model, slots=1, dtype="float32")
            again = await fresh.sample(context, SamplingParams(max_tokens=10 + seed, seed=10 * seed + turn))
            assert again.tokens == completion.tokens
            await fresh.close()


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
async def test_logprobs_are_those_of_the_distribution_after_temperature(temperature: float) -> None:
    model = tiny()
    sampler = LocalSampler(model, slots=8, dtype="float32")
    params = [SamplingParams(temperature=temperature, max_tokens=20, seed=seed) for seed in range(8)]
    drawn = await asyncio.gather(*[sampler.sample(prompt(10 + p.seed), p) for p in params])
    differences = [
        reference(model, prompt(10 + seed) + c.tokens, 10 + seed, temperature) - torch.tensor(c.logprobs)
        for seed, c in enumerate(drawn)
    ]
    assert torch.cat(differences).abs().mean() < 1e-5


async def test_temperature_zero_takes_the_likeliest_token_with_its_logprob_at_temperature_one() -> None:
    model = tiny()
    sampler = LocalSampler(model, dtype="float32")
    completion = await sampler.sample(prompt(20), SamplingParams(temperature=0.0, max_tokens=15))
    whole = prompt(20) + completion.tokens
    with torch.no_grad():
        assert completion.tokens == tuple(model(torch.tensor([whole])).logits[0, 19:-1].argmax(-1).tolist())
    assert completion.logprobs == pytest.approx(reference(model, whole, 20).tolist(), abs=1e-5)


async def test_a_prompt_that_a_group_shares_is_computed_once() -> None:
    sampler = LocalSampler(tiny(), slots=8, dtype="float32")
    shared = prompt(200)
    await asyncio.gather(*[sampler.sample(shared, SamplingParams(max_tokens=4, seed=seed)) for seed in range(8)])
    counted = {"prefilled": 200 + 7, "reused": 7 * 199, "recomputed": 0, "decoded": 32}
    assert {name: sampler.counts[name] for name in counted} == counted


async def test_groups_that_share_a_system_prompt_compute_it_once() -> None:
    sampler = LocalSampler(tiny(), slots=16, dtype="float32")
    system = prompt(100)
    calls = [
        sampler.sample(system + prompt(50, seed=task), SamplingParams(max_tokens=4, seed=attempt))
        for task in range(1, 4)
        for attempt in range(4)
    ]
    await asyncio.gather(*calls)
    assert sampler.counts["prefilled"] == 100 + 3 * 50 + 3 * 3


async def test_a_next_turn_computes_only_its_new_tokens_and_the_last_token_drawn() -> None:
    sampler = LocalSampler(tiny(), slots=2, dtype="float32")
    await converse(sampler, seed=0, turns=1)
    first = sampler.counts["prefilled"]
    await converse(sampler, seed=0, turns=2)
    assert sampler.counts["prefilled"] - first == 1 + (1 + 7)


async def test_contexts_longer_than_the_store_and_prompts_longer_than_one_pass_are_exact() -> None:
    model = tiny(max_position_embeddings=4096)
    sampler = LocalSampler(model, slots=3, dtype="float32")
    prompts = [prompt(length, seed=length) for length in (2500, 30, 290)]
    drawn = await asyncio.gather(*[sampler.sample(p, SamplingParams(max_tokens=30)) for p in prompts])
    for context, completion in zip(prompts, drawn, strict=True):
        expected = reference(model, context + completion.tokens, len(context))
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=2e-5)


@pytest.mark.parametrize("lasting", [(0, 7), (0, 2, 3, 6), range(8)], ids=["picked", "with gaps", "dense"])
async def test_which_slots_are_active_changes_no_logprob(lasting) -> None:
    model = tiny("Gemma3")
    sampler = LocalSampler(model, slots=8, dtype="float32")
    limits = [40 if i in lasting else 2 for i in range(8)]
    calls = [sampler.sample(prompt(20 + i, seed=i), SamplingParams(max_tokens=n, seed=i)) for i, n in enumerate(limits)]
    for i, completion in enumerate(await asyncio.gather(*calls)):
        expected = reference(model, prompt(20 + i, seed=i) + completion.tokens, 20 + i)
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("shape", ["Llama", "Qwen2"])
async def test_load_changes_what_is_drawn_and_drops_what_was_kept(shape: str) -> None:
    sampler, other = LocalSampler(tiny(shape), dtype="float32"), tiny(shape, seed=1)
    params = SamplingParams(max_tokens=12, seed=3)
    before = await sampler.sample(prompt(30), params)
    # Of tied parameters named_parameters gives one name, state_dict both: either is a whole set of weights.
    for version, tensors in enumerate([dict(other.named_parameters()), other.state_dict()], start=1):
        sampler.counts["prefilled"] = 0
        await sampler.load(Weights(version, "other", tensors))
        after = await sampler.sample(prompt(30), params)
        assert after.tokens != before.tokens
        assert sampler.counts["prefilled"] == 30
        assert after.logprobs == pytest.approx(reference(other, prompt(30) + after.tokens, 30).tolist(), abs=1e-5)


async def test_tokens_after_a_load_under_way_are_drawn_from_the_new_weights_alone() -> None:
    models = [tiny(), tiny(seed=1)]
    sampler = LocalSampler(models[0], dtype="float32")
    call = asyncio.ensure_future(sampler.sample(prompt(30), SamplingParams(max_tokens=200, seed=3)))
    while sampler.counts["decoded"] < 5:
        await asyncio.sleep(0.001)
    await sampler.load(Weights(1, "other", models[1].state_dict()))
    completion = await call
    assert set(completion.versions) == {0, 1}
    expected = [reference(model, prompt(30) + completion.tokens, 30) for model in models]
    mixed = [float(expected[version][i]) for i, version in enumerate(completion.versions)]
    assert completion.logprobs == pytest.approx(mixed, abs=5e-5)


async def test_weights_that_do_not_fit_are_refused_and_change_nothing() -> None:
    model = tiny()
    sampler = LocalSampler(model, dtype="float32")
    params = SamplingParams(max_tokens=8)
    before = await sampler.sample(prompt(10), params)
    good = {name: tensor + 1.0 for name, tensor in model.state_dict().items()}
    for broken, problem in [
        (good | {"model.layers.9.bias": torch.zeros(1)}, "1 tensors are unknown, such as model.layers.9.bias"),
        ({name: good[name] for name in list(good)[1:]}, "1 tensors are missing, such as model.embed_tokens.weight"),
        (
            good | {"model.norm.weight": torch.zeros(3)},
            r"of another shape, such as model.norm.weight \(3,\) for \(64,\)",
        ),
    ]:
        with pytest.raises(UserError, match=problem):
            await sampler.load(Weights(1, "broken", broken))
    assert sampler.version == 0
    after = await sampler.sample(prompt(10), params)
    assert (after.tokens, after.logprobs) == (before.tokens, pytest.approx(before.logprobs, abs=1e-5))


async def test_the_model_given_is_left_as_it_was() -> None:
    model = tiny()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sampler = LocalSampler(model, dtype="bfloat16")
    await sampler.load(Weights(1, "other", tiny(seed=1).state_dict()))
    assert model.config._attn_implementation == "sdpa"
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


async def test_in_bfloat16_positions_stay_exact_and_logprobs_close() -> None:
    model = tiny()
    sampler = LocalSampler(model, dtype="bfloat16")
    assert all(buffer.dtype == torch.float32 for buffer in sampler._batch.model.buffers())
    assert all(parameter.dtype == torch.bfloat16 for parameter in sampler._batch.model.parameters())
    completion = await sampler.sample(prompt(300), SamplingParams(max_tokens=40))
    differences = reference(model, prompt(300) + completion.tokens, 300) - torch.tensor(completion.logprobs)
    assert 0 < differences.abs().mean() < 0.05


async def test_a_cancelled_call_gives_its_slot_to_the_next() -> None:
    sampler = LocalSampler(tiny(), slots=1, dtype="float32")
    calls = [asyncio.ensure_future(sampler.sample(prompt(20, i), SamplingParams(max_tokens=900))) for i in range(3)]
    while sampler.counts["decoded"] < 3:
        await asyncio.sleep(0.001)
    for call in calls:
        call.cancel()
    completion = await sampler.sample(prompt(20, 9), SamplingParams(max_tokens=5))
    assert len(completion.tokens) == 5
    assert sampler.counts["decoded"] < 900


async def test_a_failed_pass_reaches_every_caller_and_the_sampler_works_again_with_good_weights() -> None:
    model = tiny()
    sampler = LocalSampler(model, slots=2, dtype="float32")
    broken = {name: torch.full_like(tensor, float("nan")) for name, tensor in model.state_dict().items()}
    await sampler.load(Weights(1, "broken", broken))
    calls = [sampler.sample(prompt(20, i), SamplingParams(max_tokens=5)) for i in range(4)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Failure] * 4
    assert "sampler: FloatingPointError: the model's logits are not finite" in str(outcomes[0])
    await sampler.load(Weights(2, "good", model.state_dict()))
    completion = await sampler.sample(prompt(20), SamplingParams(max_tokens=5))
    assert completion.logprobs == pytest.approx(reference(model, prompt(20) + completion.tokens, 20).tolist(), abs=1e-5)


async def test_closing_fails_the_calls_under_way() -> None:
    sampler = LocalSampler(tiny(), dtype="float32")
    call = asyncio.ensure_future(sampler.sample(prompt(20), SamplingParams(max_tokens=900)))
    await asyncio.sleep(0.02)
    await sampler.close()
    with pytest.raises(Failure, match="closed while sampling"):
        await call


async def test_what_no_model_could_continue_is_refused_before_it_can_harm_others() -> None:
    sampler = LocalSampler(tiny(), dtype="float32")
    with pytest.raises(ValueError, match="tokens must lie in 0 … 258, found 3 … 259"):
        await sampler.sample((3, 259), SamplingParams())
    with pytest.raises(ValueError, match="temperature"):
        await sampler.sample((3,), SamplingParams(temperature=-1.0))
    for mistake in ({"dtype": "float16"}, {"context_length": 2048}):
        with pytest.raises(UserError):
            LocalSampler(tiny(), **mistake)


@pytest.mark.parametrize("vocabulary", [7, 64, 300])
def test_evenly_spread_numbers_draw_each_token_in_proportion_to_its_probability(vocabulary: int) -> None:
    counts = np.random.default_rng(0).integers(0, 4, vocabulary)
    n = int(counts.sum())
    logits_BV = torch.tensor(counts).log().float().expand(n, -1)
    uniforms_B = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    tokens, logprobs = draw(logits_BV, torch.ones(n), uniforms_B)
    assert Counter(tokens) == {i: int(count) for i, count in enumerate(counts) if count}
    assert logprobs == pytest.approx(np.log(counts[tokens] / n), abs=1e-6)


def test_a_token_of_probability_zero_is_never_drawn_at_either_end() -> None:
    logits_BV = torch.full((2, 200), -torch.inf)
    logits_BV[:, [3, 70, 130]] = 0.0
    ends_B = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert draw(logits_BV, torch.ones(2), ends_B)[0] == [3, 130]


def known(contexts: Contexts, context: int, tokens: list[int], kept: bool = True) -> None:
    array = np.array(tokens, np.int32)
    placement = contexts.place(array)
    assert placement is not None and placement.context == context
    assert contexts.take(placement, array) is not None and contexts.grow(context, len(array))
    if kept:
        contexts.kept_S[context] = len(array)


def test_a_next_turn_goes_on_in_its_context_and_a_sibling_shares_its_full_blocks() -> None:
    contexts = Contexts(busy=3, context_length=400, blocks=30)
    first, sibling = np.arange(250, dtype=np.int32), np.append(np.arange(200), [999, 998]).astype(np.int32)
    known(contexts, 0, list(range(250)), kept=False)
    assert contexts.place(sibling) is None, "200 of its 202 tokens are being computed"
    contexts.kept_S[0] = 250
    placement = contexts.place(sibling)
    assert placement == Placement(context=1, source=0, reused=200, known=200)
    assert contexts.take(placement, sibling) == [(4, 5)], "the block that both begin and end differently"
    assert contexts.blocks_S[:2] == [[1, 2, 3, 4], [1, 2, 3, 5]]
    contexts.release(0)
    longer = np.append(first, [7, 7]).astype(np.int32)
    assert contexts.place(longer) == Placement(context=0, source=0, reused=250, known=250)
    assert contexts.take(contexts.place(longer), longer) == [], "its own last block is nobody else's"


def test_when_there_is_no_room_what_has_been_idle_longest_goes_and_what_is_shared_stays() -> None:
    contexts = Contexts(busy=3, context_length=300, blocks=1 + 5)
    known(contexts, 0, [1] * 128)
    known(contexts, 1, [1] * 64 + [2] * 64)
    contexts.release(1)
    contexts.release(0)
    known(contexts, 2, [3] * 128)
    assert contexts.free == [] and list(contexts.kept_S[:3]) == [128, 128, 128]
    assert contexts.grow(2, 192), "the longest idle gives its block up"
    assert list(contexts.kept_S[:3]) == [128, 0, 128]
    gone = contexts.place(np.array([1] * 64 + [2] * 64, np.int32))
    assert gone is not None and (gone.reused, gone.known) == (64, 127)
    assert contexts.grow(2, 300) and list(contexts.kept_S[:3]) == [0, 0, 128]
    assert not contexts.grow(2, 321), "nobody else has anything"


async def test_with_little_memory_contexts_are_computed_again_and_say_the_same() -> None:
    model = tiny()
    roomy, tight = (LocalSampler(model, slots=6, dtype="float32", context_length=200, memory_gb=gb) for gb in (1, 2e-4))
    expected = await asyncio.gather(*[converse(roomy, seed) for seed in range(6)])
    found = await asyncio.gather(*[converse(tight, seed) for seed in range(6)])
    assert roomy.counts["recomputed"] == 0 < tight.counts["recomputed"]
    for episode, known_episode in zip(found, expected, strict=True):
        assert [(c, d.tokens) for c, d in episode] == [(c, d.tokens) for c, d in known_episode]


@pytest.mark.parametrize("counts", [(1, 1), (1, 70), (130,)], ids=["rows", "both", "prompt"])
def test_attention_copies_what_its_contexts_hold_and_not_the_whole_store(counts: tuple[int, ...]) -> None:
    keys, values = torch.zeros(2, 2000, 2, BLOCK, 16)
    blocks = tuple([900 + 3 * n, 901 + 3 * n, 902 + 3 * n] for n in range(len(counts)))
    step = Pass((0,) * len(counts), counts, blocks, torch.device("cpu"))
    with torch.profiler.profile(profile_memory=True) as profile:
        attended(step, torch.zeros(sum(counts), 4, 16), keys, values)
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages())
    assert 0 < allocated < keys.nbytes / 4


def test_memory_for_less_than_one_context_is_refused_in_words() -> None:
    with pytest.raises(
        UserError, match=r"0\.0001 GB hold the keys and values of 64 tokens .* raise sampler\.memory_gb"
    ):
        LocalSampler(tiny(), dtype="float32", memory_gb=1e-4)


COMPANY = [(random.Random(n).randrange(5, 150), random.Random(n).randrange(5, 30)) for n in range(14)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", ["Llama", "Qwen3", "Gemma3"])
async def test_in_exact_mode_neither_company_nor_order_nor_eviction_changes_a_bit(shape: str, seed: int) -> None:
    model, chance = tiny(shape), random.Random(seed)

    async def episode(sampler: LocalSampler, n: int) -> list[Completion]:
        length, limit = COMPANY[n]
        context, said = prompt(70, seed=n % 3) + prompt(length, seed=n), []
        for turn in range(3):
            await asyncio.sleep(chance.random() * 0.01)
            said.append(await sampler.sample(context, SamplingParams(max_tokens=limit, seed=100 * n + turn)))
            context = context + said[-1].tokens + prompt(9, seed=turn)
        return said

    slots, memory_gb = (16, 1.0) if seed % 2 else (5, 5e-4 if shape == "Llama" else 1e-3)
    alone = LocalSampler(model, slots=1, dtype="float32", exact=True, context_length=400)
    together = LocalSampler(model, slots=slots, dtype="float32", exact=True, context_length=400, memory_gb=memory_gb)
    some = chance.sample(range(14), k=10)
    found = await asyncio.gather(*[episode(together, n) for n in some])
    assert seed % 2 or together.counts["recomputed"] > 0
    for n, said in zip(some[:4], found, strict=False):
        assert said == await episode(alone, n)
