"""Made-up requests of levels 3 and 4, worded as customers write: one change of payment or address, or several."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from practicum.environments.retail_checks import REASONS
from practicum.environments.retail_data import (
    ADDRESS,
    Record,
    address_line,
    database,
    item_of,
    original_payment,
    variants_of,
)
from practicum.environments.retail_requests import BENCHMARK_TOOL, Shape, made_row
from practicum.environments.retail_rows import WRITES, WRITES_OF_LEVEL, Row, level_of

NEEDS = {"return_items": "delivered", "exchange_items": "delivered", "change_user_address": ""}
"The status that an order must have for a write; pending where it is not said, none where no order is written to."
SHAPES: dict[int, tuple[Shape, ...]] = {
    3: tuple(((name, 0),) for name in sorted(WRITES_OF_LEVEL[3])),
    4: tuple(
        tuple((name, 0) for name in names)
        for n in (2, 3)
        for names in itertools.combinations(WRITES, n)
        if set(names) != WRITES_OF_LEVEL[1]
    ),
}
"What is asked for at a level: each kind of write at most once."
DESCRIBED = 0.4
"Share of composite requests in which orders are described and not named by their ids."
ASKED = 0.4
"Share of composite requests in which something must be told to the customer."
KEPT = 0.4
"Share of composite requests that say which order is to be left alone."


@dataclass
class Talk:
    """One customer's request while it is being made up.

    Example: after two wishes `said` is ["Hello, I am Mei Kovacs, zip code 28236.", "Cancel …", "Ship … to …"].
    """

    user: Record
    rng: random.Random
    described: bool
    "True when orders are called by what is in them."
    left: list[Record]
    "Orders that nothing was asked for yet."
    said: list[str] = field(default_factory=list)
    actions: list[Row] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def ask(self, words: str, name: str, **arguments: object) -> None:
        """Add a wish and its call."""
        self.said.append(words)
        self.actions.append({"name": BENCHMARK_TOOL[name], "kwargs": arguments})

    def was_asked(self, name: str, order_id: str = "") -> bool:
        """True when this change, of this order, is among the wishes so far."""
        asked = (a["kwargs"].get("order_id", "") for a in self.actions if a["name"] == BENCHMARK_TOOL[name])
        return order_id in asked

    def call_order(self, order: Record) -> str:
        """How the customer calls an order: by its id, or by what only this one holds."""
        if not self.described:
            return f"order {order['order_id']}"
        others = [database().orders[order_id] for order_id in self.user["orders"] if order_id != order["order_id"]]
        elsewhere = {item["name"] for other in others for item in other["items"]}
        names = [item["name"] for item in order["items"] if item["name"] not in elsewhere]
        return f"the order with the {names[0]}" if names else f"order {order['order_id']}"

    def call_method(self, payment_id: str, order: Record) -> str:
        """How the customer calls a payment method: by its id, or by its kind where there is only one."""
        method = self.user["payment_methods"][payment_id]
        kinds = [other["source"] for other in self.user["payment_methods"].values()]
        names = [payment_id]
        if kinds.count(method["source"]) == 1:
            names.append({"paypal": "my PayPal account", "gift_card": "my gift card"}.get(method["source"], "my card"))
        if method["source"] == "credit_card":
            names.append(f"my {method['brand']} ending in {method['last_four']}")
        if payment_id == original_payment(order) and not self.was_asked("change_payment", order["order_id"]):
            names.append("the method it was paid with")
        return self.rng.choice(names)

    def call_address(self, now: Record) -> tuple[str, Record] | None:
        """Another address than the one of now: how the customer says it, and what it is; None where it finds none."""
        orders = [database().orders[order_id] for order_id in self.user["orders"]]
        stay = [order for order in orders if not self.was_asked("change_address", order["order_id"])]
        known = [(f"the address of {self.call_order(order)}", order["address"]) for order in stay]
        if not self.was_asked("change_user_address"):
            known.append(("the default address in my profile", self.user["address"]))
        suite = f"Suite {self.rng.randint(100, 999)}"
        stranger = self.rng.choice(list(database().users.values()))["address"]
        kind = self.rng.choice(["known", "suite", "new"])
        if kind == "known":
            known = [(words, address) for words, address in known if address != now]
            return self.rng.choice(known) if known else None
        if kind == "suite":
            return f"{suite} of the same building, the rest of the address stays", {**now, "address2": suite}
        return address_line(stranger), stranger


def invent_wishes(user_id: str, shape: Shape, rng: random.Random) -> Row | None:
    """A row of this shape from the user's orders; None where these orders do not give one this time."""
    user = database().users[user_id]
    orders = [database().orders[order_id] for order_id in user["orders"]]
    rng.shuffle(orders)
    composite = len(shape) > 1
    talk = Talk(user, rng, composite and rng.random() < DESCRIBED, orders)
    name = f"{user['name']['first_name']} {user['name']['last_name']}"
    known_by = rng.choice([f"zip code {user['address']['zip']}", user["email"]])
    talk.said.append(rng.choice([f"Hello, I am {name}, {known_by}.", f"{name} here, {known_by}."]))
    names = [name for name, _ in shape]
    rng.shuffle(names)
    for name in names:
        order = order_for(name, talk)
        if order is None or not WISHES[name](talk, order):
            return None
    if composite and rng.random() < KEPT:
        keep_another(talk)
    if composite and rng.random() < ASKED:
        ask_something(talk)
    row = made_row(user_id, " ".join(talk.said), talk.actions, talk.outputs)
    return row if level_of(row) == (4 if composite else 3) else None


