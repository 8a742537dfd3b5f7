"""The tools of the whole shop, what must be said, the scores in between, JSON observations and the stricter mode."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from practicum import build, config
from practicum.environments.environment import Listening
from practicum.environments.retail import BUILT_LEVELS, Retail
from practicum.environments.retail_data import DATA, database, progress
from practicum.environments.retail_rows import TOOL_OF_BENCHMARK, read_rows, sort_rows
from practicum.environments.tools import Toolbox
from practicum.errors import ToolError, UserError
from practicum.sampling.scripted import ScriptedSampler
from practicum.simulator.episode import run_episode
from practicum.types import Ending, Task, ToolCall, Trajectory

TASK = Task("one", "Hello.", data={"user_id": "sofia_li_9219"})
PENDING, DELIVERED, OTHERS = "#W8855135", "#W3916020", "#W6067464"
"Two orders of Sofia Li and one of Omar Anderson."
ADDRESS = {
    "address1": "1 Elm St",
    "address2": "",
    "city": "Springfield",
    "state": "IL",
    "country": "USA",
    "zip": "62701",
}


def shop(**options: Any) -> tuple[Retail, Toolbox]:
    opened = Retail(BUILT_LEVELS, **options)
    opened.reset(TASK)
    return opened, Toolbox(opened)


def test_the_shop_offers_every_tool_of_the_benchmark() -> None:
    names = set(Toolbox(Retail(BUILT_LEVELS)).methods)
    assert set(TOOL_OF_BENCHMARK.values()) == names - {"say"} and len(TOOL_OF_BENCHMARK) == 16


def test_a_level_offers_only_what_it_needs() -> None:
    assert set(Toolbox(Retail((3,))).methods) == {
        "get_order",
        "change_payment",
        "change_address",
        "change_user_address",
        "find_user_by_email",
        "find_user_by_name_zip",
        "get_customer",
    }
    found = {"find_user_by_email", "find_user_by_name_zip"}
    assert set(Toolbox(Retail((1,), strict=True)).methods) == set(Toolbox(Retail((1,))).methods) | found


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("find_user_by_email", {"email": "SOFIA.LI7352@example.com"}, "sofia_li_9219"),
        ("find_user_by_name_zip", {"first_name": "sofia", "last_name": "LI", "zip": "78260"}, "sofia_li_9219"),
        ("calculate", {"expression": "3131.1 + 4777.75 + 367.38"}, "8276.23"),
        ("calculate", {"expression": "-(2 - 5) * 4 / 8"}, "1.5"),
        ("think", {"thought": "Which order?"}, "noted"),
    ],
)
def test_a_look_up_answers(name: str, arguments: dict[str, Any], answer: str) -> None:
    opened, toolbox = shop()
    assert toolbox.call(ToolCall(name, arguments)) == answer
    assert opened.changes() == []


def test_a_customer_is_shown_with_address_payment_methods_and_orders() -> None:
    shown = shop()[0].get_customer("sofia_li_9219")
    assert shown.startswith("Sofia Li; sofia.li7352@example.com; ")
    assert "TX, USA, 78260; paypal_8194385; credit_card_3951670 visa 6791; " in shown
    assert shown.endswith("orders #W4689314, #W8855135, #W3916020, #W5416052")


def test_an_order_is_shown_with_amount_address_and_tracking_number_where_these_matter() -> None:
    shown = shop()[0].get_order(DELIVERED)
    order = database().orders[DELIVERED]
    assert f"paid ${order['payment_history'][0]['amount']} by credit_card_8105988; to " in shown
    assert f"tracking {order['fulfillments'][0]['tracking_id'][0]}; " in shown
    assert not re.search(r"tracking|USA", Retail((1, 2)).get_order(DELIVERED))


def test_the_list_of_products_leads_to_their_variants() -> None:
    opened = shop()[0]
    names = opened.list_products().split("; ")
    assert len(names) == 50 and names == sorted(names)
    assert opened.get_product("T-Shirt") == opened.get_product("9523456873")


def test_a_changed_payment_is_booked_with_its_refund_and_gift_cards_keep_the_balance() -> None:
    opened, toolbox = shop()
    order = next(
        order
        for order in database().orders.values()
        if order["status"] == "pending"
        and len(order["payment_history"]) == 1
        and any(
            method["source"] == "gift_card"
            and method["balance"] >= order["payment_history"][0]["amount"]
            and method["id"] != order["payment_history"][0]["payment_method_id"]
            for method in database().users[order["user_id"]]["payment_methods"].values()
        )
    )
    (paid,) = order["payment_history"]
    methods = database().users[order["user_id"]]["payment_methods"]
    card = next(method for method in methods.values() if method["source"] == "gift_card")
    toolbox.call(ToolCall("change_payment", {"order_id": order["order_id"], "payment_id": card["id"]}))
    assert opened.changes() == [
        [
            ["orders", order["order_id"], "payment_history"],
            [paid, {**paid, "payment_method_id": card["id"]}, {**paid, "transaction_type": "refund"}],
        ],
        [
            ["users", order["user_id"], "payment_methods", card["id"], "balance"],
            round(card["balance"] - paid["amount"], 2),
        ],
    ]
    with pytest.raises(ToolError, match="was changed before"):
        toolbox.call(
            ToolCall("change_payment", {"order_id": order["order_id"], "payment_id": paid["payment_method_id"]})
        )


def test_an_address_is_replaced_part_by_part() -> None:
    opened, toolbox = shop()
    toolbox.call(ToolCall("change_address", {"order_id": PENDING, **ADDRESS}))
    toolbox.call(ToolCall("change_user_address", {"user_id": "sofia_li_9219", **ADDRESS}))
    found = {tuple(path): value for path, value in opened.changes()}
    for place in (("orders", PENDING), ("users", "sofia_li_9219")):
        assert {key[-1]: value for key, value in found.items() if key[:2] == place} == {
            key: value for key, value in ADDRESS.items() if key != "country"
        }
    assert toolbox.call(
        ToolCall("find_user_by_name_zip", {"first_name": "Sofia", "last_name": "Li", "zip": "62701"})
    ) == ("sofia_li_9219")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("find_user_by_email", {"email": "nobody@example.com"}, "there is no customer nobody@example.com"),
        ("get_customer", {"user_id": "nobody"}, "there is no customer 'nobody'"),
        ("change_user_address", {"user_id": "nobody", **ADDRESS}, "there is no customer 'nobody'"),
        ("change_address", {"order_id": DELIVERED, **ADDRESS}, f"{DELIVERED} is delivered; this needs a pending"),
        ("change_payment", {"order_id": PENDING, "payment_id": "x"}, "the customer has no payment method 'x'"),
        ("change_payment", {"order_id": PENDING, "payment_id": "credit_card_3951670"}, f"{PENDING} is paid by"),
        ("calculate", {"expression": "1 / 0"}, "'1 / 0' divides by zero"),
        ("calculate", {"expression": "__import__('os')"}, "\"__import__('os')\" cannot be calculated"),
        ("calculate", {"expression": "9 ** 9 ** 9"}, "'9 ** 9 ** 9' cannot be calculated"),
        ("calculate", {"expression": "(" * 500}, "'((("),
    ],
)
def test_a_refusal_says_what_was_wrong_and_changes_nothing(name: str, arguments: dict[str, Any], words: str) -> None:
    opened, toolbox = shop()
    with pytest.raises(ToolError) as refusal:
        toolbox.call(ToolCall(name, arguments))
    assert str(refusal.value).startswith(words)
    assert opened.changes() == []


def test_a_gift_card_that_cannot_pay_an_order_is_refused() -> None:
    row = next(row for row in read_rows(DATA / "tasks_train.jsonl.gz") if row["id"] == "retail_train_27")
    assert sort_rows([row]).invalid == {"retail_train_27": "gift_card_1675628 holds $99, but the order is $3131.1"}


# --- observations ---------------------------------------------------------------------------------------------------


def test_json_observations_are_the_records_as_they_stand() -> None:
    opened = shop(observations="json")[0]
    assert json.loads(opened.get_order(DELIVERED)) == database().orders[DELIVERED]
    assert json.loads(opened.get_customer("sofia_li_9219")) == database().users["sofia_li_9219"]
    assert json.loads(opened.get_product("T-Shirt")) == database().products["t-shirt"]
    assert json.loads(opened.list_products())["T-Shirt"] == "9523456873"
    cancelled = json.loads(opened.cancel_order(PENDING, "no longer needed"))
    assert cancelled["status"] == "cancelled" and cancelled == json.loads(opened.get_order(PENDING))


def test_settings_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UserError, match="'compact' or 'json' observations, found 'xml'"):
        Retail(observations="xml")
    with pytest.raises(UserError, match="strict of retail is true or false, found 'yes'"):
        Retail(strict="yes")  # type: ignore[arg-type]


# --- what is said, and the scores -----------------------------------------------------------------------------------


def scored(outputs: list[str], messages: list[str]) -> dict[str, float]:
    opened = shop()[0]
    for message in messages:
        opened.say(message)
    return opened.verify({"changes": [], "outputs": outputs})


@pytest.mark.parametrize(
    ("outputs", "messages", "share"),
    [
        (["1093.34"], ["It is $1,093.34 in all."], 1.0),
        (["Polyester", "cotton"], ["They are POLYESTER", "and Cotton."], 1.0),
        (["polyester", "cotton"], ["It is cotton."], 0.5),
        (["20 hours"], [], 0.0),
        (["20 hours"], ["20", "hours"], 0.0),
    ],
)
def test_an_output_is_said_when_one_message_holds_it_in_whatever_case_and_without_commas(
    outputs: list[str], messages: list[str], share: float
) -> None:
    assert scored(outputs, messages) == {"success": float(share == 1.0), "progress": 1.0, "outputs": share}


def test_what_was_said_is_forgotten_by_the_next_episode() -> None:
    opened = shop()[0]
    opened.say("20 hours")
    opened.reset(TASK)
    assert opened.verify({"changes": [], "outputs": ["20 hours"]})["outputs"] == 0.0


def episode(task: Task, replies: list[str]) -> Trajectory:
    settings = ["environment.levels=[4]", "simulator.context_tokens=9000"]
    stage = build.scripted_stage(config.load("recipes/retail.toml", settings))
    spoken = [(*reply.encode(), *stage.renderer.stop_tokens[:1]) for reply in replies]
    return asyncio.run(run_episode(replace(stage, sampler=ScriptedSampler(spoken)), task, 0))


def test_the_answer_that_ends_an_episode_is_a_message_to_the_customer() -> None:
    assert isinstance(Retail(), Listening)
    task = replace(TASK, secret={"changes": [], "outputs": ["20 hours"]})
    assert episode(task, ['done("It lasts 20 hours.")']).rewards["success"] == 1.0
    assert episode(task, ['say("It lasts 20 hours.")', "done()"]).rewards["success"] == 1.0
    assert episode(task, ["done()"]).rewards["success"] == 0.0


def test_a_transfer_ends_the_episode() -> None:
    task = replace(TASK, secret={"changes": [], "outputs": []})
    played = episode(task, ['transfer("I cannot help.")', 'cancel_order("#W8855135","no longer needed")'])
    assert (len(played.turns), played.ending, played.success) == (1, Ending.FINISHED, 1.0)


def test_a_recipe_may_weigh_progress_everywhere_and_outputs_where_something_can_be_said() -> None:
    settings = ["simulator.rewards.progress=0.5", "simulator.rewards.outputs=0.1"]
    whole = config.load("recipes/retail.toml", [*settings, "environment.levels=[1, 4]"])
    build.check_rewards(whole, build.tasks_of(whole)["train"][0])
    narrow = config.load("recipes/retail.toml", settings)
    with pytest.raises(UserError, match=r"simulator\.rewards names outputs; retail gives success, progress"):
        build.check_rewards(narrow, build.tasks_of(narrow)["train"][0])


A, B, C = ("orders", "#W1", "status"), ("orders", "#W1", "return_items"), ("orders", "#W2", "status")
PAID, CARD = ("orders", "#W1", "payment_history"), ("users", "u", "payment_methods", "gift_card_1", "balance")


@pytest.mark.parametrize(
    ("made", "wanted", "share"),
    [
        ({A: 1, B: 2}, {A: 1, B: 2}, 1.0),
        ({A: 1}, {A: 1, B: 2}, 0.5),
        ({A: 1, B: 3}, {A: 1, B: 2}, 0.0),
        ({A: 1, B: 2, C: 3}, {A: 1, B: 2}, 0.5),
        ({C: 3}, {A: 1, B: 2}, 0.0),
        ({}, {A: 1}, 0.0),
        ({}, {}, 1.0),
        ({A: 1}, {}, 0.0),
        ({A: 1, PAID: [1, 2], CARD: 5}, {A: 1, PAID: [1, 2, 3], CARD: 7, B: 2}, 0.25),
        ({A: 1, PAID: [1, 9]}, {A: 1, PAID: [1, 2, 3], CARD: 7, B: 2}, 0.0),
        ({A: 1, CARD: 5}, {A: 1, B: 2}, 0.0),
    ],
)
def test_progress_is_the_share_of_wanted_changes_less_the_wrong_ones(
    made: dict[Any, Any], wanted: dict[Any, Any], share: float
) -> None:
    assert progress(made, wanted) == share


def test_progress_rises_with_each_right_write_and_falls_with_a_wrong_one() -> None:
    opened = Retail(BUILT_LEVELS)
    rows, between = read_rows(DATA / "tasks_train.jsonl.gz"), 0
    for task in sort_rows(rows, (4,)).tasks[:40]:
        opened.reset(task)
        calls, toolbox = opened.solve(task.secret), Toolbox(opened)
        shares = []
        for call in calls:
            toolbox.call(call)
            shares.append(opened.verify(task.secret)["progress"])
        assert shares[0] == 0.0 and shares[-1] == 1.0 and shares == sorted(shares), (task.id, shares)
        between += len(set(shares)) > 2
        strangers = (o for o in database().orders.values() if o["status"] == "pending")
        stranger = next(o for o in strangers if o["user_id"] != task.data["user_id"])
        opened.cancel_order(stranger["order_id"], "no longer needed")
        assert opened.verify(task.secret)["progress"] < 1.0 and opened.verify(task.secret)["success"] == 0.0
    assert between > 30


# --- the stricter mode ----------------------------------------------------------------------------------------------


FIND = ToolCall("find_user_by_email", {"email": "sofia.li7352@example.com"})
LOOK = ToolCall("get_order", {"order_id": PENDING})
CANCEL = ToolCall("cancel_order", {"order_id": PENDING, "reason": "no longer needed"})
SAME = {"order_id": DELIVERED, "item_ids": ["7758198585"], "new_item_ids": ["7758198585"], "payment_id": "x"}


@pytest.mark.parametrize(
    ("before", "call", "words"),
    [
        ([], LOOK, "find the customer first"),
        ([], ToolCall("get_order", {"order_id": "#W0"}), "find the customer first"),
        ([], CANCEL, "find the customer first"),
        ([], ToolCall("get_customer", {"user_id": "sofia_li_9219"}), "find the customer first"),
        ([], ToolCall("change_user_address", {"user_id": "sofia_li_9219", **ADDRESS}), "find the customer first"),
        ([FIND], CANCEL, f"look at {PENDING} with get_order before changing it"),
        ([FIND], ToolCall("get_order", {"order_id": OTHERS}), "this belongs to another customer"),
        ([FIND], ToolCall("get_customer", {"user_id": "omar_anderson_3203"}), "this belongs to another customer"),
        (
            [FIND],
            ToolCall("find_user_by_email", {"email": "omar.anderson7675@example.com"}),
            "this conversation is with sofia_li_9219",
        ),
        (
            [FIND, ToolCall("get_order", {"order_id": DELIVERED})],
            ToolCall("exchange_items", SAME),
            "item 7758198585 is to be replaced by itself",
        ),
    ],
)
def test_the_stricter_mode_refuses_what_the_policy_forbids(before: list[ToolCall], call: ToolCall, words: str) -> None:
    opened, toolbox = shop(strict=True)
    for allowed in before:
        toolbox.call(allowed)
    with pytest.raises(ToolError) as refusal:
        toolbox.call(call)
    assert str(refusal.value).startswith(words)
    assert opened.changes() == []


def test_the_stricter_mode_lets_the_policys_own_way_through_and_forgets_it_at_reset() -> None:
    opened, toolbox = shop(strict=True)
    for call in (FIND, LOOK, CANCEL, ToolCall("get_product", {"name": "T-Shirt"})):
        toolbox.call(call)
    assert opened.changes() != []
    opened.reset(TASK)
    with pytest.raises(ToolError, match="find the customer first"):
        toolbox.call(LOOK)


def test_the_stricter_mode_refuses_no_gold_but_that_which_replaces_an_item_by_itself() -> None:
    for name in ("train", "test", "dev"):
        rows = read_rows(DATA / f"tasks_{name}.jsonl.gz")
        plain, strict = sort_rows(rows), sort_rows(rows, strict=True)
        more = {row_id: words for row_id, words in strict.invalid.items() if row_id not in plain.invalid}
        replaced = [(row["id"], action["kwargs"]) for row in rows for action in row["actions"]]
        same = {
            row_id
            for row_id, kwargs in replaced
            if "new_item_ids" in kwargs
            and any(old == new for old, new in zip(kwargs["item_ids"], kwargs["new_item_ids"], strict=True))
        }
        assert more.keys() == same - plain.invalid.keys()
        assert all("replaced by itself" in words for words in more.values())


@pytest.mark.parametrize("levels", [(1,), (2,), (1, 2, 3, 4)])
def test_in_the_stricter_mode_the_expert_finds_the_customer_first(levels: tuple[int, ...]) -> None:
    opened = Retail(levels, strict=True)
    for task in sort_rows(read_rows(DATA / "tasks_train.jsonl.gz"), levels, strict=True).tasks:
        opening = opened.reset(task)
        calls, toolbox = opened.solve(task.secret), Toolbox(opened)
        assert calls[0].name.startswith("find_user")
        assert all(str(value).lower() in f"{task.prompt}\n{opening}".lower() for value in calls[0].arguments.values())
        for call in calls:
            toolbox.call(call)
        assert opened.verify(task.secret)["success"] == 1.0


def test_a_customer_introduces_himself_only_where_he_must_be_found_and_the_request_does_not_say_it() -> None:
    (task,) = sort_rows(
        [row for row in read_rows(DATA / "tasks_train.jsonl.gz") if row["id"] == "retail_train_0"]
    ).tasks
    assert Retail((1,)).reset(task) is None
    assert Retail((1,), strict=True).reset(task) == "My name is Omar Anderson and my zip code is 19031."
    said = replace(task, prompt=f"Omar Anderson in 19031. {task.prompt}")
    assert Retail((1,), strict=True).reset(said) is None


def test_the_database_is_never_written_to() -> None:
    before = copy.deepcopy(database())
    opened, toolbox = shop()
    toolbox.call(ToolCall("change_address", {"order_id": PENDING, **ADDRESS}))
    toolbox.call(ToolCall("change_user_address", {"user_id": "sofia_li_9219", **ADDRESS}))
    toolbox.call(CANCEL)
    assert opened.changes() != [] and database() == before
