"""What the benchmark's tools ask of an order, a user and some items before they write."""

from __future__ import annotations

from collections.abc import Sequence

from practicum.environments.retail_data import Record, item_of, original_payment, variants_of
from practicum.errors import ToolError

REASONS = ("no longer needed", "ordered by mistake")


def check_status(order: Record, needed: str) -> None:
    """Raise ToolError for an order of another status."""
    if order["status"] != needed:
        raise ToolError(f"{order['order_id']} is {order['status']}; this needs a {needed} order")


def check_reason(reason: str) -> None:
    """Raise ToolError for a reason that the shop does not book."""
    if reason not in REASONS:
        raise ToolError(f"reason must be {REASONS[0]!r} or {REASONS[1]!r}, found {reason!r}")


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


def payment_method(user: Record, payment_id: str) -> Record:
    """A payment method of the user. Raises ToolError where there is no such one."""
    methods: dict[str, Record] = user["payment_methods"]
    if payment_id not in methods:
        raise ToolError(f"the customer has no payment method {payment_id!r}")
    return methods[payment_id]


def check_refund(order: Record, user: Record, payment_id: str) -> None:
    """Raise ToolError for a refund to anything but the original method or a gift card."""
    if payment_method(user, payment_id)["source"] != "gift_card" and payment_id != original_payment(order):
        raise ToolError(f"a refund goes to {original_payment(order)} or a gift card, not to {payment_id}")


def check_funds(user: Record, payment_id: str, amount: float, what: str = "difference") -> None:
    """Raise ToolError for a gift card that holds less than `amount` dollars."""
    method = payment_method(user, payment_id)
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise ToolError(f"{payment_id} holds ${method['balance']}, but the {what} is ${round(amount, 2)}")


def check_new_payment(order: Record, user: Record, payment_id: str) -> None:
    """Raise ToolError unless the order has one payment so far and this method is another one that can pay it."""
    payment_method(user, payment_id)
    first = order["payment_history"][0]
    if len(order["payment_history"]) > 1 or first["transaction_type"] != "payment":
        raise ToolError(f"the payment of {order['order_id']} was changed before; this can be done once")
    if first["payment_method_id"] == payment_id:
        raise ToolError(f"{order['order_id']} is paid by {payment_id} already; choose another method")
    check_funds(user, payment_id, first["amount"], "order")
