"""Critic, reference, adapters and checkpoints of the trainer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from practicum import build, config
from practicum.errors import UserError
from practicum.learning.algorithms import Knobs, loop, ppo, reinforce, rloo
from practicum.learning.batches import rows_of
from practicum.learning.critic import Critic
from practicum.learning.forest import trees_of
from practicum.learning.policy import Policy, digest_of
from practicum.learning.trainer import CriticSettings, Leash, Trainer
from practicum.learning.updater import UpdateSettings
from practicum.models.adapter import CONFIG, add_adapter, base_of
from practicum.models.load import load_model, new_model, save_model
from practicum.sampling.local.sampler import LocalSampler
from practicum.types import Completion, Ending, Group, Message, SamplingParams, Trajectory, Turn

SHAPE = {
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
SETTINGS = UpdateSettings(
    learning_rate=1e-2, warmup_updates=1, weight_decay=0.0, max_grad_norm=1.0, tokens_per_microbatch=64
)


def turn(index, continues, added, sampled):
    completion = Completion(tuple(sampled), (-1.0,) * len(sampled), (0,) * len(sampled), "stop")
    return Turn(index, continues, tuple(added), completion, (), Message("assistant", ""), sampling=SamplingParams())


def attempt(number, reward):
    turns = (turn(0, None, (1, 2, 3), (4 + number % 8, 5)), turn(1, 0, (6,), (7 + number % 8,)))
    return Trajectory("t", number, turns, Ending.FINISHED, rewards={"success": reward}, reward=reward)


def group(*rewards):
    return Group("0:t", "t", tuple(attempt(n, reward) for n, reward in enumerate(rewards)))


def trainer(algorithm=loop, model=None, leash=None, warmup_steps=0, **rest):
    model = model or new_model(SHAPE, 0)
    chosen = algorithm(Knobs())
    critic = CriticSettings(Critic(model, False), SETTINGS, 0.5, warmup_steps) if chosen.needs_critic else None
    options = {"epochs": 1, "minibatches": 1, "shuffled_rewards": False, "seed": 0} | rest
    return Trainer(Policy(model, False), chosen, SETTINGS, leash=leash or Leash(), critic=critic, **options)


def digest(parameters):
    return digest_of({name: parameter.detach() for name, parameter in parameters.items()})


def test_a_new_critic_expects_nothing_and_learns_what_comes():
    coach = trainer(ppo)
    first = coach.learn([group(1.0, 0.0, 1.0, 0.0)])
    assert first["critic/value"] == 0.0
    found = [coach.learn([group(1.0, 0.0, 1.0, 0.0)]) for _ in range(60)]
    assert found[-1]["critic/loss"] < first["critic/loss"]
    assert found[-1]["critic/explained_variance"] > 0.5


def test_the_critic_never_stands_on_the_actors_layers():
    coach = trainer(ppo)
    critic = coach.critic.critic
    own = {id(parameter) for parameter in critic.trained.values()}
    assert not own & {id(parameter) for parameter in coach.policy.trunk.trained.values()}
    before = digest(critic.trained)
    coach.updater.update(rows_with_advantages(coach), coach.objective)
    assert digest(critic.trained) == before


def rows_with_advantages(coach):
    groups = [group(1.0, 0.0)]
    rewards = coach.rewards_of(groups)
    return coach.credited(groups, rewards, coach.scored(coach.pack(groups, rewards)))


def test_while_the_critic_warms_up_the_actor_stays_as_it_is():
    coach = trainer(ppo, warmup_steps=1)
    actor, critic = digest(coach.policy.trunk.trained), digest(coach.critic.critic.trained)
    coach.learn([group(1.0, 0.0)])
    assert digest(coach.policy.trunk.trained) == actor and digest(coach.critic.critic.trained) != critic
    coach.learn([group(1.0, 0.0)])
    assert digest(coach.policy.trunk.trained) != actor


def test_ppo_learns_from_a_group_whose_members_all_succeed_where_loop_learns_nothing():
    assert trainer(ppo).learn([group(1.0, 1.0)])["rows"] == 2
    assert trainer(loop).learn([group(1.0, 1.0)])["rows"] == 0


def test_every_token_of_ppo_has_the_return_less_the_value_it_had():
    """Lambda 1 and a critic that says 0: the advantage of every token is the outcome, whitened over the step."""
    rows = rows_with_advantages(trainer(ppo))
    assert {row.returns for row in rows} == {(1.0, 1.0, 1.0), (0.0, 0.0, 0.0)}
    together = np.concatenate([row.advantages for row in rows])
    assert together.mean() == pytest.approx(0.0) and together.std(ddof=1) == pytest.approx(1.0, abs=1e-6)


def test_credit_returns_to_the_rows_in_the_order_of_time():
    """Two contexts that take turns: the discounted returns follow the turns, not the rows."""
    turns = (turn(0, None, (1,), (2,)), turn(1, None, (3,), (4,)), turn(2, 0, (5,), (6,)))
    both = [Trajectory("t", n, turns, Ending.FINISHED, reward=float(n)) for n in (0, 1)]
    coach = trainer(lambda knobs: replace(reinforce(replace(knobs, gamma=0.5)), whitens=False))
    groups = [Group("g", "t", tuple(both))]
    rewards = coach.rewards_of(groups)
    rows = coach.credited(groups, rewards, coach.pack(groups, rewards))
    assert {row.turns: row.advantages for row in rows} == {(0, 2): (0.25, 1.0), (1,): (0.5,)}


@pytest.mark.parametrize(("minibatches", "sizes"), [(1, [12]), (2, [6, 6]), (9, [3, 3, 3, 3])])
def test_the_updates_of_a_pass_share_out_whole_groups_and_leave_no_row_out(minibatches, sizes):
    rows = [replace(row, attempt=n) for name in "abcd" for n in range(3) for row in rows_of(attempt(n, 1.0), name)]
    parts = trainer(minibatches=minibatches).dealt(rows)
    assert [len(part) for part in parts] == sizes
    assert sorted((row.group, row.attempt) for part in parts for row in part) == [(r.group, r.attempt) for r in rows]
    assert all(sum(row.group == name for row in part) in (0, 3) for part in parts for name in "abcd")


def test_imitation_takes_the_passes_it_is_given_and_one_update_at_least():
    coach, shown = trainer(), [attempt(n, 1.0) for n in range(6)]
    rows = rows_of(shown[0])
    one_update = 3 * sum(len(tree.tokens_U) for tree in trees_of(rows))  # read, and twice as much to go back
    before = coach.passes
    assert coach.imitate(shown, rows_per_update=1)["updates"] == 6 and coach.passes == before + 6 * one_update
    assert coach.imitate(shown, rows_per_update=1, passes=3.5 * one_update)["updates"] == 4
    assert coach.imitate(shown, rows_per_update=1, passes=-1.0)["updates"] == 1


def test_without_a_leash_nothing_is_scored_twice_and_with_one_the_reference_stays():
    assert all(row.reference == () for row in rows_with_advantages(trainer()))
    coach = trainer(leash=Leash(0.1))
    with pytest.raises(RuntimeError, match="refer"):
        rows_with_advantages(coach)
    coach.refer()
    first = coach.learn([group(1.0, 0.0)])
    assert first["kl"] == pytest.approx(0.0, abs=1e-6)
    before = digest(coach.reference)
    later = [coach.learn([group(1.0, 0.0)]) for _ in range(5)][-1]
    assert later["kl"] > 0 and digest(coach.reference) == before


def test_a_leash_on_the_loss_holds_the_policy_nearer_to_its_reference():
    distance = {}
    for coefficient in (1e-9, 5.0):
        coach = trainer(leash=Leash(coefficient))
        coach.refer()
        distance[coefficient] = [coach.learn([group(1.0, 0.0)])["kl"] for _ in range(20)][-1]
    assert distance[5.0] < 0.5 * distance[1e-9]


def test_a_leash_in_the_reward_takes_from_each_token_what_it_moved():
    """Recorded at -1 nat; the reference's own log-probs decide the penalty of each token."""
    coach = trainer(rloo, leash=Leash(0.1, in_reward=True))
    coach.refer()
    groups = [group(1.0, 0.0)]
    rewards = coach.rewards_of(groups)
    rows = coach.scored(coach.pack(groups, rewards))
    paid = coach.attempt(1.0, rows[:1])
    expected = [-0.1 * (-1.0 - reference) for reference in rows[0].reference]
    expected[-1] += 1.0
    np.testing.assert_allclose(paid.rewards_T, expected)


