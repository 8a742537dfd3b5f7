"""What a call brings beside its recipe: whatever contradicts is refused, whatever is brought is played as ours is."""

import asyncio
import functools
import json
import math
from dataclasses import replace

import pytest

import practicum
from practicum import Message, Task, ToolCall, ToolError, UserError, build, config, tool
from practicum.agents.tool_loop import ToolLoop
from practicum.environments.tiny import Lamps
from practicum.errors import PracticumError
from practicum.sampling.scripted import ScriptedSampler
from practicum.simulator.episode import run_episode
from practicum.types import Ending

TINY = "recipes/tiny.toml"
RECIPE = {"tasks": {"train": 4, "dev": 2, "test": 3}, "imitation": {"demonstrations": 0}}


class Till:
    """Without close, solve or hear."""

    def reset(self, task):
        self.given = 0

    @tool
    def give(self, cents: int) -> str:
        """Give change."""
        if cents < 0:
            raise ToolError("at least 0")
        self.given = cents
        return "given"

    def verify(self, secret):
        return {"success": float(self.given == secret["cents"])}


class Solved(Till):
    def solve(self, secret):
        return [ToolCall("give", {"cents": secret["cents"]})]


class Needy(Till):
    def __init__(self, drawer):
        self.drawer = drawer


class Broken(Till):
    def __init__(self):
        raise OSError("no till")


class Waiting(Till):
    async def reset(self, task):
        self.given = 0


class Untyped(Till):
    @tool
    def take(self, cents) -> str:
        """Take."""
        return "taken"


def tasks(n=9, **rest):
    return [Task(f"t{i}", f"Give {i} cents.", secret={"cents": i}, **rest) for i in range(1, n + 1)]


async def agent(task, model):
    return (await model.chat([Message("user", task.prompt)])).content


def reward(task, answer):
    return float(answer == str(task.secret["cents"]))


def played(own_reward, said="7", the_agent=agent):
    """One episode of an agent of one's own, in which the model says something."""
    loaded, own = build.settled(RECIPE, tasks=tasks(), agent=the_agent, reward=own_reward)
    stage = build.stage_of(loaded, ScriptedSampler([]), build.renderer_of(loaded, scripted=True), 1.0, own=own)
    renderer = stage.renderer
    sampler = ScriptedSampler([[*renderer.tokenizer.encode(said), renderer.end]])
    return asyncio.run(run_episode(replace(stage, sampler=sampler), tasks()[6], 0))


# --- what is played -------------------------------------------------------------------------------------------------


def test_an_environment_needs_reset_and_verify_only_and_is_played_by_scripts():
    for policy, success in (("noop", 0.0), ("expert", 1.0)):
        found = practicum.evaluate(RECIPE, tasks=tasks(), environment=Solved, policy=policy)
        assert (found.summary()["success"], found.summary()["n_tasks"]) == (success, 3)
    assert practicum.evaluate(RECIPE, tasks=tasks(), environment=Till, policy="noop").summary()["success"] == 0.0
    with pytest.raises(UserError, match="Till has no expert"):
        practicum.evaluate(RECIPE, tasks=tasks(), environment=Till, policy="expert")


def test_the_built_in_world_brought_by_a_call_is_played_as_by_its_recipe():
    recipe = config.load(TINY, ["tasks.test=20"])
    splits = build.tasks_of(recipe)
    own = replace(recipe, environment=config.EnvironmentConfig())
    for rest in ({"policy": "random"}, {"policy": "expert"}):
        ours = practicum.evaluate(recipe, **rest)
        theirs = practicum.evaluate(own, tasks=splits, environment=Lamps, **rest)
        assert theirs.evaluation.successes == ours.evaluation.successes


def test_a_factory_opens_an_environment_for_every_episode():
    opened = []

    def shop():
        opened.append(Till())
        return opened[-1]

    practicum.evaluate(RECIPE, tasks=tasks(), environment=shop, policy="noop", attempts=2)
    assert len(opened) >= 6 and len(set(map(id, opened))) == len(opened)


def test_an_answer_is_judged_with_the_secret_that_the_agent_never_sees():
    seen = []

    async def curious(task, model):
        seen.append((dict(task.secret), model.tools))
        return await agent(task, model)

    found = played(reward, the_agent=curious)
    assert (found.ending, found.answer, dict(found.rewards), found.reward) == ("finished", "7", {"success": 1.0}, 1.0)
    assert seen == [({}, ())] and played(reward, "8").success == 0.0


def test_several_rewards_are_told_apart_by_name():
    found = played(lambda task, answer: {"success": 0.0, "short": 1.0})
    assert dict(found.rewards) == {"success": 0.0, "short": 1.0}


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        (lambda task, answer: 1.5, "reward success of t7 is 1.5; rewards are finite and within"),
        (lambda task, answer: -0.1, "is -0.1"),
        (lambda task, answer: math.nan, "is nan"),
        (lambda task, answer: 1 / 0, "ZeroDivisionError"),
        (lambda task, answer: None, "TypeError"),
        (lambda task, answer: {"good": 1.0}, "no reward 'success' among"),
    ],
)
def test_a_judge_that_fails_discards_the_attempt_and_never_scores_it_0(judge, words):
    found = played(judge)
    assert found.ending is Ending.VERIFIER_FAILED and not found.rewards
    assert words in found.error


