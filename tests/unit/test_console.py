"""What a person sees of a run: a live table on a terminal, plain lines elsewhere; and what a program reads."""

from __future__ import annotations

import errno
import io
import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from practicum.tracking.console import COLUMNS, Console, clock_time, steps_table
from practicum.tracking.jsonl import JsonLines
from practicum.tracking.picture import draw_report

SOURCES = str(Path(__file__).parents[2] / "src")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_without_a_terminal_there_are_plain_lines_even_where_colour_is_forced(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    with Console(stream, clock=Clock()) as console, console.phase("reinforcement", total=2) as steps:
        console.log({"success": 0.625, "groups_with_signal": 5, "unheard_of": 1.0}, step=1)
        steps.advance(2)
    assert stream.getvalue().splitlines() == [
        "reinforcement: begins, 2 to do",
        "step 1: success 62.5%, signal 5",
        "reinforcement: 2 done in 0s",
    ]


def test_plain_progress_is_told_every_half_minute_with_the_time_left():
    stream, clock = io.StringIO(), Clock()
    with Console(stream, clock=clock) as console, console.phase("imitation", total=100) as phase:
        for _ in range(40):
            clock.now_s += 2
            phase.advance(note="loss 0.4")
    progress = stream.getvalue().splitlines()[1:-1]
    assert progress == [
        "imitation 15/100, loss 0.4, 30s, 2m50s left",
        "imitation 30/100, loss 0.4, 1m00s, 2m20s left",
    ]


def test_the_time_left_is_what_the_pace_so_far_gives_and_runs_down_between_pieces():
    clock = Clock()
    with Console(io.StringIO(), clock=clock) as console, console.phase("rl", total=10) as phase:
        assert phase.left_s is None
        clock.now_s = 20
        phase.advance(2)
        assert phase.left_s == 80  # 10 s apiece
        clock.now_s = 25
        assert phase.left_s == 75
        clock.now_s = 500
        assert phase.left_s == 0


def test_a_phase_within_a_phase_is_the_one_that_advances():
    stream = io.StringIO()
    with Console(stream, clock=Clock()) as console, console.phase("rl", total=3) as outer:
        with console.phase("dev", total=5) as inner:
            console.advance(5)
        assert (outer.done, inner.done) == (0, 5)
        console.advance()
        assert outer.done == 1
    assert "dev" not in stream.getvalue()  # comes again at every step: it leaves no lines


def test_a_phase_that_was_broken_off_says_how_far_it_came_and_lets_the_error_pass():
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Console(stream, clock=Clock()) as console, console.phase("rl", 3) as phase:
        phase.advance()
        raise KeyboardInterrupt
    assert "rl 1/3, 0s, 0s left: stopped" in stream.getvalue()


def test_the_table_leaves_out_columns_that_nobody_logged():
    table = steps_table({1: {"success": 0.5}, 2: {"success": 0.6, "k3": 0.001}}, COLUMNS)
    assert [column.header for column in table.columns] == ["step", "success", "k3"]
    assert list(table.columns[2].cells) == ["", "0.0010"]


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0s"), (59.6, "1m00s"), (185, "3m05s"), (3725, "1h02m")])
def test_times_are_told_as_people_say_them(seconds, words):
    assert clock_time(seconds) == words


def test_on_a_terminal_the_table_is_live_and_ctrl_c_gives_the_cursor_back():
    script = """
        import os, signal, sys
        from practicum.tracking.console import Console
        with Console() as console, console.phase("[reinforcement]", total=40) as steps:
            for step in range(12):
                console.log({"success": 0.5, "grad_norm": 1.5}, step)
                steps.advance()
            print("a result on stdout")
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
    """
    leader, follower = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stderr=follower, stdout=subprocess.PIPE,
        env={**environment, "PYTHONPATH": SOURCES, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(follower)
    seen = read_all(leader)
    assert process.communicate(timeout=20)[0] == b"a result on stdout\n"
    assert process.returncode == -signal.SIGINT
    hide, restore = "\x1b[?25l", "\x1b[?25h"
    assert hide in seen and seen.rfind(restore) > seen.rfind(hide)
    assert "[reinforcement]" in seen and "12/40" in seen and "left" in seen and "grad norm" in seen
    last_picture = seen[seen.rfind("grad norm") :]
    assert " 11 " in last_picture and "  2 " in last_picture and "  1 " not in last_picture  # the last ten steps


def read_all(descriptor: int, timeout_s: float = 20.0) -> str:
    """What a terminal got until the other side closed it."""
    chunks, deadline = [], time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            chunk = os.read(descriptor, 4096)
        except OSError as error:
            if error.errno == errno.EIO:
                break
            raise
        if not chunk:
            break
        chunks.append(chunk)
    os.close(descriptor)
    return b"".join(chunks).decode()


def test_metrics_are_one_json_object_a_line_and_what_json_cannot_say_is_null(tmp_path):
    tracker = JsonLines(tmp_path / "metrics.jsonl")
    tracker.log({"loss": float("nan"), "success": 0.5}, step=1)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "loss": None, "success": 0.5}
    tracker.close()
    tracker.close()


def test_half_a_line_left_by_a_kill_is_cut_off_before_the_run_goes_on(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    tracker = JsonLines(path)
    tracker.log({"loss": 0.25}, step=2)
    tracker.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_the_report_is_drawn_with_and_without_a_curve_and_twice_the_same(tmp_path):
    pytest.importorskip("matplotlib")
    from practicum.statistics.intervals import success_interval

    def of_ten(successes):
        return success_interval({str(task): [float(task < successes)] for task in range(10)})

    bars = {"as it comes": of_ten(0), "after imitation": of_ten(6), "after RL": of_ten(10)}
    for name in ("first.svg", "again.svg"):
        draw_report(tmp_path / name, bars, {0: of_ten(6), 10: of_ten(7)}, chosen_step=10)
    drawn = (tmp_path / "first.svg").read_bytes()
    assert drawn == (tmp_path / "again.svg").read_bytes() and drawn.rstrip().endswith(b"</svg>")
    draw_report(tmp_path / "bars.png", bars, {0: of_ten(6)})
    draw_report(tmp_path / "bars.png", bars, {})
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="at least one system"):
        draw_report(tmp_path / "none.png", {}, {})
