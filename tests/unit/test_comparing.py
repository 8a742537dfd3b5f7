"""Comparing stored results: which tasks are paired, what a name stands for, what the verdict says."""

from __future__ import annotations

import pytest

from practicum.errors import UserError
from practicum.runs.database import Database
from practicum.runs.run import Run
from practicum.types import Completion, Ending, Group, Message, Trajectory, Turn
from practicum.verbs.comparing import as_text, compare


def group(task_id, *successes, ending=Ending.FINISHED, tokens=2):
    completion = Completion((7,) * tokens, (0.0,) * tokens, (0,) * tokens, "stop")
    turn = Turn(0, None, (1,), completion, (Message("user", "x"),), Message("assistant", ""))
    attempts = (
        Trajectory(task_id, n, (turn,), ending, rewards={} if ending.discarded else {"success": float(success)})
        for n, success in enumerate(successes)
    )
    return Group(f"0:{task_id}", task_id, tuple(attempts))


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Write results where an evaluation would: kept("a", {"task": (1, 0)}) -> "a.sqlite"."""
    monkeypatch.chdir(tmp_path)

    def write(name, successes, phase="evaluation", step=0, **rest):
        with Database(f"{name}.sqlite") as database:
            database.add_groups(phase, step, [group(task, *found, **rest) for task, found in successes.items()])
        return f"{name}.sqlite"

    return write


def tasks(n, solved, attempts=1):
    return {f"t{k:03d}": (float(k < solved),) * attempts for k in range(n)}


def test_each_later_system_is_paired_with_the_first_and_p_values_are_adjusted_for_the_table(kept):
    names = [kept("a", tasks(40, 10)), kept("b", tasks(40, 18)), kept("c", tasks(40, 11), tokens=5)]
    found = compare(*names).summary()
    better, alike = found["differences"]
    assert (better["system"], better["against"], better["estimate"]) == ("b.sqlite", "a.sqlite", 0.2)
    assert (better["only_first"], better["only_second"]) == (8, 0)
    assert better["p_value"] == better["p_mcnemar"] == 2 / 2**8 and better["p_holm"] == 4 / 2**8
    assert better["verdict"].startswith("b.sqlite is better than a.sqlite: +20.0 points [+")
    assert (alike["p_value"], alike["p_holm"]) == (1.0, 1.0) and alike["ci_low"] <= 0 < alike["ci_high"]
    assert "no difference between c.sqlite and a.sqlite could be shown" in alike["verdict"]
    assert f"one of {100 * alike['detectable']:.1f} points or more" in alike["verdict"]
    assert [system["tokens"] for system in found["systems"]] == [2.0, 2.0, 5.0]
    assert all(system["pass_at_k"] is None and system["k"] == 1 for system in found["systems"])


def test_a_worse_system_is_called_worse_and_few_tasks_are_said_to_show_nothing(kept):
    full, empty = kept("full", tasks(30, 30)), kept("empty", tasks(30, 3))
    assert "empty.sqlite is worse than full.sqlite" in compare(full, empty).rows[0].verdict
    few, other = kept("few", tasks(4, 4)), kept("other", tasks(4, 0))
    assert compare(few, other).rows[0].verdict.endswith("with 4 tasks none could have been")


def test_one_measurement_under_two_names_is_told_and_two_alike_are_not(kept):
    one, copy, alike = kept("one", tasks(5, 3)), kept("copy", tasks(5, 3)), kept("alike", tasks(5, 3), tokens=3)
    found = compare(one, copy, alike)
    (note,) = found.summary()["notes"]
    assert note.startswith("one.sqlite and copy.sqlite hold the very same attempts")
    assert f"- warning: {note}" in as_text(found) and compare(one, alike).notes == ()


def test_several_attempts_give_pass_at_k_of_the_fewest_and_no_mcnemar(kept):
    several = kept("several", {"x": (1, 0, 0), "y": (1, 1), "z": (0, 0, 0)})
    once = kept("once", {"x": (1,), "y": (1,), "z": (0,)})
    first, second = compare(once, several).summary()["systems"]
    assert (first["k"], second["k"]) == (1, 2)
    assert second["pass_at_k"]["estimate"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert second["pass_hat_k"]["estimate"] == pytest.approx(1 / 3)
    assert compare(once, several).rows[0].mcnemar_p is None
    assert "k = 2" in as_text(compare(once, several))


def test_only_tasks_that_all_hold_are_compared_and_the_others_are_told(kept):
    a = kept("a", tasks(20, 5))
    b = kept("b", {**{f"t{k:03d}": (1,) for k in range(10)}, "own": (1,)})
    kept("b", {"t010": (0,)}, ending=Ending.VERIFIER_FAILED)  # discarded: no result of b at t010
    found = compare(a, b)
    assert found.summary()["n_tasks"] == 10 and found.rows[0].difference.estimate == 0.5
    assert found.systems[0].left_out == tuple(f"t{k:03d}" for k in range(10, 20))
    assert found.systems[1].left_out == ("own",)
    assert "left out because another lacks them: 10 of a.sqlite, 1 of b.sqlite" in as_text(found)


def test_a_run_stands_for_its_test_after_reinforcement_and_its_phases_can_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Run.create("runs/mine", "seed = 0\n") as run, Database(run.database) as database:
        for phase, step, solved in (
            ("test/base", 3, 0),
            ("test/warm-up", 3, 4),
            ("test/rl", 3, 9),
            ("dev", 0, 1),
            ("dev", 3, 2),
        ):
            database.add_groups(phase, step, [group(task, *s) for task, s in tasks(12, solved).items()])
    names = [system.name for system in compare("runs/mine:test").systems]
    assert names == ["runs/mine:test/base", "runs/mine:test/warm-up", "runs/mine:test/rl"]
    found = compare("runs/mine:dev", "runs/mine")
    assert [round(12 * system.evaluation.interval.estimate) for system in found.systems] == [2, 9]  # dev as it last was
    with pytest.raises(UserError, match="given twice"):
        compare("runs/mine:test", "runs/mine:test/rl")
    with pytest.raises(UserError, match="of a phase exam; its phases: dev, test/base, test/rl, test/warm-up"):
        compare("runs/mine:exam", "runs/mine")


def test_what_cannot_be_compared_is_refused_with_what_was_found(kept):
    a, train = kept("a", {"x": (1,)}), kept("train", {"x": (1,)}, phase="train")
    kept("train", {"x": (1,)}, phase="dev")
    other = kept("other", {"y": (1,)})
    for names, words in {
        (): "needs two systems or more, found none",
        (a,): "needs two systems or more, found a.sqlite",
        (a, a): "a.sqlite is given twice",
        (a, other): "a.sqlite holds 1, such as x; other.sqlite holds 1, such as y",
        (a, train): "no scored attempt of a final phase .* its phases: dev, train; name one as train.sqlite:PHASE",
        (a, "nowhere"): "nowhere does not exist",
        (a, "nowhere:test"): "nowhere does not exist",
    }.items():
        with pytest.raises(UserError, match=words):
            compare(*names)
