"""The gradient of a forest is that of its rows: architectures, algorithms, adapters, trees in parts, what is recomputed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from practicum.learning.algorithms import Knobs, grpo, loop, ppo
from practicum.learning.batches import rows_of
from practicum.learning.budget import fitting, tokens_at_once
from practicum.learning.critic import Critic
from practicum.learning.forest import LEANER, micro_batches, parts_of, tree_of, trees_of
from practicum.learning.policy import Policy
from practicum.learning.trainer import CriticSettings, Trainer
from practicum.learning.updater import UpdateSettings
from practicum.models.adapter import add_adapter
from practicum.types import Completion, Ending, Group, Message, SamplingParams, Trajectory, Turn

SETTINGS = UpdateSettings(1e-3, 1, 0.0, 1.0, tokens_per_microbatch=10**6)
FAMILIES = {
    "Llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {}),
    "Qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, {"head_dim": 8}),
    "Gemma3": (transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig, {"head_dim": 8, "sliding_window": 128}),
}


def model_of(family, adapter=False, **settings):
    torch.manual_seed(0)
    model_class, config_class, own = FAMILIES[family]
    shape = {"vocab_size": 67, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0}
    model = model_class(config_class(**shape, **heads, **own, **settings)).eval()
    if adapter:
        add_adapter(model, "none", 4, 8.0, seed=0)
    return shaken(model)


def shaken(module):
    """Nothing that learns is 0, where a gradient would stop."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return module


def siblings(group, attempts=4, prompt=20, turns=3):
    """Attempts that say the same for a while and part in the middle of a turn, each at another place."""
    draw = np.random.default_rng(len(group))
    said = [draw.integers(1, 67, (turns, 6)) for _ in range(attempts)]
    members = []
    for n in range(attempts):
        words = said[0].copy()
        words.flat[int(n * 4.5) :] = said[n].flat[int(n * 4.5) :]  # within the turns, not between them
        asked, found = tuple(range(1, prompt + 1)), []
        for t in range(turns):
            tokens = tuple(map(int, words[t]))
            completion = Completion(tokens, tuple(draw.normal(-4, 0.2, 6)), (0,) * 6, "stop")
            added = asked if t == 0 else (60 + t, 61, 62)
            place = None if t == 0 else t - 1
            found.append(Turn(t, place, added, completion, (), Message("assistant", ""), sampling=SamplingParams()))
        members.append(Trajectory(group, n, tuple(found), Ending.FINISHED, reward=float(draw.random())))
    return Group(group, group, tuple(members))


def coach_of(model, algorithm=loop):
    chosen = algorithm(Knobs())
    critic = CriticSettings(Critic(model, False), SETTINGS, 0.5, 0) if chosen.needs_critic else None
    if critic:
        shaken(critic.critic.head)
    options = {"epochs": 1, "minibatches": 1, "shuffled_rewards": False, "seed": 0}
    return Trainer(Policy(model, False), chosen, SETTINGS, critic=critic, **options)


def credited(coach):
    groups = [siblings("a"), siblings("bb"), siblings("ccc", attempts=2)]
    rewards = coach.rewards_of(groups)
    return coach.credited(groups, rewards, coach.scored(coach.pack(groups, rewards)))


def gradient(coach, rows, budget=10**6):
    """Of everything that learns, critic included, in one vector."""
    parts = [(coach.objective, coach.policy.trunk.trained)]
    parts += [(coach.critic_objective, coach.critic.critic.trained)] if coach.critic else []
    found = []
    for objective, trained in parts:
        for batch in micro_batches(trees_of(rows), budget):
            objective(batch, [row for tree in batch for row in tree.rows])[0].sum().backward()
        found += [parameter.grad.flatten() for parameter in trained.values()]
        for parameter in trained.values():
            parameter.grad = None
    return torch.cat(found)


def apart(rows):
    return [replace(row, group="") for row in rows]


def gap(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("algorithm", [loop, grpo, ppo])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_gradient_of_a_forest_is_that_of_separate_rows(family, algorithm, adapter):
    coach = coach_of(model_of(family, adapter), algorithm)
    rows = credited(coach)
    forest, alone = trees_of(rows), trees_of(apart(rows))
    assert len(forest) == 3 and len(alone) == 10 and sum(map(len, forest)) < 0.6 * sum(map(len, alone))
    assert gap(gradient(coach, rows), gradient(coach, apart(rows))) < 1e-5


@pytest.mark.parametrize("budget", [8, 60, 80])
def test_a_tree_in_parts_or_recomputed_has_the_same_gradient(budget):
    """60 leaves no room for a tree of 4 branches: it is recomputed; so are single rows where a budget is too small."""
    coach = coach_of(model_of("Llama"), ppo)
    rows = credited(coach)
    assert gap(gradient(coach, rows, budget), gradient(coach, rows)) < 1e-5


def test_a_tree_beyond_the_budget_is_cut_where_that_is_cheap_and_else_recomputed():
    rows = [row for trajectory in siblings("a", prompt=60).trajectories for row in rows_of(trajectory, "a")]
    tree, longest = tree_of(rows), max(len(row.tokens) for row in rows)
    assert parts_of(tree, len(tree)) == [tree]
    assert [part.recomputed for part in parts_of(tree, len(tree) - 1)] == [True]  # a second prompt costs more than that
    small = parts_of(tree, longest // LEANER)
    assert [len(part.rows) for part in small] == [1, 1, 1, 1] and all(part.recomputed for part in small)
    far = [replace(row, tokens=(n, *row.tokens[1:])) for n, row in enumerate(rows)]
    assert [(len(part.rows), part.recomputed) for part in parts_of(tree_of(far), 2 * longest)] == [(2, False)] * 2


def test_what_is_asked_for_is_taken_and_else_what_free_memory_has_room_for():
    """Each token of this model keeps 5 * 2 layers * (8 * 32 + 2 * 16 + 4 * 48) = 4,800 bytes."""
    model = model_of("Llama")
    state = 4 * 4 * model.num_parameters()
    assert tokens_at_once(model, 300) == (300, 300)
    assert [fitting(model, state + 2 * 4800 * n) for n in (0, 2048, 4000, 4096)] == [128, 2048, 2048, 4096]
    assert tokens_at_once(model, 0)[0] == 1024


def test_what_is_recomputed_keeps_less():
    """Bytes that autograd keeps for the way back, of one tree."""
    coach = coach_of(model_of("Llama"))
    tree = tree_of([row for row in credited(coach) if row.group == "a"])
    kept = {}
    for again in (False, True):
        sizes = {}
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.setdefault(t.data_ptr(), t), lambda t: t):
            coach.policy.trunk.hidden([replace(tree, recomputed=again)])
        kept[again] = sum(t.numel() * t.element_size() for t in sizes.values())
    assert kept[True] < 0.5 * kept[False]


def test_what_learns_is_what_samples_without_dropout():
    coach = coach_of(model_of("Llama", attention_dropout=0.5))
    rows = credited(coach)
    coach.policy.model.train()
    again = coach_of(coach.policy.model)
    assert not again.policy.model.training
    assert torch.equal(gradient(again, rows), gradient(again, rows))
