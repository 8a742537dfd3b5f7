"""The loop: draw, collect, learn, publish, load, observe, log, checkpoint; warm-up before it, the test after it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from practicum.curriculum.curriculum import Curriculum
from practicum.errors import PracticumError
from practicum.evaluation import Evaluation, evaluate, evaluated
from practicum.learning.advantages import has_signal
from practicum.learning.trainer import Trainer, rewards_of
from practicum.runs import checkpoint
from practicum.runs.database import Database
from practicum.runs.run import Run
from practicum.sampling.sampler import Sampler
from practicum.simulator.collect import collect
from practicum.simulator.demonstrate import demonstrate, expert
from practicum.simulator.episode import Stage, run_episode
from practicum.tracking.console import Console
from practicum.tracking.tracker import Tracker
from practicum.types import Group, Task, Trajectory, Weights


@dataclass(frozen=True)
class Plan:
    """What is to be done, in numbers."""

    steps: int
    minutes: float
    tasks_per_step: int
    replace_silent_groups: int
    group_size: int
    concurrency: int
    demonstrations: int
    dev_steps: Sequence[int]
    dev_attempts: int
    test_attempts: int
    evaluation_temperature: float
    measure_base: bool
    checkpoint_every: int


@dataclass(frozen=True)
class Parts:
    """What does it: built by `build.py`, introduced to one another here."""

    run: Run
    database: Database
    trackers: Sequence[Tracker]
    console: Console
    "Shows what is under way; one of the trackers, too."
    stage: Stage
    sampler: Sampler
    trainer: Trainer
    curriculum: Curriculum
    splits: Mapping[str, Sequence[Task]]
    "'train', 'dev' and 'test'."
    warm_up: Callable[[Sequence[Trajectory], Sequence[Trajectory]], Iterator[dict[str, float]]]
    "Imitate demonstrations, watched on dev demonstrations; one item per epoch."
    base_weights: Callable[[], Weights]
    stored_weights: Callable[[Path], Weights]
    "Weights of a checkpoint folder."


@dataclass(frozen=True)
class Outcome:
    """What a training run came to."""

    test: Mapping[str, Evaluation]
    "'base', 'warm-up' and 'rl': each measured once, on tasks that nobody learned from or chose by."
    dev: Mapping[int, Evaluation]
    "RL step -> success on dev after it."
    steps: int
    "RL steps really done."
    best_step: int
    "The step whose weights were best on dev; the earliest among equals."
    seconds: Mapping[str, float]
    "Wall time by phase."


async def train(parts: Parts, plan: Plan) -> Outcome:
    """Warm up, learn by reinforcement, choose on dev, measure on test once.

    Raises PracticumError when no attempt of a step could be scored. Whatever was collected is in the database.
    """
    seconds: dict[str, float] = {}
    with timed(seconds, "warm-up"):
        await imitate(parts, plan)
    keep(parts, 0, ())
    await parts.sampler.load(parts.trainer.publish())
    dev: dict[int, Evaluation] = {}
    with timed(seconds, "dev"):
        await measure_dev(parts, plan, dev, 0)
    deadline = time.monotonic() + 60 * plan.minutes if plan.minutes else float("inf")
    step, over = 0, False
    with parts.console.phase("reinforcement", plan.steps) as phase:
        while step < plan.steps and not over:
            step += 1
            with timed(seconds, "rl"):
                await one_step(parts, plan, step)
            over = time.monotonic() >= deadline
            if step in plan.dev_steps or step == plan.steps or over:
                with timed(seconds, "dev"):
                    await measure_dev(parts, plan, dev, step)
            if step in dev or step % plan.checkpoint_every == 0:
                keep(parts, step, {0, best_of(dev)})
            phase.advance()
    with timed(seconds, "test"):
        test = await final_test(parts, plan, best_of(dev))
    return Outcome(test, dev, step, best_of(dev), seconds)


async def imitate(parts: Parts, plan: Plan) -> None:
    """Demonstrations of the first training tasks, then epochs until dev no longer improves."""
    if plan.demonstrations == 0:
        return
    shown = await demonstrations(parts, parts.splits["train"][: plan.demonstrations])
    watched = await demonstrations(parts, parts.splits["dev"][: max(1, plan.demonstrations // 2)])
    with parts.console.phase("warm-up") as phase:
        for epoch in parts.warm_up(shown, watched):
            log(parts, {f"warm-up/{name}": value for name, value in epoch.items()}, int(epoch["epoch"]))
            phase.advance(note=f"epochs, loss {epoch['loss']:.3f}, on dev {epoch['dev_loss']:.3f}")


async def demonstrations(parts: Parts, tasks: Sequence[Task]) -> list[Trajectory]:
    """The expert's trajectories, through the same loop as the model's. Raises PracticumError when one fails."""
    shown = [await demonstrate(parts.stage, expert, task, 0) for task in tasks]
    parts.database.add_groups("demonstration", 0, [Group(f"demo:{t.task_id}", t.task_id, (t,)) for t in shown])
    for trajectory in shown:
        if trajectory.success < 1.0:
            raise PracticumError(
                f"the expert fails {trajectory.task_id} ({trajectory.ending}, rewards {dict(trajectory.rewards)}), "
                f"so it cannot be imitated there; correct the task or its solve(). {trajectory.error}"
            )
    return shown


async def one_step(parts: Parts, plan: Plan, step: int) -> None:
    """One step of reinforcement learning, strictly on-policy."""
    began = time.monotonic()
    groups = await practise(parts, plan, step)
    collected = time.monotonic()
    metrics = parts.trainer.learn(groups)
    learned = time.monotonic()
    await parts.sampler.load(parts.trainer.publish())
    published = time.monotonic()
    parts.curriculum.observe(groups)
    credit = parts.trainer.advantages
    advantages = {
        (t.task_id, t.attempt, turn.index): (credit.get((t.task_id, t.attempt), 0.0),) * len(turn.completion.tokens)
        for group in groups
        for t in group.valid
        for turn in t.turns
    }
    parts.database.add_groups("train", step, groups, advantages)
    seconds = {"collect": collected - began, "learn": learned - collected, "publish": published - learned}
    metrics |= described(evaluated(groups, seconds["collect"]))
    metrics |= {f"seconds/{name}": value for name, value in seconds.items()} | {"seconds": published - began}
    log(parts, metrics, step)


async def practise(parts: Parts, plan: Plan, step: int) -> list[Group]:
    """Groups of one step; where asked for, groups without signal are replaced by further draws up to a bound."""
    groups: list[Group] = []
    wanted, spare = plan.tasks_per_step, plan.replace_silent_groups
    while wanted > 0:
        tasks = parts.curriculum.draw(wanted, without=[group.task_id for group in groups])
        episode = partial(run_episode, parts.stage)
        fresh = [
            group
            async for group in collect(
                tasks, plan.group_size, episode, concurrency=plan.concurrency, first_attempt=step * plan.group_size
            )
        ]
        groups += fresh
        silent = sum(not has_signal(rewards_of(group)) for group in fresh)
        wanted = min(silent, spare)
        spare -= wanted
    return groups


def described(result: Evaluation) -> dict[str, float]:
    """Figures of a step's episodes, endings by name."""
    endings = {f"endings/{name}": float(count) for name, count in result.endings.items()}
    return {
        "success": result.interval.estimate,
        "reward": result.reward,
        "turns": result.turns,
        "tokens": result.tokens,
    } | endings


