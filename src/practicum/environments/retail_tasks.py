"""Sets of retail tasks: tau-bench's rows, further rows of the same form made and verified, and disjoint splits."""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from practicum.environments.retail import BUILT_LEVELS, DEFAULT_LEVELS, Retail, check_levels
from practicum.environments.retail_data import DATA, database
from practicum.environments.retail_requests import Shape, invent
from practicum.environments.retail_rows import (
    WRITES,
    Call,
    Row,
    gold_writes,
    played,
    read_rows,
    sort_rows,
    task_of,
)
from practicum.environments.retail_wishes import SHAPES, invent_wishes
from practicum.errors import ToolError, UserError
from practicum.types import Task, stream_seed

PATIENCE = 1000
"A shape of which so many inventions in a row came to nothing is given up."
WISHED = {shape for shapes in SHAPES.values() for shape in shapes}
"The shapes that are worded freely."


@functools.cache
def shipped_tasks(levels: tuple[int, ...] = DEFAULT_LEVELS, strict: bool = False) -> tuple[Task, ...]:
    """The real tasks among the 400 shipped training rows."""
    return sort_rows(read_rows(DATA / "tasks_train.jsonl.gz"), levels, strict).tasks


def writes_in(task: Task) -> list[Call]:
    """The gold writes of a task."""
    actions = [(action["name"], action["arguments"]) for action in task.secret["actions"]]
    return [(name, arguments) for name, arguments in actions if name in WRITES]


def content_of(writes: Iterable[Call]) -> str:
    """What is to be done, whatever the wording and the order: equal content is one task twice."""
    parts: list[str] = []
    for name, arguments in writes:
        old: list[str] = arguments.get("item_ids", [])
        pairs = sorted(zip(old, arguments.get("new_item_ids", old), strict=True))
        rest = sorted((key, value) for key, value in arguments.items() if isinstance(value, str))
        parts.append(json.dumps([name, rest, pairs]))
    return "\n".join(sorted(parts))


def shape_of(task: Task) -> Shape:
    """The writes of a task and how many items each has."""
    return tuple((name, len(arguments.get("item_ids", []))) for name, arguments in writes_in(task))


def generate(
    n: int,
    seed: int,
    users: Iterable[str],
    levels: Sequence[int] = DEFAULT_LEVELS,
    known: Iterable[Task] = (),
    strict: bool = False,
) -> list[Task]:
    """`n` further tasks from real orders of `users`: at levels 1 and 2 in the form of the real rows and, as long as the
    orders last, in their proportions; at 3 and 4 in words of our own. With 3 or 4 among them all levels weigh the same.

    Each was played by its expert (success) and by nobody (no success); no content occurs twice or in `known`. Ids are
    made from the content. A user who gave a task goes to the end of the queue, so that many users take part.
    Raises UserError when the orders of `users` cannot give `n`.

    Example: generate(16, seed=1, users=training_users(split), levels=(1,), known=split["train"])
    """
    rng = random.Random(stream_seed("retail", seed))
    groups = shapes_of(check_levels(levels), strict)
    queue = sorted(set(users) & set(database().users))
    rng.shuffle(queue)
    contents = {content_of(writes_in(task)) for task in known}
    failures: Counter[Shape] = Counter()
    tasks: list[Task] = []
    while len(tasks) < n:
        if not groups or not queue:
            raise UserError(
                f"the orders of {len(queue)} users gave {len(tasks)} different tasks of levels {list(levels)}, "
                f"{n} were asked for; ask for fewer or give more users"
            )
        shape = rng.choice(groups[0] if len(groups) == 1 else rng.choice(groups))
        made = invent_wishes if shape in WISHED else invent
        for user in queue:
            row = made(user, shape, rng)
            if row is not None and (content := content_of(gold_writes(row))) not in contents:
                contents.add(content)
                if (task := verified(row, strict)) is not None:
                    tasks.append(task)
                    queue.remove(user)
                    queue.append(user)
                    failures[shape] = 0
                    break
            failures[shape] += 1
        if failures[shape] >= PATIENCE:
            kept = ([other for other in shapes if other != shape] for shapes in groups)
            groups = [shapes for shapes in kept if shapes]
    return tasks


def shapes_of(levels: tuple[int, ...], strict: bool = False) -> list[list[Shape]]:
    """What tasks of these levels may be like, in lists that are drawn from equally often."""
    real_together = [levels] if max(levels) <= 2 else [(level,) for level in levels]
    return [
        [shape_of(task) for task in shipped_tasks(group, strict)] if max(group) <= 2 else list(SHAPES[group[0]])
        for group in real_together
    ]


