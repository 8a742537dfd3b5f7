"""What a user asks for: train a recipe, evaluate a policy on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum import build
from practicum.config import RunConfig
from practicum.errors import UserError
from practicum.evaluation import Evaluation
from practicum.simulator.demonstrate import POLICIES, demonstrate
from practicum.simulator.episode import Stage, run_episode
from practicum.statistics.comparison import Difference, paired_difference
from practicum.types import Group, Task

if TYPE_CHECKING:
    from practicum.training import Outcome


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
        nothing = {"success": None, "ci_low": None, "ci_high": None, "n_tasks": 0, "n_attempts": 0, "endings": {}}
        figures = self.evaluation.summary() if self.evaluation else nothing
        return {**figures, "skipped": dict(self.skipped), "invalid": dict(self.invalid)}


def evaluate(
    config: RunConfig,
    *,
    model: str | None = None,
    policy: str | None = None,
    tasks: Path | None = None,
    split: str = "test",
    attempts: int = 1,
    out: Path | None = None,
) -> Measured:
    """Success of a model, or of a scripted policy (expert, noop, random), on a split or on a user's file of tasks.

    Raises UserError for what cannot be done: an unknown model, policy or split, a broken tasks file, no torch.
    With `out` every trajectory is written to a database there.

    Example: evaluate(config.load("recipes/retail.toml"), policy="expert").summary()["success"] -> 1.0
    """
    if attempts < 1:
        raise UserError(f"--attempts must be at least 1, found {attempts}")
    skipped, invalid = {}, {}
    if tasks is None:
        chosen = tasks_of_split(config, split)
    else:
        config, rows = build.tasks_in(config, tasks)
        chosen, skipped, invalid = list(rows.tasks), rows.skipped, rows.invalid
    if policy is not None:
        if policy not in POLICIES:
            raise UserError(f"there is no policy {policy!r}; known: {', '.join(POLICIES)}")
        stage = build.scripted_stage(config)
        episode: Any = partial(demonstrate, stage, POLICIES[policy])
    else:
        stage = build.model_stage(config, model or config.model.name)
        episode = partial(run_episode, stage)
    if not chosen:
        return Measured(None, skipped, invalid)
    result = asyncio.run(measured(stage, chosen, attempts, episode, config.simulator.concurrency))
    if out is not None:
        store(out, result.groups)
    return Measured(result, skipped, invalid)


def tasks_of_split(config: RunConfig, split: str) -> list[Task]:
    """One of the recipe's splits."""
    splits = build.tasks_of(config)
    if split not in splits:
        raise UserError(f"there is no split {split!r}; known: {', '.join(splits)}")
    return list(splits[split])


async def measured(stage: Stage, tasks: list[Task], attempts: int, episode: Any, concurrency: int) -> Evaluation:
    """Evaluate under a progress bar."""
    from practicum import evaluation
    from practicum.tracking.console import Console

    try:
        with Console() as console, console.phase("episodes", len(tasks)) as bar:
            return await evaluation.evaluate(
                tasks, attempts, episode, concurrency=concurrency, finished=lambda _: bar.advance()
            )
    finally:
        await stage.sampler.close()


def store(path: Path, groups: tuple[Group, ...]) -> None:
    """All trajectories of an evaluation into a database of their own."""
    from practicum.runs.database import Database

    with Database(path) as database:
        database.add_groups("evaluation", 0, groups)


def train(config: RunConfig, folder: Path | None = None, recipe: str = "run") -> tuple[Path, dict[str, Any]]:
    """Warm up, learn by reinforcement, test, and write the report; returns the run folder and the report.

    Raises UserError for what cannot be done, before any work. KeyboardInterrupt passes after everything is stored.
    """
    folder = folder or Path("runs") / f"{recipe}-{datetime.now():%Y%m%d-%H%M%S}"
    with build.parts_of(config, folder) as parts:
        from practicum.training import train as run_training

        async def whole() -> Outcome:
            try:
                return await run_training(parts, build.plan_of(config))
            finally:
                await parts.sampler.close()

        outcome = asyncio.run(whole())
        report = reported(config, outcome)
        write_report(parts.run, outcome, report)
    return folder, report


