"""Checkpoint folders that are complete or absent: checkpoints/step-000010."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from practicum.errors import UserError

COMPLETE = re.compile(r"step-(\d{6,})")
PARTIAL = ".partial-"
"Begins the name of every folder that is being written or deleted; none of them is ever read."

STATE = "trainer.safetensors"
"What a run needs to go on: parameters, optimizer moments, the critic. Of the newest checkpoint only."


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: Checkpoint(Path("runs/retail/checkpoints/step-000010"), step=10)."""

    path: Path
    step: int
    "RL steps done when it was written."


def save(
    folder: Path,
    step: int,
    write: Callable[[Path], None],
    keep_steps: Collection[int] | None = None,
    newest_only: str = "",
) -> Checkpoint:
    """Let `write` fill an empty folder, then make it the checkpoint of `step` in one rename.

    Files and folders are flushed to the disk before the rename, so that a checkpoint that can be seen survives a power
    cut. A step saved before is replaced. With `keep_steps` older ones are pruned afterwards, and the file
    `newest_only` is deleted from those that stay. When anything fails, the
    older checkpoints are as they were: an OSError (disk full) becomes a UserError, what else `write` raises passes.

    Example: save(run.checkpoints, 10, lambda path: save_file(tensors, path / "model.safetensors"), keep_steps={5})
    """
    target, partial = folder / f"step-{step:06d}", folder / f"{PARTIAL}step-{step:06d}"
    try:
        remove_partials(folder)
        partial.mkdir(parents=True)
        write(partial)
        flush_tree(partial)
        if target.exists():
            discard(target)
        os.replace(partial, target)
        flush(folder)
    except OSError as error:
        raise UserError(
            f"the checkpoint of step {step} could not be written to {folder}: {error.strerror or error}; "
            "the older checkpoints are intact: free some space and train again"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if keep_steps is not None:
        prune(folder, keep_steps)
    if newest_only:
        for older in complete(folder)[:-1]:
            (older.path / newest_only).unlink(missing_ok=True)
    return Checkpoint(target, step)


def complete(folder: Path) -> list[Checkpoint]:
    """All complete checkpoints, oldest step first; none where the folder does not exist."""
    if not folder.is_dir():
        return []
    matches = ((path, COMPLETE.fullmatch(path.name)) for path in folder.iterdir())
    return sorted((Checkpoint(path, int(match[1])) for path, match in matches if match), key=lambda found: found.step)


def newest(folder: Path) -> Checkpoint | None:
    """The complete checkpoint of the highest step, None where there is none."""
    found = complete(folder)
    return found[-1] if found else None


def prune(folder: Path, keep_steps: Collection[int]) -> None:
    """Delete all complete checkpoints but the newest and those of `keep_steps` (the best on dev, say)."""
    for checkpoint in complete(folder)[:-1]:
        if checkpoint.step not in keep_steps:
            discard(checkpoint.path)


def discard(checkpoint: Path) -> None:
    """Delete a folder so that, killed half-way, no half of it passes for a checkpoint."""
    doomed = checkpoint.with_name(f"{PARTIAL}old-{checkpoint.name}")
    os.replace(checkpoint, doomed)
    shutil.rmtree(doomed)


def remove_partials(folder: Path) -> None:
    """Delete what a killed process left behind."""
    for leftover in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(leftover)


def flush_tree(folder: Path) -> None:
    """Flush every file and folder below `folder`, and itself, to the disk."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            flush(Path(parent, name))
        flush(Path(parent))


def flush(path: Path) -> None:
    """fsync of one file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
