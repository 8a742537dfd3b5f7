"""A million parameters learn a tiny world from the verifier alone, and learn nothing from rewards that say nothing.

All algorithms, in full and through LoRA, two seeds each: benchmarks/results/2026-11-30-tiny-matrix.
"""

import time

import pytest

from practicum import config
from practicum.verbs import training

pytest.importorskip("torch", reason="learning needs the extra [train]")
RECIPE = "recipes/tiny.toml"
LORA = ["lora.rank=8", "trainer.learning_rate=1e-3"]
PPO = ["trainer.algorithm=ppo", "critic.learning_rate=1e-3", "trainer.tasks_per_step=8"]


def trained(tmp_path, *settings):
    began = time.process_time()
    _, report = training.train(config.load(RECIPE, settings), tmp_path / "run")
    return report, time.process_time() - began


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        pytest.param([], 10, id="loop"),
        pytest.param(LORA, 10, id="loop-lora"),
        pytest.param(PPO, 12, id="ppo"),
    ],
)
def test_reinforcement_lifts_the_stored_start_from_below_a_third_to_above_four_fifths(tmp_path, settings, steps):
    few = [f"trainer.steps={steps}", f"evaluation.dev_steps=[{steps}]"]
    report, seconds = trained(tmp_path, *few, *settings)
    assert report["test"]["base"]["success"] < 0.3
    assert report["test"]["rl"]["success"] > 0.8
    assert seconds < 40  # of the processor: half of it on a quiet machine


def test_nothing_is_learned_from_rewards_dealt_out_at_random(tmp_path):
    shuffled = ["trainer.shuffled_rewards=true", "trainer.steps=8", "evaluation.dev_steps=[4]", "evaluation.base=false"]
    report, _ = trained(tmp_path, *shuffled)
    measured = [report["test"]["rl"], *report["dev"].values()]  # the chosen checkpoint, and every one that was measured
    assert len(measured) == 4 and all(figures["success"] < 0.4 for figures in measured)
