"""A stored trajectory in the terminal, turn by turn, with what was trained in colour."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from practicum.errors import UserError
from practicum.runs.codec import spelt
from practicum.runs.database import Database, Stored
from practicum.runs.run import Run
from practicum.types import Trajectory, Turn

Decode = Callable[[Sequence[int]], str]
STYLES = {1: "green", -1: "red", 0: ""}
CONTROLS = {code: 0x2400 + code for code in range(32) if code not in b"\t\n"} | {
    code: 0xFFFD for code in range(127, 160)
}
"Control characters that a model sampled must not reach the terminal: shown as their pictures."
PLAIN_MARKS = {1: ("«+", "»"), -1: ("«-", "»"), 0: ("", "")}


def show(
    run_folder: str | Path,
    task_id: str | None = None,
    phase: str | None = None,
    decode: Decode | None = None,
    step: int | None = None,
    console: Console | None = None,
) -> None:
    """Print a run: its tasks with the success of each phase, or with `task_id` every attempt at that task.

    `run_folder` may also be a database by itself, such as an evaluation writes. Without `step`, each phase is shown as
    it was when the task last occurred in it. `decode` turns token ids into text; without it the recorded messages are
    shown, each completion in one colour. Raises UserError when the folder holds no run, or the run no such task or
    phase.

    Example: show("runs/retail", task_id="retail_7", phase="train", decode=tokenizer.decode)
    """
    console = console or Console(highlight=False)
    path = Path(run_folder)
    with Database(path if path.is_file() else Run.open(path).database, read_only=True) as database:
        if task_id is None:
            successes = database.successes(phase, step)
            if phase is not None and not successes:
                phases = ", ".join(sorted({found for found, _ in database.successes()})) or "none"
                raise UserError(f"{path} holds no scored attempt of a phase {phase}; its phases: {phases}")
            console.print(task_table(successes), soft_wrap=True)
            return
        for stored in last_attempts(database, task_id, phase, step):
            console.print(Rule(f"{stored.phase}, step {stored.step}, attempt {stored.trajectory.attempt}"))
            console.print(render_trajectory(stored.trajectory, stored.advantages, decode), soft_wrap=True)


def task_table(successes: Mapping[tuple[str, int], Mapping[str, Sequence[float]]]) -> Table:
    """One row a task, one column a phase: successes of attempts at the last step at which the task occurred there."""
    latest: dict[str, dict[str, str]] = {}
    phases: list[str] = []
    for (phase, step), tasks in sorted(successes.items(), key=lambda item: item[0][1]):
        if phase not in phases:
            phases.append(phase)
        for task_id, attempts in tasks.items():
            done = f"{sum(attempts):g}/{len(attempts)}"
            latest.setdefault(task_id, {})[phase] = f"{done} @{step}"
    table = Table("task", *phases, box=None, title="successes / valid attempts @ last step", title_justify="left")
    for task_id in sorted(latest):
        table.add_row(task_id, *(latest[task_id].get(phase, "") for phase in phases))
    return table


def last_attempts(database: Database, task_id: str, phase: str | None, step: int | None) -> Iterator[Stored]:
    """Attempts at a task: those of `step`, or of each phase's last step. Raises UserError when there are none."""
    places = database.places(task_id)
    if not places:
        close = difflib.get_close_matches(task_id, database.task_ids(), n=3)
        known = f"did you mean {' or '.join(close)}?" if close else "leave the task out to see those it holds"
        raise UserError(f"the run holds no attempt at task {task_id}; {known}")
    chosen = [place for place in places if phase in (None, place[0]) and step in (None, place[1])]
    if not chosen:
        found = ", ".join(f"{name} at step {number}" for name, number in places)
        raise UserError(f"the run holds task {task_id} only in: {found}")
    for name, number in chosen:
        if step is not None or number == max(other for at, other in chosen if at == name):
            yield from database.stored(name, number, task_id)