def verified(row: Row, strict: bool = False) -> Task | None:
    """The task of a row where the expert's play succeeds and doing nothing does not."""
    try:
        task = task_of(row)
        done = played(Retail(BUILT_LEVELS, strict=strict), task)
    except ToolError:
        return None
    untouched = Retail(BUILT_LEVELS)
    untouched.reset(task)
    return task if done == 1.0 and untouched.verify(task.secret)["success"] == 0.0 else None


def splits(
    levels: Sequence[int] = DEFAULT_LEVELS,
    train: int = 72,
    dev: int = 40,
    test: int = 160,
    seed: int = 0,
    strict: bool = False,
) -> dict[str, tuple[Task, ...]]:
    """Three task sets that share no id, no user and no content; the same arguments give the same sets anywhere.

    For level 3 or 4 see `mixed_splits`. Else all training tasks are real rows; the real rows of other users are shared
    between dev and test in proportion to their sizes; what is missing there is made from orders of users that have no
    real row at these levels. Raises UserError where the real rows or the orders do not suffice.
    """
    levels = check_levels(levels)
    if max(levels) > 2:
        return mixed_splits(levels, {"train": train, "dev": dev, "test": test}, seed, strict)
    rng = random.Random(stream_seed("retail splits", seed))
    rows_of: dict[str, list[Task]] = {}
    first_of: dict[str, Task] = {}
    for task in shipped_tasks(levels, strict):
        first_of.setdefault(content_of(writes_in(task)), task)
    for task in first_of.values():
        rows_of.setdefault(task.data["user_id"], []).append(task)
    users = sorted(rows_of)
    rng.shuffle(users)
    train_tasks = take(users, rows_of, train)
    if len(train_tasks) < train:
        raise UserError(f"levels {list(levels)} have {len(train_tasks)} real rows; asked for in training: {train}")
    others = users[len({task.data["user_id"] for task in train_tasks}) :]
    n_left = sum(len(rows_of[user]) for user in others)
    real_dev = take(others, rows_of, min(dev, round(n_left * dev / max(dev + test, 1))))
    real_test = take(others[len({task.data["user_id"] for task in real_dev}) :], rows_of, test)
    fresh = sorted(user for user, record in database().users.items() if record["orders"] and user not in rows_of)
    rng.shuffle(fresh)
    n_made = (dev - len(real_dev), test - len(real_test))
    cut = round(len(fresh) * n_made[0] / max(sum(n_made), 1))
    return {
        "train": tuple(train_tasks),
        "dev": tuple(real_dev + generate(n_made[0], seed, fresh[:cut], levels, strict=strict)),
        "test": tuple(real_test + generate(n_made[1], seed, fresh[cut:], levels, strict=strict)),
    }


def mixed_splits(
    levels: tuple[int, ...], sizes: Mapping[str, int], seed: int, strict: bool
) -> dict[str, tuple[Task, ...]]:
    """Splits in which every level has the same share; each is of users of its own, real rows first, the rest made.

    At level 4 half of the tasks are made: in no real row of these is something to be told, or an order not named.
    Raises UserError where the orders do not suffice.
    """
    rng = random.Random(stream_seed("retail mixed splits", seed))
    users = sorted(user for user, record in database().users.items() if record["orders"])
    rng.shuffle(users)
    found: dict[str, tuple[Task, ...]] = {}
    n_before, n_all = 0, max(sum(sizes.values()), 1)
    for name, n in sizes.items():
        pool = users[len(users) * n_before // n_all : len(users) * (n_before + n) // n_all]
        n_before += n
        tasks: list[Task] = []
        for position, level in enumerate(levels):
            n_level = n // len(levels) + (position < n % len(levels))
            rows = {content_of(writes_in(task)): task for task in reversed(shipped_tasks((level,), strict))}
            n_real = n_level // 2 if level == 4 else n_level
            real = [task for task in reversed(rows.values()) if task.data["user_id"] in pool][:n_real]
            tasks += real
            tasks += generate(n_level - len(real), seed, pool, (level,), known=tasks, strict=strict)
        rng.shuffle(tasks)
        found[name] = tuple(tasks)
    return found


def take(users: Sequence[str], rows_of: Mapping[str, Sequence[Task]], n: int) -> list[Task]:
    """The first `n` tasks, user by user."""
    return [task for user in users for task in rows_of[user]][:n]


def training_users(split: Mapping[str, Sequence[Task]]) -> tuple[str, ...]:
    """Users with orders whom neither dev nor test holds: further training tasks may be made from these."""
    held_out = {task.data["user_id"] for name in ("dev", "test") for task in split[name]}
    return tuple(user for user, record in database().users.items() if record["orders"] and user not in held_out)
