"""The terminal as a tracker: a live table with a bar and the time left, or plain lines where nobody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

PLAIN_EVERY_S = 30.0
"Between two progress lines where there is no terminal."


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table: Column("success", ("success",), "{:.1%}")."""

    title: str
    names: tuple[str, ...]
    "Metrics it may come from: the first one logged is shown."
    form: str
    "Format of the number."


COLUMNS = (
    Column("success", ("success",), "{:.1%}"),
    Column("reward", ("reward",), "{:.3f}"),
    Column("turns", ("turns",), "{:.1f}"),
    Column("signal", ("groups_with_signal",), "{:.0f}"),
    Column("entropy", ("entropy",), "{:.3f}"),
    Column("k3", ("k3",), "{:.4f}"),
    Column("grad norm", ("grad_norm",), "{:.2f}"),
    Column("dev", ("dev/success",), "{:.1%}"),
    Column("seconds", ("seconds",), "{:.0f}"),
    Column("GB", ("memory/peak_gb",), "{:.1f}"),
)


class Phase:
    """Something that is under way: `total` pieces, `done` of them so far, some perhaps before it was resumed.

    Example: with console.phase("imitation", total=120) as phase: phase.advance()
    """

    def __init__(
        self,
        name: str,
        total: int | None,
        clock: Callable[[], float],
        on_advance: Callable[[Phase], None],
        done: int = 0,
    ):
        self.name, self.total, self.done, self.note = name, total, done, ""
        self._before = done
        self._clock, self._on_advance = clock, on_advance
        self.started_s = self.advanced_s = clock()

    def advance(self, pieces: int = 1, note: str = "") -> None:
        """Say that `pieces` more are done; `note` ('loss 0.41') stands beside the bar until the next one."""
        self.done += pieces
        self.note = note or self.note
        self.advanced_s = self._clock()
        self._on_advance(self)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the phase began."""
        return self._clock() - self.started_s

    @property
    def left_s(self) -> float | None:
        """Seconds until all pieces are done at the pace so far; None where nothing is known."""
        fresh = self.done - self._before
        if not self.total or not fresh or self.done > self.total:
            return None
        pace = (self.advanced_s - self.started_s) / fresh
        return max(0.0, pace * (self.total - self.done) - (self._clock() - self.advanced_s))

    def __str__(self) -> str:
        of = "" if self.total is None else f"/{self.total}"
        left_s = self.left_s
        left = "" if left_s is None else f", {clock_time(left_s)} left"
        note = f", {self.note}" if self.note else ""
        # What has no pieces is not counted.
        count = f" {self.done}{of}" if self.done or of else ""
        return f"{self.name}{count}{note}, {clock_time(self.elapsed_s)}{left}"


class Console:
    """A tracker that people watch; use it in a `with`, which gives the terminal back however it is left.

    It writes to stderr, so that stdout stays for results. Phases may stand within phases: their bars stand below
    each other. Only the outermost leave lines behind, since an inner one comes again at every step.

    Example:
        with Console() as console, console.phase("reinforcement", total=10) as steps:
            for step in range(10):
                console.log({"success": 0.6, "seconds": 20.0}, step)
                steps.advance()
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        columns: Sequence[Column] = COLUMNS,
        rows: int = 10,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._columns, self._rows, self._clock = columns, rows, clock
        self._steps: dict[int, dict[str, float]] = {}
        self._phases: list[Phase] = []
        self._plain_at_s: dict[Phase, float] = {}
        self._live: Live | None = None

    def __enter__(self) -> Console:
        rich = RichConsole(file=self._stream, highlight=False)
        # `isatty` is asked beside rich, which a FORCE_COLOR in a log-writing machine would talk into a live table.
        if self._stream.isatty() and rich.is_terminal and not rich.is_dumb_terminal:
            self._live = Live(
                get_renderable=self._picture,
                console=rich,
                refresh_per_second=4,
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=sys.stderr.isatty(),
                vertical_overflow="visible",
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Draw the last picture and give the terminal back, cursor included; calling it twice does no harm."""
        live, self._live = self._live, None
        if live is not None:
            try:
                live.stop()
            finally:
                live.console.show_cursor(True)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Show the numbers of a step: a row of the table, or a line."""
        self._steps[step] = {**self._steps.pop(step, {}), **metrics}
        while len(self._steps) > self._rows:
            self._steps.pop(next(iter(self._steps)))
        if self._live is None:
            shown = [f"{column.title} {cell}" for column in self._columns if (cell := cell_of(column, metrics))]
            if shown:
                self.say(f"step {step}: {', '.join(shown)}")

    def say(self, line: str) -> None:
        """Print a line that stays, above the table."""
        if self._live is not None:
            self._live.console.print(Text(line), soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)

    @contextmanager
    def phase(self, name: str, total: int | None = None, done: int = 0) -> Iterator[Phase]:
        """A bar with the time left for as long as the `with` lasts; an outermost phase leaves a line when it ends.

        `done` pieces of the total were done before: what is resumed.
        """
        phase = Phase(name, total, self._clock, self._advanced, done)
        outermost = not self._phases
        self._phases.append(phase)
        if outermost and self._live is None:
            self.say(f"{name}: begins" + ("" if total is None else f", {total - done} to do"))
        stopped = True
        try:
            yield phase
            stopped = False
        finally:
            self._phases.remove(phase)
            if stopped and outermost:
                self.say(f"{phase}: stopped")
        if not outermost:
            return
        of = "" if total is None or phase.done == total else f" of {total}"
        count = f"{phase.done}{of} " if phase.done or total is not None else ""
        note = f", {phase.note}" if phase.note else ""
        self.say(f"{name}: {count}done in {clock_time(phase.elapsed_s)}{note}")

    def advance(self, pieces: int = 1, note: str = "") -> None:
        """Advance the innermost phase."""
        if self._phases:
            self._phases[-1].advance(pieces, note)

    def _advanced(self, phase: Phase) -> None:
        now_s = self._clock()
        if self._live is None and now_s - self._plain_at_s.get(phase, phase.started_s) >= PLAIN_EVERY_S:
            self._plain_at_s[phase] = now_s
            self.say(str(phase))

    def _picture(self) -> RenderableType:
        parts: list[RenderableType] = [steps_table(self._steps, self._columns)] if self._steps else []
        if self._phases:
            bars = Table.grid(padding=(0, 1))
            for phase in list(self._phases):
                total = 100.0 if phase.total is None else float(phase.total)
                bar = ProgressBar(total=total, completed=phase.done, width=20, pulse=phase.total is None)
                bars.add_row(Text(phase.name), bar, Text(str(phase).removeprefix(phase.name).strip()))
            parts.append(bars)
        return Group(*parts)


def steps_table(steps: Mapping[int, Mapping[str, float]], columns: Sequence[Column]) -> Table:
    """The last steps as a table; columns that no step has a number for are left out."""
    rows = list(steps.items())
    shown = [column for column in columns if any(cell_of(column, metrics) for _, metrics in rows)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("step", *(column.title for column in shown)):
        table.add_column(title, justify="right", no_wrap=True)
    for step, metrics in rows:
        table.add_row(str(step), *(cell_of(column, metrics) for column in shown))
    return table


def cell_of(column: Column, metrics: Mapping[str, float]) -> str:
    """The column's number as text, empty where it was not logged."""
    return next((column.form.format(metrics[name]) for name in column.names if name in metrics), "")


def clock_time(seconds: float) -> str:
    """'42s', '3m05s', '1h02m'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
