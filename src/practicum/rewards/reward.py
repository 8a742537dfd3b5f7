"""From named rewards to the one number that is learned from."""

from __future__ import annotations

from collections.abc import Mapping


def weighted(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Sum of weight times reward over the names in `weights`; a name the verifier did not give counts 0.

    Example: weighted({"success": 1.0, "progress": 0.5}, {"success": 1.0}) -> 1.0
    """
    return float(sum(weight * rewards.get(name, 0.0) for name, weight in weights.items()))
