"""The loop: draw, collect, learn, publish, load, observe, log, checkpoint; warm-up before it, the test after it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from practicum.curriculum.curriculum import Curriculum
from practicum.evaluation import Evaluation, Outcome, Place, best_of, evaluated, resumed
from practicum.learning.advantages import has_signal
from practicum.learning.trainer import Trainer, rewards_of
from practicum.ledger import Ledger, entries
from practicum.plan import Plan
from practicum.runs import checkpoint
from practicum.runs.database import Database
from practicum.runs.run import Run
from practicum.sampling.sampler import Sampler
from practicum.simulator.collect import collect
from practicum.simulator.episode import Stage, run_episode
from practicum.tracking.console import Console
from practicum.tracking.tracker import Tracker, timed
from practicum.types import Group, Step, Task, Trajectory, Weights


@dataclass(frozen=True)
class Parts:
    """What does it: built by `build`, introduced to one another here."""

    run: Run
    database: Database
    trackers: Sequence[Tracker]
    console: Console
    "Shows what is under way; one of the trackers, too."
    stage: Stage
    demonstrate: Callable[[Sequence[Task]], Awaitable[list[Trajectory]]]
    "Tasks to trajectories that show how they are done; of a model as demonstrator without those it cannot do."
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
    passes: Callable[[], float]
    "Forward-token passes of this process so far: one for a token read or sampled, three for one trained on."
    ledger: Ledger
    "Of whoever works in a step."


async def train(parts: Parts, plan: Plan, resume: bool = False) -> Outcome:
    """Warm up, learn by reinforcement, choose on dev, measure on test once.

    `resume` goes on behind the newest checkpoint. Raises PracticumError when no attempt of a step could be scored.
    Whatever was collected is in the database.
    """
    dev: dict[int, Evaluation] = {}
    seconds: dict[str, float] = {}
    async for _ in steps(parts, plan, resume, dev, seconds):
        pass
    with timed(seconds, "test"):
        test = await final_test(parts, plan, best_of(dev))
    compute = {"warm-up": spent(parts, "warm-up/compute"), plan.learned_by: spent(parts, "compute")}
    return Outcome(test, dev, max(dev), best_of(dev), seconds, compute)


async def steps(
    parts: Parts, plan: Plan, resume: bool, dev: dict[int, Evaluation], seconds: dict[str, float]
) -> AsyncGenerator[Step]:
    """Warm-up, then one step after another; success on dev and wall time are put into `dev` and `seconds`.

    Whoever leaves between two steps leaves a checkpoint of the last one.
    """
    newest = checkpoint.newest(parts.run.checkpoints) if resume else None
    step, before = go_on(parts, newest) if newest else await begin(parts, plan)
    seconds |= before
    for done in range(step + 1):
        if done == 0 or is_measured(parts, plan, done, seconds if done == step else {}):
            await measure_dev(parts, plan, dev, done, seconds)
    learn = one_step if plan.learns_from == "reward" else imitate_further
    with parts.console.phase("reinforcement" if learn is one_step else "imitation", plan.steps, step) as phase:
        while step < plan.steps and not is_over(parts, plan, step, seconds):
            step += 1
            with timed(seconds, plan.learned_by):
                found = await learn(parts, plan, step)
            if is_measured(parts, plan, step, seconds):
                await measure_dev(parts, plan, dev, step, seconds)
            if is_kept := step in dev or step % plan.checkpoint_every == 0:
                keep(parts, step, {0, best_of(dev)}, seconds)
            phase.advance()
            try:
                yield found
            except GeneratorExit:
                if not is_kept:
                    keep(parts, step, {0, best_of(dev)}, seconds)
                raise


async def begin(parts: Parts, plan: Plan) -> tuple[int, dict[str, float]]:
    """Warm-up and the checkpoint of step 0; whatever an earlier process left unfinished is forgotten."""
    seconds: dict[str, float] = {}
    parts.database.forget_after(-1)
    with timed(seconds, "warm-up"):
        await imitate(parts, plan)
    parts.trainer.refer()
    keep(parts, 0, (), seconds)
    return 0, seconds


def go_on(parts: Parts, newest: checkpoint.Checkpoint) -> tuple[int, dict[str, float]]:
    """Everything as it was when a checkpoint was written, later things forgotten; its step and the seconds spent."""
    parts.trainer.restore(newest.path)
    parts.curriculum.restore(json.loads((newest.path / "curriculum.json").read_text()))
    parts.database.forget_after(newest.step)
    parts.console.say(f"resumed behind step {newest.step}")
    return newest.step, json.loads((newest.path / "seconds.json").read_text())


def is_over(parts: Parts, plan: Plan, step: int, seconds: Mapping[str, float]) -> bool:
    """True when the minutes or the passes granted to the steps are spent after a step."""
    late = bool(plan.minutes) and seconds.get(plan.learned_by, 0.0) >= 60 * plan.minutes
    return late or (bool(plan.budget) and spent(parts, "compute", step) >= plan.budget)


def is_measured(parts: Parts, plan: Plan, step: int, seconds: Mapping[str, float]) -> bool:
    """True where dev is measured after a step: where the plan says so, and after the last."""
    return step in plan.dev_steps or step == plan.steps or is_over(parts, plan, step, seconds)


def spent(parts: Parts, name: str, step: float = math.inf) -> float:
    """Forward-token passes up to a step, of the warm-up ("warm-up/compute") or of the steps ("compute")."""
    return sum(value for found, _, value in parts.database.metrics(name) if found <= step)


async def imitate(parts: Parts, plan: Plan) -> None:
    """Demonstrations of the first training tasks, then epochs until dev no longer improves."""
    if plan.demonstrations == 0:
        return
    shown = await demonstrations(parts, parts.splits["train"][: plan.demonstrations])
    watched = await demonstrations(parts, parts.splits["dev"][: max(1, plan.demonstrations // 2)])
    if not plan.warms_up:
        return
    with parts.console.phase("warm-up") as phase:
        before = parts.passes()
        for epoch in parts.warm_up(shown, watched):
            found = epoch | {"compute": parts.passes() - before}
            before = parts.passes()
            log(parts, {f"warm-up/{name}": value for name, value in found.items()}, int(epoch["epoch"]))
            phase.advance(note=f"epochs, loss {epoch['loss']:.3f}, on dev {epoch['dev_loss']:.3f}")


async def demonstrations(parts: Parts, tasks: Sequence[Task]) -> list[Trajectory]:
    """How tasks are done, through the same loop as a model's attempts. PracticumError where nobody can show it."""
    shown = await parts.demonstrate(tasks)
    parts.database.add_groups("demonstration", 0, [Group(f"demo:{t.task_id}", t.task_id, (t,)) for t in shown])
    return shown


