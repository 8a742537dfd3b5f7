"""The port through which numbers of a run leave it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol


class Tracker(Protocol):
    """Takes the numbers of each step: a terminal, a file, a service.

    Promises, held by every tracker: steps come in any order and may repeat (a resumed run), the later call counts;
    names may differ from step to step; NaN and infinity are taken; nothing is lost between `log` and a kill.

    Example: tracker.log({"success": 0.61, "grad_norm": 0.8}, step=3)
    """

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Take the numbers of a step."""
        ...

    def close(self) -> None:
        """Let go of files and connections; calling it twice does no harm."""
        ...


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds spent inside to a named sum."""
    began = time.monotonic()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.monotonic() - began
