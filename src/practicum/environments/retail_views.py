"""How records of the shop are shown to the model: one short line each."""

from __future__ import annotations

from practicum.environments.retail_data import Record, address_line, original_payment


def order_line(order: Record) -> str:
    """Status, original payment and items: all that cancelling, returning and exchanging need."""
    return f"{order['status']}; paid by {original_payment(order)}; {items_line(order)}"


def whole_order_line(order: Record) -> str:
    """The same with amounts paid and refunded, address and tracking numbers."""
    payments = [
        f"{'paid' if payment['transaction_type'] == 'payment' else 'refunded'} ${payment['amount']} "
        f"{'by' if payment['transaction_type'] == 'payment' else 'to'} {payment['payment_method_id']}"
        for payment in order["payment_history"]
    ]
    tracking = [number for parcel in order["fulfillments"] for number in parcel["tracking_id"]]
    parts = [order["status"], *payments, f"to {address_line(order['address'])}"]
    parts += [f"tracking {', '.join(tracking)}"] if tracking else []
    return "; ".join([*parts, items_line(order)])


def items_line(order: Record) -> str:
    """Each item with name, id, price and option values."""
    return "; ".join(
        f"{item['name']} {item['item_id']} ${item['price']} {', '.join(item['options'].values())}"
        for item in order["items"]
    )


def product_line(product: Record) -> str:
    """Names of the options, then each variant that can be had with id, price and option values."""
    variants = list(product["variants"].values())
    choices = "; ".join(
        f"{variant['item_id']} ${variant['price']} {', '.join(variant['options'].values())}"
        for variant in variants
        if variant["available"]
    )
    return f"{', '.join(variants[0]['options'])}: {choices or 'none available'}"


def methods_line(user: Record) -> str:
    """Ids of the payment methods, gift cards with their balance."""
    return "; ".join(
        f"{method['id']} ${method['balance']}" if method["source"] == "gift_card" else method["id"]
        for method in user["payment_methods"].values()
    )


def customer_line(user: Record) -> str:
    """Name, email, address, payment methods and order ids of a customer."""
    methods = [
        f"{method['id']} ${method['balance']}"
        if method["source"] == "gift_card"
        else f"{method['id']} {method['brand']} {method['last_four']}"
        if method["source"] == "credit_card"
        else method["id"]
        for method in user["payment_methods"].values()
    ]
    name = f"{user['name']['first_name']} {user['name']['last_name']}"
    orders = f"orders {', '.join(user['orders']) or 'none'}"
    return "; ".join([name, user["email"], address_line(user["address"]), *methods, orders])
