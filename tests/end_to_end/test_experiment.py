"""The command experiment as a process: killed, stopped, with processes of its own, and asked wrongly."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = """
recipe = "recipes/tiny.toml"
set = ["tasks.train=16", "tasks.dev=4", "tasks.test=8", "trainer.steps=4", "trainer.tasks_per_step=4",
       "trainer.checkpoint_every=1", "simulator.group_size=4", "simulator.lockstep=true", "evaluation.base=false",
       "evaluation.dev_steps=[]"]
[arms.rl]
[arms.noop]
kind = "evaluate"
policy = "noop"
[arms.expert]
kind = "evaluate"
policy = "expert"
"""


def begun(folder: Path, *options: str) -> subprocess.Popen:
    """The command in a process, its session its own, so that a signal reaches nobody else."""
    (folder / "mine.toml").write_text(FILE)
    command = [sys.executable, "-m", "practicum.cli.main", "experiment", str(folder / "mine.toml")]
    return subprocess.Popen(
        [*command, "--folder", str(folder / "out"), *options],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def wait_for(there, process: subprocess.Popen) -> None:
    """Until something is there, or the process has ended without it."""
    until = time.monotonic() + 300
    while not there():
        assert process.poll() is None and time.monotonic() < until, ended(process)
        time.sleep(0.02)


def test_a_killed_experiment_goes_on_with_the_run_that_was_under_way_also_with_two_trials_at_once(tmp_path):
    pytest.importorskip("torch", reason="an arm is trained")
    process = begun(tmp_path)
    wait_for((tmp_path / "out/runs/rl-seed0/checkpoints/step-000001").is_dir, process)
    process.kill()
    ended(process)
    assert not (tmp_path / "out/results/rl-seed0.json").exists()
    code, out, err = ended(begun(tmp_path, "--jobs", "2", "--json"))
    assert code == 0 and "0 of 3 trials are finished" in err and "rl-seed0: begins, its progress is in" in err
    assert "resumed behind step" in (tmp_path / "out/runs/rl-seed0.log").read_text()
    table = json.loads(out)
    assert (table["finished"], table["trials"], set(table["arms"])) == (3, 3, {"rl", "noop", "expert"})
    assert [table["arms"][name]["success"] for name in ("noop", "expert")] == [0.0, 1.0]
    assert json.loads((tmp_path / "out/results/rl-seed0.json").read_text())["steps"] == 4
    code, out, err = ended(begun(tmp_path))
    assert (code, err) == (0, "") and "3 of 3 trials finished" in out and "| less rl |" in out


def test_ctrl_c_reaches_every_process_and_says_where_the_experiment_stands(tmp_path):
    pytest.importorskip("torch", reason="an arm is trained")
    process = begun(tmp_path, "--jobs", "2")
    wait_for((tmp_path / "out/runs/rl-seed0/config.toml").is_file, process)
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert (code, out) == (130, "")
    assert "practicum: stopped by Ctrl-C: " in err and "of 3 trials are finished" in err
    assert "the same command goes on from there" in err and "Traceback" not in err
    log = (tmp_path / "out/runs/rl-seed0.log").read_text()
    assert "stopped by Ctrl-C" in log and not (tmp_path / "out/results/rl-seed0.json").exists()


def test_a_mistake_is_one_message_with_exit_code_2(tmp_path):
    code, out, err = ended(begun(tmp_path, "--only", "exprt"))
    assert (code, out) == (2, "") and err.startswith("practicum: --only exprt: ") and err.count("\n") == 1
