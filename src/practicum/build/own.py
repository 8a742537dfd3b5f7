"""Recipe and arguments of a call, brought together: contradictions are refused, what TOML cannot say is marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from practicum.agents.agent import Agent
from practicum.build.worlds import Own, Splits, check_tasks, tasks_in, world
from practicum.config import AgentConfig, EnvironmentConfig, RunConfig, TasksConfig, checked, load
from practicum.environments.environment import Environment
from practicum.environments.own import Reward, check_agent, name_of, opener_of
from practicum.environments.task_sets import APART, check_ids, digest_of, holds_tasks, overlaps, read_tasks, split_tasks
from practicum.errors import UserError
from practicum.types import Task

Recipe = RunConfig | str | Path | Mapping[str, Any]
"A loaded recipe, the path of one, or its sections as dicts."
Tasks = Sequence[Task] | Mapping[str, Sequence[Task]] | str | Path
"Tasks to be split as the recipe's [tasks] says, the splits themselves, or the path of a JSON-lines file."
SPLITS = ("train", "dev", "test")


def settled(
    recipe: Recipe,
    *,
    tasks: Tasks | None = None,
    environment: Callable[[], Environment] | None = None,
    agent: Agent | None = None,
    reward: Reward | None = None,
    whole: bool = False,
) -> tuple[RunConfig, Own]:
    """The recipe as it is meant by a call, and what the call brings. With `whole` a list of tasks is not split.

    The recipe then says that there is an environment, an agent or tasks of one's own, which ones, and how many tasks:
    it is what a run folder keeps. Raises UserError for what contradicts the recipe or cannot be used.

    Example: settled("refunds.toml", tasks=tasks, environment=Shop)
    """
    config = checked(recipe, "the recipe") if isinstance(recipe, RunConfig) else load(recipe)
    config, opener = with_world(config, environment, reward)
    config = with_agent(config, agent)
    own = Own(open=opener, agent=agent)
    if tasks is None:
        return config, own
    world(config, own)  # a mistake in the recipe is told before a file of tasks is read
    if isinstance(tasks, str | Path):
        config, tasks, own = from_file(config, Path(tasks), own)
    config, splits = with_tasks(config, tasks, whole)
    own = replace(own, splits=splits)
    check_tasks(config, own)
    return config, own


def with_world(
    config: RunConfig, environment: Callable[[], Environment] | None, reward: Reward | None
) -> tuple[RunConfig, Callable[[], Environment] | None]:
    """The recipe with the world of a call, and how that is opened."""
    if environment is not None and reward is not None:
        raise UserError(
            "environment= and reward= both judge an attempt, an environment by its verify(secret); leave one out"
        )
    opener = opener_of(environment, reward)
    if opener is None:
        return config, None
    name = name_of(environment or reward)
    brought = EnvironmentConfig("own", {"name": name})
    if config.environment not in (EnvironmentConfig(), brought):
        options = [f"{key} = {value}" for key, value in config.environment.options.items()]
        said = ", ".join([config.environment.kind, *options])
        raise UserError(
            f"the recipe's environment is {said}, but the call brings {name}; leave [environment] out of the recipe, "
            f"or {'environment' if environment else 'reward'}= out of the call"
        )
    return replace(config, environment=brought), opener


def with_agent(config: RunConfig, agent: Agent | None) -> RunConfig:
    """The recipe with the agent of a call. Raises UserError where the recipe needs one and there is none."""
    if agent is None:
        if config.agent.kind == "own":
            raise UserError(
                "agent.kind is 'own': the agent is brought by a call, such as practicum.train(recipe, agent=…)"
            )
        return config
    check_agent(agent)
    if config.agent.system != AgentConfig().system:
        raise UserError(
            "agent.system would have no effect: agent= is a function of your own, which says itself what its model is "
            "told first; leave it out of the recipe"
        )
    return replace(config, agent=replace(config.agent, kind="own"))


def from_file(config: RunConfig, path: Path, own: Own) -> tuple[RunConfig, Sequence[Task], Own]:
    """The tasks of a file, in our form or, for retail, also in tau-bench's."""
    if config.environment.kind != "retail" or holds_tasks(path):
        return config, read_tasks(path), own
    config, rows = tasks_in(config, path)
    return config, rows.tasks, replace(own, skipped=rows.skipped, invalid=rows.invalid)


def with_tasks(
    config: RunConfig, tasks: Sequence[Task] | Mapping[str, Sequence[Task]], whole: bool
) -> tuple[RunConfig, Splits]:
    """The recipe with the number of a call's tasks and what tells them from others, and the tasks by split."""
    if config.tasks.made:
        raise UserError("tasks.made asks for tasks made by the world, tasks= brings others; leave one of them out")
    if isinstance(tasks, Mapping):
        splits, counts = given_splits(config, tasks)
    elif whole:
        return config, {"all": list(tasks)}
    else:
        counts = {name: getattr(config.tasks, name) for name in SPLITS}
        splits = split_tasks(list(tasks), counts, config.tasks.seed)
    digest = digest_of(splits)
    if config.tasks.digest not in ("", digest):
        raise UserError(
            f"the recipe is of a call with other tasks: its tasks.digest is {config.tasks.digest}, that of tasks= is "
            f"{digest}; give the same tasks, or leave tasks.digest out"
        )
    counted = replace(config, tasks=replace(config.tasks, **counts, digest=digest))
    return checked(counted, "the recipe with tasks="), splits


def given_splits(config: RunConfig, tasks: Mapping[str, Sequence[Task]]) -> tuple[Splits, dict[str, int]]:
    """Splits as they were given, and their sizes. Raises UserError for other names, other sizes and what they share."""
    if unknown := sorted(tasks.keys() - set(SPLITS)):
        raise UserError(f"tasks= has a split {', '.join(unknown)}; known: {', '.join(SPLITS)}")
    splits = {name: list(tasks[name]) for name in SPLITS if name in tasks}
    for found in splits.values():
        check_ids(found)
    if problems := overlaps(splits, APART):
        raise UserError("tasks= cannot be used:\n" + "\n".join(problems))
    counts = {name: len(found) for name, found in splits.items()}
    for name, count in counts.items():
        said = getattr(config.tasks, name)
        if said not in (getattr(TasksConfig(), name), count):
            raise UserError(f"tasks.{name} is {said}, but tasks= has {count} of them; leave it out of the recipe")
    return splits, counts
