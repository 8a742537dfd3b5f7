"""Rows of tau-bench retail to tasks: read, sorted by what is built, split, and more rows of the same form made."""

from __future__ import annotations

import functools
import gzip
import json
import random
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from practicum.environments.retail import (
    BUILT_LEVELS,
    DATA,
    TOOL_OF_BENCHMARK,
    Retail,
    check_levels,
    database,
    original_payment,
)
from practicum.environments.retail_requests import Row, Shape, invent
from practicum.environments.tools import Toolbox
from practicum.errors import ToolError, UserError
from practicum.types import Task, ToolCall, stream_seed

Write = tuple[str, dict[str, Any]]
"A gold call in our vocabulary: ('cancel_order', {'order_id': '#W7602708', 'reason': 'no longer needed'})."
BENCHMARK_READS = {
    "calculate",
    "find_user_id_by_email",
    "find_user_id_by_name_zip",
    "get_order_details",
    "get_product_details",
    "get_user_details",
    "list_all_product_types",
    "think",
}
"The benchmark's tools that write nothing."
OURS = set(TOOL_OF_BENCHMARK.values())
LEVEL_1_WRITES = {"cancel_order", "return_items"}
ORDER_ID = re.compile(r"#W\d+")
PERSONA = re.compile(r"You(?:r)? name is [^.]+? and your (?:zip code is \d+|email is \S+)\. You are [a-z, -]+\.\s*")
FIELDS: dict[str, type] = {"id": str, "user_id": str, "instruction": str, "actions": list, "outputs": list}
PATIENCE = 1000
"A shape of which so many inventions in a row came to nothing is given up."


@dataclass(frozen=True)
class SortedRows:
    """Every row in exactly one of three places.

    Example: SortedRows(tasks=(Task("retail_train_0", …),),
                        skipped={"retail_train_1": "it needs modify_pending_order_address, which is not built"},
                        invalid={"retail_train_161": "gift_card_5193172 holds $17, …"})
    """

    tasks: tuple[Task, ...]
    skipped: dict[str, str] = field(default_factory=dict)
    "Row id to what it needs that is not built or not among the levels asked for."
    invalid: dict[str, str] = field(default_factory=dict)
    "Row id to the tool's own words where a gold write is refused."


def read_rows(path: str | Path) -> list[Row]:
    """Rows of a JSON-lines file in tau-bench's form (also `.gz`); blank lines are passed over.

    Raises UserError naming file and line for a line that is not such a row, an id seen before, and for a file that
    is missing, unreadable or empty.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the tasks file {path}: {error}") from error
    rows: list[Row] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        row = checked_row(line, where)
        if row["id"] in line_of:
            first = line_of[row["id"]]
            raise UserError(f"{where}: id {row['id']!r} is already that of line {first}; ids must be unique")
        line_of[row["id"]] = number
        rows.append(row)
    if not rows:
        raise UserError(f"{path} holds no row; write one JSON object per line with {', '.join(FIELDS)}")
    return rows


def checked_row(line: str, where: str) -> Row:
    """One line as a row. Raises UserError, beginning with `where`, for anything that is not one."""
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: half a character, {error.object[error.start]!r}, is no text") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: this is not JSON ({error}); write one object per line") from error
    if not isinstance(row, dict):
        raise UserError(f"{where}: a row must be an object, found {type(row).__name__}")
    for name, kind in FIELDS.items():
        if name not in row:
            raise UserError(f"{where}: field {name!r} is missing; a row needs {', '.join(FIELDS)}")
        if not isinstance(row[name], kind):
            raise UserError(f"{where}: field {name!r} must be a {kind.__name__}, found {type(row[name]).__name__}")
    if not row["id"]:
        raise UserError(f"{where}: field 'id' is empty; results are told apart by it")
    for action in row["actions"]:
        named = isinstance(action, dict) and isinstance(action.get("name"), str)
        if not named or not isinstance(action.get("kwargs"), dict):
            raise UserError(f"{where}: an action needs a 'name' (str) and 'kwargs' (object), found {action!r}")
    return row


def sort_rows(rows: Iterable[Row], levels: Sequence[int] = BUILT_LEVELS) -> SortedRows:
    """Turn rows into tasks; say for each that is none whether it is beyond what is built or refused by the tools."""
    levels = check_levels(levels)
    tasks: list[Task] = []
    skipped: dict[str, str] = {}
    invalid: dict[str, str] = {}
    for row in rows:
        reason = beyond(row, levels)
        if reason:
            skipped[row["id"]] = reason
            continue
        try:
            tasks.append(task_of(row))
        except ToolError as refusal:
            invalid[row["id"]] = str(refusal)
    return SortedRows(tuple(tasks), skipped, invalid)


def writes_of(row: Row) -> list[str]:
    """Names of the gold calls that are no look-ups, in our vocabulary where we have the benchmark's tool."""
    names = [action["name"] for action in row["actions"] if action["name"] not in BENCHMARK_READS]
    unknown = "{} (no tool of the benchmark)"  # also one that is called as ours is: rows are in the benchmark's words
    return [TOOL_OF_BENCHMARK.get(name, unknown.format(name) if name in OURS else name) for name in names]