def order_for(name: str, talk: Talk) -> Record | None:
    """An order that nothing was asked for yet, or the one whose address or payment was just changed, for its items."""
    needed = NEEDS.get(name, "pending")
    last = talk.actions[-1] if talk.actions else None
    if name == "modify_items" and last and last["name"].startswith("modify_pending") and talk.rng.random() < 0.5:
        return database().orders[last["kwargs"]["order_id"]]
    order = next((order for order in talk.left if needed in ("", order["status"])), None)
    if order is not None and needed:
        talk.left.remove(order)
    return order


def wish_to_cancel(talk: Talk, order: Record) -> bool:
    """A pending order is no longer wanted."""
    reason = talk.rng.choice(REASONS)
    why = {REASONS[0]: "I no longer need it", REASONS[1]: "I ordered it by mistake"}[reason]
    called = talk.call_order(order)
    words = talk.rng.choice([f"Please cancel {called}, {why}.", f"{why}: cancel {called}."])
    talk.ask(words[0].upper() + words[1:], "cancel_order", order_id=order["order_id"], reason=reason)
    return True


def wish_to_return(talk: Talk, order: Record) -> bool:
    """One item, or two, of a delivered order go back."""
    names = [item["name"] for item in order["items"]]
    single = [item for item in order["items"] if names.count(item["name"]) == 1]
    items = talk.rng.sample(single, min(len(single), talk.rng.choice([1, 1, 2])))
    methods, paid = talk.user["payment_methods"], original_payment(order)
    payment = talk.rng.choice([m for m in methods if m == paid or methods[m]["source"] == "gift_card"] or [paid])
    called = " and the ".join(item["name"] for item in items)
    words = talk.rng.choice(
        [
            "I want to return the {items} of {order}, refund to {method}.",
            "Please take back the {items} of {order} and refund {method}.",
        ]
    ).format(items=called, order=talk.call_order(order), method=talk.call_method(payment, order))
    item_ids = [item["item_id"] for item in items]
    talk.ask(words, "return_items", order_id=order["order_id"], item_ids=item_ids, payment_method_id=payment)
    return bool(items)


def wish_to_replace(name: str, templates: Sequence[str], talk: Talk, order: Record) -> bool:
    """One item becomes another variant of its product."""
    names = [item["name"] for item in order["items"]]
    item = item_of(order, talk.rng.choice(order["items"])["item_id"])
    choices = [v for v in variants_of(item).values() if v["available"] and v["item_id"] != item["item_id"]]
    if names.count(item["name"]) > 1 or not choices:
        return False
    variant = talk.rng.choice(choices)
    changed = [f"{key} {value}" for key, value in variant["options"].items() if item["options"][key] != value]
    payment = talk.rng.choice(list(talk.user["payment_methods"]))
    words = talk.rng.choice(templates).format(
        item=item["name"],
        order=talk.call_order(order),
        options=" and ".join(changed),
        method=talk.call_method(payment, order),
    )
    talk.ask(
        words,
        name,
        order_id=order["order_id"],
        item_ids=[item["item_id"]],
        new_item_ids=[variant["item_id"]],
        payment_method_id=payment,
    )
    return True


