"""vLLM under the contract: what a publication does to calls under way, an adapter beside its base, failures."""

from __future__ import annotations

import asyncio
import importlib.util
import random

import pytest

torch = pytest.importorskip("torch", reason="needs the extra [train]")
if importlib.util.find_spec("vllm") is None:
    pytest.skip("the sampler vllm needs vLLM: make vllm", allow_module_level=True)

from practicum.errors import Failure, UserError  # noqa: E402
from practicum.models.adapter import add_adapter  # noqa: E402
from practicum.models.load import new_model  # noqa: E402
from practicum.sampling.vllm import BLOCK, VllmSampler  # noqa: E402
from practicum.types import SamplingParams, Weights  # noqa: E402


def tiny(seed: int = 0):
    shape = {"vocab_size": 259, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    return new_model(shape | {"initializer_range": 0.15, "tie_word_embeddings": True}, seed)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(259), k=length))


@torch.no_grad()
def reference(model, tokens: tuple[int, ...], start: int) -> torch.Tensor:
    logprobs_TV = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    return logprobs_TV[range(start - 1, len(tokens) - 1), list(tokens[start:])]


async def test_calls_under_way_read_again_by_the_new_weights_and_each_token_names_those_that_drew_it() -> None:
    models = [tiny(0), tiny(1)]
    sampler = VllmSampler(models[0], slots=4, dtype="float32")
    call = asyncio.ensure_future(sampler.sample(prompt(30), SamplingParams(max_tokens=400)))
    while sampler.seconds["decode"] == 0.0:
        await asyncio.sleep(0.001)
    await sampler.load(Weights(1, "other", dict(models[1].named_parameters())))
    completion = await call
    await sampler.close()
    assert set(completion.versions) == {0, 1}
    expected = [reference(model, prompt(30) + completion.tokens, 30) for model in models]
    mixed = [float(expected[version][i]) for i, version in enumerate(completion.versions)]
    assert completion.logprobs == pytest.approx(mixed, abs=1e-4)


async def test_a_next_turn_finds_the_whole_blocks_of_the_one_before_and_a_publication_drops_them() -> None:
    sampler = VllmSampler(tiny(), slots=4, dtype="float32")
    first = await sampler.sample(prompt(90), SamplingParams(max_tokens=10))
    longer = prompt(90) + first.tokens + prompt(7)
    await sampler.sample(longer, SamplingParams(max_tokens=5))
    reused = sampler.counts["reused"]
    await sampler.load(Weights(1, "same", tiny().state_dict()))
    await sampler.sample(longer, SamplingParams(max_tokens=5))
    await sampler.close()
    assert reused == 99 // BLOCK * BLOCK
    assert sampler.counts == {"reused": reused, "prefilled": 90 + 107 - reused + 107, "decoded": 20}


async def test_an_adapter_is_applied_beside_its_base_and_replaced_by_each_publication() -> None:
    model = tiny()
    add_adapter(model, "tiny", rank=4, alpha=8.0, seed=0)
    adapter = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    sampler = VllmSampler(model, slots=4, dtype="float32")
    for version in (0, 1, 2):
        if version:
            with torch.no_grad():
                for parameter in adapter.values():
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            await sampler.load(Weights(version, "", adapter))
        drawn = await sampler.sample(prompt(20), SamplingParams(max_tokens=20, seed=version))
        expected = reference(model, prompt(20) + drawn.tokens, 20)
        assert drawn.logprobs == pytest.approx(expected.tolist(), abs=1e-4), version
    with pytest.raises(UserError, match="tensors are unknown, such as lm_head"):
        await sampler.load(Weights(3, "", tiny().state_dict()))
    await sampler.close()


async def test_broken_weights_fail_every_call_and_say_so() -> None:
    model = tiny()
    sampler = VllmSampler(model, slots=2, dtype="float32")
    broken = {name: torch.full_like(tensor, float("nan")) for name, tensor in model.state_dict().items()}
    await sampler.load(Weights(1, "broken", broken))
    calls = [sampler.sample(prompt(20, i), SamplingParams(max_tokens=5)) for i in range(4)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    await sampler.close()
    assert [type(outcome) for outcome in outcomes] == [Failure] * 4
    assert "sampler: FloatingPointError: the model's logits are not finite" in str(outcomes[0])


async def test_a_cancelled_call_makes_room_and_closing_fails_the_calls_under_way() -> None:
    sampler = VllmSampler(tiny(), slots=1, dtype="float32")
    calls = [asyncio.ensure_future(sampler.sample(prompt(20, i), SamplingParams(max_tokens=450))) for i in range(3)]
    while sampler.seconds["decode"] == 0.0:
        await asyncio.sleep(0.001)
    for call in calls:
        call.cancel()
    assert len((await sampler.sample(prompt(20, 9), SamplingParams(max_tokens=5))).tokens) == 5
    assert sampler.counts["decoded"] == 5
    last = asyncio.ensure_future(sampler.sample(prompt(20), SamplingParams(max_tokens=450)))
    await asyncio.sleep(0.02)
    await sampler.close()
    with pytest.raises(Failure, match="closed while sampling"):
        await last


async def test_what_vllm_would_do_otherwise_than_asked_is_refused() -> None:
    sampler = VllmSampler(tiny(), slots=1, dtype="float32")
    for temperature in (-1.0, 0.001, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"temperature must be 0 or a number from 0\.01 upwards"):
            await sampler.sample(prompt(5), SamplingParams(temperature))
    with pytest.raises(ValueError, match=r"temperature must be a number from 0\.01 upwards, found 0"):
        await sampler.score(prompt(5), 2, temperature=0.0)
    with pytest.raises(ValueError, match="tokens must lie in 0 … 258, found 3 … 259"):
        await sampler.sample((3, 259), SamplingParams())
    with pytest.raises(UserError, match="dtype must be one of auto, float32, bfloat16"):
        VllmSampler(tiny(), dtype="float16")
    with pytest.raises(UserError, match="more than the 512 positions"):
        VllmSampler(tiny(), context_length=1000)
    await sampler.close()
