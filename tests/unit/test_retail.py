"""Retail equals the benchmark on every row it claims, and its task sets are what they say."""

from __future__ import annotations

import copy
import gzip
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from practicum.environments.environment import Environment, Solvable
from practicum.environments.retail import BUILT_LEVELS, Retail
from practicum.environments.retail_data import DATA, database
from practicum.environments.retail_rows import (
    TOOL_OF_BENCHMARK,
    WRITES,
    introduced_request_of,
    read_rows,
    request_of,
    sort_rows,
)
from practicum.environments.retail_tasks import (
    content_of,
    generate,
    shape_of,
    shipped_tasks,
    splits,
    training_users,
    writes_in,
)
from practicum.environments.tools import Toolbox
from practicum.errors import ToolError, UserError
from practicum.types import Task, ToolCall

FILES = ("train", "test", "dev")


def given_changes(name: str) -> dict[str, dict[str, Any]]:
    text = gzip.decompress((DATA / f"changes_{name}.jsonl.gz").read_bytes()).decode()
    return {row["id"]: row for row in map(json.loads, text.splitlines())}


def play(shop: Retail, task: Task, calls: list[ToolCall]) -> float:
    toolbox = Toolbox(shop)
    shop.reset(task)
    for call in calls:
        toolbox.call(call)
    return shop.verify(task.secret)["success"]


def task_named(task_id: str) -> Task:
    return next(task for task in shipped_tasks() if task.id == task_id)


@pytest.mark.parametrize("observations", ["compact", "json"])
@pytest.mark.parametrize("name", FILES)
def test_the_expert_makes_the_benchmarks_own_changes_on_every_row(name: str, observations: str) -> None:
    given = given_changes(name)
    shop = Retail(BUILT_LEVELS, observations)
    for task in sort_rows(read_rows(DATA / f"tasks_{name}.jsonl.gz")).tasks:
        shop.reset(task)
        assert play(shop, task, shop.solve(task.secret)) == 1.0, task.id
        assert shop.changes() == given[task.id]["changes"], task.id
        assert task.secret["changes"] == given[task.id]["changes"], task.id


@pytest.mark.parametrize(("name", "successes"), [("train", 0), ("test", 3), ("dev", 1)])
def test_doing_nothing_succeeds_where_nothing_changes_and_nothing_must_be_said(name: str, successes: int) -> None:
    given, rows = given_changes(name), read_rows(DATA / f"tasks_{name}.jsonl.gz")
    outputs = {row["id"]: row["outputs"] for row in rows}
    done = {task.id: play(Retail(BUILT_LEVELS), task, []) for task in sort_rows(rows).tasks}
    assert done == {row_id: float(not given[row_id]["changes"] and not outputs[row_id]) for row_id in done}
    assert sum(done.values()) == successes


@pytest.mark.parametrize("name", FILES)
def test_no_row_is_skipped_and_the_invalid_ones_are_those_in_which_the_benchmark_refuses_a_write(name: str) -> None:
    found = sort_rows(read_rows(DATA / f"tasks_{name}.jsonl.gz"))
    refused = {
        row_id
        for row_id, row in given_changes(name).items()
        if any(TOOL_OF_BENCHMARK[action] in WRITES for _, action in row["failed_actions"])
    }
    assert found.skipped == {} and set(found.invalid) == refused
    assert not refused & {task.id for task in found.tasks}


def test_a_look_up_that_the_benchmark_refuses_is_not_asked_of_the_expert() -> None:
    (row,) = (row for row in read_rows(DATA / "tasks_test.jsonl.gz") if row["id"] == "retail_test_46")
    (task,) = sort_rows([row]).tasks
    assert "'#9502126'" in str(row["actions"]) and "'#9502126'" not in str(task.secret["actions"])


