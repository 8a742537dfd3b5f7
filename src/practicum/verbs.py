"""What a user asks for: train a recipe, evaluate a policy on it."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from practicum import build
from practicum.config import RunConfig
from practicum.errors import MissingExtra, UserError
from practicum.evaluation import Evaluation
from practicum.runs.provenance import now, provenance
from practicum.simulator.demonstrate import POLICIES, demonstrate
from practicum.simulator.episode import Stage, run_episode
from practicum.statistics.comparison import Difference, paired_difference
from practicum.types import Group, Task

if TYPE_CHECKING:
    from practicum.training import Outcome, Parts

T = TypeVar("T")


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

    Raises UserError for what cannot be done: an unknown model, policy or split, a broken tasks file, no torch. With
    `out` every trajectory is written to a new database there, each task as it is finished. KeyboardInterrupt passes and
    says how far it came.

    Example: evaluate(config.load("recipes/retail.toml"), policy="expert").summary()["success"] -> 1.0
    """
    if attempts < 1:
        raise UserError(f"--attempts must be at least 1, found {attempts}")
    if model == "":
        raise UserError("--model is empty; name a known model, a folder or a run")
    if policy is not None and policy not in POLICIES:
        raise UserError(f"there is no policy {policy!r}; known: {', '.join(POLICIES)}")
    skipped, invalid = {}, {}
    if tasks is None:
        chosen = tasks_of_split(config, split)
    else:
        config, rows = build.tasks_in(config, tasks)
        chosen, skipped, invalid = list(rows.tasks), rows.skipped, rows.invalid
    with stored(out) as store:
        if policy is not None:
            stage = build.scripted_stage(config)
            episode: Any = partial(demonstrate, stage, POLICIES[policy])
        else:
            stage = build.model_stage(config, model or config.model.name)
            episode = partial(run_episode, stage)
        if not chosen:
            return Measured(None, skipped, invalid)
        done: list[Group] = []

        def finished(group: Group) -> None:
            store(group)
            done.append(group)

        try:
            result = interruptible(measured(stage, chosen, attempts, episode, config.simulator.concurrency, finished))
        except KeyboardInterrupt:
            where = f"their trajectories are in {out}" if out else "with --out FILE they would have been kept"
            raise KeyboardInterrupt(f"{len(done)} of {len(chosen)} tasks were finished; {where}") from None
    return Measured(result, skipped, invalid)


def tasks_of_split(config: RunConfig, split: str) -> list[Task]:
    """One of the recipe's splits."""
    splits = build.tasks_of(config)
    if split not in splits:
        raise UserError(f"there is no split {split!r}; known: {', '.join(splits)}")
    return list(splits[split])


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


def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, in which Ctrl-C also breaks off what the main task computes between two awaits.

    asyncio alone would wait for that: a step's learning, up to a minute. In any other task the interrupt cancels the
    main task instead, so that everything is put away in order. KeyboardInterrupt comes out in both cases.
    """

    async def watched() -> T:
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        before = signal.getsignal(signal.SIGINT)

        def interrupt(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a second one is raised wherever it strikes
            with suppress(KeyboardInterrupt):
                before(number, frame)  # type: ignore[operator, misc]
            if asyncio.current_task(loop) is main:
                raise KeyboardInterrupt
            main.cancel()  # type: ignore[union-attr]
            loop.call_soon_threadsafe(lambda: None)  # wakes a loop that waits for files and sockets only

        listening = callable(before) and threading.current_thread() is threading.main_thread()
        if listening:
            signal.signal(signal.SIGINT, interrupt)
        try:
            return await work
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            if listening and signal.getsignal(signal.SIGINT) in (interrupt, signal.default_int_handler):
                signal.signal(signal.SIGINT, before)

    return asyncio.run(watched())


def train(config: RunConfig, folder: Path | None = None, recipe: str = "run") -> tuple[Path, dict[str, Any]]:
    """Warm up, learn by reinforcement, test, and write the report; returns the run folder and the report.

    Raises UserError for what cannot be done, before any work. KeyboardInterrupt passes after everything is stored and
    says how far it came.
    """
    folder = folder or Path("runs") / f"{recipe}-{datetime.now():%Y%m%d-%H%M%S}"
    source = provenance()
    with build.parts_of(config, folder) as parts:
        from practicum.training import train as run_training

        async def whole() -> Outcome:
            try:
                return await run_training(parts, build.plan_of(config))
            finally:
                await parts.sampler.close()

        try:
            outcome = interruptible(whole())
            report = reported(config, outcome) | {"provenance": {**source, "ended": now()}}
            write_report(parts.run, outcome, report)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(progress(parts, config.trainer.steps)) from None
    return folder, report


def progress(parts: Parts, steps: int) -> str:
    """How far a run came and where it lies, in one line."""
    from practicum.runs import checkpoint

    done = max((step for step, _, _ in parts.database.metrics("success")), default=0)
    newest = checkpoint.newest(parts.run.checkpoints)
    saved = f"with the checkpoint of step {newest.step}" if newest else "without a checkpoint"
    return f"{done} of {steps} RL steps were finished; everything up to there is in {parts.run.folder}, {saved}"


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
            f"({100 * difference['ci_low']:+.1f} to {100 * difference['ci_high']:+.1f}, "
            f"p = {difference['p_value']:.2g}, paired over {difference['n_tasks']} tasks: "
            f"{difference['only_first']} won, {difference['only_second']} lost)"
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
    """Print the tasks of a run or of an evaluation's file, or one task's trajectories, what was trained in colour."""
    from practicum.runs.show import show

    show(run_folder, task_id=task_id, phase=phase, decode=decoder(run_folder) if task_id is not None else None)


def decoder(run_folder: Path) -> Callable[[Sequence[int]], str] | None:
    """Tokens to text by the run's own checkpoint; None, so that messages are shown, where that cannot be had."""
    from practicum.config import load
    from practicum.runs.run import Run

    if run_folder.is_file():
        return None
    run = Run.open(run_folder)
    config, best = load(run.config), run.best_checkpoint()
    if best is None:
        return None
    of_checkpoint = replace(config, model=replace(config.model, name=str(best.path / "model")))
    with suppress(MissingExtra):
        return build.renderer_of(of_checkpoint, scripted=False).tokenizer.decode  # type: ignore[attr-defined]
    return None