async def measure(parts: Parts, plan: Plan, phase: str, step: int, tasks: Sequence[Task], attempts: int) -> Evaluation:
    """Success of the sampler's present weights; every trajectory is stored under `phase`."""
    stage = replace(parts.stage, temperature=plan.evaluation_temperature)
    with parts.console.phase(phase, len(tasks)) as bar:

        def finished(group: Group) -> None:
            parts.database.add_groups(phase, step, [group])
            bar.advance()

        episode = partial(run_episode, stage)
        result = await evaluate(tasks, attempts, episode, concurrency=plan.concurrency, finished=finished)
    log(parts, {f"{phase}/{name}": value for name, value in described(result).items()}, step)
    return replace(result, groups=())


async def measure_dev(parts: Parts, plan: Plan, dev: dict[int, Evaluation], step: int) -> None:
    """Success on dev after a step, into `dev`."""
    dev[step] = await measure(parts, plan, "dev", step, parts.splits["dev"], plan.dev_attempts)


async def final_test(parts: Parts, plan: Plan, best: int) -> dict[str, Evaluation]:
    """The three policies on the test tasks, at the same random streams, each once."""
    folders = {found.step: found.path for found in checkpoint.complete(parts.run.checkpoints)}
    policies = {"base": parts.base_weights} if plan.measure_base else {}
    if plan.demonstrations:
        policies["warm-up"] = partial(parts.stored_weights, folders[0])
    policies["rl"] = partial(parts.stored_weights, folders[best])
    test = {}
    for name, weights in policies.items():
        await parts.sampler.load(weights())
        test[name] = await measure(parts, plan, f"test/{name}", best, parts.splits["test"], plan.test_attempts)
    return test


def log(parts: Parts, metrics: Mapping[str, float], step: int) -> None:
    """Into the database and to whoever watches."""
    parts.database.add_metrics(step, metrics)
    for tracker in parts.trackers:
        tracker.log(metrics, step)


def best_of(dev: Mapping[int, Evaluation]) -> int:
    """The step with the highest success on dev, the earliest among equals."""
    return max(sorted(dev), key=lambda step: dev[step].interval.estimate)


def keep(parts: Parts, step: int, keep_steps: Collection[int]) -> None:
    """Checkpoint a step, trainer and curriculum; of the older ones only `keep_steps` stay."""

    def write(folder: Path) -> None:
        parts.trainer.save(folder)
        (folder / "curriculum.json").write_text(json.dumps(parts.curriculum.state()))

    checkpoint.save(parts.run.checkpoints, step, write, keep_steps)


class timed:
    """Adds the seconds spent inside to a named sum."""

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self.seconds, self.name = seconds, name

    def __enter__(self) -> None:
        self.began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.name] = self.seconds.get(self.name, 0.0) + time.monotonic() - self.began
