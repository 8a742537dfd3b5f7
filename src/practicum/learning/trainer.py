"""The online RL trainer: `learn(groups)` is pack, score, credit, update; `publish()` hands the new weights out.

Axes: G attempts of a group, T sampled tokens of an attempt, P sampled positions of a micro-batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from practicum.learning import losses
from practicum.learning.advantages import Attempt, explained_variance, has_signal, whitened
from practicum.learning.algorithms import Algorithm
from practicum.learning.batches import Row, in_time, rows_of
from practicum.learning.critic import Critic
from practicum.learning.forest import LEANER, Tree, micro_batches, trees_of
from practicum.learning.imitation import likelihood
from practicum.learning.policy import Policy, weights_of
from practicum.learning.updater import Updater, UpdateSettings
from practicum.models.load import HuggingFaceTokenizer, load_tensors, save_model, save_tensors
from practicum.runs.checkpoint import STATE
from practicum.types import Group, Trajectory, Weights


@dataclass(frozen=True)
class Leash:
    """What holds the policy near its reference; a coefficient of 0 is no leash, and needs no reference.

    Example: Leash(0.001, in_reward=True) takes 0.001 nats' worth of reward per nat of each sampled token.
    """

    coefficient: float = 0.0
    in_reward: bool = False
    "True: k1 off the reward of each token (PPO, RLOO); False: k3 on the loss (GRPO)."


@dataclass(frozen=True)
class CriticSettings:
    """How a critic learns beside the actor."""

    critic: Critic
    update: UpdateSettings
    clip: float
    "How far a value may move in one step before its loss stops pulling."
    warmup_steps: int
    "So many first steps train the critic alone."


class Trainer:
    """Actor, and where the algorithm needs them critic and reference, of one run.

    Example:
        metrics = trainer.learn(groups)
        await sampler.load(trainer.publish())
    """

    def __init__(
        self,
        policy: Policy,
        algorithm: Algorithm,
        settings: UpdateSettings,
        *,
        epochs: int,
        minibatches: int,
        shuffled_rewards: bool,
        seed: int,
        tokenizer: HuggingFaceTokenizer | None = None,
        leash: Leash = Leash(),
        critic: CriticSettings | None = None,
    ) -> None:
        self.policy, self.algorithm, self.tokenizer = policy, algorithm, tokenizer
        self.settings, self.leash, self.critic = settings, leash, critic
        self.updater = Updater(policy.trunk.trained, settings)
        self.critic_updater = Updater(critic.critic.trained, critic.update) if critic else None
        self.epochs, self.minibatches, self.shuffled_rewards = epochs, minibatches, shuffled_rewards
        self.random = np.random.default_rng(seed)
        self.version = 0
        self.steps = 0
        self.reference: dict[str, Tensor] | None = None
        "Parameters of the reference policy; `refer` sets them."
        self.advantages: dict[tuple[str, int, int], tuple[float, ...]] = {}
        "Of the last step: (task id, attempt, turn) -> the advantage of each of its tokens, where they were trained."

    def refer(self) -> None:
        """Make the policy as it stands the reference, where one is needed."""
        if self.leash.coefficient:
            self.reference = self.policy.copied()

    def learn(self, groups: Sequence[Group]) -> dict[str, float]:
        """One step on groups of any size; groups that teach nothing are counted and not trained.

        "seconds/score" is what the critic's values and the reference took, "seconds/update" the updates.
        """
        groups = sorted(groups, key=lambda group: (group.task_id, group.id))
        self.steps += 1
        rewards = self.rewards_of(groups)
        began = time.perf_counter()
        scored = self.scored(self.pack(groups, rewards))
        score_s = time.perf_counter() - began
        rows = self.credited(groups, rewards, scored)
        self.advantages = advantages_of(groups, rows)
        metrics = {
            "groups": float(len(groups)),
            "groups_with_signal": float(sum(has_signal(rewards_of(group)) for group in groups)),
            "rows": float(len(rows)),
            "trained_tokens": float(sum(len(row.positions) for row in rows)),
            "row_tokens": float(sum(len(row.tokens) for row in rows)),
            "seconds/score": score_s,
        }
        began = time.perf_counter()
        updated = self.update(rows)
        metrics["seconds/update"] = time.perf_counter() - began
        return metrics | self.described(rows) | updated | {"refused_updates": float(self.updater.refused)}

    def imitate(
        self, demonstrations: Sequence[Trajectory], rows_per_update: int, passes: float = 0.0
    ) -> dict[str, float]:
        """An epoch of imitation; with `passes`, updates until so many forward-token passes are spent. Means of numbers.

        The optimizer is that of the other steps. Where fewer passes than one update needs are left, one is made.
        """
        rows = [row for trajectory in demonstrations for row in rows_of(trajectory)]
        until = self.passes + passes
        found: list[dict[str, float]] = []
        while not found or (passes and self.passes < until):
            order = self.random.permutation(len(rows))
            for part in np.array_split(order, max(1, round(len(rows) / rows_per_update))):
                if not found or not passes or self.passes < until:
                    found.append(self.updater.update([rows[n] for n in part], likelihood(self.policy)))
        self.steps += 1
        return means(found) | {"updates": float(len(found)), "refused_updates": float(self.updater.refused)}

    @property
    def passes(self) -> float:
        """Forward-token passes of actor, reference and critic so far (see `Trunk`)."""
        return self.policy.trunk.passes + (self.critic.critic.trunk.passes if self.critic else 0.0)

    def rewards_of(self, groups: Sequence[Group]) -> dict[tuple[str, int], float]:
        """(group id, attempt) of every valid attempt -> its reward; dealt out at random where that was asked for."""
        found = {(group.id, t.attempt): t.reward for group in groups for t in valid_of(group)}
        if self.shuffled_rewards:
            return dict(zip(found, self.random.permutation(list(found.values())).tolist(), strict=True))
        return found

    def pack(self, groups: Sequence[Group], rewards: Mapping[tuple[str, int], float]) -> list[Row]:
        """Rows of every attempt that may teach something."""
        rows: list[Row] = []
        for group in groups:
            members = valid_of(group)
            rewards_G = np.array([rewards[group.id, t.attempt] for t in members])
            if has_signal(rewards_G) or not self.algorithm.compares_siblings:
                rows += [row for t in members for row in rows_of(t, group.id)]
        return rows

    @torch.no_grad()
    def scored(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with values of the critic and log-probs of the reference, whichever there is."""
        rows = list(rows)
        if self.critic:
            rows = self.filled(rows, "values", self.critic.critic.score)
        if self.leash.coefficient:
            if self.reference is None:
                raise RuntimeError("refer() was not called: there is no reference policy yet")
            with self.policy.as_of(self.reference):
                rows = self.filled(rows, "reference", lambda trees: self.policy.score(trees).logprobs_P)
        return rows

    def filled(self, rows: Sequence[Row], name: str, score: Any) -> list[Row]:
        """The rows, in the order of their trees, with one number per sampled token under `name`."""
        filled: list[Row] = []
        tokens = self.settings.tokens_per_microbatch
        for trees in micro_batches(trees_of(rows), tokens, kept=LEANER * tokens):
            batch = [row for tree in trees for row in tree.rows]
            ends = np.cumsum([len(row.positions) for row in batch])[:-1]
            parts = np.split(score(trees).double().cpu().numpy(), ends)
            filled += [with_numbers(row, {name: part}) for row, part in zip(batch, parts, strict=True)]
        return filled

    def credited(
        self, groups: Sequence[Group], rewards: Mapping[tuple[str, int], float], rows: Sequence[Row]
    ) -> list[Row]:
        """The rows with advantages, and returns where there is a critic; a row that would teach nothing is left out."""
        rows_of_attempt: dict[tuple[str, int], list[Row]] = {}
        for row in rows:
            rows_of_attempt.setdefault((row.group, row.attempt), []).append(row)
        packed = {row.group for row in rows}
        keys: list[tuple[str, int]] = []
        attempts: list[Attempt] = []
        advantages: list[Any] = []
        for group in groups:
            if group.id in packed:
                members = [(group.id, t.attempt) for t in valid_of(group)]
                siblings = [self.attempt(rewards[key], rows_of_attempt.get(key, [])) for key in members]
                keys += members
                attempts += siblings
                advantages += self.algorithm.credit(siblings)
        returns = [a + attempt.values_T for a, attempt in zip(advantages, attempts, strict=True)]
        if self.algorithm.whitens:
            advantages = whitened(advantages)
        credited: list[Row] = []
        for key, advantages_T, returns_T in zip(keys, advantages, returns, strict=True):
            members_rows = rows_of_attempt.get(key, [])
            credited += spread(members_rows, {"advantages": advantages_T, "returns": returns_T})
        return [row for row in credited if self.critic or any(row.advantages)]

    def attempt(self, reward: float, rows: Sequence[Row]) -> Attempt:
        """What credit sees of one attempt, its sampled tokens in the order of time."""
        order_T = in_time(rows)
        rewards_T = np.zeros(len(order_T))
        if self.leash.in_reward and self.leash.coefficient:
            gaps = [np.subtract(row.logprobs, row.reference) for row in rows]
            rewards_T -= self.leash.coefficient * np.concatenate([*gaps, np.zeros(0)])[order_T]
        if len(order_T):
            rewards_T[-1] += reward
        values = np.concatenate([np.array(row.values) for row in rows] + [np.zeros(0)])
        return Attempt(reward, rewards_T, values[order_T] if len(values) else np.zeros(len(order_T)))

    def update(self, rows: Sequence[Row]) -> dict[str, float]:
        """Updates of critic and actor over the step's rows; means of their numbers."""
        of_actor: list[dict[str, float]] = []
        of_critic: list[dict[str, float]] = []
        learns_alone = bool(self.critic and self.steps <= self.critic.warmup_steps)
        for _ in range(self.epochs if rows else 0):
            for chosen in self.dealt(rows):
                if self.critic_updater:
                    of_critic.append(self.critic_updater.update(chosen, self.critic_objective))
                if not learns_alone:
                    of_actor.append(self.updater.update(chosen, self.objective))
        return means(of_actor) | {f"critic/{name}": number for name, number in means(of_critic).items()}

    def dealt(self, rows: Sequence[Row]) -> list[list[Row]]:
        """The rows as the updates of one pass, at random; siblings stay together: what they share is computed once."""
        siblings: dict[str, list[Row]] = {}
        for row in rows:
            siblings.setdefault(row.group, []).append(row)
        groups = list(siblings.values())
        parts = np.array_split(self.random.permutation(len(groups)), min(self.minibatches, len(groups)))
        return [[row for n in part for row in groups[n]] for part in parts]

    def objective(self, trees: Sequence[Tree], rows: Sequence[Row]) -> tuple[Tensor, dict[str, Tensor]]:
        """The algorithm's loss per sampled position, on the recorded log-probs."""
        scores = self.policy.score(trees)
        logprobs_P, recorded_P = scores.logprobs_P, column(rows, "logprobs", scores.logprobs_P)
        loss_P = self.algorithm.loss(logprobs_P, recorded_P, column(rows, "advantages", logprobs_P))
        now_P = logprobs_P.detach()
        numbers = {
            "entropy": scores.entropy_P,
            "k3": losses.k3(recorded_P, now_P),
            "mismatch": (now_P - recorded_P).abs(),
        }
        if self.leash.coefficient:
            to_reference_P = losses.k3(logprobs_P, column(rows, "reference", logprobs_P))
            numbers["kl"] = to_reference_P
            if not self.leash.in_reward:
                loss_P = loss_P + self.leash.coefficient * to_reference_P
        return loss_P, numbers

    def critic_objective(self, trees: Sequence[Tree], rows: Sequence[Row]) -> tuple[Tensor, dict[str, Tensor]]:
        """The value loss per sampled position."""
        assert self.critic is not None
        values_P = self.critic.critic.score(trees)
        before_P, returns_P = column(rows, "values", values_P), column(rows, "returns", values_P)
        return losses.value(values_P, before_P, returns_P, self.critic.clip), {}

    def described(self, rows: Sequence[Row]) -> dict[str, float]:
        """How well the critic knew the returns before this step's update; nothing without one."""
        if not self.critic or not rows:
            return {}
        values, returns = (np.concatenate([getattr(row, name) for row in rows]) for name in ("values", "returns"))
        return {"critic/explained_variance": explained_variance(values, returns), "critic/value": float(values.mean())}

    def publish(self) -> Weights:
        """What has learned, under the next version: all parameters, or those of the adapter."""
        return self.numbered(self.policy.trunk.trained)

    def numbered(self, tensors: Mapping[str, Tensor]) -> Weights:
        """Tensors under the next version: no two sets that a sampler is given share a number."""
        self.version += 1
        return weights_of(tensors, self.version)

    def save(self, folder: Path) -> None:
        """The model as a folder, counters as JSON, the rest as tensors: nothing in a checkpoint is code."""
        save_model(self.policy.model, folder / "model", self.tokenizer)
        state = {"version": self.version, "steps": self.steps, "random": self.random.bit_generator.state}
        (folder / "trainer.json").write_text(json.dumps(state))
        parts = {"actor": self.updater.state()}
        if self.critic_updater:
            parts["critic"] = self.critic_updater.state()
        if self.reference:
            parts["reference"] = self.reference
        tensors = {f"{part}.{name}": tensor for part, found in parts.items() for name, tensor in found.items()}
        save_tensors(folder / STATE, tensors)

    def restore(self, folder: Path) -> None:
        """Go on from a checkpoint of the same recipe, to the bit."""
        state = json.loads((folder / "trainer.json").read_text())
        self.version, self.steps = state["version"], state["steps"]
        self.random.bit_generator.state = state["random"]
        tensors = load_tensors(folder / STATE)
        self.updater.restore(under("actor", tensors))
        if self.critic_updater:
            self.critic_updater.restore(under("critic", tensors))
        self.reference = under("reference", tensors) or None


