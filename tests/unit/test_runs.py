"""A run's folder, database and checkpoints: what goes in comes out, and no crash leaves half of anything."""

from __future__ import annotations

import errno
import io
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from practicum.errors import UserError
from practicum.runs.checkpoint import Checkpoint, complete, newest, prune, save
from practicum.runs.codec import pack_numbers, turn_from_row, turn_to_row
from practicum.runs.database import Database
from practicum.runs.run import Run
from practicum.runs.show import render_trajectory, show
from practicum.types import Completion, Ending, Group, Message, SamplingParams, ToolCall, Trajectory, Turn

SOURCES = str(Path(__file__).parents[2] / "src")

texts = st.text(max_size=12)
numbers = st.floats(allow_nan=False, width=64)
named_numbers = st.dictionaries(texts, numbers, max_size=2)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
calls = st.builds(ToolCall, texts, st.dictionaries(texts, json_values, max_size=2), texts)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    texts,
    st.lists(calls, max_size=2).map(tuple),
    texts,
    texts,
)


@st.composite
def completions(draw):
    tokens = draw(token_ids)
    logprobs = draw(st.lists(st.floats(max_value=0, width=32) | numbers, min_size=len(tokens), max_size=len(tokens)))
    versions = draw(st.lists(st.integers(0, 1000), min_size=len(tokens), max_size=len(tokens)))
    return Completion(tokens, tuple(logprobs), tuple(versions), draw(st.sampled_from(["stop", "length", "cancelled"])))


@st.composite
def trajectories(draw):
    turns = tuple(
        Turn(
            index=index,
            continues=draw(st.none() | st.integers(0, index - 1)) if index else None,
            added=draw(token_ids),
            completion=draw(completions()),
            messages=tuple(draw(st.lists(messages, max_size=2))),
            action=draw(messages),
            policy=draw(texts),
            sampling=SamplingParams(
                draw(st.floats(0, 2)), draw(st.integers(0, 999)), draw(token_ids), draw(st.integers(0, 2**63 - 1))
            ),
            observation_key=draw(texts),
            rewards=draw(named_numbers),
            seconds=draw(named_numbers),
            delivered=draw(st.booleans()),
        )
        for index in range(draw(st.integers(0, 3)))
    )
    return Trajectory(
        draw(texts), draw(st.integers(0, 99)), turns, draw(st.sampled_from(list(Ending))), draw(texts),
        {**draw(named_numbers), "success": draw(st.floats(0, 1))}, draw(numbers), draw(texts), draw(numbers), draw(texts),
    )  # fmt: skip


def turn(index: int, said: str, tokens: tuple[int, ...] = (72, 105), **fields) -> Turn:
    done = Completion(tokens, (-0.5,) * len(tokens), (1,) * len(tokens), "stop")
    given_now = Message("user" if index == 0 else "tool", f"told {index}")
    return Turn(index, index - 1 if index else None, (65, 66), done, (given_now,), Message("assistant", said), **fields)


def attempt(
    task_id: str, number: int = 0, success: float = 1.0, ending: Ending = Ending.FINISHED, said: str = "Hi"
) -> Trajectory:
    rewards = {} if ending.discarded else {"success": success}
    return Trajectory(task_id, number, (turn(0, said), turn(1, "bye")), ending, rewards=rewards, reward=success)


def group(task_id: str, *attempts: Trajectory) -> Group:
    return Group(f"g/{task_id}", task_id, attempts)


@pytest.fixture
def database(tmp_path):
    with Database(tmp_path / "run.sqlite") as opened:
        yield opened


# ---- database


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(trajectories(), min_size=1, max_size=2), texts, st.integers(0, 10**6))
def test_every_trajectory_comes_back_equal_to_what_was_stored(added, phase, step):
    with Database(":memory:") as database:
        database.add_groups(phase, step, [Group("g", "t", tuple(added))])
        assert list(database.trajectories()) == [(phase, step, trajectory) for trajectory in added]
        assert list(database.trajectories(phase, step, "t")) == list(database.trajectories())
        assert database.damage() == []


def test_logprobs_of_float32_are_kept_as_float32_and_wider_ones_whole():
    assert pack_numbers([-0.5, -1.25])[:1] == b"f"
    assert pack_numbers([-0.1])[:1] == b"d"
    wide = Turn(0, None, (), Completion((1,), (-0.1,), (0,), "stop"), (), Message("assistant", ""))
    assert turn_from_row(turn_to_row(wide, None)) == wide


