"""Where the wall time of episodes goes that run side by side: some wait for the sampler, some work in their worlds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock


class Stopwatch:
    """Adds up wall time by what was going on, each instant once; calls may begin and end in any thread.

    An instant at which a call of the sampler was under way belongs to the sampler, whatever else went on; one at which
    none was, but an environment worked, to the environment. The rest belongs to neither.

    Example: with stopwatch.environment(): shop.reset(task)
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._lock = clock, Lock()
        self._since = clock()
        self._sampling = self._working = 0
        self._sampler_s = self._environment_s = 0.0

    @contextmanager
    def sampler(self) -> Iterator[None]:
        """Within it an episode waits for the sampler."""
        self._changed(sampling=1)
        try:
            yield
        finally:
            self._changed(sampling=-1)

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Within it an environment is made, reset, used, judged or closed."""
        self._changed(working=1)
        try:
            yield
        finally:
            self._changed(working=-1)

    def read(self) -> tuple[float, float]:
        """Seconds of the sampler, and of environments alone, so far."""
        self._changed()
        return self._sampler_s, self._environment_s

    def _changed(self, sampling: int = 0, working: int = 0) -> None:
        with self._lock:
            now = self._clock()
            if self._sampling:
                self._sampler_s += now - self._since
            elif self._working:
                self._environment_s += now - self._since
            self._since = now
            self._sampling += sampling
            self._working += working