def render_trajectory(
    trajectory: Trajectory, advantages: Mapping[int, Sequence[float]] | None = None, decode: Decode | None = None
) -> RenderableType:
    """A trajectory to be printed by rich, turn by turn.

    On a terminal what the model was given is dim, sampled tokens are green where they were trained with a positive
    advantage, red with a negative one, plain where they were not trained (no advantage, or 0). Elsewhere there are no
    colours and trained text stands in «+…» or «-…».
    `advantages` holds, by turn index, one number per sampled token.

    Example: Console().print(render_trajectory(trajectory, {0: [0.5] * 12}, tokenizer.decode), soft_wrap=True)
    """
    return Rendered(trajectory, advantages or {}, decode)


@dataclass(frozen=True, slots=True)
class Rendered:
    """Waits until it is printed, since only then it is known whether there are colours."""

    trajectory: Trajectory
    advantages: Mapping[int, Sequence[float]]
    decode: Decode | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Heading, turns, verdict."""
        trajectory, coloured = self.trajectory, console.is_terminal
        yield Text(f"{trajectory.task_id}, attempt {trajectory.attempt}", style="bold")
        for turn in trajectory.turns:
            yield Text("\n" + turn_heading(turn), style="bold")
            yield Text(given(turn, self.decode), style="dim")
            yield sampled(turn, self.advantages.get(turn.index), self.decode, coloured)
        yield Text("\n" + verdict(trajectory), style="bold")
        if trajectory.error:
            yield Text(trajectory.error.translate(CONTROLS), style="yellow")


def turn_heading(turn: Turn) -> str:
    """'turn 2 (continues 1): 31 tokens added, 12 sampled, mean log-prob -0.21, stop'."""
    done = turn.completion
    place = "a context begins" if turn.continues is None else f"continues {turn.continues}"
    mean = f", mean log-prob {sum(done.logprobs) / len(done.logprobs):.2f}" if done.logprobs else ""
    rest = "" if turn.delivered else ", never delivered"
    if turn.rewards:
        rest += ", step rewards " + named(turn.rewards)
    who = "" if turn.policy == "agent" else f" of {turn.policy}"
    return (
        f"turn {turn.index}{who} ({place}): {len(turn.added)} tokens added, {done.size} sampled{mean}, "
        f"{done.stop_reason}{rest}"
    )


def given(turn: Turn, decode: Decode | None) -> str:
    """What the call added to the context."""
    if decode is not None:
        return decode(turn.added).translate(CONTROLS)
    return "\n".join(f"{message.role}: {spelt(message)}" for message in turn.messages).translate(CONTROLS)


def sampled(turn: Turn, advantages_T: Sequence[float] | None, decode: Decode | None, coloured: bool) -> Text:
    """The completion, in runs of tokens whose advantages have the same sign."""
    signs = [(a > 0) - (a < 0) for a in advantages_T or [0.0] * len(turn.completion.tokens)]
    if decode is None:
        runs = [(max(set(signs), key=signs.count) if signs else 0, spelt(turn.action))]
    else:
        pairs = groupby(zip(signs, turn.completion.tokens, strict=True), key=lambda pair: pair[0])
        runs = [(sign, decode([token for _, token in run])) for sign, run in pairs]
    text = Text()
    for sign, words in ((sign, words.translate(CONTROLS)) for sign, words in runs):
        if coloured:
            text.append(words, style=STYLES[sign])
        else:
            before, after = PLAIN_MARKS[sign]
            text.append(before + words + after)
    return text


def verdict(trajectory: Trajectory) -> str:
    """'finished, reward 1: success 1; answer: …'."""
    fate = " (discarded)" if trajectory.ending.discarded else " (truncated)" if trajectory.ending.truncated else ""
    rewards = f": {named(trajectory.rewards)}" if trajectory.rewards else ""
    answer = f"\nanswer: {trajectory.answer.translate(CONTROLS)}" if trajectory.answer else ""
    return f"{trajectory.ending}{fate}, reward {trajectory.reward:g}{rewards}, {trajectory.seconds:.1f} s{answer}"


def named(numbers: Mapping[str, float]) -> str:
    """'success 1, tidy 0.5'."""
    return ", ".join(f"{name} {value:g}" for name, value in numbers.items())
