"""The loop in the caller's hands: the same learning as `train`, and a run folder that is whole however it is left."""

import asyncio
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="learning needs the extra [train]")

import practicum
from practicum import build, config
from practicum.environments.tiny import Lamps
from practicum.errors import UserError
from practicum.runs import checkpoint
from practicum.runs.database import Database
from practicum.runs.run import Run

QUICK = ["tasks.dev=2", "tasks.test=2", "trainer.tasks_per_step=3", "simulator.group_size=4", "simulator.lockstep=true"]
RECIPE = config.load("recipes/tiny.toml", [*QUICK, "trainer.steps=3", "evaluation.dev_steps=[]"])


def folder_of(place):
    """Steps that have a checkpoint, those that have metrics, and the number of training groups by step."""
    run = Run.open(place)
    with Database(run.database, read_only=True) as database:
        logged = {step for step, _, _ in database.metrics("success")}
        groups = {step: len(list(database.trajectories("train", step))) // 4 for step in logged}
    return [found.step for found in checkpoint.complete(run.checkpoints)], logged, groups


def learned(place, step):
    from safetensors.numpy import load_file

    return load_file(place / "checkpoints" / f"step-{step:06d}" / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Parameters after an undisturbed run."""
    folder, _ = practicum.train(RECIPE, tmp_path_factory.mktemp("whole") / "run")
    return learned(folder, 3)


def same(one, other):
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


def test_steps_learn_what_train_learns(tmp_path, whole):
    seen = list(practicum.steps(RECIPE, tmp_path / "pieces"))
    assert [step.number for step in seen] == [1, 2, 3] and all(len(step.groups) == 3 for step in seen)
    assert all({"success", "groups", "seconds"} <= step.metrics.keys() for step in seen)
    assert same(learned(tmp_path / "pieces", 3), whole)


class Enough(Exception):
    pass


@pytest.mark.parametrize("how", ["break", "raise"])
def test_a_loop_left_early_leaves_a_whole_run_that_train_goes_on_with(tmp_path, whole, how):
    def leave():
        for step in practicum.steps(RECIPE, tmp_path / "run"):
            if step.number == 2 and how == "raise":
                raise Enough
            if step.number == 2:
                break

    if how == "raise":
        with pytest.raises(Enough):
            leave()
    else:
        leave()
    assert folder_of(tmp_path / "run") == ([0, 2], {1, 2}, {1: 3, 2: 3})
    with pytest.raises(UserError, match="run already"):
        next(practicum.steps(RECIPE, tmp_path / "run"))
    _, report = practicum.train(RECIPE, tmp_path / "run", resume=True)
    assert report["steps"] == 3 and folder_of(tmp_path / "run")[1:] == ({1, 2, 3}, {1: 3, 2: 3, 3: 3})
    assert same(learned(tmp_path / "run", 3), whole)


def test_a_world_and_tasks_of_ones_own_are_learned_and_resumed_as_the_built_in_ones(tmp_path, whole):
    splits = build.tasks_of(RECIPE)
    own = replace(RECIPE, environment=config.EnvironmentConfig())
    brought = {"tasks": splits, "environment": Lamps}
    for step in practicum.steps(own, tmp_path / "own", **brought):
        if step.number == 1:
            break
    with pytest.raises(UserError, match=r"(?s)is a run of another recipe.*-digest = .*\+digest = "):
        changed = {**splits, "test": splits["train"][:2], "train": splits["train"][2:]}
        practicum.train(
            replace(own, tasks=replace(own.tasks, train=398)),
            tmp_path / "own",
            **{**brought, "tasks": changed},
            resume=True,
        )
    practicum.train(own, tmp_path / "own", **brought, resume=True)
    assert same(learned(tmp_path / "own", 3), whole)


def test_steps_go_on_inside_a_running_event_loop_as_in_a_notebook(tmp_path):
    async def notebook():
        return [step.number for step in practicum.steps(RECIPE, tmp_path / "run")]

    assert asyncio.run(notebook()) == [1, 2, 3]
