"""tau-bench's shop as it is before anything happens: orders, users, products, read once and never written to."""

from __future__ import annotations

import copy
import functools
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "tau_bench"
ADDRESS = ("address1", "address2", "city", "state", "country", "zip")
"Parts of an address, in the order in which the tools take them."

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
    name_of: Mapping[str, str]
    "Product id to the product's name."


@functools.cache
def database() -> Database:
    """The shipped database, read at the first call (tens of milliseconds)."""

    def load(name: str) -> dict[str, Record]:
        with gzip.open(DATA / f"{name}.json.gz") as file:
            records: dict[str, Record] = json.load(file)
        return records

    products = {product["name"].lower(): product for product in load("products").values()}
    product_of = {item_id: product["name"] for product in products.values() for item_id in product["variants"]}
    name_of = {product["product_id"]: product["name"] for product in products.values()}
    return Database(load("orders"), load("users"), products, product_of, name_of)


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


def progress(made: Mapping[tuple[str, ...], Any], wanted: Mapping[tuple[str, ...], Any]) -> float:
    """Wanted changes made, less the wrong ones, as a share of those wanted; never below 0.

    1.0 exactly where `made` equals `wanted`; where nothing is wanted, 1.0 for nothing made and else 0.0. Neither right
    nor wrong is what several writes bring about together and is not there yet: see `is_on_the_way`.
    Example: of the three changes of a return two are made and one has another value: (2 - 1) / 3.
    """
    if not wanted:
        return float(not made)
    right = {path for path, value in made.items() if path in wanted and wanted[path] == value}
    wrong = [path for path in made.keys() - right if not is_on_the_way(made[path], wanted.get(path), path[-1])]
    return max(0, len(right) - len(wrong)) / len(wanted)


def is_on_the_way(value: Any, wanted: Any, name: str) -> bool:
    """True for bookings that the wanted ones begin with, and for a gift card that is to have another balance."""
    if name == "payment_history":
        return wanted is not None and bool(wanted[: len(value)] == value)
    return name == "balance" and wanted is not None


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


def address_of(*parts: str) -> dict[str, str]:
    """The parts of an address, in the order of `ADDRESS`, by name."""
    return dict(zip(ADDRESS, parts, strict=True))


def address_line(address: Record) -> str:
    """An address in one line, in the order in which the tools take its parts; an empty part is left out.

    Example: "845 Willow Lane, Suite 906, Philadelphia, PA, USA, 19031"
    """
    return ", ".join(address[part] for part in ADDRESS if address[part])