def level_of(row: Row) -> int:
    """1 where all writes are cancellations and returns, 2 where the one write replaces items, 0 beyond."""
    writes = writes_of(row)
    if writes and set(writes) <= LEVEL_1_WRITES:
        return 1
    return 2 if len(writes) == 1 and writes[0] in ("exchange_items", "modify_items") else 0


def beyond(row: Row, levels: Sequence[int]) -> str:
    """Why the row is no task of these levels; empty where it is one."""
    writes = writes_of(row)
    strange = sorted(set(writes) - OURS)
    if not writes:
        return "it has no write: nothing in the database would show that it was done"
    if strange:
        return f"it needs {', '.join(strange)}, which is not built"
    if level_of(row) == 0:
        return f"it mixes {', '.join(writes)}: built are cancellations and returns, or one exchange or modification"
    if row["outputs"]:
        return "something must be said to the customer (outputs), which is not built"
    if not ORDER_ID.search(row["instruction"]):
        return "the request names no order; finding the customer's orders is not built"
    if level_of(row) not in levels:
        return f"it is of level {level_of(row)}; asked for: {', '.join(map(str, levels))}"
    if needs_user(row) and 2 not in levels:
        return "its payment method must be looked up with get_user, a tool of level 2"
    return ""


def needs_user(row: Row) -> bool:
    """True when a gold payment method is neither named in the request nor shown as the order's own."""
    for name, arguments in gold_writes(row):
        payment, order = arguments.get("payment_id"), database().orders.get(str(arguments.get("order_id")))
        named = name == "cancel_order" or str(payment) in row["instruction"]
        if not named and order is not None and payment != original_payment(order):
            return True
    return False


def gold_writes(row: Row) -> list[Write]:
    """The gold calls of a row that we have tools for, look-ups left out."""
    return [
        (
            TOOL_OF_BENCHMARK[action["name"]],
            {"payment_id" if key == "payment_method_id" else key: value for key, value in action["kwargs"].items()},
        )
        for action in row["actions"]
        if action["name"] in TOOL_OF_BENCHMARK
    ]


def request_of(instruction: str) -> str:
    """What the customer asks for, without the sentences that say who they are where these have their regular form.

    Example: "Your name is Omar Anderson and your zip code is 19031. You are polite. Return #W6067464 via
    credit_card_4190576: Wall Clock; " gives "Return #W6067464 via credit_card_4190576: Wall Clock".
    """
    start = PERSONA.match(instruction)
    return instruction[start.end() if start else 0 :].strip().rstrip(";")


def task_of(row: Row) -> Task:
    """The task of a row of a built level. Raises ToolError, in the tool's words, where a gold write is refused."""
    if row["user_id"] not in database().users:
        raise ToolError(f"there is no customer {row['user_id']!r}")
    for action in row["actions"]:
        if action["name"] in TOOL_OF_BENCHMARK and "payment_id" in action["kwargs"]:
            raise ToolError(f"{action['name']} has no argument payment_id; the benchmark calls it payment_method_id")
    writes = gold_writes(row)
    shop = Retail()
    toolbox = Toolbox(shop)
    for name, arguments in writes:
        toolbox.call(ToolCall(name, arguments))
    look_up: list[Write] = [("get_user", {})] if needs_user(row) else []
    actions = [{"name": name, "arguments": arguments} for name, arguments in look_up + writes]
    return Task(
        id=row["id"],
        prompt=request_of(row["instruction"]),
        data={"user_id": row["user_id"], "level": level_of(row)},
        secret={"actions": actions, "changes": shop.changes()},
    )