def test_what_json_has_no_form_for_is_kept_as_its_repr_and_breaks_nothing(database):
    odd = {"wanted": {1, 2}, "by": {(1, 2): b"x"}, "broken": "\ud800"}
    said = Message("assistant", "\ud800 here", (ToolCall("get", odd),))
    first = Turn(0, None, (1,), Completion((2,), (-1.0,), (0,), "stop"), (), said)
    database.add_groups("train", 1, [group("a", Trajectory("a", 0, (first,), Ending.FINISHED, answer="\udfff"))])
    ((_, _, found),) = database.trajectories()
    assert found.turns[0].action.tool_calls[0].arguments == {
        "wanted": "{1, 2}",
        "by": {"(1, 2)": "b'x'"},
        "broken": "\ud800",
    }
    assert database.search("here")[0].task_id == "a"


def test_trajectories_are_found_by_phase_step_and_task(database):
    database.add_groups("train", 1, [group("a", attempt("a")), group("b", attempt("b"))])
    database.add_groups("dev", 1, [group("a", attempt("a"))])
    database.add_groups("train", 2, [group("a", attempt("a"))])

    def places(**wanted):
        return [(phase, step, t.task_id) for phase, step, t in database.trajectories(**wanted)]

    assert places(task_id="a") == [("train", 1, "a"), ("dev", 1, "a"), ("train", 2, "a")]
    assert places(phase="train", step=1) == [("train", 1, "a"), ("train", 1, "b")]
    assert places(phase="test") == []


def test_advantages_are_kept_beside_the_turns_they_trained(database):
    advantages = {("a", 1, 1): (0.5, -0.25)}
    database.add_groups("train", 1, [group("a", attempt("a", 0), attempt("a", 1))], advantages)
    assert [stored.advantages for stored in database.stored()] == [{}, {1: (0.5, -0.25)}]


def test_a_group_that_cannot_be_stored_whole_is_not_stored_at_all(database):
    groups = [group("a", attempt("a")), group("b", attempt("b"))]
    with pytest.raises(ValueError, match="2 sampled tokens, found 3 advantages"):
        database.add_groups("train", 1, groups, {("b", 0, 0): (1.0, 1.0, 1.0)})
    assert list(database.trajectories()) == []


def test_discarded_attempts_are_stored_but_count_in_no_success(database):
    database.add_groups(
        "dev",
        0,
        [group("a", attempt("a", 0, 1.0), attempt("a", 1, ending=Ending.VERIFIER_FAILED), attempt("a", 2, 0.0))],
    )
    assert database.successes() == {("dev", 0): {"a": [1.0, 0.0]}}
    assert len(list(database.trajectories())) == 3


def test_metrics_keep_nan_and_the_later_value_of_a_step(database):
    database.add_metrics(1, {"loss": float("nan"), "success": 0.5})
    database.add_metrics(2, {"loss": 0.25})
    database.add_metrics(1, {"success": 0.75})
    assert database.metrics("success") == [(1, "success", 0.75)]
    (_, _, first), second = database.metrics("loss")
    assert first != first and second == (2, "loss", 0.25)


def test_a_resumed_run_forgets_what_came_after_its_checkpoint_and_nothing_else(database):
    for step in (1, 2, 3):
        database.add_groups("train", step, [group("a", attempt("a", said=f"word{step}"))])
        database.add_metrics(step, {"loss": 1.0})
        database.add_event(step, "note", f"at {step}")
    database.forget_after(1)
    assert [step for _, step, _ in database.trajectories()] == [1]
    assert [step for step, *_ in database.metrics()] == [step for step, *_ in database.events()] == [1]
    assert database.search("word1") and not database.search("word2")
    assert database.damage() == []


def test_search_finds_a_turn_by_the_words_of_its_messages_whatever_signs_they_hold(database):
    database.add_groups("train", 4, [group("a", attempt("a", 2, said='cancel("#W12") Käse')), group("b", attempt("b"))])
    (hit,) = database.search('cancel "#W12"')
    assert (hit.phase, hit.step, hit.task_id, hit.attempt, hit.turn) == ("train", 4, "a", 2, 0)
    assert database.search("käse")[0].excerpt.endswith("»Käse«")
    assert database.search("AND") == database.search("") == []


