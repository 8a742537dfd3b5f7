"""An experiment: its file is checked whole, finished trials are skipped, budgets are equal, tables say what was seen."""

import json
import re
from pathlib import Path

import pytest

from practicum.errors import PracticumError, UserError
from practicum.statistics.seeds import seed_p
from practicum.verbs import trials
from practicum.verbs.arms import Trial, read
from practicum.verbs.experimenting import experiment
from practicum.verbs.tabling import as_text, tabled

SMALL = [
    *(f"tasks.{name}={n}" for name, n in {"train": 16, "dev": 4, "test": 8}.items()),
    "trainer.steps=4",
    "trainer.tasks_per_step=4",
    "trainer.minibatches=1",
    "simulator.group_size=4",
    "evaluation.dev_steps=[2,4]",
    "evaluation.base=false",
    "imitation.demonstrations=4",
    "imitation.epochs=1",
]
HEAD = f'recipe = "recipes/tiny.toml"\nseeds = [0, 1]\nset = {json.dumps(SMALL)}\n'
SCRIPTS = '[arms.noop]\nkind = "evaluate"\npolicy = "noop"\n[arms.expert]\nkind = "evaluate"\npolicy = "expert"\n'
WARM_UP = '[arms.warm-up]\nset = ["trainer.steps=0"]\n'


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text)
    return file


