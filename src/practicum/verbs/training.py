"""A whole training run of a recipe."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum import build
from practicum.config import RunConfig
from practicum.errors import UserError
from practicum.runs.provenance import now, provenance
from practicum.verbs.interruption import interruptible
from practicum.verbs.reporting import reported, write_report

if TYPE_CHECKING:
    from practicum.training import Outcome, Parts


def train(
    config: RunConfig, folder: Path | None = None, recipe: str = "run", resume: bool = False
) -> tuple[Path, dict[str, Any]]:
    """Warm up, learn by reinforcement, test, and write the report; returns the run folder and the report.

    `resume` goes on with the run in `folder`; a run that is finished already gives its report again. Raises UserError
    for what cannot be done, before any work. KeyboardInterrupt passes after everything is stored and says how far it
    came.
    """
    if resume and folder is None:
        raise UserError("--resume needs --folder, the run to go on with")
    folder = folder or Path("runs") / f"{recipe}-{datetime.now():%Y%m%d-%H%M%S}"
    source = provenance()
    with build.parts_of(config, folder, resume) as parts:
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
