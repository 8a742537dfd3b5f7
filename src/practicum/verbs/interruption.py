"""Ctrl-C inside a verb: what is computed now is broken off, what was finished stays."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, in which Ctrl-C also breaks off what the main task computes between two awaits.

    asyncio alone would wait for that: a step's learning, up to a minute. In any other task the interrupt cancels the
    main task instead, so that everything is put away in order. KeyboardInterrupt comes out in both cases.
    """

    async def watched() -> T:
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

    return asyncio.run(watched())
