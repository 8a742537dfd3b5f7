"""The command profile, as people and programs meet it."""

import json
from pathlib import Path

import pytest

from practicum.ledger import PHASES

TINY = str(Path(__file__).parents[2] / "recipes" / "tiny.toml")


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """In a folder of its own."""
    monkeypatch.chdir(tmp_path)


def test_a_profile_says_where_the_time_of_a_step_went_and_how_near_the_machines_peaks_it_came(called, tmp_path):
    pytest.importorskip("torch", reason="a profile needs the extra [train]")
    code, out, err = called("profile", TINY, "--steps", 1, "--set", "trainer.tasks_per_step=8", "--json")
    found = json.loads(out)
    assert code == 0 and out.count("\n") == 1 and "practicum: " not in err
    assert {name: found["about"][name] for name in ("steps", "tasks", "attempts")} == {
        "steps": 1,
        "tasks": 8,
        "attempts": 8,
    }
    assert sum(found["seconds"][phase] for phase in PHASES) == pytest.approx(found["seconds"]["step"])
    assert sum(found["shares"][phase] for phase in PHASES) == pytest.approx(1.0)
    assert 0 <= found["seconds"]["simulator"] <= found["seconds"]["other"]
    assert {"row", "unique", "decoded", "prefilled", "reused"} <= set(found["tokens"])
    assert all(found["per_second"][kind] > 0 for kind in ("decoded", "prefilled", "episodes"))
    assert all(peak > 0 for peak in found["peaks"].values()) and found["peak_gb"] > 0.1
    assert set(found["reached"]) == {"decode", "prefill", "update"}
    decode = found["reached"]["decode"]
    assert decode["of_float32"] == pytest.approx(decode["flops"] / found["peaks"]["float32"])
    assert not list(tmp_path.iterdir())  # nothing is kept


def test_a_profile_is_told_in_words_and_says_what_makes_it_unlike_a_run(called):
    pytest.importorskip("torch", reason="a profile needs the extra [train]")
    settings = [f"--set={name}" for name in ("trainer.tasks_per_step=1", "simulator.group_size=2", "simulator.turns=1")]
    code, out, _ = called("profile", TINY, "--steps", 2, *settings, "--set=imitation.demonstrations=4")
    assert code == 0 and out.startswith("\ntiny-start on tiny: mean of 2 steps of 1 tasks with 2 attempts each")
    assert [f"| {phase} |" in out for phase in PHASES] == [True] * len(PHASES)
    assert "without the recipe's warm-up" in out
    assert "in 2 of 2 steps no group had attempts of different reward" in out  # a look presses no button


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("absent.toml", "the recipe absent.toml cannot be read"),
        (f"{TINY} --set trainer.stesp=1", "unknown key trainer.stesp"),
        (f"{TINY} --steps 0", "a profile needs at least one step, found 0"),
        (f"{TINY} --set tasks.train=5000", "the tiny world has 2600 lamps"),
    ],
)
def test_a_mistake_is_a_message_on_stderr_and_exit_code_2(called, arguments, message):
    code, out, err = called("profile", *arguments.split())
    assert (code, out) == (2, "") and message in err and "Traceback" not in err


def test_help_names_every_option_and_what_comes_of_it(called):
    code, out, err = called("profile", "--help")
    assert (code, err) == (0, "")
    for word in ("RECIPE", "--set", "--steps", "--warm-up", "--json", "decode", "memory", "[train]"):
        assert word in out
    assert max(map(len, out.splitlines())) <= 100
