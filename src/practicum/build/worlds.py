"""Where episodes happen, and which tasks there are: of the recipe, or brought by a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from practicum.agents.agent import Agent
from practicum.config import RunConfig
from practicum.environments.environment import Environment, Solvable, close
from practicum.environments.own import Answers
from practicum.errors import UserError, boundary
from practicum.types import Task, stream_seed

Splits = Mapping[str, Sequence[Task]]


@dataclass(frozen=True)
class World:
    """A kind of environment with the tasks it has."""

    open: Callable[[], Environment]
    splits: Callable[[int, int, int, int], Splits] | None = None
    "(train, dev, test, seed) -> disjoint task sets; None for a world that has no tasks of its own."
    made: Callable[[int, int, Splits], Sequence[Task]] | None = None
    "(n, seed, splits) -> further training tasks, none of which is in the splits; None for a world that makes none."
    needs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    'What a task must bring: {"data": ("lamp",), "secret": ("button",)}; empty where nothing is known of that.'


@dataclass(frozen=True)
class Own:
    """What a call brings beside its recipe; None is what the recipe says.

    Example: Own(splits={"train": [...], "dev": [...], "test": [...]}, open=Shop)
    """

    splits: Splits | None = None
    open: Callable[[], Environment] | None = None
    "A fresh environment for each episode."
    agent: Agent | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    "Of a file of tasks, id to what the row needs that is not there."
    invalid: Mapping[str, str] = field(default_factory=dict)
    "Of a file of tasks, id to why its solution cannot be carried out."


NOTHING = Own()


def world(config: RunConfig, own: Own = NOTHING) -> World:
    """The environment of a recipe or of a call. Raises UserError for an unknown kind or option."""
    kind, options = config.environment.kind, dict(config.environment.options)
    if own.open is not None:
        return World(own.open)
    if kind == "own":
        raise UserError(
            f"environment.kind is 'own': {options.get('name', 'an environment')} is brought by a call, such as "
            "practicum.train(recipe, tasks=…, environment=…); the command line knows those that come with practicum"
        )
    if kind == "retail":
        from practicum.environments import retail, retail_tasks

        check_options(retail.Retail, kind, options)
        shop = retail.Retail(**options)
        return World(
            open=lambda: retail.Retail(**options),
            splits=lambda train, dev, test, seed: retail_tasks.splits(
                shop.levels, train, dev, test, seed, strict=shop.strict
            ),
            made=lambda n, seed, splits: retail_tasks.generate(
                n,
                stream_seed("made", seed),
                retail_tasks.training_users(splits),
                shop.levels,
                known=[task for tasks in splits.values() for task in tasks],
                strict=shop.strict,
            ),
            needs={"data": ("user_id",), "secret": ("changes", "actions")},
        )
    if kind == "tiny":
        from practicum.environments import tiny

        check_options(tiny.Lamps, kind, options)
        return World(tiny.Lamps, tiny.splits, needs={"data": ("lamp",), "secret": ("button",)})
    raise UserError(f"environment.kind {kind!r} is unknown; known: retail, tiny")


def check_options(cls: type, kind: str, options: Mapping[str, Any]) -> None:
    """Raise UserError for an option that the environment's constructor does not take."""
    known = [name for name in inspect.signature(cls).parameters if name != "self"]
    for name in options:
        if name not in known:
            raise UserError(
                f"unknown key environment.{name} for kind {kind!r}; known here: {', '.join(['kind', *known])}"
            )


def tasks_of(config: RunConfig, own: Own = NOTHING) -> Splits:
    """The splits that a call brought, else the recipe's three; fresh tasks, where it asks for some, for the first."""
    tasks, place = config.tasks, world(config, own)
    if own.splits is not None:
        return own.splits
    if tasks.digest:
        raise UserError(
            f"the recipe is of a call that brought its own tasks (tasks.digest is {tasks.digest}); give them again as "
            "tasks=, or leave tasks.digest out"
        )
    if place.splits is None:
        raise UserError("an environment of your own comes with its tasks: give them as tasks=")
    splits = place.splits(tasks.train, tasks.dev, tasks.test, tasks.seed)
    if not tasks.made:
        return splits
    if place.made is None:
        raise UserError(f"tasks.made: the {config.environment.kind} environment makes no tasks; leave it out")
    return {**splits, "train": place.made(tasks.made, tasks.seed, splits)}


def tasks_in(config: RunConfig, path: Path) -> tuple[RunConfig, Any]:
    """Retail's tasks in a file of tau-bench's rows (with tasks, skipped, invalid), and the config that can play them.

    Whatever level is built is read; the tools shown are those of the recipe's levels and of the levels found.
    Raises UserError for a broken file.
    """
    from practicum.environments import retail, retail_rows

    world(config)  # a mistake in the recipe is told before the file is read
    options = dict(config.environment.options)
    shop = retail.Retail(**options)
    rows = retail_rows.sort_rows(retail_rows.read_rows(path), strict=shop.strict)
    options["levels"] = sorted({*shop.levels, *retail_rows.levels_needed(rows.tasks)})
    return replace(config, environment=replace(config.environment, options=options)), rows


def check_tasks(config: RunConfig, own: Own) -> None:
    """Raise UserError where a task that a call brought lacks what the recipe's world reads in it."""
    needs = world(config, own).needs
    for task in (task for tasks in (own.splits or {}).values() for task in tasks):
        for part, names in needs.items():
            if lacking := [name for name in names if name not in getattr(task, part)]:
                raise UserError(
                    f"task {task.id}: its {part!r} lacks {', '.join(lacking)}; the {config.environment.kind} "
                    f"environment reads {', '.join(names)} there: write it into the task, or bring an environment of "
                    "your own"
                )


def check_rewards(config: RunConfig, task: Task, own: Own = NOTHING) -> None:
    """Raise UserError where the recipe weighs a reward that the environment's verifier does not give.

    What a judge of answers gives may depend on the answer, and is seen in the first episodes. Raises Failure where
    the environment cannot play the task.
    """
    environment = world(config, own).open()
    if isinstance(environment, Answers):
        return
    try:
        with boundary(f"the environment ({config.environment.kind}), asked to play {task.id}", UserError):
            environment.reset(task)
            given = environment.verify(task.secret)
    finally:
        close(environment)
    if unknown := sorted(config.simulator.rewards.keys() - given.keys()):
        raise UserError(
            f"simulator.rewards names {', '.join(unknown)}; {config.environment.kind} gives {', '.join(given)}"
        )


def check_expert(config: RunConfig, own: Own = NOTHING) -> None:
    """Raise UserError where demonstrations are asked of an expert that the environment does not have."""
    imitation, environment = config.imitation, world(config, own).open()
    close(environment)
    if imitation.demonstrations and imitation.demonstrator == "expert" and not isinstance(environment, Solvable):
        raise UserError(
            f"imitation.demonstrations is {imitation.demonstrations}, but the environment has no expert: give it "
            "solve(secret) -> calls, or set imitation.demonstrations = 0"
        )
