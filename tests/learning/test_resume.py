"""A run that was killed learns, once resumed, what it would have learned undisturbed."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="learning needs the extra [train]")

sys.path.insert(0, str(Path(__file__).parent))
import kills


@pytest.mark.parametrize(
    "settings", [[], ["trainer.algorithm=ppo", "lora.rank=4", "trainer.kl=0.01"]], ids=["loop", "ppo"]
)
def test_a_run_killed_at_random_instants_resumes_to_the_same_bits(settings):
    assert kills.kills(2, seed=1, extra=settings) == ["", ""]
