"""Which tasks come next."""

from practicum.curriculum.curriculum import Curriculum
from practicum.types import Task

TASKS = [Task(id=str(n), prompt="") for n in range(10)]


def ids(tasks):
    return [task.id for task in tasks]


def test_every_task_comes_once_per_pass_and_never_twice_in_a_draw():
    curriculum = Curriculum(TASKS, seed=0)
    draws = [ids(curriculum.draw(8)) for _ in range(5)]
    assert all(len(set(draw)) == 8 for draw in draws)
    assert sorted(name for draw in draws for name in draw) == sorted([str(n) for n in range(10)] * 4)


def test_a_draw_leaves_out_what_it_is_told_and_is_short_rather_than_repeating():
    curriculum = Curriculum(TASKS, seed=0)
    assert not {"1", "2"} & set(ids(curriculum.draw(8, without=["1", "2"])))
    assert len(curriculum.draw(8, without=ids(TASKS[:7]))) == 3


def test_it_continues_where_its_state_was_taken():
    one, other = Curriculum(TASKS, seed=0), Curriculum(TASKS, seed=0)
    one.draw(7)
    other.restore(one.state())
    assert ids(one.draw(6)) == ids(other.draw(6))
