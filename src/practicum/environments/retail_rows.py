"""Rows in tau-bench's form: read, checked, turned into tasks or given back with the reason why not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from practicum.environments.retail import BUILT_LEVELS, Retail, check_levels
from practicum.environments.retail_data import database, original_payment
from practicum.environments.task_sets import lines_of, object_in
from practicum.environments.tools import Toolbox
from practicum.errors import ToolError, UserError
from practicum.types import Task, ToolCall

Row = dict[str, Any]
"A line of a tasks file: id, user_id, instruction, actions, outputs."
Call = tuple[str, dict[str, Any]]
"A gold call in our vocabulary: ('cancel_order', {'order_id': '#W7602708', 'reason': 'no longer needed'})."
TOOL_OF_BENCHMARK = {
    "cancel_pending_order": "cancel_order",
    "return_delivered_order_items": "return_items",
    "exchange_delivered_order_items": "exchange_items",
    "modify_pending_order_items": "modify_items",
    "modify_pending_order_payment": "change_payment",
    "modify_pending_order_address": "change_address",
    "modify_user_address": "change_user_address",
    "find_user_id_by_email": "find_user_by_email",
    "find_user_id_by_name_zip": "find_user_by_name_zip",
    "get_order_details": "get_order",
    "get_product_details": "get_product",
    "get_user_details": "get_customer",
    "list_all_product_types": "list_products",
    "calculate": "calculate",
    "think": "think",
    "transfer_to_human_agents": "transfer",
}
"The benchmark's 16 tools and our names for them."
WRITES = tuple(TOOL_OF_BENCHMARK.values())[:7]
WRITES_OF_LEVEL = {1: {"cancel_order", "return_items"}, 2: {"exchange_items", "modify_items"}}
WRITES_OF_LEVEL[3] = set(WRITES) - WRITES_OF_LEVEL[1] - WRITES_OF_LEVEL[2]
ORDER_ID = re.compile(r"#W\d+")
PERSONA = re.compile(r"(You(?:r)? name is [^.]+? and your (?:zip code is \d+|email is \S+)\.) You are [a-z, -]+\.\s*")
FIELDS: dict[str, type] = {"id": str, "user_id": str, "instruction": str, "actions": list, "outputs": list}


@dataclass(frozen=True)
class SortedRows:
    """Every row in exactly one of three places.

    Example: SortedRows(tasks=(Task("retail_train_0", …),),
                        skipped={"retail_train_3": "it is of level 4; asked for: 1, 2"},
                        invalid={"retail_train_161": "gift_card_5193172 holds $17, …"})
    """

    tasks: tuple[Task, ...]
    skipped: dict[str, str] = field(default_factory=dict)
    "Row id to what it needs that is not there or not among the levels asked for."
    invalid: dict[str, str] = field(default_factory=dict)
    "Row id to the tool's own words where a gold write is refused."


def read_rows(path: str | Path) -> list[Row]:
    """Rows of a JSON-lines file in tau-bench's form (also `.gz`); blank lines are passed over.

    Raises UserError naming file and line for a line that is not such a row, an id seen before, and for a file that
    is missing, unreadable or empty.
    """
    path = Path(path)
    rows: list[Row] = []
    line_of: dict[str, int] = {}
    for number, line in lines_of(path):
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
    row = object_in(line, where)
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
    for output in row["outputs"]:
        if not isinstance(output, str):
            raise UserError(f"{where}: an output is a text that must be said, found {output!r}")
    return row


def sort_rows(rows: Iterable[Row], levels: Sequence[int] = BUILT_LEVELS, strict: bool = False) -> SortedRows:
    """Turn rows into tasks; say for each that is none whether it is beyond the levels or refused by the tools."""
    levels = check_levels(levels)
    tasks: list[Task] = []
    skipped: dict[str, str] = {}
    invalid: dict[str, str] = {}
    for row in rows:
        try:
            reason = beyond(row, levels)
            if reason:
                skipped[row["id"]] = reason
            else:
                tasks.append(task_of(row, strict))
        except ToolError as refusal:
            invalid[row["id"]] = str(refusal)
    return SortedRows(tuple(tasks), skipped, invalid)


def levels_needed(tasks: Sequence[Task]) -> set[int]:
    """The levels whose tools these tasks need: their own, and 2 where a payment method is looked up."""
    looked_up = {2 for task in tasks for action in task.secret["actions"] if action["name"] == "get_user"}
    return looked_up | {task.data["level"] for task in tasks}


def writes_of(row: Row) -> list[str]:
    """Names of the gold writes, and of a transfer, in our vocabulary."""
    names = [TOOL_OF_BENCHMARK.get(action["name"], "") for action in row["actions"]]
    return [name for name in names if name in (*WRITES, "transfer")]


def level_of(row: Row) -> int:
    """1 for cancellations and returns, 2 for one replacement of items, 3 for one change of payment or address, each
    with an order named and nothing to be said; 4 for everything else."""
    writes = writes_of(row)
    named = ORDER_ID.search(row["instruction"]) is not None or writes == ["change_user_address"]
    if row["outputs"] or not named or not writes:
        return 4
    if set(writes) <= WRITES_OF_LEVEL[1]:
        return 1
    return next((level for level in (2, 3) if len(writes) == 1 and writes[0] in WRITES_OF_LEVEL[level]), 4)


def beyond(row: Row, levels: Sequence[int]) -> str:
    """Why the row is no task of these levels; empty where it is one."""
    strange = sorted({action["name"] for action in row["actions"]} - TOOL_OF_BENCHMARK.keys())
    if strange:
        return f"it needs {', '.join(f'{name} (no tool of the benchmark)' for name in strange)}"
    level = level_of(row)
    if level not in levels:
        return f"it is of level {level}; asked for: {', '.join(map(str, levels))}"
    if level == 1 and needs_user(row) and max(levels) == 1:
        return "its payment method must be looked up with get_user, a tool of level 2"
    return ""


def needs_user(row: Row) -> bool:
    """True when a gold payment method is neither named in the request nor shown as the order's own."""
    for name, arguments in gold_calls(row):
        payment, order = arguments.get("payment_id"), database().orders.get(str(arguments.get("order_id")))
        named = name in ("cancel_order", "change_address") or str(payment) in row["instruction"]
        if name in WRITES and not named and order is not None and payment != original_payment(order):
            return True
    return False


