"""Every environment keeps the promises of its port; a new one joins with a line in WORLDS."""

import math

import pytest

from practicum import build, config
from practicum.environments.environment import Environment, Solvable
from practicum.environments.tools import Toolbox

WORLDS = {
    "tiny": [],
    "retail": ["environment.kind=retail"],
    "retail level 1": ["environment.kind=retail", "environment.levels=[1]"],
    "retail whole": ["environment.kind=retail", "environment.levels=[1, 2, 3, 4]"],
    "retail strict, in JSON": [
        "environment.kind=retail",
        "environment.levels=[1, 4]",
        "environment.strict=true",
        "environment.observations=json",
    ],
}


@pytest.fixture(params=WORLDS, scope="module")
def recipe(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    path.write_text(
        "[environment]\nkind = 'tiny'\n[tasks]\ntrain = 20\ndev = 10\ntest = 20\n[imitation]\ndemonstrations = 0\n"
    )
    return config.load(path, WORLDS[request.param])


@pytest.fixture
def environment(recipe):
    return build.world(recipe).open()


def played(environment, task, calls):
    environment.reset(task)
    toolbox = Toolbox(environment)
    for call in calls:
        toolbox.call(call)
    return environment.verify(task.secret)


def test_it_is_an_environment_that_knows_how_its_tasks_are_done(environment):
    assert isinstance(environment, Environment) and isinstance(environment, Solvable)
    assert Toolbox(environment).specs
    environment.close()


def test_the_expert_succeeds_nothing_fails_and_one_episode_leaves_nothing_for_the_next(recipe, environment):
    for task in build.tasks_of(recipe)["test"]:
        environment.reset(task)
        calls = environment.solve(task.secret)
        done, nothing, again = (played(environment, task, these) for these in (calls, [], calls))
        assert (done["success"], nothing["success"], again["success"]) == (1.0, 0.0, 1.0)
        assert all(math.isfinite(value) and 0 <= value <= 1 for value in done.values())


def test_two_instances_know_nothing_of_each_other(recipe):
    task = build.tasks_of(recipe)["dev"][0]
    one, other = build.world(recipe).open(), build.world(recipe).open()
    other.reset(task)
    one.reset(task)
    assert played(one, task, one.solve(task.secret))["success"] == 1.0
    assert other.verify(task.secret)["success"] == 0.0


def test_splits_share_no_id_and_no_request_and_are_the_same_each_time(recipe):
    splits, again = build.tasks_of(recipe), build.tasks_of(recipe)
    for name, tasks in splits.items():
        assert [task.id for task in tasks] == [task.id for task in again[name]]
    names = list(splits)
    for n, first in enumerate(names):
        for second in names[n + 1 :]:
            for part in ("id", "prompt"):
                shared = {getattr(t, part) for t in splits[first]} & {getattr(t, part) for t in splits[second]}
                assert not shared
