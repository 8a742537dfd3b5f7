"""Retail customer service over tau-bench's real shop: the 16 tools of the benchmark, its verifier, an honest expert.

The docstrings of the tools are shown to the model and cost prompt tokens: they stay one short line each.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from practicum.environments.arithmetic import value_of
from practicum.environments.retail_checks import (
    check_funds,
    check_items,
    check_new_payment,
    check_reason,
    check_refund,
    check_status,
    price_difference,
)
from practicum.environments.retail_data import (
    Change,
    Record,
    address_of,
    by_path,
    database,
    differences,
    item_of,
    progress,
    variants_of,
)
from practicum.environments.retail_expert import expert_calls, is_introduced
from practicum.environments.retail_policy import Policy
from practicum.environments.retail_views import (
    customer_line,
    methods_line,
    order_line,
    product_line,
    whole_order_line,
)
from practicum.environments.tools import Toolbox, tool
from practicum.errors import ToolError, UserError
from practicum.types import Task, ToolCall

BUILT_LEVELS = (1, 2, 3, 4)
DEFAULT_LEVELS = (1, 2)
OBSERVATIONS = ("compact", "json")
FIND_USER = ("find_user_by_email", "find_user_by_name_zip")
TOOLS_OF_LEVEL: dict[int, tuple[str, ...]] = {
    1: ("get_order", "cancel_order", "return_items"),
    2: ("get_order", "get_product", "exchange_items", "modify_items", "get_user"),
    3: ("get_order", "change_payment", "change_address", "change_user_address", *FIND_USER, "get_customer"),
}
TOOLS_OF_LEVEL[4] = (
    *(name for level in (1, 2, 3) for name in TOOLS_OF_LEVEL[level]),
    *("list_products", "calculate", "think", "transfer", "say"),
)


def check_levels(levels: Sequence[int]) -> tuple[int, ...]:
    """The levels, sorted. Raises UserError when one of them is not built or there is none."""
    if not isinstance(levels, (list, tuple)) or not levels or any(level not in BUILT_LEVELS for level in levels):
        raise UserError(
            f"retail has the levels {', '.join(map(str, BUILT_LEVELS))}, written as in levels = [1]; found {levels!r}"
        )
    return tuple(sorted(set(levels)))


class Retail:
    """The shop in one episode; `reset` forgets the last one. Only the tools of `levels` are offered.

    A record is copied when it is first written to, so that a reset costs microseconds.

    Example:
        shop = Retail(levels=(1,))
        shop.reset(task)
        shop.cancel_order("#W7602708", "no longer needed")    # "cancelled"
        shop.verify(task.secret)                              # {"success": 1.0, "progress": 1.0}
    """

    def __init__(
        self, levels: Sequence[int] = DEFAULT_LEVELS, observations: str = "compact", strict: bool = False
    ) -> None:
        self.levels = check_levels(levels)
        if observations not in OBSERVATIONS:
            raise UserError(f"retail shows {' or '.join(map(repr, OBSERVATIONS))} observations, found {observations!r}")
        if not isinstance(strict, bool):
            raise UserError(f"strict of retail is true or false, found {strict!r}")
        self.observations, self.strict = observations, strict
        offered = {name for level in self.levels for name in TOOLS_OF_LEVEL[level]} | set(FIND_USER if strict else ())
        if "get_customer" in offered:
            offered.discard("get_user")
        self.tool_names = tuple(sorted(offered))
        self._start("", "")

    def reset(self, task: Task) -> str | None:
        """Start over; `task.data["user_id"]` says who the customer is.

        Where customers must be found, one who does not say it in the request introduces himself.
        """
        user_id = str(task.data.get("user_id", ""))
        user = database().users.get(user_id)
        opening = None
        if user and FIND_USER[0] in self.tool_names and not is_introduced(task.prompt, user):
            name = f"{user['name']['first_name']} {user['name']['last_name']}"
            opening = f"My name is {name} and my zip code is {user['address']['zip']}."
        self._start(user_id, f"{task.prompt}\n{opening or ''}")
        return opening

    def _start(self, customer: str, told: str) -> None:
        self.customer, self.told = customer, told
        self.written: dict[str, dict[str, Record]] = {"orders": {}, "users": {}}
        self.said: list[str] = []
        self.done = False
        self.policy = Policy() if self.strict else None

    def close(self) -> None:
        """Nothing is held but memory."""

    def hear(self, answer: str) -> None:
        """The agent's last words: they are told to the customer like those of `say`."""
        self.said.append(answer)

    def verify(self, secret: Mapping[str, Any]) -> dict[str, float]:
        """`success`: exactly the changes of `secret` were made, and all its outputs said. `progress`: see `progress`.

        `outputs` is the share of outputs said, 1.0 where none is asked for; given where the tool `say` is offered.
        As in the benchmark an output is said when a message in lower case, its commas removed, contains it.
        """
        made, wanted = by_path(self.changes()), by_path(secret["changes"])
        outputs = secret.get("outputs", ())
        messages = [message.lower().replace(",", "") for message in self.said]
        said = [any(output.lower() in message for message in messages) for output in outputs]
        scores = {"success": float(made == wanted and all(said)), "progress": progress(made, wanted)}
        return scores | ({"outputs": sum(said) / len(said) if said else 1.0} if "say" in self.tool_names else {})

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
        """The gold actions, each after the look-ups that an honest agent needs, tried out in a shop of its own."""
        trial = Retail(self.levels, self.observations, self.strict)
        trial.customer = self.customer
        return expert_calls(Toolbox(trial), secret, self.told, self.customer, must_find=self.strict)

    @tool
    def get_order(self, order_id: str) -> str:
        """Status, payment and items."""
        order = self._order(order_id)
        if self.policy:
            self.policy.looked_at.add(order_id)
        return self._shown(order, whole_order_line(order) if "get_customer" in self.tool_names else order_line(order))

    @tool
    def cancel_order(self, order_id: str, reason: str) -> str:
        """Pending only; reason "no longer needed" or "ordered by mistake"."""
        self._order_for("pending", order_id)
        check_reason(reason)
        order = self._write("orders", order_id)
        order["status"] = "cancelled"
        order["cancel_reason"] = reason
        for payment in list(order["payment_history"]):
            order["payment_history"].append({**payment, "transaction_type": "refund"})
            self._draw_gift_card(order, payment["payment_method_id"], -payment["amount"])
        return self._shown(order, "cancelled")

    @tool
    def return_items(self, order_id: str, item_ids: list[str], payment_id: str) -> str:
        """Delivered only."""
        order = self._order_for("delivered", order_id)
        check_items(order, item_ids)
        check_refund(order, self._read("users", order["user_id"]), payment_id)
        order = self._write("orders", order_id)
        order["status"] = "return requested"
        order["return_items"] = sorted(item_ids)
        order["return_payment_method_id"] = payment_id
        return self._shown(order, "return requested")

    @tool
    def get_product(self, name: str) -> str:
        """Available variants."""
        product = database().products.get(database().name_of.get(name, name).lower())
        if product is None:
            raise ToolError(f"there is no product {name!r}; write its name as the order shows it")
        return self._shown(product, product_line(product))

    @tool
    def exchange_items(self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_id: str) -> str:
        """Delivered only."""
        difference = round(self._checked_difference("delivered", order_id, item_ids, new_item_ids, payment_id), 2)
        order = self._write("orders", order_id)
        order["status"] = "exchange requested"
        order["exchange_items"] = sorted(item_ids)
        order["exchange_new_items"] = sorted(new_item_ids)
        order["exchange_payment_method_id"] = payment_id
        order["exchange_price_difference"] = difference
        return self._shown(order, "exchange requested")

    @tool
    def modify_items(self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_id: str) -> str:
        """Pending only."""
        # The benchmark books this amount unrounded (an exchange it rounds); its change sets hold such numbers.
        difference = self._checked_difference("pending", order_id, item_ids, new_item_ids, payment_id)
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
        return self._shown(order, "modified")

    @tool
    def get_user(self) -> str:
        """Payment methods."""
        user = self._user(self.customer)
        return self._shown(user, methods_line(user))

    @tool
    def change_payment(self, order_id: str, payment_id: str) -> str:
        """Pending only."""
        order = self._order_for("pending", order_id)
        check_new_payment(order, self._read("users", order["user_id"]), payment_id)
        order = self._write("orders", order_id)
        first = order["payment_history"][0]
        paid = {"transaction_type": "payment", "amount": first["amount"], "payment_method_id": payment_id}
        order["payment_history"] += [paid, {**first, "transaction_type": "refund"}]
        self._draw_gift_card(order, payment_id, first["amount"])
        self._draw_gift_card(order, first["payment_method_id"], -first["amount"])
        return self._shown(order, "payment changed")

    @tool
    def change_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        """Pending only."""
        self._order_for("pending", order_id)
        order = self._write("orders", order_id)
        order["address"] = address_of(address1, address2, city, state, country, zip)
        return self._shown(order, "address changed")

    @tool
    def change_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        """The default address."""
        self._user(user_id)
        user = self._write("users", user_id)
        user["address"] = address_of(address1, address2, city, state, country, zip)
        return self._shown(user, "address changed")

    @tool
    def find_user_by_email(self, email: str) -> str:
        """The user id."""
        return self._found(lambda user: user["email"].lower() == email.lower(), email)

    @tool
    def find_user_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """The user id."""
        wanted = (first_name.lower(), last_name.lower(), zip)

        def fits(user: Record) -> bool:
            name = user["name"]
            return (name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]) == wanted

        return self._found(fits, f"{first_name} {last_name} in {zip}")

    @tool
    def get_customer(self, user_id: str) -> str:
        """Address, payment methods and orders."""
        user = self._user(user_id)
        return self._shown(user, customer_line(user))

    @tool
    def list_products(self) -> str:
        """Names."""
        ids = {product["name"]: product["product_id"] for product in database().products.values()}
        return self._shown(dict(sorted(ids.items())), "; ".join(sorted(ids)))

    @tool
    def calculate(self, expression: str) -> str:
        """Numbers, + - * / and brackets."""
        return str(value_of(expression))

    @tool
    def think(self, thought: str) -> str:
        """Changes nothing."""
        return self._shown("", "noted")

    @tool
    def transfer(self, summary: str) -> str:
        """To a human, where these tools cannot help; ends the conversation."""
        self.done = True
        return "transferred"

    @tool
    def say(self, message: str) -> str:
        """Tell the customer what was asked."""
        self.said.append(message)
        return "said"

    def _shown(self, record: Any, line: str) -> str:
        """A record as the recipe wants it: whole, as in the benchmark, or in one line."""
        return json.dumps(record) if self.observations == "json" else line

    def _read(self, table: str, key: str) -> Record:
        """The record as this episode left it."""
        records: Mapping[str, Record] = getattr(database(), table)
        return self.written[table].get(key, records[key])

    def _write(self, table: str, key: str) -> Record:
        """This episode's own copy of the record."""
        if key not in self.written[table]:
            self.written[table][key] = copy.deepcopy(self._read(table, key))
        return self.written[table][key]

    def _found(self, fits: Callable[[Record], bool], described: str) -> str:
        """The id of the first user that fits, who in the strict mode is the customer from now on."""
        user_id = next((user_id for user_id in database().users if fits(self._read("users", user_id))), None)
        if user_id is None:
            raise ToolError(f"there is no customer {described}")
        if self.policy:
            self.policy.admit(user_id)
        return user_id

    def _user(self, user_id: str) -> Record:
        if self.policy:
            self.policy.check_owner(user_id)
        if user_id not in database().users:
            raise ToolError(f"there is no customer {user_id!r}")
        return self._read("users", user_id)

    def _order(self, order_id: str) -> Record:
        if self.policy:
            self.policy.check_found()
        if order_id not in database().orders:
            hint = "" if order_id.startswith("#W") else "; order ids look like #W0000000"
            raise ToolError(f"there is no order {order_id!r}{hint}")
        order = self._read("orders", order_id)
        if self.policy:
            self.policy.check_owner(order["user_id"])
        return order

    def _order_for(self, status: str, order_id: str) -> Record:
        """An order that is to be written to and has the status that this needs."""
        order = self._order(order_id)
        if self.policy:
            self.policy.check_looked_at(order_id)
        check_status(order, status)
        return order

    def _checked_difference(
        self, status: str, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_id: str
    ) -> float:
        """What replacing the items costs, unrounded, after all that the benchmark asks before it does so."""
        order = self._order_for(status, order_id)
        difference = price_difference(order, item_ids, new_item_ids)
        if self.policy:
            self.policy.check_different(item_ids, new_item_ids)
        # An exchange is checked against the rounded difference, as it is booked.
        amount = round(difference, 2) if status == "delivered" else difference
        check_funds(self._read("users", order["user_id"]), payment_id, amount)
        return difference

    def _draw_gift_card(self, order: Record, payment_id: str, amount: float) -> None:
        """Take `amount` from a gift card, or give it back where negative; other methods keep no balance."""
        if self._read("users", order["user_id"])["payment_methods"][payment_id]["source"] == "gift_card":
            card = self._write("users", order["user_id"])["payment_methods"][payment_id]
            card["balance"] = round(card["balance"] - amount, 2)