@functools.cache
def shipped_tasks(levels: tuple[int, ...] = BUILT_LEVELS) -> tuple[Task, ...]:
    """The real tasks among the 400 shipped training rows."""
    return sort_rows(read_rows(DATA / "tasks_train.jsonl.gz"), levels).tasks


def writes_in(task: Task) -> list[Write]:
    """The gold writes of a task."""
    actions = [(action["name"], action["arguments"]) for action in task.secret["actions"]]
    return [(name, arguments) for name, arguments in actions if name in TOOL_OF_BENCHMARK.values()]


def content_of(writes: Iterable[Write]) -> str:
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
    n: int, seed: int, users: Iterable[str], levels: Sequence[int] = BUILT_LEVELS, known: Iterable[Task] = ()
) -> list[Task]:
    """`n` further tasks from real orders of `users`, in the form of the real rows of `levels` and, as long as the
    orders last, in their proportions.

    Each was played by its expert (success) and by nobody (no success); no content occurs twice or in `known`. Ids are
    made from the content. A user who gave a task goes to the end of the queue, so that many users take part.
    Raises UserError when the orders of `users` cannot give `n`.

    Example: generate(16, seed=1, users=training_users(split), levels=(1,), known=split["train"])
    """
    rng = random.Random(stream_seed("retail", seed))
    shapes = [shape_of(task) for task in shipped_tasks(check_levels(levels))]
    queue = sorted(set(users) & set(database().users))
    rng.shuffle(queue)
    contents = {content_of(writes_in(task)) for task in known}
    failures: Counter[Shape] = Counter()
    tasks: list[Task] = []
    while len(tasks) < n:
        if not shapes or not queue:
            raise UserError(
                f"the orders of {len(queue)} users gave {len(tasks)} different tasks of levels {list(levels)}, "
                f"{n} were asked for; ask for fewer or give more users"
            )
        shape = rng.choice(shapes)
        for user in queue:
            row = invent(user, shape, rng)
            if row is not None and (content := content_of(gold_writes(row))) not in contents:
                contents.add(content)
                if (task := verified(row)) is not None:
                    tasks.append(task)
                    queue.remove(user)
                    queue.append(user)
                    failures[shape] = 0
                    break
            failures[shape] += 1
        if failures[shape] >= PATIENCE:
            shapes = [other for other in shapes if other != shape]
    return tasks


def verified(row: Row) -> Task | None:
    """The task of a row where the expert's play succeeds and doing nothing does not."""
    try:
        task = task_of(row)
    except ToolError:
        return None
    shop = Retail()
    toolbox = Toolbox(shop)
    shop.reset(task)
    nothing = shop.verify(task.secret)["success"]
    for call in shop.solve(task.secret):
        toolbox.call(call)
    return task if nothing == 0.0 and shop.verify(task.secret)["success"] == 1.0 else None


def splits(
    levels: Sequence[int] = BUILT_LEVELS, train: int = 72, dev: int = 40, test: int = 160, seed: int = 0
) -> dict[str, tuple[Task, ...]]:
    """Three task sets that share no id, no user and no content; the same arguments give the same sets anywhere.

    All training tasks are real rows. The real rows of other users are shared between dev and test in proportion to
    their sizes; what is missing there is made from orders of users that have no real row at these levels.
    Raises UserError where the real rows or the orders do not suffice.
    """
    levels = check_levels(levels)
    rng = random.Random(stream_seed("retail splits", seed))
    rows_of: dict[str, list[Task]] = {}
    first_of: dict[str, Task] = {}
    for task in shipped_tasks(levels):
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
        "dev": tuple(real_dev + generate(n_made[0], seed, fresh[:cut], levels)),
        "test": tuple(real_test + generate(n_made[1], seed, fresh[cut:], levels)),
    }


def take(users: Sequence[str], rows_of: Mapping[str, Sequence[Task]], n: int) -> list[Task]:
    """The first `n` tasks, user by user."""
    return [task for user in users for task in rows_of[user]][:n]


def training_users(split: Mapping[str, Sequence[Task]]) -> tuple[str, ...]:
    """Users with orders whom neither dev nor test holds: further training tasks may be made from these."""
    held_out = {task.data["user_id"] for name in ("dev", "test") for task in split[name]}
    return tuple(user for user, record in database().users.items() if record["orders"] and user not in held_out)
