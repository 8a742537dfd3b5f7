"""The event loop of a verb, and Ctrl-C in it: what is computed now is broken off, what was finished stays."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class Loop:
    """An event loop that lives between two calls of `run`: for what is done in pieces.

    Where a loop runs already, as in a notebook, ours runs in a thread beside it, and the caller waits for it.

    Example: with Loop() as loop: first = loop.run(piece()); second = loop.run(piece())
    """

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.beside = ThreadPoolExecutor(1, "practicum") if is_running() else None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of `work`; see `watched` for Ctrl-C."""
        if self.beside is None:
            return self.runner.run(watched(work))
        started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
        job = self.beside.submit(self.runner.run, watched(noted(work, started)))
        try:
            return job.result()
        except KeyboardInterrupt:
            for loop, task in started:
                loop.call_soon_threadsafe(task.cancel)
            with suppress(KeyboardInterrupt):
                job.result()
            raise

    def __enter__(self) -> Loop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.beside is None:
            self.runner.close()
        else:
            self.beside.submit(self.runner.close).result()
            self.beside.shutdown()


def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """What comes of `work`, in a loop of its own; see `watched` for Ctrl-C."""
    with Loop() as loop:
        return loop.run(work)


def is_running() -> bool:
    """True where an event loop runs in this thread, so that no other can."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def noted(work: Coroutine[Any, Any, T], started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]]) -> T:
    """`work`, having told who can cancel it."""
    task = asyncio.current_task()
    if task is not None:
        started.append((asyncio.get_running_loop(), task))
    return await work


async def watched(work: Coroutine[Any, Any, T]) -> T:
    """`work`, in which Ctrl-C also breaks off what the main task computes between two awaits.

    asyncio alone would wait for that: a step's learning, up to a minute. In any other task the interrupt cancels the
    main task instead, so that everything is put away in order. KeyboardInterrupt comes out in both cases.
    """
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second one is raised wherever it strikes
        with suppress(KeyboardInterrupt):
            before(number, frame)  # type: ignore[operator, misc]
        if asyncio.current_task(loop) is main:
            raise KeyboardInterrupt
        main.cancel()  # type: ignore[union-attr]
        loop.call_soon_threadsafe(lambda: None)  # wakes a loop that waits for files and sockets only

    listening = callable(before) and threading.current_thread() is threading.main_thread()
    if listening:
        signal.signal(signal.SIGINT, interrupt)
    try:
        return await work
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        if listening and signal.getsignal(signal.SIGINT) in (interrupt, signal.default_int_handler):
            signal.signal(signal.SIGINT, before)
