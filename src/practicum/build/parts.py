"""Everything a training run needs, opened in order and closed again; and its plan."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from practicum.build.learner import adapt, algorithm_of, learned_by, trainer_of, warm_up_of
from practicum.build.stages import (
    check_installed,
    check_vocabulary,
    demonstrator_of,
    renderer_of,
    sampler_of,
    stage_of,
    torch_needed,
)
from practicum.build.worlds import NOTHING, Own, check_expert, check_rewards, tasks_of
from practicum.config import RunConfig, as_toml, warms_up
from practicum.errors import MissingExtra, UserError
from practicum.ledger import Ledger
from practicum.models.cost import cost_of

if TYPE_CHECKING:
    from practicum.plan import Plan
    from practicum.runs.run import Run
    from practicum.tracking.tracker import Tracker
    from practicum.training import Parts


def plan_of(config: RunConfig) -> Plan:
    """The numbers of the loop."""
    from practicum.plan import Plan

    trainer, evaluation = config.trainer, config.evaluation
    return Plan(
        steps=trainer.steps,
        minutes=trainer.minutes,
        budget=trainer.budget,
        learns_from=trainer.learns_from,
        rows_per_update=config.imitation.rows_per_update,
        tasks_per_step=trainer.tasks_per_step,
        replace_silent_groups=trainer.replace_silent_groups,
        group_size=config.simulator.group_size,
        concurrency=config.simulator.concurrency,
        lockstep=config.simulator.lockstep,
        demonstrations=config.imitation.demonstrations,
        warms_up=warms_up(config),
        dev_steps=evaluation.dev_steps,
        dev_attempts=evaluation.dev_attempts,
        test_attempts=evaluation.test_attempts,
        evaluation_temperature=evaluation.temperature,
        measure_base=evaluation.base,
        checkpoint_every=trainer.checkpoint_every,
    )


@contextmanager
def begun(folder: Path, config_toml: str, resume: bool) -> Iterator[Run]:
    """A new run folder; when building fails before there is anything to store, it is taken back.

    With `resume` one that is there already. Raises UserError, with the difference, where it is of another recipe.
    """
    from practicum.runs.run import Run

    if resume:
        with Run.open(folder, writing=True) as run:
            if changed := changes(run.config.read_text(encoding="utf-8"), config_toml):
                raise UserError(
                    f"{folder} is a run of another recipe, and can only be resumed with its own; "
                    f"in the run (-) and in the recipe now (+):\n{changed}"
                )
            yield run
        return
    with Run.create(folder, config_toml) as run:
        try:
            yield run
        finally:
            if not run.database.exists():
                run.discard()


def changes(before: str, now: str) -> str:
    """Lines that differ between two recipes, with the headings of their sections; empty where none does."""
    lines = list(difflib.unified_diff(before.splitlines(), now.splitlines(), n=100, lineterm=""))[3:]
    return "\n".join(line for line in lines if line[:1] in "+-" or line.startswith(" [")) if lines else ""


@contextmanager
def parts_of(config: RunConfig, folder: Path, resume: bool = False, own: Own = NOTHING) -> Iterator[Parts]:
    """Everything a training run needs, closed again at the end. Raises UserError before work begins."""
    with torch_needed():
        from practicum.models.load import load_model
        from practicum.training import Parts
    if importlib.util.find_spec("matplotlib") is None:  # it draws the report: too late to hear of it then
        raise MissingExtra("matplotlib", "train")
    from practicum.curriculum.curriculum import Curriculum
    from practicum.runs.database import Database
    from practicum.tracking.console import Console
    from practicum.tracking.jsonl import JsonLines

    if config.sampler.kind == "api":
        raise UserError(
            "sampler.kind is 'api': which tokens an endpoint samples is not known, so that its model can be measured "
            "(practicum evaluate) and copied from (imitation.demonstrator = 'api'), but not trained; train with 'local'"
        )
    check_installed(config)
    chosen = algorithm_of(config)
    splits = tasks_of(config, own)
    if missing := [name for name in ("train", "dev", "test") if not splits.get(name)]:
        raise UserError(
            f"tasks= has no {' and no '.join(missing)}: a run practises 'train', chooses a checkpoint on 'dev', and "
            "measures on 'test'"
        )
    check_rewards(config, splits["train"][0], own)
    check_expert(config, own)
    with ExitStack() as opened:
        console = opened.enter_context(Console())
        run = opened.enter_context(begun(folder, as_toml(config), resume))
        with console.phase(f"loading {config.model.name}"):
            model = load_model(config.model.name)
            renderer = renderer_of(config, scripted=False)
            check_vocabulary(config.model.name, renderer, model)
            adapt(config, model)
            trainer = trainer_of(config, model, chosen)
            sampler = sampler_of(config, model)
            as_it_comes = trainer.policy.copied() if config.lora.rank else None  # beside a frozen base: small
        database = opened.enter_context(Database(run.database))
        console.say(f"run folder: {folder}")
        console.say(f"trainer: float32 weights, {'bfloat16 autocast' if trainer.policy.trunk.autocast else 'float32'}")
        lines = JsonLines(run.metrics)
        opened.callback(lines.close)
        trackers: list[Tracker] = [console, lines]
        stage = stage_of(config, sampler, renderer, config.simulator.temperature, own=own)
        yield Parts(
            run=run,
            database=database,
            trackers=trackers,
            console=console,
            stage=stage,
            demonstrate=demonstrator_of(config, stage, own),
            sampler=sampler,
            trainer=trainer,
            curriculum=Curriculum(splits["train"], config.seed),
            splits=splits,
            warm_up=warm_up_of(config, trainer.policy),
            base_weights=lambda: trainer.numbered(as_it_comes or learned_by(load_model(config.model.name))),
            stored_weights=lambda path: trainer.numbered(learned_by(load_model(path / "model"))),
            passes=lambda: trainer.passes + sampler.counts["prefilled"] + sampler.counts["decoded"],
            ledger=Ledger(sampler, stage.stopwatch, lambda: trainer.passes, cost_of(model)),
        )
