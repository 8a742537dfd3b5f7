"""An honest expert: it writes what the gold says, and looks up first whatever the customer did not tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from practicum.environments.retail_data import Record, database
from practicum.environments.tools import Toolbox
from practicum.types import ToolCall

Actions = list[ToolCall]
READS = ("get_", "find_", "list_")
"How the names of look-ups begin."
TOLD_FREELY = ("reason", "expression", "thought", "summary", "message")
"Arguments that an agent words itself."


def is_introduced(told: str, user: Record) -> bool:
    """True when the text holds the user's email, or name and zip code."""
    text = told.lower()
    known = (*user["name"].values(), user["address"]["zip"])
    return user["email"].lower() in text or all(part.lower() in text for part in known)


def expert_calls(
    toolbox: Toolbox, secret: Mapping[str, Any], told: str, customer: str, must_find: bool = False
) -> list[ToolCall]:
    """The calls of the gold actions, look-ups before them, what is to be said after them, a transfer at the end.

    `toolbox` is that of a shop that nobody else uses: the calls are made there, so that the expert knows what an agent
    would have seen. With `must_find` the customer is found first in any case. Raises ToolError where the tools refuse.
    """
    plan = Plan(toolbox, told, customer)
    if must_find:
        plan.find()
    actions = [ToolCall(action["name"], action["arguments"]) for action in secret["actions"]]
    for action in actions:
        if action.name == "get_user" and not plan.offers("get_user"):
            plan.look_at_customer()
        elif action.name != "transfer":
            plan.prepare(action)
            plan.do(action)
    if outputs := secret.get("outputs", ()):
        plan.ground(outputs, actions)
        plan.do(ToolCall("say", {"message": f"You asked for this: {', '.join(outputs)}."}))
    for action in actions:
        if action.name == "transfer":
            plan.do(action)
    return plan.calls


class Plan:
    """The calls so far, and all that an agent who made them was told."""

    def __init__(self, toolbox: Toolbox, told: str, customer: str) -> None:
        self.toolbox, self.told, self.customer = toolbox, told, customer
        self.user = database().users.get(customer)
        self.calls: list[ToolCall] = []
        self.seen = told

    def do(self, call: ToolCall) -> None:
        """Make a call, a look-up only once."""
        if call.name.startswith(READS) and call in self.calls:
            return
        self.calls.append(call)
        self.seen += "\n" + self.toolbox.call(call)

    def offers(self, name: str) -> bool:
        """True when the shop has this tool."""
        return name in self.toolbox.methods

    def prepare(self, action: ToolCall) -> None:
        """The look-ups without which the action's arguments could not be known."""
        arguments = action.arguments
        if "user_id" in arguments:
            self.find()
        if "order_id" in arguments:
            self.look_at(str(arguments["order_id"]))
        for item_id in arguments.get("item_ids", ()) if "new_item_ids" in arguments else ():
            self.do(ToolCall("get_product", {"name": database().product_of[item_id]}))
        if not action.name.startswith(READS):
            self.cover(value for key, value in arguments.items() if key not in TOLD_FREELY and isinstance(value, str))

    def find(self) -> None:
        """Find the customer as the customer introduced himself."""
        found = any(call.name.startswith("find_") for call in self.calls)
        if found or self.user is None or not self.offers("find_user_by_email"):
            return
        email, name = self.user["email"], self.user["name"]
        if email.lower() in self.told.lower():
            self.do(ToolCall("find_user_by_email", {"email": email}))
        else:
            self.do(ToolCall("find_user_by_name_zip", {**name, "zip": self.user["address"]["zip"]}))

    def look_at_customer(self) -> None:
        """Find the customer and read the record: address, payment methods, orders."""
        self.find()
        if self.offers("get_customer"):
            self.do(ToolCall("get_customer", {"user_id": self.customer}))

    def look_at(self, order_id: str) -> None:
        """Look at an order; at the customer's orders in turn up to it where the request does not name it."""
        if order_id.lstrip("#") not in self.told and self.user is not None and self.offers("get_customer"):
            self.look_at_customer()
            orders: list[str] = self.user["orders"]
            for other in orders[: orders.index(order_id)] if order_id in orders else ():
                self.do(ToolCall("get_order", {"order_id": other}))
        self.do(ToolCall("get_order", {"order_id": order_id}))

    def cover(self, values: Iterable[str]) -> None:
        """Look at the customer and then at the orders, those named first, until every value was seen somewhere."""
        missing = [value for value in values if value not in self.seen]
        if not missing or self.user is None or not self.offers("get_customer"):
            return
        self.look_at_customer()
        orders = sorted(self.user["orders"], key=lambda order_id: order_id not in self.told)
        for order_id in orders:
            if all(value in self.seen for value in missing):
                return
            self.do(ToolCall("get_order", {"order_id": order_id}))

    def ground(self, outputs: Iterable[str], actions: Actions) -> None:
        """Look up what is to be told, where the shop shows it as it is; the rest follows from figures seen."""
        written = [str(action.arguments["order_id"]) for action in actions if "order_id" in action.arguments]
        orders = [*written, *(self.user["orders"] if self.user else ())]
        items = [item["name"] for order_id in written for item in database().orders[order_id]["items"]]
        look_ups = [ToolCall("get_order", {"order_id": order_id}) for order_id in orders]
        look_ups += [ToolCall("get_product", {"name": name}) for name in items]
        for output in outputs:
            if output.lower() in self.seen.lower():
                continue
            for look_up in look_ups:
                if output.lower() in self.toolbox.call(look_up).lower():
                    if look_up.name == "get_order":
                        self.look_at(str(look_up.arguments["order_id"]))
                    else:
                        self.do(look_up)
                    break
