"""Success of one policy on a set of tasks, with its interval and everything that was spent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from practicum.errors import PracticumError
from practicum.runs.database import Database
from practicum.simulator.collect import Episode, collect
from practicum.simulator.episode import Stage, run_episode
from practicum.statistics.intervals import Interval, success_interval
from practicum.tracking.console import Console
from practicum.types import Ending, Group, Task


@dataclass(frozen=True)
class Evaluation:
    """What was measured.

    Example: Evaluation(interval=Interval(0.62, 0.54, 0.70, ...), endings={"finished": 158, "out_of_turns": 2}, ...)
    """

    interval: Interval
    successes: Mapping[str, tuple[float, ...]]
    "Task id -> success of each valid attempt."
    endings: Mapping[str, int]
    reward: float
    "The number learned from, mean over valid episodes."
    turns: float
    "Model calls per valid episode, mean."
    tokens: float
    "Sampled tokens per valid episode, mean."
    seconds: float
    "Wall time of the whole evaluation."
    groups: tuple[Group, ...] = field(repr=False, default=())

    def metrics(self) -> dict[str, float]:
        """The figures as numbers by name, as a step logs them."""
        endings = {f"endings/{name}": float(count) for name, count in self.endings.items()}
        return {
            "success": self.interval.estimate,
            "reward": self.reward,
            "turns": self.turns,
            "tokens": self.tokens,
        } | endings

    def summary(self) -> dict[str, object]:
        """The figures as plain values for JSON."""
        return {
            "success": self.interval.estimate,
            "ci_low": self.interval.low,
            "ci_high": self.interval.high,
            "n_tasks": self.interval.n_tasks,
            "n_attempts": self.interval.n_attempts,
            "turns": round(self.turns, 3),
            "tokens": round(self.tokens, 2),
            "endings": dict(self.endings),
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True)
class Outcome:
    """What a training run came to."""

    test: Mapping[str, Evaluation]
    "'base', 'warm-up' and 'rl' (or 'imitation'): each measured once, on tasks that nobody learned from or chose by."
    dev: Mapping[int, Evaluation]
    "Step -> success on dev after it."
    steps: int
    "Steps really done."
    best_step: int
    "The step whose weights were best on dev; the earliest among equals."
    seconds: Mapping[str, float]
    "Wall time by phase."
    compute: Mapping[str, float]
    "Forward-token passes by phase: 'warm-up', 'rl' or 'imitation'."


def best_of(dev: Mapping[int, Evaluation]) -> int:
    """The step with the highest success on dev, the earliest among equals."""
    return max(sorted(dev), key=lambda step: dev[step].interval.estimate)


async def evaluate(
    tasks: Sequence[Task],
    attempts: int,
    episode: Episode,
    *,
    concurrency: int,
    lockstep: bool = False,
    finished: Callable[[Group], None] = lambda group: None,
    kept: Sequence[Group] = (),
) -> Evaluation:
    """Play every task `attempts` times and score what was done. Raises PracticumError when no attempt is valid.

    Discarded attempts (see Ending) are in no statistic, but counted in `endings`. `kept` are groups played before
    by the same policy; they count as if they had been played now.
    """
    began = time.monotonic()
    groups = list(kept)
    async for group in collect(tasks, attempts, episode, concurrency=concurrency, lockstep=lockstep):
        groups.append(group)
        finished(group)
    return evaluated(groups, time.monotonic() - began)


@dataclass(frozen=True)
class Place:
    """Where the trajectories of an evaluation are stored: Place(database, "test/rl", step=20)."""

    database: Database
    phase: str
    step: int


async def resumed(
    stage: Stage,
    tasks: Sequence[Task],
    attempts: int,
    place: Place,
    load: Callable[[], Awaitable[None]],
    console: Console,
    *,
    concurrency: int,
    lockstep: bool,
) -> Evaluation:
    """`evaluate` what `load` gives the sampler, under a progress bar, storing each task when it is finished.

    Tasks stored before are not played again.
    """
    kept = [g for g in place.database.groups(place.phase, place.step) if len(g.trajectories) == attempts]
    played = {group.task_id for group in kept}
    left = [task for task in tasks if task.id not in played]
    if left:
        await load()
    with console.phase(place.phase, len(tasks), len(kept)) as bar:

        def finished(group: Group) -> None:
            place.database.add_groups(place.phase, place.step, [group])
            bar.advance()

        episode = partial(run_episode, stage)
        rest: dict[str, Any] = {"concurrency": concurrency, "lockstep": lockstep, "finished": finished, "kept": kept}
        return await evaluate(left, attempts, episode, **rest)


def evaluated(groups: Sequence[Group], seconds: float) -> Evaluation:
    """The figures of groups already played, in an order that does not depend on who finished first."""
    groups = sorted(groups, key=lambda group: group.task_id)
    played = [trajectory for group in groups for trajectory in group]
    endings = Counter(trajectory.ending.value for trajectory in played)
    successes = {group.task_id: tuple(t.success for t in group.valid) for group in groups if group.valid}
    first = next((t.error for t in played if t.error), "no attempt was made")
    if not successes:
        raise PracticumError(f"no attempt could be scored; endings: {dict(endings)}; the first failure was:\n{first}")
    if {t.ending for group in groups for t in group.valid} == {Ending.AGENT_FAILED}:
        raise PracticumError(f"the agent's code failed in every attempt ({len(played)}); the first time:\n{first}")
    if not any(trajectory.turns for trajectory in played):
        raise PracticumError(
            f"no episode came to a single model call; endings: {dict(endings)}. Does the opening prompt fit into "
            "simulator.context_tokens and the model's own context?"
        )
    valid = [trajectory for group in groups for trajectory in group.valid]
    return Evaluation(
        interval=success_interval(successes),
        successes=successes,
        endings={ending.value: endings[ending.value] for ending in Ending if endings[ending.value]},
        reward=sum(t.reward for t in valid) / len(valid),
        turns=sum(len(t.turns) for t in valid) / len(valid),
        tokens=sum(turn.completion.size for t in valid for turn in t.turns) / len(valid),
        seconds=seconds,
        groups=tuple(groups),
    )