@pytest.mark.parametrize(
    ("name", "levels", "counts"),
    [
        ("train", (1, 2, 3, 4), (385, 0, 15)),
        ("test", (1, 2, 3, 4), (57, 0, 3)),
        ("dev", (1, 2, 3, 4), (20, 0, 0)),
        ("train", (4,), (105, 284, 11)),
        ("train", (1, 2), (280, 116, 4)),
        ("train", (1,), (151, 249, 0)),
        ("train", (2,), (129, 267, 4)),
        ("test", (1, 2), (3, 56, 1)),
        ("dev", (1, 2), (8, 12, 0)),
    ],
)
def test_every_row_is_a_task_or_skipped_or_invalid(name: str, levels: tuple[int, ...], counts: tuple[int, ...]) -> None:
    rows = read_rows(DATA / f"tasks_{name}.jsonl.gz")
    found = sort_rows(rows, levels)
    ids = [task.id for task in found.tasks] + list(found.skipped) + list(found.invalid)
    assert Counter(ids) == Counter(row["id"] for row in rows)
    assert (len(found.tasks), len(found.skipped), len(found.invalid)) == counts
    assert all(found.skipped.values()) and all(found.invalid.values())


def test_an_expert_of_level_one_uses_only_the_tools_of_level_one() -> None:
    names = set(Toolbox(Retail(levels=(1,))).methods)
    assert names == {"get_order", "cancel_order", "return_items"}
    assert all(call.name in names for task in shipped_tasks((1,)) for call in Retail().solve(task.secret))


FREELY_WORDED = {"reason", "expression", "thought", "summary", "message"}


@pytest.mark.parametrize("strict", [False, True])
def test_an_expert_looks_up_everything_that_the_request_does_not_tell(strict: bool) -> None:
    shop = Retail(BUILT_LEVELS, strict=strict)
    for name in FILES:
        for task in sort_rows(read_rows(DATA / f"tasks_{name}.jsonl.gz"), strict=strict).tasks:
            opening = shop.reset(task)
            toolbox, seen = Toolbox(shop), f"{task.prompt}\n{opening}"
            for call in shop.solve(task.secret):
                for key in call.arguments.keys() - FREELY_WORDED:
                    value = call.arguments[key]
                    for part in value if isinstance(value, list) else [value]:
                        # Two customers leave out the sign before their order's number.
                        assert part.lstrip("#").lower() in seen.lower(), (task.id, call)
                seen += "\n" + toolbox.call(call)


def test_retail_is_an_environment_that_can_be_solved() -> None:
    assert isinstance(Retail(), Environment) and isinstance(Retail(), Solvable)


def test_an_order_is_shown_with_all_that_an_agent_needs() -> None:
    assert Retail().get_order("#W7678072").startswith("delivered; paid by paypal_5727330; ")
    assert "Backpack 3557711149 $205.35 green, small, polyester, laptop" in Retail().get_order("#W7678072")


def test_a_product_is_shown_with_its_available_variants_only() -> None:
    shown = Retail().get_product("t-shirt")
    assert shown.startswith("color, size, material, style: 9612497925 $50.88 blue, M, cotton, crew neck; ")
    assert "5047954489" not in shown


def test_an_episode_leaves_nothing_to_the_next_nor_to_its_neighbour() -> None:
    before = copy.deepcopy(database())
    cancelled, modified = task_named("retail_train_49"), task_named("retail_train_115")
    first, second = Retail(), Retail()
    assert play(first, cancelled, first.solve(cancelled.secret)) == 1.0
    assert second.changes() == [] and second.get_order("#W7109609").startswith("pending; ")
    assert play(first, modified, first.solve(modified.secret)) == 1.0
    assert any(path[0] == "users" for path, _ in first.changes())
    first.reset(cancelled)
    assert first.changes() == [] and first.get_order("#W7109609").startswith("pending; ")
    assert database() == before


