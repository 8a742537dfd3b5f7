"""What an evaluation refuses to measure."""

from pathlib import Path

import pytest

from practicum import build, compare, config, evaluate
from practicum.errors import PracticumError, UserError
from practicum.runs.database import Database
from practicum.runs.run import CONFIG, Run
from practicum.types import Ending, Group, Task, Trajectory
from practicum.verbs.evaluating import check_unseen


def a_run_that_saw(folder, phase, task_id):
    folder.mkdir()
    (folder / CONFIG).write_text("")
    with Database(Run(folder).database) as database:
        attempt = Trajectory(task_id, 0, (), Ending.FINISHED, rewards={"success": 1.0})
        database.add_groups(phase, 0, [Group("g", task_id, (attempt,))])
    return folder


@pytest.mark.parametrize("phase", ["demonstration", "train", "dev"])
def test_a_run_is_not_tested_on_what_it_practised_or_was_chosen_by(tmp_path, phase):
    run = a_run_that_saw(tmp_path / "run", phase, "seen")
    tasks = [Task("new", ""), Task("seen", "")]
    stored = run / "checkpoints" / "step-000001" / "model"
    stored.mkdir(parents=True)
    for model in (run, stored):
        with pytest.raises(UserError, match=r"1 of the 2 test tasks, such as seen, were practised by .*run"):
            check_unseen(model, tasks)
    check_unseen(run, tasks[:1])


def test_a_run_may_be_tested_again_on_what_it_was_tested_on(tmp_path):
    check_unseen(a_run_that_saw(tmp_path / "run", "test/rl", "seen"), [Task("seen", "")])


def test_a_known_model_is_no_model_of_the_run_in_whose_folder_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(a_run_that_saw(tmp_path / "run", "train", "seen"))
    check_unseen(Path("SmolLM2-135M-Instruct"), [Task("seen", "")])


def test_a_model_and_a_policy_exclude_each_other():
    with pytest.raises(UserError, match="exclude each other"):
        evaluate("recipes/tiny.toml", model="tiny-start", policy="noop")


def test_what_was_just_evaluated_is_compared_by_name():
    measured = evaluate("recipes/tiny.toml", policy="noop")
    with pytest.raises(UserError, match="is given by name"):
        compare(measured, measured)


def test_an_agent_whose_code_always_fails_is_no_agent_that_fails_its_tasks(monkeypatch):
    async def agent(task, model):
        raise KeyError("boom")

    stage = build.scripted_stage(config.load("recipes/tiny.toml"))
    monkeypatch.setattr(build, "model_stage", lambda *_: type(stage)(**{**stage.__dict__, "agent": agent}))
    with pytest.raises(PracticumError, match=r"(?s)the agent's code failed in every attempt \(100\).*boom"):
        evaluate("recipes/tiny.toml", model="tiny-start")