def under(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `part.`, without it."""
    return {name.removeprefix(f"{part}."): t for name, t in tensors.items() if name.startswith(f"{part}.")}


def column(rows: Sequence[Row], name: str, like: Tensor) -> Tensor:
    """One number per sampled token of all rows, shape (P,), of the type and device of `like`."""
    return torch.tensor([number for row in rows for number in getattr(row, name)]).to(like)


def spread(rows: Sequence[Row], numbers: Mapping[str, Any]) -> list[Row]:
    """Numbers of an attempt's tokens in the order of time, shape (T,), back to the rows that hold them."""
    order_T = in_time(rows)
    ends = np.cumsum([len(row.positions) for row in rows])[:-1]
    parts = {}
    for name, numbers_T in numbers.items():
        laid_T = np.empty(len(order_T))
        laid_T[order_T] = numbers_T
        parts[name] = np.split(laid_T, ends)
    return [with_numbers(row, {name: part[n] for name, part in parts.items()}) for n, row in enumerate(rows)]


def with_numbers(row: Row, numbers: Mapping[str, Any]) -> Row:
    """The row with arrays of shape (P,) under their names."""
    changes: dict[str, Any] = {name: tuple(array.tolist()) for name, array in numbers.items()}
    return replace(row, **changes)


def advantages_of(groups: Sequence[Group], rows: Sequence[Row]) -> dict[tuple[str, int, int], tuple[float, ...]]:
    """(task id, attempt, turn) -> the advantage of each of its tokens, for what is trained."""
    task_of = {group.id: group.task_id for group in groups}
    found: dict[tuple[str, int, int], tuple[float, ...]] = {}
    for row in rows:
        for turn, advantage in zip(row.turns, row.advantages, strict=True):
            key = (task_of[row.group], row.attempt, turn)
            found[key] = (*found.get(key, ()), advantage)
    return found


def means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number over several updates; nothing for none."""
    return {name: float(np.mean([numbers[name] for numbers in found])) for name in (found or [{}])[0]}


def valid_of(group: Group) -> list[Trajectory]:
    """A group's valid trajectories in order of attempt, whatever order they were finished in."""
    return sorted(group.valid, key=lambda trajectory: trajectory.attempt)


def rewards_of(group: Group) -> Any:
    """Rewards of a group's valid trajectories in order of attempt, shape (G,)."""
    return np.array([trajectory.reward for trajectory in valid_of(group)], dtype=np.float64)
