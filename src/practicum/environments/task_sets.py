"""Tasks of one's own: read from a file, checked, and split into those to practise, to choose by and to measure on."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from practicum.errors import UserError, counted
from practicum.types import Task, stream_seed

FIELDS: dict[str, type] = {"id": str, "prompt": str, "scenario": str, "data": dict, "secret": dict}
NEEDED = ("id", "prompt")
SHOWN = 5
"So many ids are named; the rest is counted."


def content_of(task: Task) -> str:
    """What is asked, with what, and what is right: equal for two tasks that differ in name only."""
    return json.dumps([" ".join(task.prompt.split()), task.data, task.secret], sort_keys=True, default=str)


SHARED: dict[str, Callable[[Task], str]] = {
    "ids": lambda task: task.id,
    "scenarios": lambda task: task.scenario_id,
    "users": lambda task: str(task.data.get("user_id", "")),
    "contents": content_of,
}
"What keeps two splits apart: for each a key of a task, empty where the task has none."
APART = ("ids", "scenarios", "contents")
"Those that hold for tasks of any world; what a user is, only a world knows that says so."


def overlaps(splits: Mapping[str, Sequence[Task]], keys: Collection[str] = tuple(SHARED)) -> list[str]:
    """What two splits share that they must not, and ids that occur twice in one."""
    problems = []
    for name, tasks in splits.items():
        ids = Counter(task.id for task in tasks)
        if twice := sorted(task_id for task_id, count in ids.items() if count > 1):
            problems.append(f"{name} holds an id several times: {some(twice)}; results are paired by id")
    for one, other in combinations(splits, 2):
        for what in keys:
            key_of = SHARED[what]
            known = {key_of(task) for task in splits[one]} - {""}
            if both := [task.id for task in splits[other] if key_of(task) in known]:
                problems.append(
                    f"{one} and {other} share {what}: those of {some(both)} in {other}; keep the splits apart, or what "
                    "is measured was practised"
                )
    return problems


def some(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file (also `.gz`) that are not blank, with their numbers. Raises UserError."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the tasks file {path}: {error}") from error
    return ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


def holds_tasks(path: Path) -> bool:
    """True where the first line is a task as `read_tasks` wants it, and not a row in some world's own form."""
    _, first = next(lines_of(path), (0, ""))
    try:
        row = json.loads(first)
    except ValueError:
        return False
    return isinstance(row, dict) and "prompt" in row


def read_tasks(path: str | Path) -> list[Task]:
    """Tasks of a JSON-lines file (also `.gz`): {"id": …, "prompt": …, "scenario": …, "data": {…}, "secret": {…}}.

    The last three may be left out; blank lines are passed over. Raises UserError naming file and line for a line that
    is no task and for an id seen before, and for a file that is missing, unreadable or empty.
    """
    path = Path(path)
    tasks: list[Task] = []
    line_of: dict[str, int] = {}
    for number, line in lines_of(path):
        where = f"{path}, line {number}"
        task = task_of(line, where)
        if task.id in line_of:
            raise UserError(f"{where}: id {task.id!r} is already that of line {line_of[task.id]}; ids must be unique")
        line_of[task.id] = number
        tasks.append(task)
    if not tasks:
        raise UserError(f"{path} holds no task; write one JSON object per line with {', '.join(NEEDED)}")
    return tasks


def object_in(line: str, where: str) -> dict[str, Any]:
    """The JSON object that a line is. Raises UserError, beginning with `where`, for anything else."""
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: half a character, {error.object[error.start]!r}, is no text") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: this is not JSON ({error}); write one object per line") from error
    if not isinstance(row, dict):
        raise UserError(f"{where}: a row must be an object, found {type(row).__name__}")
    return row


def task_of(line: str, where: str) -> Task:
    """One line as a task. Raises UserError, beginning with `where`, for anything that is not one."""
    row = object_in(line, where)
    for name in NEEDED:
        if not row.get(name):
            raise UserError(f"{where}: {name!r} is missing or empty; a task needs {', '.join(NEEDED)}")
    for name, value in row.items():
        if name not in FIELDS:
            raise UserError(f"{where}: unknown field {name!r}; a task has {', '.join(FIELDS)}; the rest goes into data")
        if not isinstance(value, FIELDS[name]):
            raise UserError(
                f"{where}: {name!r} must be {'an object' if FIELDS[name] is dict else 'text'}, "
                f"found {type(value).__name__}"
            )
    rest: dict[str, Any] = {name: row[name] for name in ("data", "secret") if name in row}
    return Task(row["id"], row["prompt"], scenario_id=row.get("scenario", ""), **rest)


def check_ids(tasks: Sequence[Task]) -> None:
    """Raise UserError for what is no task, for no task at all, and for an id that is empty or occurs twice."""
    if strange := next((task for task in tasks if not isinstance(task, Task)), None):
        raise UserError(f"tasks= needs practicum.Task, found {type(strange).__name__} among them: {strange!r:.80}")
    ids = Counter(task.id for task in tasks)
    if not tasks or "" in ids:
        raise UserError("tasks= holds " + ("a task with an empty id; name it" if tasks else "no task"))
    if twice := sorted(task_id for task_id, count in ids.items() if count > 1):
        raise UserError(f"tasks= holds an id several times: {some(twice)}; results are paired by id")


def split_tasks(tasks: Sequence[Task], counts: Mapping[str, int], seed: int) -> dict[str, list[Task]]:
    """Splits of these sizes that share no id, scenario or content; the same for the same seed.

    `counts` are filled from the last to the first, so that more training tasks leave the test tasks as they are. Of a
    scenario larger than what a split still lacks, the rest is left out. Raises UserError where tasks are too few.

    Example: split_tasks(tasks, {"train": 24, "dev": 8, "test": 32}, seed=0)["test"] -> 32 tasks
    """
    check_ids(tasks)
    families = families_of(tasks)
    random.Random(stream_seed("split", seed)).shuffle(families)
    splits: dict[str, list[Task]] = {name: [] for name in counts}
    for family in families:
        name = next((name for name in reversed(list(counts)) if len(splits[name]) < counts[name]), None)
        if name is not None:
            splits[name] += family[: counts[name] - len(splits[name])]
    if any(len(splits[name]) < count for name, count in counts.items()):
        wanted = " + ".join(f"{name} {count}" for name, count in counts.items())
        raise UserError(
            f"tasks= holds {counted(len(tasks), 'task')}, of which {len(families)} stand apart "
            f"(no scenario or content in common), too few for the recipe's [tasks]: {wanted}; "
            "ask for fewer there, give more tasks, or give the splits yourself: tasks={'train': …, 'dev': …, 'test': …}"
        )
    return splits


def families_of(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks that belong into one split together: they have a key of APART in common, directly or through others."""
    families: dict[str, list[Task]] = {}
    family_of: dict[tuple[str, str], str] = {}
    for task in sorted(tasks, key=lambda task: task.id):
        keys = [(what, key) for what in APART if (key := SHARED[what](task))]
        first, *others = sorted({family_of[key] for key in keys if key in family_of}) or [task.id]
        for other in others:
            families[first] += families.pop(other)
            family_of |= {key: first for key, family in family_of.items() if family == other}
        families.setdefault(first, []).append(task)
        family_of |= dict.fromkeys(keys, first)
    return list(families.values())


def digest_of(splits: Mapping[str, Sequence[Task]]) -> str:
    """A short name for what the tasks of all splits are, to tell whether two calls brought the same."""
    told = [[name, [[task.id, task.scenario_id, content_of(task)] for task in tasks]] for name, tasks in splits.items()]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
