"""What a step spent: every second in one phase, every token counted once, operations as the arithmetic says."""

import asyncio
import random
import time

import numpy as np
import pytest

from practicum.environments.tools import tool
from practicum.errors import UserError
from practicum.ledger import PHASES, Reading, computed, depths, entries, spent
from practicum.models.cost import Cost, cost_of
from practicum.models.memory import peak_bytes
from practicum.sampling.api import ApiSampler
from practicum.sampling.formats import CompactCalls
from practicum.sampling.renderer import ByteTokenizer, ChatML
from practicum.sampling.sampler import Counting
from practicum.sampling.scripted import ScriptedSampler
from practicum.simulator.episode import Stage, run_episode
from practicum.simulator.lockstep import Rounds
from practicum.simulator.recorder import Limits
from practicum.simulator.stopwatch import Stopwatch
from practicum.types import Completion, Ending, Group, Message, Task, Trajectory, Turn

RENDERER = ChatML(ByteTokenizer(), CompactCalls())
LIMITS = Limits(
    turns=64,
    tokens_per_turn=64,
    context_tokens=4096,
    seconds=60.0,
    tool_seconds=5.0,
    reset_seconds=5.0,
    verify_seconds=5.0,
)
PAUSE_S = 0.05


class Slow:
    """A world whose every method takes its time."""

    def reset(self, task):
        time.sleep(PAUSE_S)

    @tool
    def wait(self) -> str:
        """Wait."""
        time.sleep(PAUSE_S)
        return "waited"

    def verify(self, secret):
        time.sleep(PAUSE_S)
        return {"success": 1.0}

    def close(self):
        time.sleep(PAUSE_S)


class SlowSampler(ScriptedSampler):
    async def sample(self, tokens, params):
        await asyncio.sleep(PAUSE_S)
        return await super().sample(tokens, params)


def stage_of(sampler, environment, agent):
    return Stage(
        open_environment=environment,
        agent=agent,
        sampler=sampler,
        renderer=RENDERER,
        limits=LIMITS,
        temperature=1.0,
        seed=0,
        reward_weights={"success": 1.0},
        turn_discount=1.0,
        truncated_reward=1.0,
    )


def said(text):
    return (*RENDERER.tokenizer.encode(text), RENDERER.end)


async def one_call(task, model):
    reply = await model.chat([Message("user", "wait")], model.tools)
    await model.use(reply.tool_calls[0])
    return "done"


def talk(turns):
    """An agent that says something more after each reply, so many turns long."""

    async def agent(task, model):
        messages = [Message("system", "You are terse."), Message("user", task.prompt)]
        for turn in range(turns):
            messages.append(await model.chat(messages))
            messages.append(Message("user", "and then? " * (1 + turn % 3)))
        return ""

    return agent


def test_every_instant_belongs_to_the_sampler_or_else_to_an_environment_or_else_to_neither():
    now = [0.0]
    stopwatch = Stopwatch(lambda: now[0])

    def after(seconds):
        now[0] += seconds

    after(1)  # nothing
    with stopwatch.environment():
        after(2)  # an environment
        with stopwatch.environment():
            after(4)  # two of them: still four seconds
        with stopwatch.sampler():
            after(8)  # both: the sampler's
            with stopwatch.sampler():
                after(16)
        after(32)  # the environment again
    after(64)
    assert stopwatch.read() == (24, 38)


def test_what_an_environment_does_while_nobody_samples_is_its_time_and_waiting_for_the_sampler_is_not():
    stage = stage_of(SlowSampler([said("wait()")]), Slow, one_call)
    assert asyncio.run(run_episode(stage, Task("t", "p"), 0)).ending == Ending.FINISHED
    waited_s, environment_s = stage.stopwatch.read()
    assert PAUSE_S <= waited_s < 2 * PAUSE_S
    assert 4 * PAUSE_S <= environment_s < 6 * PAUSE_S  # reset, wait, verify, close


