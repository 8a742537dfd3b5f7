"""What can go wrong, named by whose failure it is, and the one place where a broad `except` stands."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class PracticumError(Exception):
    """Base of every error raised on purpose; its text says what was wrong, what was found, what to do."""


class UserError(PracticumError):
    """A mistake in what the user wrote (recipe, tasks, arguments, folder): one message, exit code 2, no traceback."""


class MissingExtra(UserError):
    """An optional package is not installed; the text holds the command that installs it."""

    def __init__(self, package: str, extra: str, otherwise: str = "") -> None:
        super().__init__(
            f'this needs {package}, which is not installed; install it with: pip install "practicum[{extra}]"'
            + (f"; {otherwise}" if otherwise else "")
        )


class ToolError(PracticumError):
    """Raised by a tool to refuse an action; its text goes to the model and the episode goes on."""


class EpisodeOver(PracticumError):
    """A limit was reached: no further model call of this episode is answered. Whoever runs it knows which."""


class EndpointError(PracticumError):
    """A server gave no answer that can be used; the text, which server and what it said, is all there is to know."""


class Failure(PracticumError):
    """Something outside the policy failed; `whose` names the boundary that was crossed."""

    def __init__(self, whose: str, cause: BaseException) -> None:
        super().__init__(f"{whose}: {type(cause).__name__}: {cause}")
        self.whose = whose
        self.__cause__ = cause


@contextmanager
def boundary(whose: str, *meant: type[Exception]) -> Iterator[None]:
    """Turn whatever is raised inside into `Failure(whose, …)`, except what is a Failure already or is `meant`.

    Example:
        with boundary("verifier"):
            rewards = environment.verify(task.secret)
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (Failure, *meant)):
            raise
        raise Failure(whose, error) from error


def counted(n: int, noun: str) -> str:
    """How many of something, for a message: counted(1, "task") -> "1 task"; counted(2, "task") -> "2 tasks"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def traced(error: BaseException) -> str:
    """A traceback word for word; of a server's failure only what is said of it, since its traceback is our own."""
    if isinstance(error, Failure) and isinstance(error.__cause__, EndpointError):
        return str(error.__cause__)
    return "".join(traceback.format_exception(error))