def test_a_process_killed_while_writing_leaves_a_valid_database_with_what_was_committed(tmp_path):
    path = tmp_path / "run.sqlite"
    script = f"""
        import os, signal
        from practicum.runs.database import Database
        from practicum.types import *
        done = Completion((1,) * 50, (-1.0,) * 50, (0,) * 50, "stop")
        def groups(n, die):
            for i in range(n):
                turn = Turn(0, None, tuple(range(500)), done, (Message("user", "x " * 400),), Message("assistant", "y"))
                yield Group(str(i), str(i), (Trajectory(str(i), 0, (turn,), Ending.FINISHED),))
            if die:
                os.kill(os.getpid(), signal.SIGKILL)
        database = Database({str(path)!r})
        database.add_groups("train", 1, groups(20, False))
        database.add_groups("train", 2, groups(2000, True))
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env={**os.environ, "PYTHONPATH": SOURCES})
    assert ended.returncode == -signal.SIGKILL
    with Database(path) as database:
        assert database.damage() == []
        assert [step for _, step, _ in database.trajectories()] == [1] * 20


def test_a_reader_sees_what_is_committed_while_a_writer_is_at_work_and_cannot_write(tmp_path):
    with Database(tmp_path / "run.sqlite") as writer, Database(tmp_path / "run.sqlite", read_only=True) as reader:
        writer.add_groups("train", 1, [group("a", attempt("a"))])
        assert len(list(reader.trajectories())) == 1
        with pytest.raises(UserError, match="cannot be written"):
            reader.add_event(1, "note", "no")


def test_a_file_that_is_no_database_of_this_layout_is_refused_with_one_message(tmp_path):
    with pytest.raises(UserError, match="cannot be opened"):
        Database(tmp_path / "absent.sqlite", read_only=True)
    (tmp_path / "text.sqlite").write_text("not a database at all, but long enough to look like a header of one")
    with pytest.raises(UserError, match="cannot be opened"):
        Database(tmp_path / "text.sqlite")
    with sqlite3.connect(tmp_path / "later.sqlite") as other:
        other.executescript("CREATE TABLE t (x); PRAGMA user_version = 99;")
    with pytest.raises(UserError, match="layout 99"):
        Database(tmp_path / "later.sqlite")


# ---- folder


def test_a_run_holds_its_config_and_is_found_again(tmp_path):
    with Run.create(tmp_path / "deep" / "run", "seed = 1\n") as run:
        assert run.config.read_text() == "seed = 1\n"
        assert Run.open(run.folder).config == run.config  # reading needs no lock


def test_a_folder_that_cannot_hold_a_run_is_refused_with_one_message(tmp_path):
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="cannot be written"):
            Run.create(wrong, "")
    with pytest.raises(UserError, match="cannot be written"):
        Run.create("/proc/practicum/run", "")  # not even root may write there
    Run.create(tmp_path / "run", "").close()
    with pytest.raises(UserError, match="already holds a run"):
        Run.create(tmp_path / "run", "")
    Run.open(tmp_path / "run", writing=True).close()  # the refusal did not keep the lock


@pytest.mark.parametrize(
    ("name", "found"), [("absent", "does not exist"), ("empty", "holds none"), ("file", "is a file")]
)
def test_what_is_no_run_folder_is_not_opened(tmp_path, name, found):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=found):
        Run.open(tmp_path / name)


def test_a_second_process_is_refused_until_the_first_ends_even_by_a_kill(tmp_path):
    script = f"""
        import time
        from practicum.runs.run import Run
        run = Run.create({str(tmp_path / "run")!r}, "")
        print("locked", flush=True)
        time.sleep(60)
    """
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    first = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], env=environment, stdout=subprocess.PIPE)
    try:
        assert first.stdout.readline() == b"locked\n"
        with pytest.raises(UserError, match=f"written by process {first.pid}"):
            Run.open(tmp_path / "run", writing=True)
    finally:
        first.kill()
        first.communicate()
    Run.open(tmp_path / "run", writing=True).close()


# ---- checkpoints


def write_weights(path: Path) -> None:
    (path / "model").mkdir()
    (path / "model" / "weights.bin").write_bytes(b"\x01" * 100)


def test_a_checkpoint_is_found_whole_by_its_step(tmp_path):
    for step in (9, 10, 1_000_000):
        saved = save(tmp_path, step, write_weights)
        assert saved == newest(tmp_path) == Checkpoint(saved.path, step)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-000009", "step-000010", "step-1000000"]
    assert (saved.path / "model" / "weights.bin").read_bytes() == b"\x01" * 100
    assert newest(tmp_path / "absent") is None


def test_a_checkpoint_that_failed_half_way_is_never_seen_and_the_older_one_is_intact(tmp_path):
    save(tmp_path, 1, write_weights)

    def full_disk(path: Path) -> None:
        write_weights(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match="No space left on device; the older checkpoints are intact"):
        save(tmp_path, 2, full_disk)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert (newest(tmp_path).path / "model" / "weights.bin").stat().st_size == 100


def test_a_process_killed_while_saving_leaves_nothing_that_passes_for_a_checkpoint(tmp_path):
    script = f"""
        import os, signal
        from pathlib import Path
        from practicum.runs.checkpoint import save
        def write(path):
            (path / "weights.bin").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        save(Path({str(tmp_path)!r}), 5, write)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env={**os.environ, "PYTHONPATH": SOURCES})
    assert len(list(tmp_path.iterdir())) == 1 and newest(tmp_path) is None
    save(tmp_path, 5, write_weights)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005"]  # what was left behind is gone


