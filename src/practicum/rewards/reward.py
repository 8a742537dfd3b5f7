"""From named rewards to the one number that is learned from."""

from __future__ import annotations

from collections.abc import Mapping


def weighted(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Sum of weight times reward over the names in `weights`. Raises ValueError for a name the verifier did not give.

    Example: weighted({"success": 1.0, "progress": 0.5}, {"success": 1.0}) -> 1.0
    """
    if absent := sorted(weights.keys() - rewards.keys()):
        raise ValueError(
            f"no reward {', '.join(absent)} to be weighted; the verifier gave {', '.join(sorted(rewards))}"
        )
    return float(sum(weight * rewards[name] for name, weight in weights.items()))
