"""The benchmark of a step: what it derives from its measurements, what it keeps, and how it speaks to its workers."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SERVING = """
import sys
sys.path.insert(0, {folder!r})
from rl_step_episodes import serve
def context(size):
    print("what a library prints", flush=True)
    return {{"tokens": size.context}}
serve({{"context": context, "fail": lambda: 1 / 0}})
"""


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def points(axis_values, seconds, prefilled=None):
    return [
        {"value": v, "wall": s, "tokens": {"prefilled": p, "decoded": 0} if prefilled else {}}
        for v, s, p in zip(axis_values, seconds, prefilled or seconds, strict=True)
    ]


def test_the_exponent_is_the_slope_on_logarithmic_scales():
    from rl_step_curves import exponent

    turns = (2, 4, 8, 16, 32)
    assert exponent(points(turns, [3 * t**1.2 for t in turns]), "wall") == pytest.approx(1.2)
    assert exponent(points((2, 4), (1, 2)), "wall") is None


def test_computed_tokens_are_linear_only_where_every_further_turn_costs_the_same():
    from rl_step_curves import is_linear

    turns = (2, 4, 8)
    assert is_linear(points(turns, turns, [100 + 95 * t for t in turns])) is True
    assert is_linear(points(turns, turns, [100 + 95 * t + t * t for t in turns])) is False
    assert is_linear(points(turns, turns)) is None


def test_a_curve_ends_before_a_step_that_would_take_too_long():
    from rl_step_curves import curves_of

    def step(size):
        seconds = {"sample": size.turns, "learn": size.turns}
        return {"wall": 10.0 * size.turns, "seconds": seconds, "tokens": {}}

    found = curves_of(step, {"turns": (2, 4, 8, 16, 32)}, 1, 150.0)
    assert [point["value"] for point in found["turns"]] == [2, 4, 8]


def test_a_result_stands_for_its_own_source_and_a_quick_one_only_for_quick_runs():
    from rl_step import kept

    whole, hasty = Namespace(quick=False, again=False), Namespace(quick=True, again=False)
    assert kept({"source": "a", "quick": False}, "a", whole)
    assert not kept({"source": "a", "quick": False}, "b", whole)
    assert not kept({"source": "a", "quick": True}, "a", whole)
    assert kept({"source": "a", "quick": True}, "a", hasty)
    assert not kept({"source": "a", "quick": False, "skipped": "no Python"}, "a", whole)
    assert not kept({"source": "a", "quick": False}, "a", Namespace(quick=False, again=True))


def test_unequal_work_is_no_comparison():
    from rl_step import WorkerFailed, check_same_work

    check_same_work("key", {"sampled": 96, "unique": 5}, {"sampled": 96})
    with pytest.raises(WorkerFailed, match="sampled tokens are 96 here and 95 there"):
        check_same_work("key", {"sampled": 96}, {"sampled": 95})


def test_a_worker_answers_in_json_whatever_is_printed_and_its_failures_are_told():
    from rl_step_episodes import DEMO
    from rl_step_workers import WorkerFailed, opened

    with opened([sys.executable, "-c", SERVING.format(folder=str(BENCHMARKS))], {}) as worker:
        answer = worker.ask({"do": "context", "size": DEMO.plain()}, 30)
        assert answer["tokens"] == 202 + 3 * 35 + 2 * 60
        with pytest.raises(WorkerFailed, match="ZeroDivisionError"):
            worker.ask({"do": "fail"}, 30)
    assert worker.process.poll() is not None