def test_a_step_saved_again_replaces_the_earlier_one(tmp_path):
    save(tmp_path, 1, lambda path: (path / "a").touch())
    save(tmp_path, 1, lambda path: (path / "b").touch())
    assert [path.name for path in newest(tmp_path).path.iterdir()] == ["b"]
    assert len(list(tmp_path.iterdir())) == 1


def test_pruning_keeps_the_newest_and_the_best(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step, write_weights)
    save(tmp_path, 4, write_weights, keep_steps={2})
    assert [checkpoint.step for checkpoint in complete(tmp_path)] == [2, 4]
    prune(tmp_path, ())
    assert [checkpoint.step for checkpoint in complete(tmp_path)] == [4]


# ---- show


def decode(tokens) -> str:
    return bytes(tokens).decode()


def printed(renderable, terminal: bool = False) -> str:
    stream = io.StringIO()
    Console(file=stream, force_terminal=terminal, color_system="standard" if terminal else None, width=100).print(
        renderable, soft_wrap=True
    )
    return stream.getvalue()


def test_without_a_terminal_what_was_trained_stands_in_marks_and_there_are_no_colour_codes():
    text = printed(render_trajectory(attempt("a"), {0: [0.5, -0.5], 1: [0.0, 0.0]}, decode))
    assert "«+H»«-i»" in text
    assert "\nHi\n" in text  # turn 1: advantage 0, not trained
    assert "turn 0 (a context begins): 2 tokens added, 2 sampled, mean log-prob -0.50, stop" in text
    assert "turn 1 (continues 0)" in text and "finished, reward 1: success 1" in text
    assert "\x1b" not in text


def test_on_a_terminal_the_sign_of_the_advantage_is_the_colour():
    text = printed(render_trajectory(attempt("a"), {0: [0.5, -0.5]}, decode), terminal=True)
    green, red, dim = "\x1b[32mH", "\x1b[31mi", "\x1b[2mAB"
    assert green in text and red in text and dim in text
    assert "«" not in text


def test_brackets_that_a_model_wrote_are_text_and_no_markup():
    assert "[red]x[/red]" in printed(render_trajectory(attempt("a", said="[red]x[/red]")))


def test_control_characters_that_a_model_sampled_do_not_reach_the_terminal():
    text = printed(render_trajectory(attempt("a", said="\x1b[2Jgone\x07")))
    assert "␛[2Jgone␇" in text and "\x1b" not in text


def shown(folder, *arguments, **named) -> str:
    stream = io.StringIO()
    show(folder, *arguments, console=Console(file=stream, width=100), **named)
    return stream.getvalue()


def test_a_run_lists_its_tasks_and_shows_the_last_attempts_at_one(tmp_path):
    with Run.create(tmp_path / "run", "") as run, Database(run.database) as database:
        database.add_groups("train", 1, [group("refund_7", attempt("refund_7", said="early"))])
        both = (attempt("refund_7", 0, said="late"), attempt("refund_7", 1, 0.0, said="poor"))
        database.add_groups("train", 2, [group("refund_7", *both)], {("refund_7", 0, 0): (0.5, 0.5)})
        database.add_groups("test/base", 0, [group("other", attempt("other"))])
    listed = shown(run.folder)
    assert "1/2 @2" in listed and "1/1 @0" in listed and "early" not in listed
    told = shown(run.folder, "refund_7")
    assert "«+late»" in told and "poor" in told and "early" not in told
    assert "early" in shown(run.folder, "refund_7", step=1)
    with pytest.raises(UserError, match="no attempt at task refund_8; did you mean refund_7"):
        show(run.folder, "refund_8")
    with pytest.raises(UserError, match="only in: train at step 1, train at step 2"):
        show(run.folder, "refund_7", phase="dev")
