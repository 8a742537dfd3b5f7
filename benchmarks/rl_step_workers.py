"""The worker processes of `rl_step.py`: started, asked one thing at a time, ended. While one works the others wait."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

QUIET = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2147483647", "MALLOC_ARENA_MAX": "1"}
"What practicum asks of the C library (models/memory.py), asked for the others, too: TRL trains faster with it."


class WorkerFailed(Exception):
    """A worker ended, answered with an error, or took too long."""


class Worker:
    """A process that does what is written to it, a line of JSON each, and answers with one.

    Example: with opened([sys.executable, "rl_step_ours.py", folder], {}) as worker: worker.ask({"do": "versions"}, 60)
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.command, self.log = list(command), log
        with log.open("w", encoding="utf-8") as errors:
            # A session of its own: Ctrl-C reaches us alone, and we end it.
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **QUIET, **ALLOCATOR, **environment},
                start_new_session=True,
            )

    def ask(self, command: Mapping[str, Any], within_s: float) -> dict[str, Any]:
        """The answer. Raises WorkerFailed with what the worker said last."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self.told("ended")) from None
        if not select.select([self.process.stdout], [], [], within_s)[0]:
            raise WorkerFailed(self.told(f"gave no answer to {dict(command)} within {within_s:.0f} s"))
        line = self.process.stdout.readline()
        if not line:
            raise WorkerFailed(self.told(f"ended during {dict(command)}"))
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(self.told(f"failed at {dict(command)}:\n{answer['error']}"))
        return answer

    def told(self, what: str) -> str:
        """What happened, with the end of what the worker wrote to standard error."""
        last = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        return "\n".join([f"{' '.join(self.command[:2])} {what}", *last])

    def end(self) -> None:
        """End the process and whatever it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                try:
                    pipe.close()
                except BrokenPipeError:  # of what was not read any more
                    continue


@contextmanager
def opened(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Worker]:
    """A worker that is ended with the block."""
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(command, environment, Path(folder) / "errors")
        try:
            yield worker
        finally:
            worker.end()