def test_wrong_writes_score_nothing() -> None:
    task = task_named("retail_train_435")
    order_id, item_ids, payment = "#W7764382", ["3909704820"], "gift_card_2519457"
    right = ToolCall("return_items", {"order_id": order_id, "item_ids": item_ids, "payment_id": payment})
    assert play(Retail(), task, [right]) == 1.0
    wrong_item = ToolCall("return_items", {**right.arguments, "item_ids": ["5067898160"]})
    wrong_payment = ToolCall("return_items", {**right.arguments, "payment_id": "paypal_6982172"})
    extra_cancel = ToolCall("cancel_order", {"order_id": "#W7602708", "reason": "no longer needed"})
    assert play(Retail(), task, [wrong_item]) == 0.0
    assert play(Retail(), task, [wrong_payment]) == 0.0
    assert play(Retail(), task, [right, extra_cancel]) == 0.0


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("get_order", {"order_id": "7678072"}, "there is no order '7678072'; order ids look like #W0000000"),
        (
            "cancel_order",
            {"order_id": "#W7678072", "reason": "no longer needed"},
            "#W7678072 is delivered; this needs a pending order",
        ),
        ("cancel_order", {"order_id": "#W7602708", "reason": "bored"}, "reason must be 'no longer needed' or"),
        (
            "return_items",
            {"order_id": "#W7678072", "item_ids": ["1"], "payment_id": "paypal_5727330"},
            "item 1 is not in #W7678072",
        ),
        (
            "return_items",
            {"order_id": "#W7678072", "item_ids": ["3557711149"] * 2, "payment_id": "paypal_5727330"},
            "item 3557711149 is 1 times in #W7678072, named more often",
        ),
        (
            "return_items",
            {"order_id": "#W7678072", "item_ids": ["3557711149"], "payment_id": "paypal_1"},
            "the customer has no payment method 'paypal_1'",
        ),
        (
            "return_items",
            {"order_id": "#W7678072", "item_ids": ["3557711149"], "payment_id": "credit_card_7815826"},
            "a refund goes to paypal_5727330 or a gift card, not to credit_card_7815826",
        ),
        (
            "exchange_items",
            {"order_id": "#W7678072", "item_ids": ["3557711149"], "new_item_ids": [], "payment_id": "paypal_5727330"},
            "each item needs one new item; found 1 items and 0 new ones",
        ),
        (
            "exchange_items",
            {
                "order_id": "#W7678072",
                "item_ids": ["3557711149"],
                "new_item_ids": ["9612497925"],
                "payment_id": "paypal_5727330",
            },
            "item 9612497925 is no variant of Backpack",
        ),
        ("get_product", {"name": "Unicorn"}, "there is no product 'Unicorn'"),
    ],
)
def test_a_refusal_says_what_was_wrong_and_changes_nothing(name: str, arguments: dict[str, Any], words: str) -> None:
    shop = Retail()
    with pytest.raises(ToolError) as refusal:
        Toolbox(shop).call(ToolCall(name, arguments))
    assert str(refusal.value).startswith(words)
    assert shop.changes() == []


def test_random_writes_never_crash_and_a_refused_one_changes_nothing() -> None:
    rng = random.Random(0)
    orders, shop = list(database().orders.values()), Retail()
    toolbox = Toolbox(shop)
    refused = 0
    for step in range(600):
        if step % 20 == 0:
            shop.reset(Task("random", ""))
        order = rng.choice(orders)
        methods = list(database().users[order["user_id"]]["payment_methods"])
        item = rng.choice(order["items"])
        variants = list(database().products[item["name"].lower()]["variants"])
        arguments = {
            "order_id": order["order_id"],
            "item_ids": [item["item_id"]] * rng.choice([0, 1, 1, 1, 2]),
            "new_item_ids": [rng.choice(variants)],
            "payment_id": rng.choice(methods),
        }
        name = rng.choice(["exchange_items", "modify_items", "return_items"])
        if name == "return_items":
            del arguments["new_item_ids"]
        before = shop.changes()
        try:
            toolbox.call(ToolCall(name, arguments))
        except ToolError:
            refused += 1
            assert shop.changes() == before
    assert 0 < refused < 600


def test_the_persona_is_dropped_only_where_it_has_its_regular_form() -> None:
    regular = "You name is Amelia Gonzalez and your email is a.b4@example.com. You are curious, patient. Return #W1 via x: A; "
    assert request_of(regular) == "Return #W1 via x: A"
    known = "You name is Amelia Gonzalez and your email is a.b4@example.com. Return #W1 via x: A"
    assert introduced_request_of(regular) == known
    free = "You are Yusuf Rossi in 19122. You received your order #W2378156."
    assert request_of(free) == free and introduced_request_of(free) == free