def test_waiting_for_the_round_of_a_lockstep_is_nobodys_time():
    stage = stage_of(ScriptedSampler([said("wait()")] * 2), Slow, one_call)

    async def run():
        rounds = Rounds(2, 2)

        async def placed(number):
            with rounds.joined((0, number)):
                await asyncio.sleep(4 * PAUSE_S * number)  # the first has to wait for the second
                return await run_episode(stage, Task("t", "p"), number)

        return await asyncio.gather(placed(0), placed(1))

    asyncio.run(run())
    assert stage.stopwatch.read()[0] < PAUSE_S


def reading(time_s, environment_s=0.0, waited_s=0.0, trained=0.0, counts=None, seconds=None):
    return Reading(time_s, waited_s, environment_s, trained, counts or {}, seconds or {})


def test_the_phases_are_the_whole_step_and_what_neither_model_nor_environment_took_is_the_simulators():
    kinds = ("prefill", "decode", "draw", "load")
    at = dict.fromkeys(kinds, 5.0)
    after = {"prefill": 7.0, "decode": 11.0, "draw": 6.0, "load": 5.0}
    readings = [
        reading(100.0, seconds=at),
        reading(101.0, seconds=at),  # published
        reading(112.0, environment_s=1.5, waited_s=9.5, seconds=after),  # collected
        reading(120.0, environment_s=1.5, seconds=after),  # learned
        reading(120.5, environment_s=1.5, seconds=after),  # stored
    ]
    found = spent(readings, {"seconds/score": 2.0, "seconds/update": 5.0})
    assert found == pytest.approx(
        {
            "seconds": 20.5,
            "seconds/publish": 1.0,
            "seconds/environment": 1.5,
            "seconds/prefill": 2.0,
            "seconds/decode": 7.0,  # drawing belongs to it
            "seconds/score": 2.0,
            "seconds/update": 5.0,
            "seconds/other": 0.5 + 1.0 + 0.5,  # simulator, the rest of learning, storing
            "seconds/simulator": 0.5,
            "seconds/collect": 11.0,
            "seconds/learn": 8.0,
        }
    )
    assert sum(found[f"seconds/{phase}"] for phase in PHASES) == pytest.approx(found["seconds"])


def test_of_a_sampler_that_does_not_count_all_waiting_is_decoding_and_tokens_are_those_of_the_episodes():
    assert not any(isinstance(s, Counting) for s in (ScriptedSampler([]), ApiSampler("http://127.0.0.1", "m", "")))
    group = Group("g", "t", (two_turns(),))
    readings = [reading(0.0), reading(0.0), reading(10.0, waited_s=8.0), reading(10.0), reading(10.0)]
    found = entries(readings, [group], {}, None)
    assert (found["seconds/decode"], found["seconds/simulator"], found["seconds/other"]) == (8.0, 2.0, 2.0)
    assert found["decoded_tokens"] == 5 and "prefilled_tokens" not in found and "flops" not in found


def two_turns():
    def turn(index, continues, added, sampled):
        completion = Completion((1,) * sampled, (0.0,) * sampled, (0,) * sampled, "stop")
        return Turn(index, continues, (1,) * added, completion, (), Message("assistant", ""))

    return Trajectory("t", 0, (turn(0, None, 3, 2), turn(1, 0, 1, 3)), Ending.FINISHED)


def test_a_token_sees_itself_and_all_before_it_in_its_context():
    (added, sees_added), (sampled, sees_sampled) = depths([Group("g", "t", (two_turns(), two_turns()))])
    assert (added, sampled) == (8, 10)
    assert sees_added == pytest.approx(np.mean([1, 2, 3, 6]))
    assert sees_sampled == pytest.approx(np.mean([4, 5, 7, 8, 9]))


