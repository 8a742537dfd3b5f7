"""The loop around the learner: what is drawn, when it stops, which weights are tested. The learner is a counter."""

import asyncio
import json
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("torch", reason="the loop imports the trainer")

from practicum import build, config
from practicum.curriculum.curriculum import Curriculum
from practicum.errors import PracticumError
from practicum.ledger import Ledger
from practicum.plan import Plan
from practicum.runs.checkpoint import complete
from practicum.runs.database import Database
from practicum.runs.run import Run
from practicum.sampling.scripted import ScriptedSampler
from practicum.simulator.demonstrate import shown_by_expert
from practicum.tracking.console import Console
from practicum.training import Parts, train
from practicum.types import SamplingParams, Weights

PLAN = Plan(
    steps=3,
    minutes=0.0,
    budget=0.0,
    learns_from="reward",
    rows_per_update=2,
    tasks_per_step=2,
    replace_silent_groups=0,
    group_size=2,
    concurrency=8,
    lockstep=False,
    demonstrations=0,
    warms_up=False,
    dev_steps=(0, 1, 2),
    dev_attempts=1,
    test_attempts=1,
    evaluation_temperature=1.0,
    measure_base=True,
    checkpoint_every=10,
)


class Counting:
    """A learner whose whole policy is how many steps it made."""

    def __init__(self):
        self.version, self.skill, self.learned, self.imitated = 0, 0, [], []
        self.advantages = {}

    def learn(self, groups):
        self.learned.append(groups)
        self.skill += 1
        return {"groups": float(len(groups))}

    def imitate(self, demonstrations, rows_per_update, passes):
        self.imitated.append((demonstrations, passes))
        self.skill += 1
        return {}

    def refer(self):
        self.referred_at = self.skill

    def numbered(self, skill):
        self.version += 1
        return Weights(self.version, str(skill), {"skill": skill})

    def publish(self):
        return self.numbered(self.skill)

    def save(self, folder):
        (folder / "skill.json").write_text(json.dumps(self.skill))


class Skilled(ScriptedSampler):
    """Presses the right button where `plays(skill, seed)` says so."""

    def __init__(self, renderer, plays):
        super().__init__(self.reply)
        self.renderer, self.plays, self.skill, self.loaded = renderer, plays, None, []

    async def load(self, weights):
        await super().load(weights)
        self.skill = weights.tensors["skill"]
        self.loaded.append(self.skill)

    def reply(self, tokens, params: SamplingParams):
        text = self.renderer.tokenizer.decode(tokens)
        colour = next((c for c in ("red", "amber", "green", "blue", "white") if f"\n{c}" in text), None)
        right = {"red": "stop", "amber": "wait", "green": "go", "blue": "call", "white": "rest"}
        said = f'press("{right[colour] if self.plays(self.skill, params.seed) else "?"}")' if colour else "look()"
        return (*self.renderer.tokenizer.encode(said), self.renderer.end)


def trained(tmp_path, plays, **changes):
    recipe = config.load("recipes/tiny.toml", ["tasks.dev=4", "tasks.test=4"])
    renderer = build.renderer_of(recipe, scripted=True)
    sampler, learner = Skilled(renderer, plays), Counting()
    splits = build.tasks_of(recipe)
    with Run.create(tmp_path / "run", "") as run, Database(run.database) as database, Console() as console:
        parts = Parts(
            run=run,
            database=database,
            trackers=[console],
            console=console,
            stage=(stage := build.stage_of(recipe, sampler, renderer, 1.0)),
            demonstrate=partial(shown_by_expert, stage),
            sampler=sampler,
            trainer=learner,
            curriculum=Curriculum(splits["train"], 0),
            splits=splits,
            warm_up=lambda shown, watched: iter([{"epoch": 1.0, "loss": 1.0, "dev_loss": 1.0}]),
            base_weights=lambda: learner.numbered(-1),
            stored_weights=lambda path: learner.numbered(json.loads((path / "skill.json").read_text())),
            passes=lambda: 100.0 * learner.skill,
            ledger=Ledger(sampler, stage.stopwatch, lambda: 0.0),
        )
        outcome = asyncio.run(train(parts, replace(PLAN, **changes)))
        return (
            outcome,
            learner,
            sampler,
            [found.step for found in complete(run.checkpoints)],
            database.metrics("success"),
        )


