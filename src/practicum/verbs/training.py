"""A whole training run of a recipe."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum import build
from practicum.agents.agent import Agent
from practicum.config import RunConfig
from practicum.environments.environment import Environment
from practicum.environments.own import Reward
from practicum.errors import UserError, counted
from practicum.runs.provenance import now, provenance
from practicum.verbs.interruption import interruptible
from practicum.verbs.reporting import reported, write_report

if TYPE_CHECKING:
    from practicum.evaluation import Outcome
    from practicum.training import Parts


def train(
    recipe: build.Recipe,
    folder: str | Path | None = None,
    *,
    tasks: build.Tasks | None = None,
    environment: Callable[[], Environment] | None = None,
    agent: Agent | None = None,
    reward: Reward | None = None,
    name: str | None = None,
    resume: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """Warm up, learn by reinforcement, test, and write the report; returns the run folder and the report.

    `recipe` is a path, a table or a RunConfig. What a recipe cannot say is brought by the call: `tasks` (a list, split
    as [tasks] says; a dict of splits; the path of a JSON-lines file), `environment` (a class), `agent` (a function) and
    `reward` (a function, for agents without an environment). A new folder is called after `name`, else after the
    recipe. `resume` goes on with the run in `folder`, given the same recipe and arguments; a run that is finished
    already gives its report again.

    Raises UserError for what cannot be done, before any work. KeyboardInterrupt passes after everything is stored and
    says how far it came.

    Example: folder, report = train("refunds.toml", tasks=tasks, environment=Shop)
    """
    config, own, folder = asked(recipe, folder, name, resume, tasks, environment, agent, reward)
    source = provenance()
    with build.parts_of(config, folder, resume, own) as parts:
        if resume and parts.run.report(".json").is_file():
            parts.console.say(f"{folder} is finished already; this is its report")
            return folder, json.loads(parts.run.report(".json").read_text(encoding="utf-8"))
        from practicum.training import train as run_training

        async def whole() -> Outcome:
            try:
                return await run_training(parts, build.plan_of(config), resume)
            finally:
                await parts.sampler.close()

        try:
            outcome = interruptible(whole())
            report = reported(config, outcome) | {"provenance": {**source, "ended": now()}}
            write_report(parts.run, outcome, report)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(progress(parts, config.trainer.steps)) from None
    return folder, report


def asked(
    recipe: build.Recipe,
    folder: str | Path | None,
    name: str | None,
    resume: bool,
    tasks: build.Tasks | None,
    environment: Callable[[], Environment] | None,
    agent: Agent | None,
    reward: Reward | None,
) -> tuple[RunConfig, build.Own, Path]:
    """The recipe as the call means it, what the call brings, and the run folder. Raises UserError."""
    if folder == "":
        raise UserError("--folder is empty; name the folder of the run, or leave --folder out")
    if resume and folder is None:
        raise UserError("--resume needs --folder, the run to go on with")
    config, own = build.settled(recipe, tasks=tasks, environment=environment, agent=agent, reward=reward)
    if left_out := {**own.skipped, **own.invalid}:
        first, reason = next(iter(left_out.items()))
        raise UserError(
            f"{counted(len(left_out), 'task')} of {tasks} cannot be practised, such as {first}: {reason}; "
            "take out what cannot"
        )
    name = name or (Path(recipe).stem if isinstance(recipe, str | Path) else "run")
    return config, own, Path(folder or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}")


def progress(parts: Parts, steps: int) -> str:
    """How far a run came and where it lies, in one line."""
    from practicum.runs import checkpoint

    done = max((step for step, _, _ in parts.database.metrics("compute")), default=0)
    newest = checkpoint.newest(parts.run.checkpoints)
    saved = f"with the checkpoint of step {newest.step}" if newest else "without a checkpoint"
    return (
        f"{done} of {steps} steps were finished; everything up to there is in {parts.run.folder}, {saved}; "
        "the same command with --resume goes on from there"
    )
