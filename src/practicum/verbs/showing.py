"""A run's stored trajectories in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from practicum import build
from practicum.errors import MissingExtra
from practicum.ledger import PHASES


def shown(run_folder: Path, task_id: str | None, phase: str | None) -> None:
    """Print the tasks of a run or of an evaluation's file, or one task's trajectories, what was trained in colour.

    Below the tasks of a run with steps stands where the time of a step went.
    """
    from practicum.runs.show import show

    show(run_folder, task_id=task_id, phase=phase, decode=decoder(run_folder) if task_id is not None else None)
    if task_id is None and run_folder.is_dir() and (words := spending(run_folder)):
        print(f"\n{words}")


def spending(run_folder: Path) -> str:
    """'a step took 24.1 s (mean of 20): decode 57 %, …; peak memory 4.2 GB'; empty where no step was logged so."""
    from practicum.runs.database import Database
    from practicum.runs.run import Run

    logged: dict[str, list[float]] = {}
    with Database(Run.open(run_folder).database, read_only=True) as database:
        for name in ("seconds", "memory/peak_gb", *(f"seconds/{phase}" for phase in PHASES)):
            logged[name] = [value for _, _, value in database.metrics(name)]
    whole, peaks = logged["seconds"], logged["memory/peak_gb"]
    if not peaks or not sum(whole):
        return ""
    shares = ", ".join(f"{phase} {sum(logged[f'seconds/{phase}']) / sum(whole):.0%}" for phase in PHASES)
    return (
        f"a step took {sum(whole) / len(whole):.1f} s (mean of {len(whole)}): {shares}; peak memory {max(peaks):.1f} GB"
    )


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