@pytest.mark.parametrize("levels", [(1,), (2,), (1, 2)])
def test_the_splits_share_no_id_no_user_and_no_content(levels: tuple[int, ...]) -> None:
    found = splits(levels)
    assert {name: len(tasks) for name, tasks in found.items()} == {"train": 72, "dev": 40, "test": 160}
    assert found == splits(levels)
    assert found["train"] != splits(levels, seed=1)["train"]
    real = {task.id for task in shipped_tasks(levels)}
    assert {task.id for task in found["train"]} <= real
    for facet in (lambda t: t.id, lambda t: t.data["user_id"], lambda t: content_of(writes_in(t)), lambda t: t.prompt):
        sets = [{facet(task) for task in tasks} for tasks in found.values()]
        assert sum(map(len, sets)) == len(set().union(*sets))
    held_out = {task.data["user_id"] for name in ("dev", "test") for task in found[name]}
    assert not held_out & set(training_users(found))
    assert {task.data["user_id"] for task in found["train"]} <= set(training_users(found))


def test_splits_larger_than_the_real_rows_are_refused() -> None:
    with pytest.raises(UserError, match="148 real rows"):
        splits((1,), train=152)


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_generated_tasks_are_new_solvable_and_not_solved_by_doing_nothing(seed: int) -> None:
    known = splits((1, 2))["train"]
    users = training_users(splits((1, 2)))
    tasks = generate(60, seed, users, known=known)
    assert tasks == generate(60, seed, reversed(users), known=known)
    shop = Retail()
    for task in tasks:
        assert play(shop, task, shop.solve(task.secret)) == 1.0
        assert play(shop, task, []) == 0.0
        assert task.data["user_id"] in users
    contents = [content_of(writes_in(task)) for task in [*tasks, *known]]
    assert len({task.id for task in tasks}) == 60 and not set(contents[:60]) & set(contents[60:])
    assert len(set(contents[:60])) == 60


def test_generated_tasks_have_the_proportions_of_the_real_rows() -> None:
    tasks = generate(600, 5, database().users, levels=(1,))
    real, made = Counter(map(shape_of, shipped_tasks((1,)))), Counter(map(shape_of, tasks))
    for shape, count in real.items():
        share = count / real.total()
        assert abs(made[shape] / 600 - share) < 4 * (share * (1 - share) / 600) ** 0.5 + 1e-9, shape


def test_generated_requests_name_exactly_the_items_that_are_returned() -> None:
    for task in generate(150, 2, database().users, levels=(1,)):
        for name, arguments in writes_in(task):
            if name == "return_items":
                items = database().orders[arguments["order_id"]]["items"]
                part = task.prompt.split(f"Return {arguments['order_id']} via {arguments['payment_id']}: ")[1]
                named = part.split("; Return ")[0].split("; Cancel ")[0].split("; ")
                fitting = [item["item_id"] for item in items if item["name"] in named]
                assert sorted(fitting) == sorted(arguments["item_ids"])


def test_users_without_enough_orders_end_in_one_message() -> None:
    users = [task.data["user_id"] for task in shipped_tasks((1,))[:2]]
    with pytest.raises(UserError, match="ask for fewer or give more users"):
        generate(500, 0, users, levels=(1,))
    with pytest.raises(UserError, match="0 users"):
        generate(1, 0, ["nobody"], levels=(1,))


GOOD = {"id": "a", "user_id": "u", "instruction": "i", "actions": [{"name": "think", "kwargs": {}}], "outputs": []}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{broken", "is not JSON"),
        ("[1]", "must be an object, found list"),
        (json.dumps({key: value for key, value in GOOD.items() if key != "user_id"}), "field 'user_id' is missing"),
        (json.dumps(GOOD | {"id": 7}), "field 'id' must be a str, found int"),
        (json.dumps(GOOD | {"id": "b", "actions": ["x"]}), "an action needs a 'name'"),
        (json.dumps(GOOD), "id 'a' is already that of line 1"),
    ],
)
def test_a_broken_row_is_named_by_file_and_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{line}\n")
    with pytest.raises(UserError) as error:
        read_rows(path)
    assert str(error.value).startswith(f"{path}, line 3: ") and words in str(error.value)