def test_asking_the_policy_what_it_would_have_said_changes_nothing():
    policy = Policy(new_model(SHAPE, 0), False)
    start = policy.copied()
    with torch.no_grad():
        for parameter in policy.trunk.trained.values():
            parameter.add_(0.1)
    before = digest(policy.trunk.trained)
    with policy.as_of(start):
        assert digest(policy.trunk.trained) == digest(start)
    assert digest(policy.trunk.trained) == before


def adapted(seed=0, rank=4):
    model = new_model(SHAPE, 0)
    add_adapter(model, "some-base", rank, 8.0, seed)
    return model


def test_a_new_adapter_changes_nothing_and_is_all_that_learns():
    model, plain = adapted(), new_model(SHAPE, 0)
    tokens = torch.arange(1, 9)[None]
    torch.testing.assert_close(model(tokens).logits, plain(tokens).logits)
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    coach = trainer(model=model)
    assert all(".lora_" in name for name in coach.policy.trunk.trained)
    before = digest(coach.policy.trunk.trained)
    coach.learn([group(1.0, 0.0)])
    assert digest(coach.policy.trunk.trained) != before
    assert all(torch.equal(p, frozen[name]) for name, p in model.named_parameters() if name in frozen)


def test_actor_and_critic_share_the_base_under_their_adapters():
    model = adapted()
    critic = Critic(model, False)
    shared = {id(p) for p in model.parameters() if not p.requires_grad}
    assert shared <= {id(p) for p in critic.trunk.model.parameters()}
    assert not {id(p) for p in critic.trained.values()} & {id(p) for p in model.parameters()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_published_adapter_is_used_beside_the_base_and_not_rounded_into_it(dtype):
    """The sampler's own weights of the base stay what they were; an update far below their rounding is not lost."""
    model = adapted()
    sampler = LocalSampler(model, slots=2, dtype=dtype)
    coach = trainer(model=model)
    with torch.no_grad():
        for name, parameter in coach.policy.trunk.trained.items():
            if "lora_B" in name:
                parameter.fill_(1e-3)
    weights = coach.publish()
    assert all(".lora_" in name for name in weights.tensors)

    async def scored():
        before = await sampler.score(tuple(range(1, 20)), 1)
        await sampler.load(weights)
        return before, await sampler.score(tuple(range(1, 20)), 1)

    before, after = asyncio.run(scored())
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        logits = model(torch.arange(1, 20)[None]).logits[0].float().log_softmax(-1)
    expected = logits[torch.arange(18), torch.arange(2, 20)]
    gap = (torch.tensor(after) - expected).abs().max()
    assert before != after and gap < (1e-4 if dtype == "float32" else 0.05)


def test_a_stored_adapter_is_loaded_beside_its_base_and_beside_no_other(tmp_path):
    base = save_model(new_model(SHAPE, 0), tmp_path / "base")
    model = load_model(base)
    add_adapter(model, str(base), 4, 8.0, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05)
    folder = save_model(model, tmp_path / "adapter")
    assert base_of(folder) == str(base) and not (folder / "model.safetensors").exists()
    tokens = torch.arange(1, 9)[None]
    again = load_model(folder)
    torch.testing.assert_close(again(tokens).logits, model(tokens).logits)
    assert all(".lora_" in name for name, p in again.named_parameters() if p.requires_grad)
    save_model(new_model(SHAPE, 1), tmp_path / "other")
    table = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(table | {"base_model_name_or_path": str(tmp_path / "other")}))
    with pytest.raises(UserError, match="trained beside other weights"):
        load_model(folder)