async def one_step(parts: Parts, plan: Plan, step: int) -> Step:
    """One step of reinforcement learning, strictly on-policy."""
    before, readings = parts.passes(), [parts.ledger.read()]
    await parts.sampler.load(parts.trainer.publish())
    readings.append(parts.ledger.read())
    groups = sorted(await practise(parts, plan, step), key=lambda group: group.task_id)
    readings.append(parts.ledger.read())
    learning = parts.trainer.learn(groups)
    readings.append(parts.ledger.read())
    parts.curriculum.observe(groups)
    parts.database.add_groups("train", step, groups, parts.trainer.advantages)
    readings.append(parts.ledger.read())
    found = entries(readings, groups, learning, parts.ledger.cost) | {"compute": parts.passes() - before}
    metrics = learning | evaluated(groups, found["seconds/collect"]).metrics() | found
    log(parts, metrics, step)
    return Step(step, tuple(groups), metrics)


async def imitate_further(parts: Parts, plan: Plan, step: int) -> Step:
    """One step of further imitation on the training demonstrations: an epoch, or an equal share of the budget."""
    began, before = time.monotonic(), parts.passes()
    known = {task.id for task in parts.splits["train"]}
    shown = [t for g in parts.database.groups("demonstration", 0) for t in g if t.task_id in known]
    share = plan.budget * step / plan.steps - spent(parts, "compute")
    metrics = parts.trainer.imitate(shown, plan.rows_per_update, share if plan.budget else 0.0)
    metrics |= {"seconds": time.monotonic() - began, "compute": parts.passes() - before}
    log(parts, metrics, step)
    return Step(step, (), metrics)