def test_the_weights_that_are_tested_are_base_warm_up_and_those_best_on_dev_each_once(tmp_path):
    outcome, _, sampler, steps, _ = trained(tmp_path, lambda skill, seed: skill == 2, demonstrations=2, warms_up=True)
    assert outcome.best_step == 2 and steps == [0, 2, 3]
    assert sampler.loaded == [0, 0, 1, 1, 2, 2, 3, -1, 0, 2]  # dev and a step in turns, then the three tests
    assert {name: found.interval.estimate for name, found in outcome.test.items()} == {"base": 0, "warm-up": 0, "rl": 1}


def test_among_equals_on_dev_the_earliest_step_is_chosen(tmp_path):
    outcome, *_ = trained(tmp_path, lambda skill, seed: skill >= 1)
    assert outcome.best_step == 1


def test_the_last_step_is_measured_on_dev_whether_asked_for_or_not(tmp_path):
    outcome, *_ = trained(tmp_path, lambda skill, seed: True, dev_steps=())
    assert sorted(outcome.dev) == [0, 3]


def test_no_step_begins_after_the_minutes_are_over_and_the_last_one_is_measured(tmp_path):
    outcome, *_ = trained(tmp_path, lambda skill, seed: True, minutes=1e-9, dev_steps=())
    assert outcome.steps == 1 and sorted(outcome.dev) == [0, 1]


def test_no_step_begins_after_the_budget_is_spent_and_compute_is_told_by_phase(tmp_path):
    outcome, learner, *_ = trained(tmp_path, lambda skill, seed: True, budget=150.0, dev_steps=())  # a step takes 100
    assert outcome.steps == learner.skill == 2 and list(outcome.dev) == [0, 2]
    assert outcome.compute == {"warm-up": 0, "rl": 200}


def test_without_steps_only_what_the_warm_up_taught_is_tested(tmp_path):
    outcome, *_ = trained(tmp_path, lambda skill, seed: True, steps=0, demonstrations=2, warms_up=True)
    assert list(outcome.test) == ["base", "warm-up"] and (outcome.steps, outcome.best_step) == (0, 0)


def test_steps_of_imitation_share_the_budget_and_learn_from_training_demonstrations_only(tmp_path):
    outcome, learner, *_ = trained(
        tmp_path, lambda skill, seed: True, learns_from="demonstrations", demonstrations=2, budget=900.0
    )
    assert [passes for _, passes in learner.imitated] == [300, 500, 700]  # what is due less what was spent
    assert {len(shown) for shown, _ in learner.imitated} == {2}
    assert list(outcome.test) == ["base", "imitation"] and outcome.compute == {"warm-up": 0, "imitation": 300}


def test_silent_groups_are_replaced_by_other_tasks_up_to_the_bound(tmp_path):
    _, learner, *_ = trained(tmp_path, lambda skill, seed: False, replace_silent_groups=5, steps=1)
    (groups,) = learner.learned
    assert len(groups) == 2 + 5 and len({group.task_id for group in groups}) == 7


def test_groups_with_signal_are_not_replaced(tmp_path):
    _, learner, *_ = trained(
        tmp_path, lambda skill, seed: seed % 2 == 0, replace_silent_groups=50, steps=1, group_size=16
    )
    assert len(learner.learned[0]) == 2


def test_a_step_is_strictly_on_policy_and_every_step_is_logged(tmp_path):
    _, learner, _, _, successes = trained(tmp_path, lambda skill, seed: True)
    for step, groups in enumerate(learner.learned, start=1):
        versions = {v for group in groups for t in group for turn in t.turns for v in turn.completion.versions}
        assert versions == {2 * step}  # dev after the step before was measured under a version of its own
    assert [step for step, _, _ in successes] == [1, 2, 3]


def test_a_run_in_which_nothing_can_be_scored_stops_with_the_reason(tmp_path):
    def breaks(skill, seed):
        raise OSError("no answer")

    with pytest.raises(
        PracticumError, match=r"(?s)no attempt could be scored; endings: \{'sampler_failed': 4\}.*no answer"
    ):
        trained(tmp_path, breaks)
