"""A run's stored trajectories in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from practicum import build
from practicum.errors import MissingExtra


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