async def practise(parts: Parts, plan: Plan, step: int) -> list[Group]:
    """Groups of one step; where asked for, groups without signal are replaced by further draws up to a bound."""
    groups: list[Group] = []
    wanted, spare = plan.tasks_per_step, plan.replace_silent_groups
    while wanted > 0:
        tasks = parts.curriculum.draw(wanted, without=[group.task_id for group in groups])
        episode = partial(run_episode, parts.stage)
        n, first = plan.group_size, step * plan.group_size
        rest: dict[str, Any] = {"concurrency": plan.concurrency, "first_attempt": first, "lockstep": plan.lockstep}
        fresh = [group async for group in collect(tasks, n, episode, **rest)]
        groups += fresh
        silent = sum(not has_signal(rewards_of(group)) for group in fresh)
        wanted = min(silent, spare)
        spare -= wanted
    return groups


async def measure(
    parts: Parts, plan: Plan, phase: str, step: int, weights: Callable[[], Weights], attempts: int
) -> Evaluation:
    """Success of some weights on the split that the phase is named after; every trajectory is stored under `phase`."""
    result = await resumed(
        replace(parts.stage, temperature=plan.evaluation_temperature),
        parts.splits[phase.split("/")[0]],
        attempts,
        Place(parts.database, phase, step),
        lambda: parts.sampler.load(weights()),
        parts.console,
        concurrency=plan.concurrency,
        lockstep=plan.lockstep,
    )
    if step not in {logged for logged, _, _ in parts.database.metrics(f"{phase}/success")}:
        log(parts, {f"{phase}/{name}": value for name, value in result.metrics().items()}, step)
    return replace(result, groups=())


async def measure_dev(
    parts: Parts, plan: Plan, dev: dict[int, Evaluation], step: int, seconds: dict[str, float]
) -> None:
    """Success on dev after a step, into `dev`."""
    with timed(seconds, "dev"):
        dev[step] = await measure(parts, plan, "dev", step, parts.trainer.publish, plan.dev_attempts)


async def final_test(parts: Parts, plan: Plan, best: int) -> dict[str, Evaluation]:
    """The policies on the test tasks, at the same random streams, each once."""
    folders = {found.step: found.path for found in checkpoint.complete(parts.run.checkpoints)}
    policies = {"base": parts.base_weights} if plan.measure_base else {}
    if plan.warms_up:
        policies["warm-up"] = partial(parts.stored_weights, folders[0])
    if plan.steps:
        policies[plan.learned_by] = partial(parts.stored_weights, folders[best])
    return {
        name: await measure(parts, plan, f"test/{name}", best, weights, plan.test_attempts)
        for name, weights in policies.items()
    }


def log(parts: Parts, metrics: Mapping[str, float], step: int) -> None:
    """Into the database and to whoever watches."""
    parts.database.add_metrics(step, metrics)
    for tracker in parts.trackers:
        tracker.log(metrics, step)


def keep(parts: Parts, step: int, keep_steps: Collection[int], seconds: Mapping[str, float]) -> None:
    """Checkpoint a step; of the older ones only `keep_steps` stay, without what it takes to go on."""

    def write(folder: Path) -> None:
        parts.trainer.save(folder)
        (folder / "curriculum.json").write_text(json.dumps(parts.curriculum.state()))
        (folder / "seconds.json").write_text(json.dumps(seconds))

    checkpoint.save(parts.run.checkpoints, step, write, keep_steps, newest_only=checkpoint.STATE)