def test_operations_are_two_per_weight_and_four_per_layer_width_and_token_seen():
    cost = Cost(layers=1000, head=50, attended=8, kept=4)
    learned = reading(0.0, trained=300.0)
    collected = reading(0.0, counts={"prefilled": 6, "recomputed": 2, "passes": 3, "reused": 9, "decoded": 5})
    group = Group("g", "t", (two_turns(),))
    found = computed(collected, learned, [group], {"trained_tokens": 5.0, "row_tokens": 10.0}, cost)
    assert found["flops/prefill"] == pytest.approx(6 * (2 * 1000 + 4 * 8 * 3.0))
    assert found["flops/decode"] == pytest.approx(5 * (2 * 1000 + 4 * 8 * 6.6 + 2 * 50))
    assert found["flops/learn"] == pytest.approx(300 * (2 * 1000 + 4 * 8 * 5.0 + 2 * 50 * 0.5))
    assert found["flops"] == pytest.approx(sum(found[f"flops/{kind}"] for kind in ("prefill", "decode", "learn")))
    assert [found[f"{kind}_tokens"] for kind in ("prefilled", "recomputed", "reused", "decoded")] == [6, 2, 9, 5]
    assert found["passes"] == 3


def test_the_peak_of_memory_is_at_least_what_was_ever_held():
    held = np.ones(20_000_000)
    during = peak_bytes()["peak"]
    assert during > held.nbytes
    del held
    assert peak_bytes()["peak"] > during - 4_000_000  # the kernel's count is some pages late


def llama(**changes):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {
        "vocab_size": 259, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "initializer_range": 0.2,
        "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    kind = changes.pop("kind", "Llama")
    config = getattr(transformers, f"{kind}Config")(**shape | changes)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.mark.parametrize(
    "changes", [{}, {"kind": "Qwen2", "tie_word_embeddings": True}, {"kind": "Qwen3", "head_dim": 32}], ids=str
)
def test_a_models_cost_is_what_torch_counts_in_its_matrix_products(changes):
    model = llama(**changes)
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model.set_attn_implementation("eager")  # computes the whole square: each of 40 tokens "sees" 40
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.arange(40)[None])
    assert counter.get_total_flops() == cost_of(model).flops(tokens=40, depth=40, logits=40)


@pytest.mark.parametrize("turns", [2, 3, 8, 32])
def test_an_episode_computes_every_token_of_its_context_once_however_many_turns_it_has(turns):
    model = llama()
    from practicum.sampling.local.sampler import LocalSampler

    sampler = LocalSampler(model, slots=4, context_length=4096, dtype="float32")
    trajectory = played(sampler, stage_of(sampler, None, talk(turns)))
    assert len(trajectory.turns) == turns and all(turn.continues == turn.index - 1 for turn in trajectory.turns[1:])
    added = sum(len(turn.added) for turn in trajectory.turns)
    sampled = sum(turn.completion.size for turn in trajectory.turns)
    # The last token of a reply is drawn and not computed; the next turn reads it together with what was added.
    assert sampler.counts["decoded"] == sampled
    assert sampler.counts["prefilled"] == added + turns - 1
    whole = len(trajectory.context(turns - 1)) + trajectory.turns[-1].completion.size
    assert sampler.counts["prefilled"] + sampler.counts["decoded"] - turns == whole - 1
    assert sampler.counts.get("recomputed", 0) == 0


def played(sampler, stage):
    async def run():
        try:
            return await run_episode(stage, Task("t", f"tell {random.Random(0).random()}"), 0)
        finally:
            await sampler.close()

    return asyncio.run(run())


def test_a_profile_of_no_steps_or_of_a_recipe_without_rewards_is_refused():
    from practicum.config import load
    from practicum.verbs.profiling import profile

    with pytest.raises(UserError, match="at least one step, found 0"):
        profile(load("recipes/tiny.toml", []), steps=0)
    with pytest.raises(UserError, match=r"learns_from is 'demonstrations'"):
        profile(load("recipes/tiny.toml", ["trainer.learns_from=demonstrations", "imitation.demonstrations=4"]))