def wish_to_exchange(talk: Talk, order: Record) -> bool:
    """An item of a delivered order for another variant."""
    templates = (
        "Exchange the {item} of {order} for one with {options}, otherwise the same; use {method} for the difference.",
        "The {item} of {order} should have {options}: please exchange it, and settle the difference with {method}.",
    )
    return wish_to_replace("exchange_items", templates, talk, order)


def wish_to_modify(talk: Talk, order: Record) -> bool:
    """An item of a pending order for another variant."""
    templates = (
        "In {order} make it the {item} with {options}, otherwise the same; use {method} for the difference.",
        "Please change the {item} in {order} to {options} and settle the difference with {method}.",
    )
    return wish_to_replace("modify_items", templates, talk, order)


def wish_to_pay(talk: Talk, order: Record) -> bool:
    """A pending order is to be paid in another way."""
    payment = talk.rng.choice(list(talk.user["payment_methods"]))
    called, method = talk.call_order(order), talk.call_method(payment, order)
    words = talk.rng.choice(
        [
            f"Please change the payment of {called} to {method}.",
            f"I would rather pay for {called} with {method}.",
            f"Put {called} on {method} instead.",
        ]
    )
    talk.ask(words, "change_payment", order_id=order["order_id"], payment_method_id=payment)
    return payment != original_payment(order)


def wish_to_ship(talk: Talk, order: Record) -> bool:
    """A pending order goes to another address."""
    if (found := talk.call_address(order["address"])) is None:
        return False
    called, (where, address) = talk.call_order(order), found
    words = talk.rng.choice(
        [
            f"Ship {called} to {where}.",
            f"Please change the address of {called} to {where}.",
            f"{called[0].upper()}{called[1:]} must go to another place: {where}.",
        ]
    )
    parts = {part: address[part] for part in ADDRESS}
    talk.ask(words, "change_address", order_id=order["order_id"], **parts)
    return True


def wish_to_move(talk: Talk, order: Record) -> bool:
    """The customer's default address changes; no order does."""
    now = talk.user["address"]
    if (found := talk.call_address(now)) is None:
        return False
    where, address = found
    words = talk.rng.choice(
        [f"Please change my default address to {where}.", f"I have moved, my profile should say: {where}."]
    )
    user_id = database().orders[talk.user["orders"][0]]["user_id"]
    talk.ask(words, "change_user_address", user_id=user_id, **{part: address[part] for part in ADDRESS})
    return True


WISHES: dict[str, Callable[[Talk, Record], bool]] = {
    "cancel_order": wish_to_cancel,
    "return_items": wish_to_return,
    "exchange_items": wish_to_exchange,
    "modify_items": wish_to_modify,
    "change_payment": wish_to_pay,
    "change_address": wish_to_ship,
    "change_user_address": wish_to_move,
}


def keep_another(talk: Talk) -> None:
    """Say which pending order is to be left alone, where there is one more."""
    order = next((order for order in talk.left if order["status"] == "pending"), None)
    if order is not None:
        talk.left.remove(order)
        called = talk.call_order(order)
        talk.said.append(talk.rng.choice([f"Keep {called}.", f"Leave {called} as it is."]))


def ask_something(talk: Talk) -> None:
    """Ask for a refund's amount, a tracking number or the lowest price of a product."""
    cancelled = [a["kwargs"]["order_id"] for a in talk.actions if a["name"] == BENCHMARK_TOOL["cancel_order"]]
    delivered = [order for order in talk.left if order["fulfillments"]]
    if cancelled and talk.rng.random() < 0.5:
        amount = database().orders[cancelled[0]]["payment_history"][0]["amount"]
        talk.said.append("Tell me how much I get back for the cancelled order.")
        talk.outputs.append(str(amount))
    elif delivered and talk.rng.random() < 0.5:
        talk.said.append(f"And what is the tracking number of {talk.call_order(delivered[0])}?")
        talk.outputs.append(delivered[0]["fulfillments"][0]["tracking_id"][0])
        talk.actions.append({"name": "get_order_details", "kwargs": {"order_id": delivered[0]["order_id"]}})
    else:
        product = talk.rng.choice(list(database().products.values()))
        prices = [variant["price"] for variant in product["variants"].values() if variant["available"]]
        talk.said.append(f"And what does the cheapest {product['name']} cost that you have?")
        talk.outputs.append(str(min(prices)))
        talk.actions.append({"name": "get_product_details", "kwargs": {"product_id": product["product_id"]}})
