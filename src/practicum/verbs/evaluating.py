"""Success of a model or of a scripted policy on a recipe's tasks, or on a user's file of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from practicum import build
from practicum.agents.agent import Agent
from practicum.config import RunConfig
from practicum.environments.environment import Environment
from practicum.environments.own import Reward
from practicum.errors import UserError
from practicum.evaluation import Evaluation
from practicum.simulator.demonstrate import POLICIES, demonstrate, worked_examples
from practicum.simulator.episode import Stage, run_episode
from practicum.types import Group, Message, Task
from practicum.verbs.interruption import interruptible


@dataclass(frozen=True)
class Measured:
    """An evaluation and what could not be evaluated."""

    evaluation: Evaluation | None
    "None when no task was left to evaluate."
    skipped: Mapping[str, str] = field(default_factory=dict)
    "Row id to what it needs that is not built."
    invalid: Mapping[str, str] = field(default_factory=dict)
    "Row id to why its gold actions cannot be carried out."

    def summary(self) -> dict[str, Any]:
        """All figures as plain values; without any task success is null."""
        nothing: dict[str, Any] = {
            "success": None,
            "ci_low": None,
            "ci_high": None,
            "n_tasks": 0,
            "n_attempts": 0,
            "endings": {},
        }
        figures = self.evaluation.summary() if self.evaluation else nothing
        return {**figures, "skipped": dict(self.skipped), "invalid": dict(self.invalid)}


def evaluate(
    recipe: build.Recipe,
    *,
    tasks: build.Tasks | None = None,
    environment: Callable[[], Environment] | None = None,
    agent: Agent | None = None,
    reward: Reward | None = None,
    model: str | None = None,
    policy: str | None = None,
    split: str = "test",
    attempts: int = 1,
    examples: int = 0,
    out: str | Path | None = None,
) -> Measured:
    """Success of a model, or of a scripted policy (expert, noop, random), on a split, or with split="all" on all tasks.

    For recipe, tasks, environment, agent and reward see `train`: with the same ones the splits are the same, so that
    "test" holds what was not practised. A script speaks through the default loop, whatever agent is given.
    With `examples` the model is shown so many training tasks as the expert does them before each request.
    Raises UserError for what cannot be done: an unknown model, policy or split, a broken tasks file, no torch. With
    `out` every trajectory is written to a new database there, each task as it is finished. KeyboardInterrupt passes and
    says how far it came.

    Example: evaluate("recipes/retail.toml", policy="expert").summary()["success"] -> 1.0
    """
    if attempts < 1:
        raise UserError(f"--attempts must be at least 1, found {attempts}")
    if model == "":
        raise UserError("--model is empty; name a known model, a folder or a run")
    if model is not None and policy is not None:
        raise UserError("a model and a policy exclude each other: a script speaks instead of a model")
    if policy is not None and policy not in POLICIES:
        raise UserError(f"there is no policy {policy!r}; known: {', '.join(POLICIES)}")
    if examples < 0 or (examples and policy is not None):
        raise UserError(
            f"--examples {examples}: a number from 0 upwards, of examples shown to a model; a policy reads none"
        )
    if examples and agent is not None:
        raise UserError(f"--examples {examples}: they are shown by the default loop; an agent of your own reads none")
    whole = split == "all"
    config, own = build.settled(recipe, tasks=tasks, environment=environment, agent=agent, reward=reward, whole=whole)
    chosen = tasks_of_split(config, own, split)
    if split == "test" and policy is None:
        check_unseen(Path(model or config.model.name), chosen)
    out = Path(out) if out is not None else None
    with stored(out) as store:
        if policy is not None:
            stage = build.scripted_stage(config, own)
            episode: Any = partial(demonstrate, stage, POLICIES[policy])
        else:
            shown = examples_for(config, replace(own, splits=None) if whole else own, examples, chosen)
            stage = build.model_stage(config, model or config.model.name, shown, own)
            episode = partial(run_episode, stage)
        if not chosen:
            return Measured(None, own.skipped, own.invalid)
        done: list[Group] = []

        def finished(group: Group) -> None:
            store(group)
            done.append(group)

        try:
            result = interruptible(measured(stage, chosen, attempts, episode, config.simulator.concurrency, finished))
        except KeyboardInterrupt:
            where = f"their trajectories are in {out}" if out else "with --out FILE they would have been kept"
            raise KeyboardInterrupt(f"{len(done)} of {len(chosen)} tasks were finished; {where}") from None
    return Measured(result, own.skipped, own.invalid)


def check_unseen(model: Path, chosen: Sequence[Task]) -> None:
    """Raise UserError where a run practised tasks that are to be its test, or chose its checkpoint by them."""
    from practicum.runs.database import Database
    from practicum.runs.run import CONFIG, Run

    for folder in (model, *model.parents) if model.exists() else ():  # a known model's name is no path
        if (folder / CONFIG).is_file() and Run(folder).database.is_file():
            with Database(Run(folder).database, read_only=True) as database:
                seen = {
                    task_id
                    for (phase, _), tasks in database.successes().items()
                    if phase in ("demonstration", "train", "dev")
                    for task_id in tasks
                }
            if known := sorted(seen & {task.id for task in chosen}):
                raise UserError(
                    f"{len(known)} of the {len(chosen)} test tasks, such as {known[0]}, were practised by {folder} or "
                    f"used to choose its checkpoint; measure it with its own recipe, {folder / CONFIG}, or ask for "
                    "another --split"
                )
            return


def tasks_of_split(config: RunConfig, own: build.Own, split: str) -> list[Task]:
    """One of the splits of a recipe or a call, or all of them."""
    splits = build.tasks_of(config, own)
    if split not in (*splits, "all"):
        raise UserError(f"there is no split {split!r}; known: {', '.join(splits)}, all")
    return [task for name, tasks in splits.items() if split in (name, "all") for task in tasks]


def examples_for(config: RunConfig, own: build.Own, count: int, measured: Sequence[Task]) -> Sequence[Message]:
    """The first training tasks as the expert does them. Raises UserError where they are among those to be measured."""
    if count == 0:
        return ()
    train = tasks_of_split(config, own, "train")
    if count > len(train):
        raise UserError(f"--examples {count} is more than the recipe's {len(train)} training tasks")
    shown = train[:count]
    if overlap := sorted({task.id for task in shown} & {task.id for task in measured}):
        raise UserError(f"--examples shows {', '.join(overlap)} to the model, so it cannot be measured there")
    return interruptible(worked_examples(build.scripted_stage(config, own), shown))


async def measured(
    stage: Stage,
    tasks: list[Task],
    attempts: int,
    episode: Any,
    concurrency: int,
    finished: Callable[[Group], None],
) -> Evaluation:
    """Evaluate under a progress bar."""
    from practicum import evaluation
    from practicum.tracking.console import Console

    try:
        with Console() as console, console.phase("tasks", len(tasks)) as bar:

            def advance(group: Group) -> None:
                finished(group)
                bar.advance()

            return await evaluation.evaluate(tasks, attempts, episode, concurrency=concurrency, finished=advance)
    finally:
        await stage.sampler.close()


@contextmanager
def stored(path: Path | None) -> Iterator[Callable[[Group], None]]:
    """A place for finished groups: a new database at `path`, opened at once and taken back if it stays empty."""
    from practicum.runs.database import Database

    if path is None:
        yield lambda group: None
        return
    if path.exists():
        raise UserError(f"{path} is there already; name a new file, so that no two evaluations are mixed")
    database = Database(path)
    try:
        yield lambda group: database.add_groups("evaluation", 0, [group])
    finally:
        is_empty = not database.task_ids()
        database.close()
        if is_empty:
            path.unlink()