def told(line: str) -> str:
    """What is told of a file with this arm beside the warm-up's; {} stands for the recipe."""
    return HEAD + WARM_UP + line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs at least one arm; write [arms.NAME]"),
        ("[arms.a]", "needs recipe"),
        (told('[arms.a]\nstart = "b"'), "arms.a.start names 'b', which is no arm; arms: warm-up, a"),
        (told('[arms.a]\ncompute_of = "b"'), "arms.a.compute_of names 'b', which is no arm"),
        (told('[arms.a]\nstart = "b"\n[arms.b]\nstart = "a"'), "a, b wait for one another: arms.a.start = 'b', arms.b"),
        (told('[arms.a]\nstrat = "warm-up"'), "unknown key arms.a.strat; did you mean start?"),
        (told('[arms.a]\nset = ["trainer.stesp=1"]'), "arms.a: recipes/tiny.toml with --set"),
        (told('[arms.a]\nset = ["trainer.stesp=1"]'), "unknown key trainer.stesp; did you mean steps?"),
        (told('[arms.a]\nset = ["trainer.algorithm=lop"]'), "arms.a: there is no algorithm 'lop'"),
        (
            told('[arms.a]\nset = ["trainer.kl=0.0", "trainer.kl_in=reward"]'),
            "arms.a: trainer.kl_in would have no effect",
        ),
        (told('[arms.a]\nset = ["simulator.rewards={cheer=1.0}"]'), "arms.a: simulator.rewards names cheer"),
        (told('[arms.a]\nset = ["tasks.made=8"]'), "arms.a: tasks.made: the tiny environment makes no tasks"),
        (told('[arms.a]\nset = ["tasks.seed=4"]'), "arms.a.set changes the test tasks"),
        (told('[arms.a]\nset = ["seed=4"]'), "arms.a.set: seed is given by seeds"),
        (told('[arms.a]\nseeds = [0, 7]\nstart = "warm-up"'), "arms.a.start names 'warm-up', which has no seed 7"),
        (told('[arms.a]\nkind = "guess"'), "arms.a.kind is 'guess'; known: train, evaluate"),
        (told("[arms.a]\nexamples = 3"), "arms.a.examples would have no effect: the arm's kind is 'train'"),
        (told('[arms.a]\nstart = "warm-up"\n[arms.b]\ncompute_of = "a"'), "arms.b.compute_of names 'a', which starts"),
        (told('[arms.a]\nstart = "warm-up"\nset = ["trainer.steps=0"]'), "arms.a: it starts from another arm and"),
        (told('[arms."../a"]'), "arms.../a: an arm's name is that of a file"),
        ('baseline = "x"\n' + told(""), "baseline names 'x', which is no arm"),
        ('keep = "all"\n' + told(""), "keep is 'all'; known: best, none"),
        (told("").replace("tiny.toml", "absent.toml"), "arms.warm-up: the recipe recipes/absent.toml cannot be read"),
        ("recipe = ", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_one_message_that_names_arm_and_key_before_anything_is_done(tmp_path, text, message):
    with pytest.raises(UserError, match=re.escape(message)):
        experiment(written(tmp_path, text), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_arms_seeds_and_jobs_that_are_not_there_are_mistakes(tmp_path):
    file = written(tmp_path, HEAD + SCRIPTS)
    for words, message in (
        ({"only": ["a"]}, "--only a: .* its arms: noop, expert"),
        ({"seeds": [9]}, "--seed 9: no arm"),
        ({"jobs": 0}, "--jobs must be at least 1"),
    ):
        with pytest.raises(UserError, match=message):
            experiment(file, tmp_path / "out", **words)
    with pytest.raises(UserError, match=r"absent.toml cannot be read"):
        read(tmp_path / "absent.toml")


def test_trials_come_seed_by_seed_and_an_arm_after_those_it_needs(tmp_path):
    late = '[arms.c]\nstart = "rl"\nset = []\n[arms.rl]\nstart = "warm-up"\n'
    paper = read(written(tmp_path, HEAD + late + WARM_UP))
    assert list(paper.configs) == [Trial(s, a) for s in (0, 1) for a in ("warm-up", "rl", "c")]
    assert paper.chosen(["rl"], [1]) == [Trial(1, "warm-up"), Trial(1, "rl")]
    assert paper.folder == Path("runs/mine") and paper.baseline == "c"
    assert [config.seed for config in paper.configs.values()] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("name", ["headline", "level1_ablations"])
def test_the_recorded_experiments_are_sound(name):
    paper = read(Path(f"benchmarks/experiments/{name}.toml"))
    assert paper.baseline == "rl"
    assert paper.arms["rl"].start == "warm-up" and not paper.arms["rl"].compute_of
    assert {config.evaluation.test_attempts for config in paper.configs.values()} == {4}


def test_the_p_value_over_seeds_is_that_of_students_paired_t_test():
    assert seed_p([0.1, 0.2, 0.3]) == pytest.approx(0.0741799, abs=1e-6)  # t = 2 sqrt(3), 2 degrees of freedom
    assert seed_p([-0.1, 0.1]) == 1.0 and seed_p([0.0, 0.0]) == 1.0
    assert seed_p([0.25, 0.25, 0.25]) == 2 / 8
    with pytest.raises(ValueError, match="two seeds or more"):
        seed_p([0.1])


def result(seed: int, *successes: float) -> dict:
    by_task = {f"task {n}": [success] for n, success in enumerate(successes)}
    mean = sum(successes) / len(successes)
    return {"seed": seed, "test": {"success": mean}, "successes": by_task, "hours": 0.5, "compute_total": 1e6}


def test_the_table_pairs_arms_by_seed_and_by_task_over_the_seeds_that_both_have(tmp_path):
    paper = read(written(tmp_path, HEAD + SCRIPTS))
    results = {
        Trial(0, "noop"): result(0, 0, 0, 0, 1),
        Trial(1, "noop"): result(1, 0, 0, 0, 0),
        Trial(0, "expert"): result(0, 1, 1, 1, 1),
        Trial(1, "expert"): result(1, 1, 1, 0, 0),
    }
    found = tabled(paper, results)
    row = found["differences"]["expert"]
    assert row["per_seed"] == {"0": 0.75, "1": 0.5} and row["over_seeds"]["estimate"] == 0.625
    # t(1, 0.975) = 12.706, s = 0.25 / sqrt(2): 0.625 ± 1.588 is cut to [-1, 1].
    assert (row["over_seeds"]["ci_low"], row["over_seeds"]["ci_high"]) == (pytest.approx(-0.9633, abs=1e-3), 1.0)
    assert row["over_tasks"]["estimate"] == 0.625 and row["over_tasks"]["n_tasks"] == 4
    assert row["over_tasks"]["p_value"] == row["over_tasks"]["p_holm"] == 2 / 2**3
    assert found["arms"]["noop"]["success"] == 0.125 and found["arms"]["noop"]["n_seeds"] == 2
    assert found["arms"]["expert"]["hours"] == 1.0 and (found["finished"], found["trials"]) == (4, 4)


def test_with_one_seed_no_interval_over_seeds_is_given_and_the_table_says_so(tmp_path):
    paper = read(written(tmp_path, HEAD + SCRIPTS))
    found = tabled(paper, {Trial(0, "noop"): result(0, 0, 1), Trial(0, "expert"): result(0, 1, 1)})
    assert found["arms"]["noop"]["ci_low"] is None and found["differences"]["expert"]["over_seeds"] is None
    text = as_text(found)
    assert (
        "| noop | 50.0% | none, one seed | 0: 50.0% |" in text and "| expert | none, one seed | - | - | +50.0 [" in text
    )


def test_holms_correction_is_over_the_rows_of_the_table(tmp_path):
    more = '[arms.random]\nkind = "evaluate"\npolicy = "random"\n'
    paper = read(written(tmp_path, HEAD + SCRIPTS + more))
    results = {Trial(0, "noop"): result(0, *[0] * 8), Trial(0, "expert"): result(0, *[1] * 8)}
    results[Trial(0, "random")] = result(0, 1, 1, 1, 1, 0, 0, 0, 0)
    rows = tabled(paper, results)["differences"]
    assert [rows[name]["over_tasks"]["p_value"] for name in ("expert", "random")] == [2 / 2**8, 2 / 2**4]
    assert [rows[name]["over_tasks"]["p_holm"] for name in ("expert", "random")] == [4 / 2**8, 2 / 2**4]


def test_what_is_finished_is_skipped_and_a_changed_setting_of_it_is_refused(tmp_path):
    pytest.importorskip("matplotlib", reason="the table's picture needs the extra [train]")
    one_seed = HEAD.replace("[0, 1]", "[0]")
    file, out = written(tmp_path, one_seed + SCRIPTS), tmp_path / "out"
    results, table = experiment(file, out)
    assert table["arms"]["noop"]["per_seed"] == {"0": 0.0} and table["arms"]["expert"]["success"] == 1.0
    assert {p.name for p in results.iterdir()} == {
        *(f"{arm}-seed0.json" for arm in ("noop", "expert")),
        *(f"table.{suffix}" for suffix in ("json", "md", "png")),
    }
    before = {path.name: path.read_bytes() for path in results.glob("*seed*.json")}
    (results / "expert-seed0.json").unlink()
    (out / "runs" / "expert-seed0.sqlite").write_text("left behind by a kill")
    assert experiment(file, out)[1]["finished"] == 2
    assert {n: (results / n).read_bytes() for n in before if n != "expert-seed0.json"} == {
        n: text for n, text in before.items() if n != "expert-seed0.json"
    }
    record = json.loads((results / "noop-seed0.json").read_text())
    assert {"commit", "command", "machine", "began", "ended"} <= set(record["provenance"])
    file.write_text(one_seed.replace("simulator.group_size=4", "simulator.group_size=6") + SCRIPTS)
    with pytest.raises(
        UserError, match=r"arms.noop has changed .*: settings.simulator.group_size was 4 and is 6\. Del"
    ):
        experiment(file, out)


def test_a_trial_that_fails_stops_only_those_that_need_it_and_is_tried_again(tmp_path):
    pytest.importorskip("torch", reason="an arm is trained")
    broken = '[arms.lost]\nset = ["model.name=nowhere/at-all"]\n[arms.after]\nstart = "lost"\n'
    file = written(tmp_path, HEAD.replace("[0, 1]", "[0]") + broken + SCRIPTS)
    with pytest.raises(
        PracticumError, match=r"(?s)2 of 4 trials .*; 2 failed.*lost-seed0: .*after-seed0: needs lost"
    ) as told:
        experiment(file, tmp_path / "out")
    assert "nowhere/at-all" in str(told.value)
    assert json.loads((tmp_path / "out/results/table.json").read_text())["arms"].keys() == {"noop", "expert"}


FAIR = (
    HEAD.replace("[0, 1]", "[0]")
    + 'baseline = "rl"\nkeep = "none"\n'
    + WARM_UP
    + '[arms.rl]\nstart = "warm-up"\n[arms.further]\nstart = "warm-up"\ncompute_of = "rl"\n'
    + 'set = ["trainer.learns_from=demonstrations", "imitation.rows_per_update=1"]\n'
    + '[arms.greedy]\nkind = "evaluate"\nstart = "rl"\nset = ["evaluation.temperature=0.0"]\n'
)


def test_two_arms_from_one_warm_up_have_equal_compute_and_only_what_is_needed_is_kept(tmp_path):
    pytest.importorskip("torch", reason="arms are trained")
    results, table = experiment(written(tmp_path, FAIR), tmp_path / "out")
    kept = {name: json.loads((results / f"{name}-seed0.json").read_text()) for name in table["arms"]}
    rl, further = kept["rl"]["compute"]["rl"], kept["further"]["compute"]["imitation"]
    assert kept["further"]["budget"] == rl and rl <= further < 1.05 * rl
    warm_up = kept["warm-up"]["compute"]["warm-up"]
    assert warm_up > 0 and kept["rl"]["compute"]["warm-up"] == 0
    assert kept["rl"]["compute_total"] == warm_up + rl
    assert [kept[name]["tested"] for name in ("warm-up", "rl", "further", "greedy")] == [
        "warm-up",
        "rl",
        "imitation",
        "evaluation",
    ]
    assert {name: list(kept[name]["dev"]) for name in ("rl", "further")} == {
        "rl": ["0", "2", "4"],
        "further": ["0", "2", "4"],
    }
    assert not list((tmp_path / "out" / "runs").glob("*/checkpoints/*"))
    assert list(kept["greedy"]["successes"]) == list(kept["rl"]["successes"])


def test_an_adapter_that_is_started_from_gets_no_second_one(tmp_path):
    paper = read(
        written(tmp_path, HEAD.replace("set = [", 'set = ["lora.rank=2", ') + WARM_UP + '[arms.a]\nstart="warm-up"')
    )
    assert trials.has_adapter(paper, Trial(0, "a"))
    config = trials.begun(paper.configs[Trial(0, "a")], "somewhere", is_adapter=True)
    assert (config.lora.rank, config.model.name, config.imitation.demonstrations) == (0, "somewhere", 0)
