"""The online RL trainer: `learn(groups)` is pack, credit, update; `publish()` hands the new weights out.

Axes: G attempts of a group, P sampled positions of a micro-batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from practicum.learning.advantages import has_signal
from practicum.learning.algorithms import Algorithm
from practicum.learning.batches import Row, rows_of
from practicum.learning.forest import micro_batches, trees_of
from practicum.learning.policy import Policy, Scores, weights_of
from practicum.models.load import HuggingFaceTokenizer, save_model
from practicum.types import Group, Trajectory, Weights

Loss = Callable[[Scores, Sequence[Row]], Tensor]
"Scores of a micro-batch and its rows to a loss per sampled position, shape (P,)."


@dataclass(frozen=True)
class UpdateSettings:
    """How gradients become steps."""

    learning_rate: float
    warmup_updates: int
    "The rate rises linearly over so many updates."
    weight_decay: float
    max_grad_norm: float
    tokens_per_microbatch: int
    "Padded tokens of one forward pass; changes memory, not the gradient."


class Updater:
    """AdamW with warm-up and clipping; a gradient that is not finite never reaches the parameters."""

    def __init__(self, policy: Policy, settings: UpdateSettings) -> None:
        self.policy, self.settings = policy, settings
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            betas=(0.9, 0.95),
            fused=True,
        )
        self.updates = 0
        self.refused = 0
        "Updates left out because their gradient was not finite."

    def update(self, rows: Sequence[Row], loss: Loss) -> dict[str, float]:
        """One step on the mean loss over all sampled tokens of `rows`, whatever the micro-batches."""
        tokens = sum(len(row.positions) for row in rows)
        totals = {"loss": 0.0, "entropy": 0.0, "k3": 0.0, "mismatch": 0.0}
        self.policy.model.train()
        trees = trees_of(rows)
        totals["unique_tokens"] = float(sum(len(tree.tokens_U) for tree in trees))
        for trees_of_batch in micro_batches(trees, self.settings.tokens_per_microbatch):
            batch = [row for tree in trees_of_batch for row in tree.rows]
            scores = self.policy.score(trees_of_batch)
            mean = loss(scores, batch).sum() / tokens
            mean.backward()
            gap_P = scores.logprobs_P.detach() - recorded(batch).to(scores.logprobs_P)
            totals["loss"] += float(mean.detach())
            totals["entropy"] += float(scores.entropy_P.sum()) / tokens
            totals["k3"] += float((gap_P.clamp(-20, 20).exp() - 1 - gap_P).sum()) / tokens
            totals["mismatch"] += float(gap_P.abs().sum()) / tokens
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm))
        if np.isfinite(norm) and np.isfinite(totals["loss"]):
            share = min(1.0, (self.updates + 1) / max(1, self.settings.warmup_updates))
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.learning_rate * share
            self.optimizer.step()
            self.updates += 1
        else:
            self.refused += 1
        self.optimizer.zero_grad(set_to_none=True)
        return totals | {"grad_norm": norm}


def recorded(rows: Sequence[Row]) -> Tensor:
    """Log-probs recorded when the rows' tokens were sampled, shape (P,)."""
    return torch.tensor([logprob for row in rows for logprob in row.logprobs])


class Trainer:
    """Actor and optimizer of one run.

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
    ) -> None:
        self.policy, self.algorithm, self.tokenizer = policy, algorithm, tokenizer
        self.updater = Updater(policy, settings)
        self.epochs, self.minibatches, self.shuffled_rewards = epochs, minibatches, shuffled_rewards
        self.random = np.random.default_rng(seed)
        self.version = 0
        self.advantages: dict[tuple[str, int], float] = {}
        "(task id, attempt) of the last step -> the advantage it was trained with."

    def learn(self, groups: Sequence[Group]) -> dict[str, float]:
        """One step on groups of any size; groups without signal are counted and not trained."""
        rows = self.pack(sorted(groups, key=lambda group: (group.task_id, group.id)))
        metrics = {
            "groups": float(len(groups)),
            "groups_with_signal": float(sum(has_signal(rewards_of(group)) for group in groups)),
            "rows": float(len(rows)),
            "trained_tokens": float(sum(len(row.positions) for row in rows)),
            "row_tokens": float(sum(len(row.tokens) for row in rows)),
        }
        updates = []
        for _ in range(self.epochs if rows else 0):
            order = self.random.permutation(len(rows))
            for part in np.array_split(order, min(self.minibatches, len(rows))):
                updates.append(self.updater.update([rows[n] for n in part], self.loss))
        means = {name: float(np.mean([update[name] for update in updates])) for name in (updates or [{}])[0]}
        return metrics | means | {"refused_updates": float(self.updater.refused)}

    def pack(self, groups: Sequence[Group]) -> list[Row]:
        """Credit, then rows of every trajectory whose advantage is not 0."""
        rewards = [rewards_of(group) for group in groups]
        if self.shuffled_rewards:
            dealt = self.random.permutation(np.concatenate(rewards))
            rewards = np.split(dealt, np.cumsum([len(part) for part in rewards])[:-1])
        self.advantages = {}
        rows: list[Row] = []
        for group, rewards_G in zip(groups, rewards, strict=True):
            for trajectory, advantage in zip(valid_of(group), self.algorithm.credit(rewards_G), strict=True):
                self.advantages[group.task_id, trajectory.attempt] = float(advantage)
                if advantage != 0.0:
                    rows += rows_of(trajectory, float(advantage), group.id)
        return rows

    def loss(self, scores: Scores, rows: Sequence[Row]) -> Tensor:
        """The algorithm's loss per sampled position, on the recorded log-probs."""
        advantages = [row.advantage for row in rows for _ in row.positions]
        advantages_P = torch.tensor(advantages).to(scores.logprobs_P)
        return self.algorithm.loss(scores.logprobs_P, recorded(rows).to(scores.logprobs_P), advantages_P)

    def publish(self) -> Weights:
        """The weights under the next version."""
        return self.numbered(self.policy.model)

    def numbered(self, model: Any) -> Weights:
        """Another model's weights under the next version: no two sets that a sampler is given share a number."""
        self.version += 1
        return weights_of(model, self.version)

    def save(self, folder: Path) -> None:
        """The model as a Hugging Face folder and the counters as JSON: nothing in a checkpoint is code."""
        save_model(self.policy.model, folder / "model", self.tokenizer)
        state = {"version": self.version, "updates": self.updater.updates, "random": self.random.bit_generator.state}
        (folder / "trainer.json").write_text(json.dumps(state))


def valid_of(group: Group) -> list[Trajectory]:
    """A group's valid trajectories in order of attempt, whatever order they were finished in."""
    return sorted(group.valid, key=lambda trajectory: trajectory.attempt)


def rewards_of(group: Group) -> Any:
    """Rewards of a group's valid trajectories in order of attempt, shape (G,)."""
    return np.array([trajectory.reward for trajectory in valid_of(group)], dtype=np.float64)