def test_a_missing_empty_or_unreadable_file_ends_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "latin.jsonl").write_bytes(b"\xe4")
    (tmp_path / "not.jsonl.gz").write_text("{}")
    for name, words in [("none.jsonl", "cannot read"), ("empty.jsonl", "holds no row"), ("latin.jsonl", "cannot read")]:
        with pytest.raises(UserError, match=words):
            read_rows(tmp_path / name)
    for path in (tmp_path / "not.jsonl.gz", tmp_path):
        with pytest.raises(UserError, match="cannot read"):
            read_rows(path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"user_id": "nobody"}, "there is no customer 'nobody'"),
        ({"kwargs": {"order_id": "#W0", "reason": "no longer needed"}}, "there is no order '#W0'"),
        ({"kwargs": {"order_id": ["#W0"], "reason": "x"}}, "cancel_order: order_id must be string"),
        ({"kwargs": {"reason": "x"}}, "cancel_order needs order_id"),
    ],
)
def test_a_row_whose_gold_does_not_fit_the_shop_is_invalid_with_the_tools_words(
    changed: dict[str, Any], words: str
) -> None:
    row = next(row for row in read_rows(DATA / "tasks_train.jsonl.gz") if row["id"] == "retail_train_4")
    row["user_id"] = changed.get("user_id", row["user_id"])
    row["actions"][0]["kwargs"] = changed.get("kwargs", row["actions"][0]["kwargs"])
    assert sort_rows([row]).invalid["retail_train_4"].startswith(words)


def test_levels_that_are_not_built_are_refused() -> None:
    for levels in ((), (5,), (1, 7)):
        with pytest.raises(UserError, match="retail has the levels 1, 2, 3, 4"):
            Retail(levels)


def test_rows_in_other_words_than_the_benchmarks_become_no_tasks():
    row = {"id": "a", "user_id": "omar_anderson_3203", "instruction": "Cancel #W6067464.", "outputs": []}
    ours = {**row, "actions": [{"name": "cancel_order", "kwargs": {"order_id": "nonsense"}}]}
    look_up = {**row, "id": "b", "actions": [{"name": "find_me_a_pony", "kwargs": {}}]}
    arguments = {"order_id": "#W6067464", "item_ids": ["9624127908"], "payment_id": "credit_card_4190576"}
    argument = {**row, "id": "c", "actions": [{"name": "return_delivered_order_items", "kwargs": arguments}]}
    found = sort_rows([ours, look_up, argument])
    assert not found.tasks
    assert "cancel_order (no tool of the benchmark)" in found.skipped["a"] and "find_me_a_pony" in found.skipped["b"]
    assert "the benchmark calls it payment_method_id" in found.invalid["c"]


@pytest.mark.parametrize("line", ["[" * 200_000, '{"id": "\\ud800"}'])
def test_a_line_that_no_text_file_should_hold_is_named_by_its_number(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n" + line)
    with pytest.raises(UserError, match="line 2"):
        read_rows(path)


def test_no_content_occurs_twice_in_a_split():
    for tasks in splits((1,)).values():
        contents = [content_of(writes_in(task)) for task in tasks]
        assert len(contents) == len(set(contents))


def test_the_documentation_lists_every_invalid_row_with_its_reason() -> None:
    text = (Path(__file__).parents[2] / "docs" / "retail.md").read_text()
    listed = re.findall(r"^\| `(retail_\w+)` \| (.+) \|$", text, re.MULTILINE)
    found = [sort_rows(read_rows(DATA / f"tasks_{name}.jsonl.gz")).invalid for name in FILES]
    assert dict(listed) == {row_id: words for invalid in found for row_id, words in invalid.items()}
    assert len(listed) == 18
