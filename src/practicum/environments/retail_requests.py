"""Made-up requests of real customers about their real orders, worded like the benchmark's synthetic rows."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

from practicum.environments.retail_checks import REASONS
from practicum.environments.retail_data import database, original_payment, variants_of
from practicum.environments.retail_rows import TOOL_OF_BENCHMARK, Row

BENCHMARK_TOOL = {ours: name for name, ours in TOOL_OF_BENCHMARK.items()}
Shape = tuple[tuple[str, int], ...]
"The writes of a row and the number of items of each: (('return_items', 2), ('cancel_order', 0))."
Request = tuple[str, dict[str, Any]]
"What a made-up customer says, and the arguments of the benchmark's call beside the order id."


def invent(user: str, shape: Shape, rng: random.Random) -> Row | None:
    """A row of this shape from the user's orders; None where these orders do not give one this time."""
    left = [database().orders[order_id] for order_id in database().users[user]["orders"]]
    rng.shuffle(left)
    requests: list[str] = []
    actions: list[Row] = []
    for tool_name, n_items in shape:
        status = "pending" if tool_name in ("cancel_order", "modify_items") else "delivered"
        order = next((o for o in left if o["status"] == status and len(o["items"]) >= n_items), None)
        request = None if order is None else REQUESTS[tool_name](order, n_items, rng)
        if order is None or request is None:
            return None
        left.remove(order)
        requests.append(request[0])
        actions.append({"name": BENCHMARK_TOOL[tool_name], "kwargs": {"order_id": order["order_id"], **request[1]}})
    return made_row(user, " ".join(requests), actions)


def made_row(user: str, instruction: str, actions: list[Row], outputs: Sequence[str] = ()) -> Row:
    """A row with an id that follows from who asks for what."""
    row_id = "retail_made_" + hashlib.sha256(f"{user}\n{instruction}".encode()).hexdigest()[:12]
    return {"id": row_id, "user_id": user, "instruction": instruction, "actions": actions, "outputs": list(outputs)}


def ask_to_cancel(order: Row, n_items: int, rng: random.Random) -> Request:
    """A request to cancel the order, and the arguments beside its id."""
    reason = rng.choice(REASONS)
    return f"Cancel order {order['order_id']} because {reason}.", {"reason": reason}


def ask_to_return(order: Row, n_items: int, rng: random.Random) -> Request | None:
    """A request to return some items; None where their names would fit other items of the order as well."""
    items = rng.sample(order["items"], n_items)
    item_ids, names = [item["item_id"] for item in items], [item["name"] for item in items]
    if sum(item["name"] in names for item in order["items"]) != n_items:
        return None
    methods = database().users[order["user_id"]]["payment_methods"]
    paid = original_payment(order)
    payment = rng.choice([method for method in methods if method == paid or methods[method]["source"] == "gift_card"])
    words = f"Return {order['order_id']} via {payment}: {'; '.join(names)};"
    return words, {"item_ids": item_ids, "payment_method_id": payment}


def ask_to_replace(verb: str, order: Row, n_items: int, rng: random.Random) -> Request | None:
    """A request to exchange or modify some items, old options in full and new ones where they differ; None where an
    item is in the order twice or has no other variant to be had."""
    items = rng.sample(order["items"], n_items)
    item_ids = [item["item_id"] for item in items]
    if sum(item["item_id"] in item_ids for item in order["items"]) != n_items:
        return None
    parts: list[str] = []
    new_item_ids: list[str] = []
    for item in items:
        variants = variants_of(item).values()
        choices = [v for v in variants if v["available"] and v["item_id"] != item["item_id"]]
        if not choices:
            return None
        variant = rng.choice(choices)
        changed = {key: value for key, value in variant["options"].items() if item["options"][key] != value}
        parts.append(f"{item['name']} {item['options']} to {changed}; ")
        new_item_ids.append(variant["item_id"])
    payment = rng.choice(list(database().users[order["user_id"]]["payment_methods"]))
    words = f"For {order['order_id']}, {verb} {''.join(parts)}via {payment}."
    return words, {"item_ids": item_ids, "new_item_ids": new_item_ids, "payment_method_id": payment}


REQUESTS: dict[str, Callable[[Row, int, random.Random], Request | None]] = {
    "cancel_order": ask_to_cancel,
    "return_items": ask_to_return,
    "exchange_items": functools.partial(ask_to_replace, "exchange"),
    "modify_items": functools.partial(ask_to_replace, "modify"),
}
