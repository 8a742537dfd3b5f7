"""Retail customer service over tau-bench's real shop: orders are looked up, cancelled, returned, exchanged, modified.

The docstrings of the tools are shown to the model and cost prompt tokens: they stay one short line each.
"""

from __future__ import annotations

import copy
import functools
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.environments.tools import tool
from practicum.errors import ToolError, UserError
from practicum.types import Task, ToolCall

DATA = Path(__file__).parent / "data" / "tau_bench"
BUILT_LEVELS = (1, 2)
LOOK_UPS = ("get_order", "get_product", "get_user")
TOOLS_OF_LEVEL: dict[int, tuple[str, ...]] = {
    1: ("get_order", "cancel_order", "return_items"),
    2: ("get_order", "get_product", "exchange_items", "modify_items", "get_user"),
}
TOOL_OF_BENCHMARK = {
    "cancel_pending_order": "cancel_order",
    "return_delivered_order_items": "return_items",
    "exchange_delivered_order_items": "exchange_items",
    "modify_pending_order_items": "modify_items",
}
"The benchmark's writes that are built, and our names for them."
REASONS = ("no longer needed", "ordered by mistake")

Record = dict[str, Any]
Change = list[Any]
"A path and its new value: [['orders', '#W6067464', 'status'], 'return requested']."


@dataclass(frozen=True)
class Database:
    """The shop before anything happened; shared by all environments, so nobody writes to it."""

    orders: Mapping[str, Record]
    "By order id, 1,000 of them."
    users: Mapping[str, Record]
    "By user id, 500 of them."
    products: Mapping[str, Record]
    "By product name in lower case, 50 of them, each with its variants by item id."
    product_of: Mapping[str, str]
    "Item id of every variant to the name of its product."


@functools.cache
def database() -> Database:
    """The shipped database, read at the first call (tens of milliseconds)."""

    def load(name: str) -> dict[str, Record]:
        with gzip.open(DATA / f"{name}.json.gz") as file:
            records: dict[str, Record] = json.load(file)
        return records

    products = {product["name"].lower(): product for product in load("products").values()}
    product_of = {item_id: product["name"] for product in products.values() for item_id in product["variants"]}
    return Database(load("orders"), load("users"), products, product_of)


def check_levels(levels: Sequence[int]) -> tuple[int, ...]:
    """The levels, sorted. Raises UserError when one of them is not built or there is none."""
    if not isinstance(levels, (list, tuple)) or not levels or any(level not in BUILT_LEVELS for level in levels):
        raise UserError(
            f"retail has the levels {', '.join(map(str, BUILT_LEVELS))}, written as in levels = [1]; found {levels!r}"
        )
    return tuple(sorted(set(levels)))


def differences(before: Record, after: Record, path: list[str]) -> Iterator[Change]:
    """What was set in `after`, by path in sorted order; a list counts as one value. No tool removes a key."""
    for key in sorted(after):
        here = [*path, key]
        if key in before and isinstance(after[key], dict):
            yield from differences(before[key], after[key], here)
        elif key not in before or before[key] != after[key]:
            yield [here, copy.deepcopy(after[key])]


def by_path(changes: Sequence[Change]) -> dict[tuple[str, ...], Any]:
    """A change set without its order."""
    return {tuple(path): value for path, value in changes}