@pytest.mark.parametrize("rank", [-1, 17])
def test_a_rank_that_the_layers_do_not_have_is_refused(rank):
    with pytest.raises(UserError, match=r"lora\.rank must lie between 1 and 16"):
        adapted(rank=rank)


@pytest.mark.parametrize("adapter", [False, True])
def test_a_trainer_that_goes_on_from_a_checkpoint_learns_the_same_to_the_bit(tmp_path, adapter):
    def fresh():
        coach = trainer(ppo, adapted() if adapter else None, Leash(0.01), epochs=2, minibatches=2)
        coach.refer()
        return coach

    steps = [[group(1.0, 0.0, 1.0)], [group(0.0, 1.0)], [group(1.0, 1.0, 0.0)]]
    whole = fresh()
    for groups in steps:
        whole.learn(groups)
    first = fresh()
    first.learn(steps[0])
    first.save(tmp_path)
    second = trainer(ppo, adapted(seed=5) if adapter else None, Leash(0.01), epochs=2, minibatches=2)
    second.restore(tmp_path)
    for groups in steps[1:]:
        second.learn(groups)
    assert digest(second.policy.trunk.trained) == digest(whole.policy.trunk.trained)
    assert digest(second.critic.critic.trained) == digest(whole.critic.critic.trained)
    assert (second.steps, second.updater.updates) == (whole.steps, whole.updater.updates)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["trainer.gamma=0.9"], r"trainer.gamma would have no effect: trainer.algorithm is 'loop'"),
        (["trainer.algorithm=rloo", "trainer.clip=0.3"], "trainer.clip would have no effect"),
        (["critic.clip=0.2"], r"\[critic\] would have no effect"),
        (["trainer.kl=0", "trainer.kl_in=reward"], "trainer.kl_in would have no effect: .* and trainer.kl 0"),
        (["trainer.gae_lambda=1.5"], "trainer.gae_lambda must be at most 1, found 1.5"),
    ],
)
def test_settings_that_an_algorithm_would_not_read_are_refused(settings, words):
    with pytest.raises(UserError, match=words):
        build.algorithm_of(config.load("recipes/tiny.toml", settings))
