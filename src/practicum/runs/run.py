"""The folder of a run: where everything lies, and who may write to it."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType

from practicum.errors import UserError
from practicum.runs.checkpoint import Checkpoint, complete

CONFIG = "config.toml"
LOCK = "run.lock"


class Run:
    """A run folder; made by `create` or `open`, closed by `close` or `with`.

    One process may write to it, which the kernel sees to by a lock on `run.lock` that ends with the process; any number
    may read.

    Example:
        with Run.create(Path("runs/retail"), config_toml) as run:
            database = Database(run.database)
    """

    def __init__(self, folder: Path, lock: int | None = None) -> None:
        self.folder = folder
        self._lock = lock
        self._made = False

    @classmethod
    def create(cls, folder: str | Path, config_toml: str) -> Run:
        """Make the folder, lock it for writing and store the resolved config.

        Raises UserError when it cannot be written, is a file, already holds a run or is in use.
        """
        run = cls(Path(folder))
        try:
            run._made = not run.folder.exists()
            run.folder.mkdir(parents=True, exist_ok=True)
            run._lock = take_lock(run.folder)
            if run.config.exists() or run.database.exists():
                raise UserError(f"{run.folder} already holds a run; name another folder")
            write_whole(run.config, config_toml)
            run.checkpoints.mkdir(exist_ok=True)
        except (OSError, UserError) as error:
            run.close()
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"the run folder {run.folder} cannot be written: {error.strerror or error}; name one that can be made"
            ) from error
        return run

    @classmethod
    def open(cls, folder: str | Path, writing: bool = False) -> Run:
        """A run that is there already; `writing` takes the lock, to resume it.

        Raises UserError when the folder holds no run, or when it is to be written and another process writes to it.
        """
        run = cls(Path(folder))
        if not run.config.is_file():
            found = "is a file" if run.folder.is_file() else "holds none" if run.folder.is_dir() else "does not exist"
            raise UserError(
                f"a run folder holds a {CONFIG}, but {run.folder} {found}; name the folder that was trained into"
            )
        if writing:
            try:
                run._lock = take_lock(run.folder)
            except OSError as error:
                raise UserError(
                    f"the run folder {run.folder} cannot be written: {error.strerror or error}; name another folder"
                ) from error
        return run

    @property
    def config(self) -> Path:
        """The resolved recipe, as TOML; a folder that holds it is a run."""
        return self.folder / CONFIG

    @property
    def database(self) -> Path:
        """SQLite: every trajectory, metric and event."""
        return self.folder / "run.sqlite"

    @property
    def checkpoints(self) -> Path:
        """Folder of step-000010 and its siblings."""
        return self.folder / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One JSON object a line."""
        return self.folder / "metrics.jsonl"

    def report(self, suffix: str) -> Path:
        """A report file by kind: run.report('.json'), '.md', '.png', '.svg'."""
        return self.folder / f"report{suffix}"

    def best_checkpoint(self) -> Checkpoint | None:
        """The checkpoint that was best on dev by the run's report, else the newest; None where there is none."""
        found = complete(self.checkpoints)
        if self.report(".json").is_file():
            best = json.loads(self.report(".json").read_text(encoding="utf-8"))["best_step"]
            found = [checkpoint for checkpoint in found if checkpoint.step == best] or found
        return found[-1] if found else None

    def discard(self) -> None:
        """Take back what `create` made: for a run that could not begin. What else lies in the folder stays."""
        for path in (self.config, self.folder / LOCK):
            path.unlink(missing_ok=True)
        self.checkpoints.rmdir()
        if self._made:
            self.folder.rmdir()
        self.close()

    def close(self) -> None:
        """Give the lock back; calling it twice does no harm."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all, whenever the process is killed."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def take_lock(folder: Path) -> int:
    """Lock `folder` for writing by this process; closing the returned descriptor gives it back.

    Raises UserError, naming the process, when another one holds it; OSError when the file cannot be made.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    except BlockingIOError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise UserError(
            f"the run folder {folder} is being written by process {holder}; wait for it, end it or name another folder"
        ) from error
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