class Retail:
    """The shop in one episode; `reset` forgets the last one. Only the tools of `levels` are offered.

    A record is copied when it is first written to, so that a reset costs microseconds.

    Example:
        shop = Retail(levels=(1,))
        shop.reset(task)
        shop.cancel_order("#W7602708", "no longer needed")    # "cancelled"
        shop.verify(task.secret)                              # {"success": 1.0}
    """

    def __init__(self, levels: Sequence[int] = BUILT_LEVELS) -> None:
        offered = {name for level in check_levels(levels) for name in TOOLS_OF_LEVEL[level]}
        self.tool_names = tuple(sorted(offered))
        self.customer = ""
        self.written: dict[str, dict[str, Record]] = {"orders": {}, "users": {}}

    def reset(self, task: Task) -> None:
        """Start over; `task.data["user_id"]` says who the customer is."""
        self.customer = str(task.data.get("user_id", ""))
        self.written = {"orders": {}, "users": {}}

    def close(self) -> None:
        """Nothing is held but memory."""

    def verify(self, secret: Mapping[str, Any]) -> dict[str, float]:
        """1.0 where the changes made are exactly `secret["changes"]`, in whatever order."""
        return {"success": float(by_path(self.changes()) == by_path(secret["changes"]))}

    def changes(self) -> list[Change]:
        """What this episode changed: orders then users in the database's order, paths sorted within a record."""
        found: list[Change] = []
        for table, records in (("orders", database().orders), ("users", database().users)):
            written = self.written[table]
            for key in records if written else ():
                if key in written:
                    found += differences(records[key], written[key], [table, key])
        return found

    def solve(self, secret: Mapping[str, Any]) -> list[ToolCall]:
        """The gold actions, each after the look-ups that an honest agent needs: its order, the products it changes."""
        calls: list[ToolCall] = []

        def look_up(name: str, arguments: dict[str, str]) -> None:
            if ToolCall(name, arguments) not in calls:
                calls.append(ToolCall(name, arguments))

        for action in secret["actions"]:
            arguments = action["arguments"]
            if "order_id" in arguments:
                look_up("get_order", {"order_id": arguments["order_id"]})
            if "new_item_ids" in arguments:
                for item_id in arguments["item_ids"]:
                    look_up("get_product", {"name": database().product_of[item_id]})
            calls.append(ToolCall(action["name"], dict(arguments)))
        return calls

    @tool
    def get_order(self, order_id: str) -> str:
        """Status, payment and items."""
        order = self._order(order_id)
        items = "; ".join(
            f"{item['name']} {item['item_id']} ${item['price']} {', '.join(item['options'].values())}"
            for item in order["items"]
        )
        return f"{order['status']}; paid by {original_payment(order)}; {items}"

    @tool
    def cancel_order(self, order_id: str, reason: str) -> str:
        """Pending only; reason "no longer needed" or "ordered by mistake"."""
        order = self._order(order_id, needed="pending")
        if reason not in REASONS:
            raise ToolError(f"reason must be {REASONS[0]!r} or {REASONS[1]!r}, found {reason!r}")
        order = self._write("orders", order_id)
        order["status"] = "cancelled"
        order["cancel_reason"] = reason
        for payment in list(order["payment_history"]):
            order["payment_history"].append({**payment, "transaction_type": "refund"})
            self._draw_gift_card(order, payment["payment_method_id"], -payment["amount"])
        return "cancelled"

    @tool
    def return_items(self, order_id: str, item_ids: list[str], payment_id: str) -> str:
        """Delivered only."""
        order = self._order(order_id, needed="delivered")
        check_items(order, item_ids)
        method = self._payment_method(order, payment_id)
        if payment_id != original_payment(order) and method["source"] != "gift_card":
            raise ToolError(f"a refund goes to {original_payment(order)} or a gift card, not to {payment_id}")
        order = self._write("orders", order_id)
        order["status"] = "return requested"
        order["return_items"] = sorted(item_ids)
        order["return_payment_method_id"] = payment_id
        return "return requested"

    @tool
    def get_product(self, name: str) -> str:
        """Available variants."""
        product = database().products.get(name.lower())
        if product is None:
            raise ToolError(f"there is no product {name!r}; write its name as the order shows it")
        variants = list(product["variants"].values())
        choices = "; ".join(
            f"{variant['item_id']} ${variant['price']} {', '.join(variant['options'].values())}"
            for variant in variants
            if variant["available"]
        )
        return f"{', '.join(variants[0]['options'])}: {choices or 'none available'}"

    @tool
    def exchange_items(self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_id: str) -> str:
        """Delivered only."""
        order = self._order(order_id, needed="delivered")
        difference = round(price_difference(order, item_ids, new_item_ids), 2)
        self._check_funds(order, payment_id, difference)
        order = self._write("orders", order_id)
        order["status"] = "exchange requested"
        order["exchange_items"] = sorted(item_ids)
        order["exchange_new_items"] = sorted(new_item_ids)
        order["exchange_payment_method_id"] = payment_id
        order["exchange_price_difference"] = difference
        return "exchange requested"

    @tool
    def modify_items(self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_id: str) -> str:
        """Pending only."""
        order = self._order(order_id, needed="pending")
        # The benchmark books this amount unrounded (an exchange it rounds); its change sets hold such numbers.
        difference = price_difference(order, item_ids, new_item_ids)
        self._check_funds(order, payment_id, difference)
        order = self._write("orders", order_id)
        order["status"] = "pending (item modified)"
        order["payment_history"].append(
            {
                "transaction_type": "payment" if difference > 0 else "refund",
                "amount": abs(difference),
                "payment_method_id": payment_id,
            }
        )
        self._draw_gift_card(order, payment_id, difference)
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            item = item_of(order, item_id)
            variant = variants_of(item)[new_item_id]
            item |= {"item_id": new_item_id, "price": variant["price"], "options": dict(variant["options"])}
        return "modified"

    @tool
    def get_user(self) -> str:
        """Payment methods."""
        if self.customer not in database().users:
            raise ToolError(f"there is no customer {self.customer!r}")
        return "; ".join(
            f"{method['id']} ${method['balance']}" if method["source"] == "gift_card" else method["id"]
            for method in self._read("users", self.customer)["payment_methods"].values()
        )

    def _read(self, table: str, key: str) -> Record:
        """The record as this episode left it."""
        records: Mapping[str, Record] = getattr(database(), table)
        return self.written[table].get(key, records[key])

    def _write(self, table: str, key: str) -> Record:
        """This episode's own copy of the record."""
        if key not in self.written[table]:
            self.written[table][key] = copy.deepcopy(self._read(table, key))
        return self.written[table][key]

    def _order(self, order_id: str, needed: str = "") -> Record:
        if order_id not in database().orders:
            hint = "" if order_id.startswith("#W") else "; order ids look like #W0000000"
            raise ToolError(f"there is no order {order_id!r}{hint}")
        order = self._read("orders", order_id)
        if needed and order["status"] != needed:
            raise ToolError(f"{order_id} is {order['status']}; this needs a {needed} order")
        return order

    def _payment_method(self, order: Record, payment_id: str) -> Record:
        methods: dict[str, Record] = self._read("users", order["user_id"])["payment_methods"]
        if payment_id not in methods:
            raise ToolError(f"the customer has no payment method {payment_id!r}")
        return methods[payment_id]

    def _check_funds(self, order: Record, payment_id: str, amount: float) -> None:
        method = self._payment_method(order, payment_id)
        if method["source"] == "gift_card" and method["balance"] < amount:
            raise ToolError(f"{payment_id} holds ${method['balance']}, but the difference is ${round(amount, 2)}")

    def _draw_gift_card(self, order: Record, payment_id: str, amount: float) -> None:
        """Take `amount` from a gift card, or give it back where negative; other methods keep no balance."""
        if self._payment_method(order, payment_id)["source"] == "gift_card":
            card = self._write("users", order["user_id"])["payment_methods"][payment_id]
            card["balance"] = round(card["balance"] - amount, 2)


