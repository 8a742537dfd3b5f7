"""A million parameters learn a tiny world from the verifier alone, and learn nothing from rewards that say nothing."""

import time

import pytest

from practicum import config
from practicum.verbs import training

pytest.importorskip("torch", reason="learning needs the extra [train]")
RECIPE = "recipes/tiny.toml"


def trained(tmp_path, *settings):
    began = time.monotonic()
    _, report = training.train(config.load(RECIPE, settings), tmp_path / "run")
    return report, time.monotonic() - began


@pytest.mark.parametrize("seed", [0, 1])
def test_reinforcement_lifts_the_stored_start_from_below_a_third_to_above_four_fifths(tmp_path, seed):
    report, seconds = trained(tmp_path, f"seed={seed}")
    assert report["test"]["base"]["success"] < 0.3
    assert report["test"]["rl"]["success"] > 0.8
    assert seconds < 60


def test_nothing_is_learned_from_rewards_dealt_out_at_random(tmp_path):
    report, _ = trained(tmp_path, "trainer.shuffled_rewards=true", "evaluation.base=false")
    measured = [report["test"]["rl"], *report["dev"].values()]  # the chosen checkpoint, and every one that was measured
    assert len(measured) == 5 and all(figures["success"] < 0.4 for figures in measured)
