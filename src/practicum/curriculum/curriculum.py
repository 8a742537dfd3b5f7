"""Which tasks are practised next."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from practicum.types import Group, Task, stream_seed


class Curriculum:
    """Draws every task once per pass, each pass in an order of its own that follows from the seed.

    Example: Curriculum(tasks, seed=0).draw(8) -> eight different tasks
    """

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self.tasks = {task.id: task for task in tasks}
        self.seed = seed
        self.passes = 0
        self.waiting: list[str] = []
        self.solved: dict[str, tuple[int, int]] = {}
        "Task id -> (successes, valid attempts) seen so far."

    def draw(self, n: int, without: Collection[str] = ()) -> list[Task]:
        """The next n different tasks, none of the ids `without`; fewer where there are no more.

        A task comes again only when all others have come; one that must wait keeps its place in the order.
        """
        drawn: list[str] = []
        for _ in range(min(n, len(self.tasks.keys() - set(without)))):
            while not (ready := [name for name in self.waiting if name not in drawn and name not in without]):
                order = sorted(self.tasks)
                random.Random(stream_seed(self.seed, "curriculum", self.passes)).shuffle(order)
                self.waiting, self.passes = self.waiting + order, self.passes + 1
            self.waiting.remove(ready[0])
            drawn.append(ready[0])
        return [self.tasks[task_id] for task_id in drawn]

    def observe(self, groups: Iterable[Group]) -> None:
        """Learn from how the attempts went."""
        for group in groups:
            successes, attempts = self.solved.get(group.task_id, (0, 0))
            for trajectory in group.valid:
                successes, attempts = successes + round(trajectory.success), attempts + 1
            self.solved[group.task_id] = (successes, attempts)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"passes": self.passes, "waiting": self.waiting, "solved": self.solved}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.passes, self.waiting = state["passes"], list(state["waiting"])
        self.solved = {task_id: (counts[0], counts[1]) for task_id, counts in state["solved"].items()}