def original_payment(order: Record) -> str:
    """What the order was paid with."""
    return str(order["payment_history"][0]["payment_method_id"])


def item_of(order: Record, item_id: str) -> Record:
    """The first item of the order with this id."""
    return next(item for item in order["items"] if item["item_id"] == item_id)


def variants_of(item: Record) -> dict[str, Record]:
    """All variants of the item's product, by item id."""
    variants: dict[str, Record] = database().products[item["name"].lower()]["variants"]
    return variants


def check_items(order: Record, item_ids: Sequence[str]) -> None:
    """Raise ToolError unless the order holds each item as often as it is named."""
    held = [item["item_id"] for item in order["items"]]
    for item_id in item_ids:
        if item_id not in held:
            raise ToolError(f"item {item_id} is not in {order['order_id']}")
        if item_ids.count(item_id) > held.count(item_id):
            raise ToolError(f"item {item_id} is {held.count(item_id)} times in {order['order_id']}, named more often")


def price_difference(order: Record, item_ids: Sequence[str], new_item_ids: Sequence[str]) -> float:
    """What the new items cost more than the old ones, unrounded. Raises ToolError where one cannot be replaced."""
    check_items(order, item_ids)
    if len(item_ids) != len(new_item_ids):
        raise ToolError(f"each item needs one new item; found {len(item_ids)} items and {len(new_item_ids)} new ones")
    total = 0.0
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        item = item_of(order, item_id)
        variant = variants_of(item).get(new_item_id)
        if variant is None:
            raise ToolError(f"item {new_item_id} is no variant of {item['name']}")
        if not variant["available"]:
            raise ToolError(f"item {new_item_id} is not available")
        total += variant["price"] - item["price"]
    return total
