"""Ctrl-C on the command line: the first ends a command in order, a second one ends it at once."""

from __future__ import annotations

import functools
import os
import signal
import threading
from contextlib import suppress


@functools.cache
def listen() -> None:
    """From now on a second Ctrl-C ends this process with exit code 130, whatever is being waited for.

    Python looks at signals between two of its own instructions, and one backward pass may last ten seconds. A thread
    that reads the bytes which the system's handler writes does not wait for that. Does nothing off the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=watch, args=(reading,), name="ctrl-c", daemon=True).start()


def watch(pipe: int) -> None:
    """Wait for the second SIGINT and end the process."""
    count = 0
    while count < 2:
        count += os.read(pipe, 1) == bytes([signal.SIGINT])
    # A progress bar hides the cursor, and nobody else will give it back.
    with suppress(OSError):
        os.write(2, (b"\x1b[?25h" if os.isatty(2) else b"") + b"\npracticum: stopped at once by a second Ctrl-C\n")
    os._exit(130)


def interrupt_in(error: BaseException | None) -> KeyboardInterrupt | None:
    """The KeyboardInterrupt that an error is or came from, if any: imports turn it into errors of their own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error