def gold_calls(row: Row) -> list[Call]:
    """The gold calls of a row in our vocabulary. Raises ToolError for an argument that is none."""
    calls: list[Call] = []
    for action in row["actions"]:
        name, arguments = TOOL_OF_BENCHMARK[action["name"]], dict(action["kwargs"])
        if "payment_id" in arguments:
            raise ToolError(f"{action['name']} has no argument payment_id; the benchmark calls it payment_method_id")
        if "payment_method_id" in arguments:
            arguments = {"payment_id" if key == "payment_method_id" else key: arguments[key] for key in arguments}
        if name == "get_product":
            product_id = str(arguments.pop("product_id", ""))
            arguments["name"] = database().name_of.get(product_id, product_id)
        calls.append((name, arguments))
    return calls


def gold_writes(row: Row) -> list[Call]:
    """The gold calls of a row that write."""
    return [call for call in gold_calls(row) if call[0] in WRITES]


def request_of(instruction: str) -> str:
    """What the customer asks for, without the sentences that say who they are where these have their regular form.

    Example: "Your name is Omar Anderson and your zip code is 19031. You are polite. Return #W6067464 via
    credit_card_4190576: Wall Clock; " gives "Return #W6067464 via credit_card_4190576: Wall Clock".
    """
    start = PERSONA.match(instruction)
    return instruction[start.end() if start else 0 :].strip().rstrip(";")


def introduced_request_of(instruction: str) -> str:
    """The same with name and email or zip code, by which a customer is found; only the character is left out."""
    start = PERSONA.match(instruction)
    return f"{start[1]} {request_of(instruction)}" if start else request_of(instruction)


def task_of(row: Row, strict: bool = False) -> Task:
    """The task of a row. Raises ToolError, in the tool's words, where a gold write is refused."""
    if row["user_id"] not in database().users:
        raise ToolError(f"there is no customer {row['user_id']!r}")
    for output in row["outputs"]:
        if "," in output:
            raise ToolError(f"output {output!r} cannot be said: messages are compared without their commas")
    calls, level = gold_calls(row), level_of(row)
    shop = Retail(BUILT_LEVELS)
    toolbox = Toolbox(shop)
    calls = [call for call in calls if accepted(toolbox, ToolCall(*call))]
    secret: dict[str, Any] = {}
    if level <= 2:
        look_up: list[Call] = [("get_user", {})] if needs_user(row) else []
        calls = look_up + [call for call in calls if call[0] in WRITES]
    else:
        secret["outputs"] = list(row["outputs"])
    request = request_of(row["instruction"]) if level <= 2 else introduced_request_of(row["instruction"])
    secret = {
        "actions": [{"name": name, "arguments": arguments} for name, arguments in calls],
        "changes": shop.changes(),
        **secret,
    }
    task = Task(row["id"], request, data={"user_id": row["user_id"], "level": level}, secret=secret)
    if strict:
        played(Retail(BUILT_LEVELS, strict=True), task)
    return task


def accepted(toolbox: Toolbox, call: ToolCall) -> bool:
    """Carry out a gold call; False for a look-up that is refused, as of an order that a customer got wrong.

    Raises ToolError for a write that is refused.
    """
    try:
        toolbox.call(call)
    except ToolError:
        if call.name in WRITES:
            raise
        return False
    return True


def played(shop: Retail, task: Task) -> float:
    """Success of the expert at a task. Raises ToolError where the shop refuses one of its calls."""
    shop.reset(task)
    toolbox = Toolbox(shop)
    for call in shop.solve(task.secret):
        toolbox.call(call)
    return shop.verify(task.secret)["success"]