def test_when_no_attempt_can_be_judged_the_first_failure_is_told():
    with pytest.raises(PracticumError, match=r"(?s)verifier_failed.*KeyError: 'word'"):
        practicum.evaluate(RECIPE, tasks=tasks(), reward=lambda task, answer: task.secret["word"], policy="noop")


def test_an_agent_that_raises_is_scored_and_its_traceback_kept():
    async def failing(task, model):
        raise LookupError("lost")

    found = played(reward, the_agent=failing)
    assert (found.ending, found.success) == (Ending.AGENT_FAILED, 0.0) and "LookupError: lost" in found.error


def test_without_an_agent_the_default_loop_answers():
    loaded, own = build.settled(RECIPE, tasks=tasks(), reward=reward)
    stage = build.stage_of(loaded, ScriptedSampler([]), build.renderer_of(loaded, scripted=True), 1.0, own=own)
    assert isinstance(stage.agent, ToolLoop)


# --- which tasks ----------------------------------------------------------------------------------------------------


def test_list_file_and_splits_give_the_same_tasks_and_the_same_recipe(tmp_path):
    file = tmp_path / "tasks.jsonl"
    rows = [{"id": t.id, "prompt": t.prompt, "secret": dict(t.secret)} for t in tasks()]
    file.write_text("\n".join(map(json.dumps, rows)))
    listed, own = build.settled(RECIPE, tasks=tasks(), environment=Till)
    by_file, of_file = build.settled(RECIPE, tasks=file, environment=Till)
    given, of_splits = build.settled({"imitation": {"demonstrations": 0}}, tasks=own.splits, environment=Till)
    assert own.splits == of_file.splits == of_splits.splits
    assert listed == by_file == given
    assert {name: len(found) for name, found in own.splits.items()} == RECIPE["tasks"]


def test_what_a_run_keeps_is_a_recipe_for_the_same_call_and_no_other(tmp_path):
    kept, _ = build.settled(RECIPE, tasks=tasks(), environment=Till, agent=agent)
    path = tmp_path / "config.toml"
    path.write_text(config.as_toml(kept))
    again, _ = build.settled(path, tasks=tasks(), environment=Till, agent=agent)
    assert config.as_toml(again) == config.as_toml(kept)
    assert kept.environment.options == {"name": "Till"} and kept.agent.kind == "own"
    with pytest.raises(UserError, match=r"the recipe is of a call with other tasks: its tasks.digest is \w+"):
        build.settled(path, tasks=tasks(10), environment=Till, agent=agent)
    with pytest.raises(UserError, match=r"the recipe's environment is own, name = Till, but the call brings Solved"):
        build.settled(path, tasks=tasks(), environment=Solved, agent=agent)
    with pytest.raises(UserError, match=r"environment.kind is 'own': Till is brought by a call"):
        practicum.check(path, agent=agent, timing=False)
    with pytest.raises(UserError, match=r"agent.kind is 'own': the agent is brought by a call"):
        practicum.evaluate(path, tasks=tasks(), environment=Till)
    own_tasks, _ = build.settled(TINY, tasks={"test": build.tasks_of(config.load(TINY))["test"]})
    with pytest.raises(UserError, match="the recipe is of a call that brought its own tasks"):
        practicum.evaluate(own_tasks, policy="noop")


def test_all_tasks_are_evaluated_where_all_are_asked_for():
    found = practicum.evaluate(RECIPE, tasks=tasks(), environment=Till, policy="noop", split="all")
    assert found.summary()["n_tasks"] == 9
    held = practicum.evaluate(RECIPE, tasks=tasks(), environment=Till, policy="noop")
    assert held.evaluation.successes.keys() == {
        t.id for t in build.settled(RECIPE, tasks=tasks(), environment=Till)[1].splits["test"]
    }


def test_a_file_of_our_form_is_played_in_a_built_in_world_too(tmp_path):
    file = tmp_path / "lamps.jsonl"
    lamps = build.tasks_of(config.load(TINY))["test"][:5]
    file.write_text(
        "\n".join(json.dumps({"id": t.id, "prompt": t.prompt, "data": t.data, "secret": t.secret}) for t in lamps)
    )
    found = practicum.evaluate(TINY, tasks=file, policy="expert", split="all")
    assert (found.summary()["success"], found.summary()["n_tasks"]) == (1.0, 5)


# --- what is refused ------------------------------------------------------------------------------------------------