def reported(config: RunConfig, outcome: Outcome) -> dict[str, Any]:
    """The figures of a training run, differences paired task by task."""
    test = outcome.test
    compared = {
        f"rl - {name}": paired_difference(test["rl"].successes, test[name].successes) for name in test if name != "rl"
    }
    return {
        "model": config.model.name,
        "environment": config.environment.kind,
        "seed": config.seed,
        "steps": outcome.steps,
        "best_step": outcome.best_step,
        "test": {name: evaluation.summary() for name, evaluation in test.items()},
        "differences": {name: difference_summary(difference) for name, difference in compared.items()},
        "dev": {str(step): evaluation.summary() for step, evaluation in outcome.dev.items()},
        "seconds": {name: round(value, 1) for name, value in outcome.seconds.items()},
    }


def difference_summary(difference: Difference) -> dict[str, Any]:
    """A paired difference as plain values."""
    return {
        "estimate": difference.estimate,
        "ci_low": difference.low,
        "ci_high": difference.high,
        "p_value": difference.p_value,
        "n_tasks": difference.n_tasks,
        "only_first": difference.only_a,
        "only_second": difference.only_b,
    }


NAMES = {"base": "as it comes", "warm-up": "after warm-up", "rl": "after RL"}


def write_report(run: Any, outcome: Outcome, report: dict[str, Any]) -> None:
    """report.json for programs, report.md for people, report.png for both."""
    from practicum.tracking.picture import draw_report

    run.report(".json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    run.report(".md").write_text(as_text(report), encoding="utf-8")
    draw_report(
        run.report(".png"),
        {NAMES[name]: evaluation.interval for name, evaluation in outcome.test.items()},
        {step: evaluation.interval for step, evaluation in outcome.dev.items()},
        outcome.best_step,
    )


def as_text(report: Mapping[str, Any]) -> str:
    """The report as Markdown that also reads well in a terminal."""
    lines = [
        f"# {report['model']} on {report['environment']}: {report['steps']} RL steps, seed {report['seed']}",
        "",
        "| held-out tasks | success | 95 % interval | n tasks | turns | tokens | endings |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, figures in report["test"].items():
        endings = ", ".join(f"{ending} {count}" for ending, count in figures["endings"].items())
        lines.append(
            f"| {NAMES[name]} | {figures['success']:.1%} | {figures['ci_low']:.1%} to {figures['ci_high']:.1%} "
            f"| {figures['n_tasks']} | {figures['turns']:.1f} | {figures['tokens']:.0f} | {endings} |"
        )
    lines.append("")
    for name, difference in report["differences"].items():
        first, second = (NAMES[part] for part in name.split(" - "))
        lines.append(
            f"- {first} less {second}: {100 * difference['estimate']:+.1f} points "
            f"({100 * difference['ci_low']:+.1f} to {100 * difference['ci_high']:+.1f}, p = {difference['p_value']:.2g}, "
            f"paired over {difference['n_tasks']} tasks: {difference['only_first']} won, {difference['only_second']} lost)"
        )
    curve = ", ".join(f"{step}: {figures['success']:.1%}" for step, figures in report["dev"].items())
    seconds = ", ".join(f"{name} {value:.0f}" for name, value in report["seconds"].items())
    lines += [
        f"- dev success by RL step: {curve}; step {report['best_step']} was chosen on dev",
        f"- seconds: {seconds}",
        "",
    ]
    return "\n".join(lines)


def shown(run_folder: Path, task_id: str | None, phase: str | None) -> None:
    """Print the tasks of a run, or the trajectories of one task, with what was trained in colour."""
    from practicum.config import load
    from practicum.runs.run import Run
    from practicum.runs.show import show

    run = Run.open(run_folder)
    tokenizer = None
    if task_id is not None:
        renderer = build.renderer_of(load(run.config), scripted=False)
        tokenizer = renderer.tokenizer  # type: ignore[attr-defined]
    show(run_folder, task_id=task_id, phase=phase, decode=tokenizer.decode if tokenizer else None)
