"""Every example runs as a reader would run it, from the root of a clone, and says something true."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the examples train or sample")
ROOT = Path(__file__).parents[2]
SAYS = {
    "refund_shop": r"base: 0% of 8 tasks, endings .*\nrl: \d+% of 8 tasks.*\neverything is in runs/quick-",
    "own_agent": r"base: 0% of 8 tasks in 2.0 model calls\nrl: ",
    "steps": r"step 1: \d+% of attempts, \d+ of 16 tasks done at least once\nstep 2: .*\n(.*\n)+on tasks not practised: ",
    "compare": r"chance: 0.0% .*\nmodel: .*\nmodel is better than chance: ",
}


def test_every_example_is_run_here_and_short():
    files = sorted((ROOT / "examples").glob("*.py"))
    assert [file.stem for file in files] == sorted(SAYS)
    assert all(len(file.read_text().splitlines()) < 40 for file in files)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_in_seconds_and_says_what_it_promises(tmp_path, name):
    for folder in ("recipes", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    done = subprocess.run(
        [sys.executable, f"examples/{name}.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert re.match(SAYS[name], done.stdout), done.stdout