def lacking(name):
    return type("Odd", (Till,), {name: None})


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ({"environment": Till()}, r"found <.*Till object.*give Till itself"),
        ({"environment": Needy}, r"Needy needs drawer; give `lambda: Needy\(…\)`"),
        ({"environment": lacking("verify")}, "Odd is no environment: it has no method verify"),
        ({"environment": Waiting}, "Waiting.reset is `async`; write it as a plain function"),
        ({"environment": Untyped}, "tool take, parameter cents: it has no type annotation"),
        ({"environment": Till, "reward": reward}, "environment= and reward= both judge an attempt"),
        ({"environment": Till, "tasks": None}, "comes with its tasks: give them as tasks="),
        ({"environment": Till, "recipe": TINY}, "the recipe's environment is tiny, but the call brings Till"),
        ({"reward": reward, "recipe": TINY}, "but the call brings reward; leave .* or reward= out of the call"),
        ({"reward": agent}, "reward= agent is `async`"),
        ({"reward": lambda answer: 1.0}, r"reward= is called as <lambda>\(task, answer\), which it does not take"),
        ({"reward": 1.0}, r"reward= needs a function `def reward\(task, answer\)`, found 1.0"),
        ({"agent": reward}, r"agent= needs a function `async def agent\(task, model\)`, found <function reward"),
        ({"agent": functools.partial(agent, None)}, r"agent= is called as partial\(task, model\), which it does not"),
        ({"agent": agent, "recipe": TINY}, "agent.system would have no effect"),
        ({"environment": Till, "tasks": {"tests": tasks()}}, "has a split tests; known: train, dev, test"),
        ({"environment": Till, "tasks": {"test": []}}, "tasks= holds no task"),
        ({"environment": Till, "tasks": {"dev": tasks(2), "test": tasks(3)}}, "dev and test share ids"),
        ({"environment": Till, "tasks": {"test": tasks(4)}}, "tasks.test is 3, but tasks= has 4 of them"),
        ({"environment": Till, "tasks": tasks(5)}, "holds 5 tasks, of which 5 stand apart"),
        (
            {"environment": Till, "recipe": {**RECIPE, "tasks": {"made": 3}}},
            "tasks.made asks for tasks made by the world",
        ),
        ({"recipe": "recipes/retail.toml", "tasks": {"test": tasks(1)}}, "task t1: its 'data' lacks user_id"),
        (
            {
                "recipe": {"environment": {"kind": "tiny"}},
                "tasks": {"test": [Task("k42", "lamp k42", data={"lamp": "k42"})]},
                "policy": "expert",
            },
            "its 'secret' lacks button; the tiny environment reads button there",
        ),
        ({"environment": Till, "recipe": {"trainer": {"step": 3}}}, "the recipe: unknown key trainer.step"),
        ({"environment": Till, "recipe": "absent.toml"}, "the recipe absent.toml cannot be read"),
    ],
)
def test_what_cannot_be_used_or_contradicts_the_recipe_is_refused_before_any_work(rest, words):
    asked = {"recipe": RECIPE, "tasks": tasks(), "policy": "noop", **rest}
    with pytest.raises(UserError, match=words):
        practicum.evaluate(asked.pop("recipe"), **asked)


def test_an_environment_that_cannot_be_opened_is_told_with_its_own_words():
    with pytest.raises(PracticumError, match="environment= Broken: OSError: no till"):
        practicum.evaluate(RECIPE, tasks=tasks(), environment=Broken, policy="noop")


def test_a_check_plays_tasks_of_ones_own_and_says_what_stands_against_a_run():
    sound = practicum.check(RECIPE, tasks=tasks(), environment=Solved, timing=False)
    assert not [problem for problem in sound.problems if "expert" in problem or "share" in problem]
    assert sound.figures["tasks"]["test"]["expert"] == 1.0
    shown = {**RECIPE, "imitation": {"demonstrations": 2}}
    with_problem = practicum.check(shown, tasks=tasks(), environment=Till, timing=False)
    assert any("the environment has no expert: give it solve" in problem for problem in with_problem.problems)


# --- where it runs --------------------------------------------------------------------------------------------------


def test_a_verb_works_inside_a_running_event_loop_as_in_a_notebook():
    async def notebook():
        return practicum.evaluate(RECIPE, tasks=tasks(), environment=Solved, policy="expert")

    assert asyncio.run(notebook()).summary()["success"] == 1.0


def test_training_refuses_what_it_would_trip_over_later(tmp_path):
    pytest.importorskip("torch", reason="training needs the extra [train]")
    tiny = {**RECIPE, "model": {"name": "tiny-start"}}
    for rest, words in (
        (
            {"tasks": {"train": tasks(4), "test": [Task("x", "y")]}, "recipe": {**tiny, "tasks": {}}},
            "has no dev: a run",
        ),
        ({"recipe": {**tiny, "imitation": {"demonstrations": 2}}}, "the environment has no expert"),
        ({"recipe": {**tiny, "simulator": {"rewards": {"speed": 1.0}}}}, "simulator.rewards names speed; own gives"),
        ({"tasks": tasks(9, scenario_id="one")}, "of which 1 stand apart"),
        ({"resume": True}, "--resume needs --folder"),
    ):
        asked = {"recipe": tiny, "tasks": tasks(), "environment": Till, **rest}
        folder = None if "resume" in rest else tmp_path / "run"
        with pytest.raises(UserError, match=words):
            practicum.train(asked.pop("recipe"), folder, **asked)
        assert not (tmp_path / "run").exists()
