"""The commands compare and check, as people and programs meet them."""

import json
from pathlib import Path

import pytest

import practicum
from practicum import config
from practicum.verbs import forecasting

ROOT = Path(__file__).parents[2]
RETAIL, TINY = str(ROOT / "recipes" / "retail.toml"), str(ROOT / "recipes" / "tiny.toml")
NO_TIME = "--no-timing --set tasks.train=4 --set tasks.dev=4 --set tasks.test=4"
SMALL = [f"--set=tasks.{name}=12" for name in ("train", "dev", "test")]


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """In a folder of its own, with no model in the cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path / "cache"))


def test_two_evaluations_are_compared_in_words_and_as_one_json_object(called):
    for policy, attempts in (("random", 2), ("expert", 1)):
        assert called("evaluate", TINY, *SMALL, "--policy", policy, "--attempts", attempts, "--out", policy)[0] == 0
    code, text, err = called("compare", "random", "expert")
    assert (code, err) == (0, "")
    assert text.startswith("12 tasks that all hold\n") and "- expert is better than random: +100.0 points" in text
    code, out, err = called("compare", "random", "expert", "--json")
    found = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert set(found) == {"n_tasks", "systems", "differences", "notes"}
    assert found["differences"][0]["p_value"] == 2 / 2**12 and found["systems"][0]["k"] == 2


def test_what_was_just_evaluated_is_compared_from_python():
    recipe = config.load(TINY, ["tasks.test=20"])
    measured = {name: practicum.evaluate(recipe, policy=name) for name in ("noop", "expert")}
    comparison = practicum.compare(**measured)
    assert comparison.rows[0].verdict.startswith("expert is better than noop: +100.0 points")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("compare absent other", "absent does not exist"),
        ("compare absent:test/rl other", "absent does not exist"),
        ("compare", "Missing argument 'A B [C ...]'"),
        ("check absent.toml", "the recipe absent.toml cannot be read"),
        (f"check {TINY} --set tasks.train=5000", "the tiny world has 2600 lamps"),
        (f"check {TINY} --set trainer.stesp=1", "unknown key trainer.stesp"),
        (f"check {TINY} {NO_TIME} --set model.name=tiny-stat", "no model 'tiny-stat' was found. Tried:"),
        (f"check {TINY} {NO_TIME} --set model.name=a/b/c", "has not the form of a hub id"),
        (f"check {TINY} {NO_TIME} --set lora.rank=129", "lora.rank must lie between 1 and 128"),
    ],
)
def test_a_mistake_is_a_message_on_stderr_and_exit_code_2(called, command, message):
    code, out, err = called(*command.split())
    assert code == 2 and message in err and "Traceback" not in err
    assert out == "" or command.startswith("check")  # a check says what it found before what stands against it


@pytest.mark.parametrize("command", [["train", TINY], ["experiment", "any.toml"]])
def test_an_empty_folder_is_a_mistake_and_not_the_present_folder(called, command):
    code, out, err = called(*command, "--folder", "")
    assert (code, out) == (2, "") and "--folder is empty; name the folder" in err


def test_one_task_is_not_called_tasks(called):
    text = called("evaluate", TINY, "--policy", "noop", "--set=tasks.test=1")[1]
    assert "n = 1 task, 1 attempt\n" in text


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("check --help", "RECIPE --set --no-timing --json expert context_tokens memory downloaded 2"),
        ("compare --help", "--json pass@k pass^k Holm runs/mine:test evaluate --out"),
        ("experiment --help", "FILE --folder --jobs --only --seed --json results/table.md baseline skipped [train]"),
        ("--help", "check compare experiment"),
    ],
)
def test_help_names_every_option_and_what_comes_of_it(called, command, words):
    code, out, err = called(*command.split())
    assert (code, err) == (0, "")
    assert [word for word in words.split() if word not in out] == []
    assert max(map(len, out.splitlines())) <= 100


def test_the_retail_recipe_is_sound_and_without_the_model_it_says_what_is_unknown(called):
    code, out, err = called("check", RETAIL, "--json")
    found = json.loads(out)
    assert code == 0 and out.count("\n") == 1 and "practicum: " not in err
    assert found["sound"] is True and found["problems"] == []
    for split, n in {"train": 72, "dev": 40, "test": 160}.items():
        assert found["tasks"][split] == {"n": n, "expert": 1.0, "noop": 0.0, "random": 0.0}
    assert found["lengths"]["unit"] == "bytes" and "not on this machine" in found["notes"][0]
    assert "unknown" in found["memory"] and "unknown" in found["time"]
    assert found["detectable"]["by_rate"]["0.5"]["difference"] == pytest.approx(0.1113, abs=1e-4)
    assert found["signal"]["chance_by_rate"]["0.05"] == pytest.approx(0.3366, abs=1e-4)
    assert found["settings"]["trainer.steps"] == {"value": 20, "default": 10, "differs": True}
    assert not list(Path.cwd().iterdir())


def test_a_model_that_is_here_is_counted_in_tokens_and_timed(called):
    pytest.importorskip("torch", reason="timing a model needs the extra [train]")
    code, out, err = called("check", TINY, *SMALL, "--set=trainer.tokens_per_microbatch=1024")
    assert code == 0 and "practicum: " not in err
    assert "longest opening prompt: 126 tokens, context_tokens 256" in out
    assert "* trainer.learning_rate " in out and "  trainer.weight_decay " in out
    assert "memory, at most about 0." in out and "time, about " in out and "sampled per second" in out
    assert out.endswith("nothing stands against this run\n")


def test_a_machine_that_is_too_slow_to_be_timed_is_called_that(called, monkeypatch):
    pytest.importorskip("torch", reason="timing a model needs the extra [train]")
    monkeypatch.setattr(forecasting, "PATIENCE_S", 0.0)
    code, out, _ = called("check", TINY, *SMALL, "--set=trainer.tokens_per_microbatch=1024")
    assert code == 0 and "time: unknown, a training pass took too long" in out


def test_a_recipe_that_is_not_ready_is_reported_whole_and_ends_with_every_reason_and_exit_code_2(called):
    wrong = ["--set=simulator.context_tokens=100", "--set=simulator.rewards={cheer=1.0}", "--no-timing"]
    code, out, err = called("check", TINY, *SMALL, *wrong, "--json")
    assert code == 2 and json.loads(out)["sound"] is False
    message = err[err.index("practicum: ") :]
    assert message.startswith(f"practicum: {TINY} is not ready, 2 reasons:\n")
    assert "simulator.rewards names cheer; tiny gives success" in message
    assert "the opening prompt of 36 tasks leaves no room" in message and "up to 126 tokens" in message
    assert "was not asked for" in json.loads(out)["time"]["unknown"]
