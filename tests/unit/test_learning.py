"""Credit, rows, losses and updates, against derived and published values."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from practicum.errors import UserError
from practicum.learning import attention, head
from practicum.learning.advantages import has_signal, leave_one_out
from practicum.learning.algorithms import Knobs, loop
from practicum.learning.batches import Row, rows_of
from practicum.learning.forest import micro_batches, tree_of, trees_of
from practicum.learning.imitation import imitate, mean_loss
from practicum.learning.losses import clipped, imitation
from practicum.learning.policy import Policy, digest_of, faster_with_autocast
from practicum.learning.trainer import Trainer
from practicum.learning.updater import Updater, UpdateSettings
from practicum.models.load import new_model
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
    learning_rate=1e-2, warmup_updates=1, weight_decay=0.0, max_grad_norm=1.0, tokens_per_microbatch=10**6
)


def tiny_policy(seed=0):
    return Policy(new_model(SHAPE, seed), autocast=False)


def turn(index, continues, added, sampled, delivered=True, logprob=-1.0, temperature=1.0):
    completion = Completion(tuple(sampled), (logprob,) * len(sampled), (0,) * len(sampled), "stop")
    return Turn(
        index,
        continues,
        tuple(added),
        completion,
        (),
        Message("assistant", ""),
        delivered=delivered,
        sampling=SamplingParams(temperature=temperature),
    )


def attempt(number, reward, *turns, ending=Ending.FINISHED, task="t"):
    turns = turns or (turn(0, None, (1, 2, 3), (4 + number % 8, 5)),)
    return Trajectory(task, number, tuple(turns), ending, rewards={"success": reward}, reward=reward)


def group(*rewards, task="t"):
    members = tuple(attempt(n, reward, task=task) for n, reward in enumerate(rewards))
    return Group(f"0:{task}", task, members)


def trainer(policy, **rest):
    options = {"epochs": 1, "minibatches": 1, "shuffled_rewards": False, "seed": 0} | rest
    return Trainer(policy, loop(Knobs()), SETTINGS, **options)


def test_leave_one_out_equals_the_published_vectors():
    """LOOP, arXiv 2502.01600: rewards of five and of six attempts."""
    np.testing.assert_allclose(leave_one_out([1, 0, 0, 1, 0]), [0.75, -0.5, -0.5, 0.75, -0.5])
    np.testing.assert_allclose(leave_one_out([1, 0, 0, 0, 0, 0]), [1.0] + [-0.2] * 5)


def test_leave_one_out_is_each_reward_less_the_mean_of_the_others():
    rewards = np.random.default_rng(0).random(7)
    derived = [reward - np.delete(rewards, n).mean() for n, reward in enumerate(rewards)]
    np.testing.assert_allclose(leave_one_out(rewards), derived)


@pytest.mark.parametrize("rewards", [[], [1.0], [1.0, 1.0, 1.0], [0.0, 0.0]])
def test_singletons_and_constant_groups_give_exactly_nothing(rewards):
    assert not has_signal(np.array(rewards))
    assert list(leave_one_out(rewards)) == [0.0] * len(rewards)


def test_the_clipped_loss_equals_the_published_vector():
    """LOOP, arXiv 2502.01600: eps 0.1, bounds 1/(1+eps) and 1+eps."""
    ratios, advantages = torch.tensor([0.5, 0.9, 1.2, 1.05]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss = clipped(ratios.log(), torch.zeros(4), advantages, low=1 / 1.1, high=1.1)
    torch.testing.assert_close(-loss, torch.tensor([0.5, -0.909091, 1.1, -1.05]))


def test_no_gap_between_sampler_and_trainer_makes_the_loss_infinite():
    gaps = torch.tensor([1000.0, -1000.0])
    for advantage in (1.0, -1.0):
        assert clipped(gaps, torch.zeros(2), torch.full((2,), advantage), 1 / 1.1, 1.1).isfinite().all()


def test_a_chain_of_turns_is_one_row_with_every_sampled_token_once():
    trajectory = attempt(0, 1.0, turn(0, None, (1, 2), (3, 4)), turn(1, 0, (5,), (6,)))
    (row,) = rows_of(trajectory)
    assert row.tokens == (1, 2, 3, 4, 5, 6)
    assert [row.tokens[p] for p in row.positions] == [3, 4, 6]
    assert row.turns == (0, 0, 1) and len(row.logprobs) == 3


def test_a_context_that_begins_anew_is_a_row_of_its_own_and_a_branch_is_trained_once():
    turns = (
        turn(0, None, (1,), (2,)),
        turn(1, 0, (3,), (4,)),
        turn(2, 0, (5,), (6,)),
        turn(3, None, (7,), (8,)),
    )
    rows = rows_of(attempt(0, 1.0, *turns))
    assert [row.tokens for row in rows] == [(1, 2, 3, 4), (1, 2, 5, 6), (7, 8)]
    assert [[row.tokens[p] for p in row.positions] for row in rows] == [[2, 4], [6], [8]]


def test_an_answer_that_was_never_delivered_is_not_trained():
    rows = rows_of(attempt(0, 1.0, turn(0, None, (1,), (2,), delivered=False), turn(1, 0, (3,), (4,))))
    assert [[row.tokens[p] for p in row.positions] for row in rows] == [[4]]


def random_rows(seed, groups=3, attempts=4):
    """Rows that share prompts, first turns and beginnings of turns within their group, as siblings do."""
    draw = np.random.default_rng(seed)
    rows = []
    for name in range(groups):
        stem = draw.integers(0, 31, 12)
        for _ in range(attempts):
            tokens = (*stem[: draw.integers(4, 12)], *draw.integers(0, 31, draw.integers(2, 9)))
            positions = (2, 3, len(tokens) - 2, len(tokens) - 1)
            logprobs, advantages = tuple(draw.normal(-3, 0.3, 4)), (float(draw.normal()),) * 4
            rows.append(Row(tuple(map(int, tokens)), positions, logprobs, 1.0, str(name), advantages=advantages))
    return rows


def alone(rows):
    return [tree_of([row]) for row in rows]


def test_a_tree_holds_each_unique_token_once_and_shows_it_its_ancestors_only():
    tree = tree_of([Row((1, 2, 4, 5), (3,), (0.0,), 1.0), Row((1, 2, 3), (2,), (0.0,), 1.0)])
    assert list(tree.tokens_U) == [1, 2, 3, 4, 5] and list(tree.depths_U) == [0, 1, 2, 2, 3]
    seen = [[u for u in range(at + 1) if at < tree.ends_U[u]] for at in range(5)]
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 3], [0, 1, 3, 4]]
    assert [list(path) for path in tree.paths] == [[0, 1, 2], [0, 1, 3, 4]]


def test_micro_batches_hold_every_row_once_and_keep_to_the_budget():
    rows = random_rows(1, groups=20)
    batches = list(micro_batches(trees_of(rows), 80))
    found = [row for batch in batches for tree in batch for row in tree.rows]
    assert sorted(row.tokens for row in found) == sorted(row.tokens for row in rows)
    assert all(sum(map(len, batch)) <= 80 for batch in batches)


@pytest.mark.parametrize("temperatures", [(0.7, 0.7), (0.7, 1.3)])
def test_scores_are_the_models_own_log_probs_at_the_temperature_of_sampling(temperatures):
    policy = tiny_policy()
    rows = [Row((1, 2, 3, 4, 5), (2, 4), (0.0, 0.0), temperatures[0])]
    rows.append(Row((1, 2, 8), (1, 2), (0.0, 0.0), temperatures[1]))
    tree, reference = tree_of(rows), new_model(SHAPE, 0)
    expected = []
    for row in tree.rows:
        logits = reference(torch.tensor([row.tokens])).logits[0] / row.temperature
        expected += [logits[p - 1].log_softmax(-1)[row.tokens[p]] for p in row.positions]
    torch.testing.assert_close(policy.score([tree]).logprobs_P, torch.stack(expected))


def gradient(pack, budget=10**6):
    policy = tiny_policy()
    rows = random_rows(2)
    coach = trainer(policy)
    tokens = sum(len(row.positions) for row in rows)
    for trees in micro_batches(pack(rows), budget):
        batch = [row for tree in trees for row in tree.rows]
        (coach.objective(trees, batch)[0].sum() / tokens).backward()
    return torch.cat([p.grad.flatten() for p in policy.model.parameters()])


def test_the_gradient_of_a_forest_is_that_of_separate_rows():
    apart = gradient(alone)
    assert (gradient(trees_of) - apart).norm() / apart.norm() < 1e-5


def test_the_gradient_does_not_depend_on_how_trees_are_split_into_micro_batches():
    whole = gradient(trees_of)
    for budget in (30, 60):
        assert (gradient(trees_of, budget) - whole).norm() / whole.norm() < 1e-6


@pytest.mark.parametrize(("where", "name", "size"), [(attention, "QUERIES", 3), (head, "STATES", 2)])
def test_the_gradient_does_not_depend_on_how_much_is_computed_at_a_time(monkeypatch, where, name, size):
    whole = gradient(trees_of)
    monkeypatch.setattr(where, name, size)
    assert (gradient(trees_of) - whole).norm() / whole.norm() < 1e-6


def test_learning_raises_what_was_rewarded_and_lowers_what_was_not():
    policy = tiny_policy()
    good, bad = attempt(0, 1.0), attempt(1, 0.0)
    rows = [*rows_of(good), *rows_of(bad)]
    before = policy.score(alone(rows)).logprobs_P.detach()
    metrics = trainer(policy).learn([Group("g", "t", (good, bad))])
    after = policy.score(alone(rows)).logprobs_P.detach()
    assert metrics["groups_with_signal"] == 1 and metrics["trained_tokens"] == 4
    rise = after - before
    assert rise[0] > rise[2]  # the first sampled token of the good attempt, and of the bad one


def test_groups_without_signal_are_counted_and_change_nothing():
    policy = tiny_policy()
    before = digest_of(dict(policy.model.named_parameters()))
    metrics = trainer(policy).learn([group(1.0, 1.0), group(0.0, 0.0, task="u")])
    assert (metrics["groups"], metrics["groups_with_signal"], metrics["rows"]) == (2, 0, 0)
    assert digest_of(dict(policy.model.named_parameters())) == before


def test_discarded_attempts_are_in_no_statistic():
    coach = trainer(tiny_policy())
    lost = attempt(9, 0.0, ending=Ending.SAMPLER_FAILED)
    coach.learn([Group("g", "t", (attempt(0, 1.0), lost, attempt(1, 0.0)))])
    assert coach.advantages == {("t", 0, 0): (1.0, 1.0), ("t", 1, 0): (-1.0, -1.0)}


def test_the_order_of_groups_and_attempts_changes_nothing():
    digests = set()
    for order in (1, -1):
        policy = tiny_policy()
        groups = [group(1.0, 0.0), group(0.0, 1.0, 1.0, task="u")][::order]
        shuffled = [replace(g, trajectories=g.trajectories[::order]) for g in groups]
        trainer(policy).learn(shuffled)
        digests.add(digest_of({k: v.detach() for k, v in policy.model.named_parameters()}))
    assert len(digests) == 1


def test_a_gradient_that_is_not_finite_never_reaches_the_parameters():
    policy = tiny_policy()
    before = digest_of(dict(policy.model.named_parameters()))
    updater = Updater(policy.trunk.trained, SETTINGS)
    (row,) = rows_of(attempt(0, 1.0))
    updater.update([row], lambda trees, _: (policy.score(trees).logprobs_P * math.nan, {}))
    assert (updater.refused, updater.updates) == (1, 0)
    assert digest_of(dict(policy.model.named_parameters())) == before
    updater.update([row], lambda trees, _: (imitation(policy.score(trees).logprobs_P), {}))
    assert (updater.refused, updater.updates) == (1, 1)


def test_the_learning_rate_rises_over_the_warm_up():
    policy = tiny_policy()
    settings = UpdateSettings(1e-2, 4, 0.0, 1.0, 10**6)
    updater = Updater(policy.trunk.trained, settings)
    (row,) = rows_of(attempt(0, 1.0))
    rates = []
    for _ in range(5):
        updater.update([row], lambda trees, _: (imitation(policy.score(trees).logprobs_P), {}))
        rates.append(updater.optimizer.param_groups[0]["lr"])
    np.testing.assert_allclose(rates, [2.5e-3, 5e-3, 7.5e-3, 1e-2, 1e-2])


def test_imitation_lowers_the_loss_and_stops_at_the_plateau():
    policy = tiny_policy()
    shown = [attempt(n, 1.0) for n in range(8)]
    epochs = list(imitate(policy, shown, shown[:2], SETTINGS, rows_per_update=4, epochs=200, plateau=0.05, seed=0))
    assert epochs[0]["loss"] > epochs[-1]["loss"]
    assert len(epochs) < 200
    assert epochs[-1]["dev_loss"] > epochs[-2]["dev_loss"] * 0.95
    assert math.isnan(mean_loss(policy, [], 100))


def test_shuffled_rewards_deal_the_same_rewards_to_other_attempts():
    coach = trainer(tiny_policy(), shuffled_rewards=True)
    groups = [group(*([1.0] * 4 + [0.0] * 4)), group(*([1.0] * 4 + [0.0] * 4), task="u")]
    seen = set()
    for _ in range(6):
        dealt = coach.rewards_of(groups)
        assert sorted(dealt.values()) == [0.0] * 8 + [1.0] * 8
        seen.add(tuple(dealt.values()))
    assert len(seen) > 1


def test_publications_are_numbered_and_digests_tell_weights_apart():
    coach = trainer(tiny_policy())
    first, second = coach.publish(), coach.publish()
    assert (first.version, second.version) == (1, 2) and first.digest == second.digest
    coach.learn([group(1.0, 0.0)])
    assert coach.publish().digest != first.digest


@pytest.mark.parametrize("slow_under_autocast", [True, False])
def test_precision_is_measured_and_not_guessed(slow_under_autocast):
    model = new_model({**SHAPE, "max_position_embeddings": 512}, 0)

    def brake(*_):
        if torch.is_autocast_enabled("cpu") == slow_under_autocast:
            time.sleep(0.1)

    model.register_forward_pre_hook(brake)
    model.base_model.register_forward_pre_hook(brake)
    assert faster_with_autocast(model) is not slow_under_autocast


def family(name, **settings):
    import transformers

    shape = {**SHAPE, "max_position_embeddings": 128, "num_key_value_heads": 2, **settings}
    if name == "Gemma3":
        return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**shape, head_dim=8))
    return getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**shape))


def test_a_model_that_does_more_than_the_trainer_computes_is_refused():
    for name in ("Llama", "Qwen2", "Qwen3", "Mistral"):
        Policy(family(name), autocast=False)
    for model in (family("Granite", logits_scaling=3.0), family("Gemma3", final_logit_softcapping=0.1)):
        with pytest.raises(UserError, match="the trainer cannot train"):
            Policy(model, autocast=False)


def test_a_row_beyond_a_models_attention_window_is_refused():
    policy = Policy(family("Mistral", sliding_window=32), autocast=False)
    assert policy.score([tree_of([Row(tuple(range(30)), (29,), (0.0,), 1.0)])]).logprobs_P.isfinite().all()
    with pytest.raises(UserError, match=r"a row of 40 tokens exceeds the model's attention window of 32"):
        policy.score([tree_of([Row((1,) * 40, (39,), (0.0,), 1.0)])])


def test_the_loss_is_taken_against_the_recorded_log_probs():
    """Recorded far below what the policy says now, a rewarded token is clipped away; recorded as it says, it is not."""
    policy = tiny_policy()
    tokens = (1, 2, 3)
    said = policy.score([tree_of([Row(tokens, (2,), (0.0,), 1.0)])]).logprobs_P.item()
    steepness = {}
    for name, logprob in {"as now": said, "far below": said - 5.0}.items():
        row = Row(tokens, (2,), (logprob,), 1.0, advantages=(1.0,))
        trainer(policy).objective([tree_of([row])], [row])[0].sum().backward()
        steepness[name] = sum(float(p.grad.abs().sum()) for p in policy.model.parameters())
        policy.model.zero_grad()
    assert steepness["as now"] > 0 and steepness["far below"] == 0
