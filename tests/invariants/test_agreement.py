"""The policy that is trained is the policy that sampled."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="learning needs the extra [train]")


def test_sampler_and_trainer_give_sampled_tokens_the_same_log_probs():
    command = [sys.executable, "benchmarks/agreement.py", "recipes/tiny.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    results = json.loads(done.stdout)
    for temperature in (0.7, 1.0, 1.3):
        exact, reduced = results[f"float32 {temperature}"], results[f"bfloat16 {temperature}"]
        assert exact["tokens"] > 300
        assert exact["mean_abs"] < 1e-5
        assert reduced["mean_k3"] < 0.005
