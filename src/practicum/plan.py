"""What a training run is to do, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """The numbers of the loop, as `build` reads them from a recipe.

    Example: plan = plan_of(config.load("recipes/retail.toml")); plan.steps -> 20
    """

    steps: int
    minutes: float
    budget: float
    "Forward-token passes that the steps may take; 0 means no bound."
    learns_from: str
    "'reward' (reinforcement learning) or 'demonstrations' (further imitation)."
    rows_per_update: int
    "Of further imitation."
    tasks_per_step: int
    replace_silent_groups: int
    group_size: int
    concurrency: int
    lockstep: bool
    demonstrations: int
    warms_up: bool
    "False where demonstrations are only for further imitation."
    dev_steps: Sequence[int]
    dev_attempts: int
    test_attempts: int
    evaluation_temperature: float
    measure_base: bool
    checkpoint_every: int

    @property
    def learned_by(self) -> str:
        """What the policy after the steps is called: 'rl', or 'imitation' where it learned from demonstrations."""
        return "rl" if self.learns_from == "reward" else "imitation"
