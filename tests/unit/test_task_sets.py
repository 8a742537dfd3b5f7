"""Tasks of one's own: what a file must look like, and splits that share nothing and stay what they were."""

import gzip
import json
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from practicum.environments.task_sets import content_of, digest_of, families_of, read_tasks, split_tasks
from practicum.errors import UserError
from practicum.types import Task

COUNTS = {"train": 6, "dev": 3, "test": 4}


def tasks(n, **rest):
    return [Task(f"t{i}", f"do {i}", **rest) for i in range(n)]


def test_a_file_gives_the_tasks_that_its_lines_say(tmp_path):
    rows = [
        {"id": "a", "prompt": "do a"},
        {"id": "b", "prompt": "do b", "scenario": "s", "data": {"x": 1}, "secret": {"y": [2]}},
    ]
    text = "\n".join(map(json.dumps, rows)) + "\n\n"
    (tmp_path / "t.jsonl").write_text(text)
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    expected = [Task("a", "do a"), Task("b", "do b", "s", {"x": 1}, {"y": [2]})]
    assert read_tasks(tmp_path / "t.jsonl") == read_tasks(tmp_path / "t.jsonl.gz") == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", r"line 2: this is not JSON \("),
        ("[]", "line 2: a row must be an object, found list"),
        ('{"prompt": "p"}', "line 2: 'id' is missing or empty; a task needs id, prompt"),
        ('{"id": "", "prompt": "p"}', "line 2: 'id' is missing or empty"),
        ('{"id": 3, "prompt": "p"}', "line 2: 'id' must be text, found int"),
        ('{"id": "b", "prompt": "p", "data": []}', "line 2: 'data' must be an object, found list"),
        ('{"id": "b", "prompt": "p", "cents": 3}', "line 2: unknown field 'cents'; .*the rest goes into data"),
        ('{"id": "a", "prompt": "p"}', "line 2: id 'a' is already that of line 1"),
        ('{"id": "b", "prompt": "\\ud800"}', "line 2: half a character"),
    ],
)
def test_a_broken_line_is_named_by_its_number(tmp_path, line, words):
    (tmp_path / "t.jsonl").write_text('{"id": "a", "prompt": "p"}\n' + line)
    with pytest.raises(UserError, match=words):
        read_tasks(tmp_path / "t.jsonl")


def test_a_file_without_tasks_and_no_file_are_refused(tmp_path):
    (tmp_path / "t.jsonl").write_text("\n \n")
    with pytest.raises(UserError, match="holds no task; write one JSON object per line with id, prompt"):
        read_tasks(tmp_path / "t.jsonl")
    with pytest.raises(UserError, match=r"cannot read the tasks file .*No such file"):
        read_tasks(tmp_path / "absent.jsonl")


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=20, max_size=40),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_splits_have_their_sizes_share_nothing_and_do_not_depend_on_the_order(marks, seed, random):
    """Tasks with few scenarios and few contents, chained to one another in every way."""
    given_tasks = [Task(f"t{i}", f"do {content}", f"s{scenario}") for i, (scenario, content) in enumerate(marks)]
    counts = {"train": 3, "dev": 1, "test": 2}
    assume(len(families_of(given_tasks)) >= 6)
    splits = split_tasks(given_tasks, counts, seed)
    assert {name: len(found) for name, found in splits.items()} == counts
    for one, other in combinations(splits.values(), 2):
        for key in (lambda t: t.id, lambda t: t.scenario_id, content_of):
            assert not {key(t) for t in one} & {key(t) for t in other}
    shuffled = list(given_tasks)
    random.shuffle(shuffled)
    assert split_tasks(shuffled, counts, seed) == splits


def test_a_chain_of_shared_scenarios_and_contents_is_one_family():
    chained = [Task("a", "x", "s"), Task("b", "x", "r"), Task("c", "y", "r"), *tasks(2)]
    assert [[task.id for task in family] for family in families_of(chained)] == [["a", "b", "c"], ["t0"], ["t1"]]
    with pytest.raises(UserError, match=r"holds 5 tasks, of which 3 stand apart .*too few .*dev 2 \+ test 3"):
        split_tasks(chained, {"dev": 2, "test": 3}, 0)


def test_more_training_tasks_leave_the_test_tasks_as_they_are_and_another_seed_gives_others():
    few, many = (split_tasks(tasks(40), {**COUNTS, "train": n}, 0) for n in (6, 20))
    assert few["test"] == many["test"] and few["dev"] == many["dev"]
    assert split_tasks(tasks(40), COUNTS, 1)["test"] != few["test"]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], "tasks= holds no task"),
        ([Task("", "p")], "a task with an empty id"),
        ([Task("a", "p"), Task("a", "q")], "holds an id several times: a;"),
        ([{"id": "a"}], "needs practicum.Task, found dict among them"),
        (tasks(12), r"holds 12 tasks, of which 12 stand apart .*train 6 \+ dev 3 \+ test 4; ask for fewer"),
    ],
)
def test_tasks_that_cannot_be_split_are_refused_with_the_reason(found, words):
    with pytest.raises(UserError, match=words):
        split_tasks(found, COUNTS, 0)


def test_a_digest_tells_apart_what_tasks_are_and_where_they_stand():
    same = digest_of({"train": tasks(2), "test": [Task("x", "y")]})
    assert same == digest_of({"train": tasks(2), "test": [Task("x", "y")]})
    others = [
        {"train": tasks(2), "test": [Task("x", "z")]},
        {"train": tasks(2), "test": [Task("x", "y", secret={"a": 1})]},
        {"train": tasks(2, scenario_id="s"), "test": [Task("x", "y")]},
        {"train": [*tasks(2), Task("x", "y")], "test": []},
    ]
    assert len({same, *map(digest_of, others)}) == 5
