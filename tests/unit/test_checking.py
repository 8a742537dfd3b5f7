"""What a check says of a recipe: tasks, splits, limits, shapes, memory."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from practicum.config import LoraConfig, RunConfig, SimulatorConfig, TrainerConfig
from practicum.errors import UserError
from practicum.models.known import SHIPPED, ModelFiles, find
from practicum.models.shape import ModelShape, shape_of
from practicum.types import Completion, Ending, Message, Task, Trajectory, Turn
from practicum.verbs.checking import fitting, judge, overlaps, settings_of
from practicum.verbs.findings import Findings
from practicum.verbs.forecasting import Lengths, Pace, expected_memory, expected_seconds, group_tokens, lengths_of


def task(task_id, prompt="", **rest):
    return Task(task_id, prompt or f"do {task_id}", **rest)


def test_splits_share_no_id_scenario_user_or_content():
    apart = {"train": [task("a"), task("b")], "dev": [task("c")], "test": [task("d")]}
    assert overlaps(apart) == []
    for name, first, second in (
        ("ids", task("a"), task("a", "something else")),
        ("scenarios", task("a", scenario_id="s"), task("b", scenario_id="s")),
        ("users", task("a", data={"user_id": "u"}), task("b", data={"user_id": "u", "more": 1})),
        ("contents", task("a", "do  it", secret={"x": 1}), task("b", "do it ", secret={"x": 1})),
    ):
        (problem,) = overlaps({"train": [first], "dev": [task("z")], "test": [second]})
        assert problem.startswith(f"train and test share {name}: those of {second.id} in test")
    (problem,) = overlaps({"train": [task("a"), task("a", "again"), task("b")]})
    assert problem.startswith("train holds an id several times: a;")


def episode(task_id, success=1.0, ending=Ending.FINISHED, opening=10, replies=(4, 6), error=""):
    turns, before = [], None
    for n, size in enumerate(replies):
        completion = Completion((1,) * size, (0.0,) * size, (0,) * size, "stop")
        added = (2,) * (opening if n == 0 else 3)
        turns.append(Turn(n, before, added, completion, (), Message("assistant", "")))
        before = n
    rewards = {} if ending.discarded else {"success": success}
    return Trajectory(task_id, 0, tuple(turns), ending, rewards=rewards, error=error)


def played(expert, noop=None):
    nothing = noop or [episode(e.task_id, 0.0, replies=(1,)) for e in expert]
    return {"test": {"expert": expert, "noop": nothing, "random": nothing}}


def test_an_expert_that_fails_and_a_task_that_cannot_be_played_are_problems():
    found = Findings()
    judge(
        played([episode("a"), episode("b", 0.0), episode("c", ending=Ending.ENVIRONMENT_FAILED, error="E: no db")]),
        found,
    )
    assert found.problems == [
        "1 of 3 tasks of test cannot be played: c; the first: E: no db",
        "the expert fails 1 of 3 tasks of test: b (finished); correct the tasks or their solve()",
    ]
    assert found.figures["tasks"]["test"] == {"n": 3, "expert": 0.5, "noop": 0.0, "random": 0.0}


def test_a_task_that_is_done_by_doing_nothing_is_told_but_stops_nobody():
    found = Findings()
    judge(played([episode("a")], noop=[episode("a", replies=(1,))]), found)
    assert found.problems == [] and found.notes == ["done by doing nothing: 1 task of test: a"]


def test_a_prompt_that_leaves_no_room_is_a_problem_in_tokens_and_a_note_in_bytes():
    config = RunConfig(simulator=SimulatorConfig(context_tokens=10))
    for unit, problems, notes in (("tokens", 1, 1), ("bytes", 0, 1)):
        found = Findings()
        fitting(config, played([episode("a"), episode("b", opening=5)]), unit, found)
        assert (len(found.problems), len(found.notes)) == (problems, notes)
        assert "the opening prompt of 1 task leaves no room" in (found.problems or found.notes)[0]


def test_what_the_expert_needs_beyond_the_limits_is_told_with_the_tasks():
    config = RunConfig(simulator=SimulatorConfig(context_tokens=23, turns=1, tokens_per_turn=5))
    found = Findings()
    lengths = fitting(config, played([episode("a"), episode("b", opening=11)]), "tokens", found)
    assert (lengths.longest, lengths.turns, lengths.longest_reply, lengths.sampled) == (24, 2, 6, 10.0)
    assert [note.split(" task")[0] for note in found.notes] == [
        "the expert needs more than simulator.context_tokens = 23 in 1",
        "the expert needs more than simulator.turns = 1 in 2",
        "the expert needs more than simulator.tokens_per_turn = 5 in 2",
    ]


def test_where_nothing_can_be_played_the_check_ends_with_the_reasons():
    found = Findings(problems=["the world is closed"])
    with pytest.raises(UserError, match="no task can be played:\nthe world is closed"):
        fitting(RunConfig(), {"test": {"noop": [Trajectory("a", 0, (), Ending.ENVIRONMENT_FAILED)]}}, "tokens", found)


def test_every_setting_is_listed_and_the_changed_ones_are_marked():
    settings = settings_of(RunConfig(seed=3, trainer=TrainerConfig(steps=7)))
    changed = {name: found["value"] for name, found in settings.items() if found["differs"]}
    assert changed == {"seed": 3, "trainer.steps": 7}
    assert settings["trainer.steps"]["default"] == TrainerConfig().steps
    assert {"model.name", "simulator.rewards", "evaluation.dev_steps"} < set(settings)


# --- memory and time ------------------------------------------------------------------------------------------------

SHAPE = ModelShape(1000, 2, 8, 16, 2, 4, 50, 64, 30, 4)
LENGTHS = Lengths(opening=20, longest_opening=22, sampled=5, whole=30, longest=33, turns=2, longest_reply=4)
SMALL = RunConfig(simulator=SimulatorConfig(group_size=3, context_tokens=40))


def test_the_shape_of_a_model_is_read_from_its_files_without_loading_them():
    # 259 · 128 + 4 layers of 4 · 128² + 3 · 128 · 512 + 2 · 128, and the last norm's 128.
    shape = shape_of(ModelFiles(SHIPPED / "tiny-start", "here"))
    assert shape.parameters == 259 * 128 + 4 * (4 * 128**2 + 3 * 128 * 512 + 2 * 128) + 128
    assert (shape.layers, shape.heads, shape.kv_width, shape.context) == (4, 4, 128, 512)
    assert shape.adapter_per_rank == 4 * (4 * 256 + 3 * 640) and shape.narrowest == 128


def test_files_that_do_not_say_the_shape_are_refused_by_name(tmp_path):
    for config in ({"hidden_size": 8}, [1], {"text_config": 3}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match="do not say how large the model is"):
            shape_of(ModelFiles(tmp_path, "here"))


def test_memory_is_counted_by_purpose():
    memory = expected_memory(SMALL, SHAPE, LENGTHS)
    assert group_tokens(LENGTHS, 3) == 50
    assert (memory["weights"], memory["gradients"], memory["Adam's moments"]) == (4000, 4000, 8000)
    assert (memory["reference"], memory["sampler's copy"]) == (0, 4000)
    # keys and values: 64 slots of 40 positions, 2 layers of 4 numbers each
    assert memory["kept keys and values"] == 4 * 2 * 64 * 40 * 2 * 4
    # 1024 tokens, 64 + 8 + 64 numbers and 2 heads' scores over the 50 of a tree in each layer; 15 of 50 are followed
    assert memory["activations"] == round(1.25 * 4 * (1024 * (136 + 100) * 2 + 3 * 1024 * 15 / 50 * 50))


def test_ppo_doubles_what_learns_a_reference_adds_weights_and_lora_needs_little():
    plain = expected_memory(SMALL, SHAPE, LENGTHS)
    ppo = expected_memory(replace(SMALL, trainer=TrainerConfig(algorithm="ppo", kl=0.1)), SHAPE, LENGTHS)
    for part in ("weights", "gradients", "Adam's moments"):
        assert ppo[part] == 2 * plain[part]
    assert ppo["reference"] == plain["weights"]
    lora = expected_memory(replace(SMALL, lora=LoraConfig(rank=2)), SHAPE, LENGTHS)
    assert (lora["weights"], lora["gradients"]) == (4 * (1000 + 60), 4 * 60)


def test_time_is_tokens_over_pace():
    config = replace(
        SMALL,
        trainer=TrainerConfig(steps=2, tasks_per_step=4, epochs=1),
        imitation=replace(SMALL.imitation, demonstrations=0),
        evaluation=replace(SMALL.evaluation, dev_steps=(0,), dev_attempts=1, base=False),
    )
    seconds = expected_seconds(config, {"dev": 10, "test": 20}, LENGTHS, Pace(trained=10.0, sampled=5.0, contexts=8))
    # A step: 4 · 3 · 5 tokens sampled, 4 · (20 + 3 · 5) read, 4 · 50 learned. Dev is measured at 0 and at the last step.
    assert seconds["reinforcement"] == pytest.approx(2 * (60 / 5 + 140 / 30 + 200 / 10))
    assert seconds["dev"] == pytest.approx(2 * 10 * (5 / 5 + 25 / 30))
    assert seconds["test"] == pytest.approx(20 * (5 / 5 + 25 / 30))
    assert seconds["warm-up, at most"] == 0
    bound = replace(config, trainer=replace(config.trainer, minutes=0.5))
    assert expected_seconds(bound, {"dev": 10, "test": 20}, LENGTHS, Pace(10.0, 5.0, 8))["reinforcement"] == 30


def test_lengths_are_those_of_the_episodes():
    found = lengths_of([episode("a"), episode("b", opening=20, replies=(5,))])
    assert found == Lengths(15.0, 20, 7.5, 24.0, 25, 2, 6)


def test_a_model_is_found_without_download_only_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path))
    assert find("tiny-start", download=False).folder == SHIPPED / "tiny-start"
    for name in ("SmolLM2-135M-Instruct", "nobody/nothing"):
        with pytest.raises(UserError, match=r"is not among the files kept|huggingface_hub is not installed"):
            find(name, download=False)
