"""Requests of levels 3 and 4 are made, verified and split; what levels 1 and 2 had stays as it was, bit by bit."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict

import pytest

from practicum import build, config
from practicum.environments.retail import BUILT_LEVELS, Retail
from practicum.environments.retail_data import database
from practicum.environments.retail_expert import is_introduced
from practicum.environments.retail_rows import ORDER_ID, played
from practicum.environments.retail_tasks import content_of, generate, splits, training_users, writes_in
from practicum.environments.tools import Toolbox
from practicum.sampling.formats import CompactCalls


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("levels", "tasks", "prompt", "episodes"),
    [
        ((1,), "38f8d0572b486969", "c8b04158ae9ab6c8", "3c95b1ec00c91ad8"),
        ((2,), "0c65cb3523731982", "aac7a864aeda36f2", "09c8527b1db34eb2"),
        ((1, 2), "75231916ecdc4098", "f18c86d9b63f3126", "50739610a3ea8cbe"),
    ],
)
def test_levels_one_and_two_are_those_of_the_stored_records(
    levels: tuple[int, ...], tasks: str, prompt: str, episodes: str
) -> None:
    found = splits(levels)
    assert digest({name: [asdict(task) for task in these] for name, these in found.items()}) == tasks
    shop = Retail(levels)
    toolbox = Toolbox(shop)
    assert digest(CompactCalls().describe(toolbox.specs)) == prompt
    transcript: list[list[object]] = []
    for task in (task for these in found.values() for task in these):
        opening = shop.reset(task)
        calls = shop.solve(task.secret)
        transcript += [[call.name, dict(call.arguments), toolbox.call(call)] for call in calls]
        transcript.append([opening, shop.verify(task.secret)["success"]])
    assert digest(transcript) == episodes


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("levels", [(3,), (4,), (1, 2, 3, 4)])
def test_the_splits_share_no_id_no_user_and_no_content_and_every_level_its_part(
    levels: tuple[int, ...], strict: bool
) -> None:
    found = splits(levels, train=40, dev=20, test=60, strict=strict)
    assert found == splits(levels, train=40, dev=20, test=60, strict=strict)
    for tasks in found.values():
        assert Counter(task.data["level"] for task in tasks) == dict.fromkeys(levels, len(tasks) // len(levels))
    for facet in (lambda t: t.id, lambda t: t.data["user_id"], lambda t: content_of(writes_in(t)), lambda t: t.prompt):
        sets = [{facet(task) for task in tasks} for tasks in found.values()]
        assert sum(map(len, sets)) == len(set().union(*sets))
    held_out = {task.data["user_id"] for name in ("dev", "test") for task in found[name]}
    assert not held_out & set(training_users(found))
    shop = Retail(levels, strict=strict)
    assert all(played(shop, task) == 1.0 for tasks in found.values() for task in tasks)


def test_another_seed_gives_other_tasks() -> None:
    one, other = splits((3,), 20, 10, 20, seed=0), splits((3,), 20, 10, 20, seed=1)
    assert {task.id for task in one["test"]} != {task.id for task in other["test"]}


@pytest.mark.parametrize("level", [3, 4])
def test_made_requests_are_new_solvable_not_solved_by_doing_nothing_and_say_who_asks(level: int) -> None:
    users = sorted(database().users)[:250]
    tasks = generate(80, 7, users, levels=(level,))
    assert tasks == generate(80, 7, reversed(users), levels=(level,))
    assert len({content_of(writes_in(task)) for task in tasks}) == len({task.id for task in tasks}) == 80
    shop = Retail(BUILT_LEVELS)
    for task in tasks:
        assert task.data["level"] == level and task.data["user_id"] in users
        assert played(shop, task) == 1.0
        assert shop.reset(task) is None
        assert shop.verify(task.secret)["success"] == 0.0
        assert is_introduced(task.prompt, database().users[task.data["user_id"]])


def test_level_three_is_one_change_of_payment_or_address() -> None:
    kinds = Counter(name for task in generate(90, 1, database().users, levels=(3,)) for name, _ in writes_in(task))
    assert kinds.keys() == {"change_payment", "change_address", "change_user_address"}
    assert kinds.total() == 90 and min(kinds.values()) > 15


def test_level_four_mixes_writes_asks_questions_describes_orders_and_keeps_some() -> None:
    tasks = generate(80, 2, database().users, levels=(4,))
    for task in tasks:
        names = [name for name, _ in writes_in(task)]
        assert len(names) in (2, 3) and len(set(names)) == len(names)
    n_asked = sum(bool(task.secret["outputs"]) for task in tasks)
    n_described = sum(not ORDER_ID.search(task.prompt) for task in tasks)
    n_kept = sum("Keep " in task.prompt or "Leave " in task.prompt for task in tasks)
    assert all(8 < n < 72 for n in (n_asked, n_described, n_kept)), (n_asked, n_described, n_kept)


def test_a_described_order_is_described_by_what_no_other_order_of_the_customer_holds() -> None:
    for task in generate(60, 4, database().users, levels=(4,)):
        orders = [database().orders[order_id] for order_id in database().users[task.data["user_id"]]["orders"]]
        for part in task.prompt.split("he order with the ")[1:]:
            holding = [o for o in orders if any(part.startswith(item["name"]) for item in o["items"])]
            assert len(holding) == 1, (task.prompt, part)


def test_the_recipe_of_the_whole_shop_leaves_room_for_the_expert() -> None:
    recipe = config.load("recipes/retail_full.toml")
    shop = build.world(recipe).open()
    tasks = [task for these in build.tasks_of(recipe).values() for task in these]
    for task in tasks:
        shop.reset(task)
        assert len(shop.solve(task.secret)) < recipe.simulator.turns, task.id
    assert Counter(task.data["level"] for task in tasks) == {1: 68, 2: 68, 3: 68, 4: 68}


def test_fresh_tasks_take_the_place_of_those_that_are_practised_and_share_nothing_with_what_is_held_out():
    plain, fresh = (build.tasks_of(config.load("recipes/retail.toml", [f"tasks.made={n}"])) for n in (0, 100))
    assert (plain["dev"], plain["test"]) == (fresh["dev"], fresh["test"])
    assert (len(plain["train"]), len(fresh["train"])) == (72, 100)
    contents = {content_of(writes_in(task)) for tasks in plain.values() for task in tasks}
    assert not contents & {content_of(writes_in(task)) for task in fresh["train"]}
    held_out = {task.data["user_id"] for name in ("dev", "test") for task in plain[name]}
    assert not held_out & {task.data["user_id"] for task in fresh["train"]}
