"""Kill a small run at random instants, resume it, and see whether it learns what the undisturbed run learned.

Run: python tests/learning/kills.py 50
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from practicum import config
from practicum.models.load import load_tensors
from practicum.runs.checkpoint import complete
from practicum.verbs import training

SETTINGS = [
    "trainer.steps=6",
    "trainer.tasks_per_step=4",
    "trainer.checkpoint_every=2",
    "simulator.group_size=4",
    "simulator.lockstep=true",
    "tasks.train=24",
    "tasks.dev=4",
    "tasks.test=4",
    "evaluation.dev_steps=[0,3,6]",
]


def started(folder: Path, settings: list[str], resume: bool) -> int:
    """A process that trains into `folder`; forked, so that nothing is imported again. Returns its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 2)
        training.train(config.load("recipes/tiny.toml", settings), folder, resume=resume)
        code = 0
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a process; its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def result(folder: Path) -> dict[str, bytes]:
    """Bytes of every tensor of the last checkpoint, optimizer moments among them, and the figures of the report."""
    tensors = load_tensors(complete(folder / "checkpoints")[-1].path / "trainer.safetensors")
    report = json.loads((folder / "report.json").read_text())
    figures = {key: report[key] for key in ("steps", "best_step", "differences")}
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()} | {
        "figures": json.dumps(figures, sort_keys=True).encode()
    }


def kills(number: int, seed: int, extra: list[str]) -> list[str]:
    """What each killed and resumed run got wrong, one line a run: empty where it equals the undisturbed run."""
    draw, settings = random.Random(seed), [*SETTINGS, *extra]
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        assert ended(started(Path(place, "whole"), settings, resume=False)) == 0, "the undisturbed run failed"
        whole_s = time.monotonic() - began
        wanted, problems = result(Path(place, "whole")), []
        for n in range(number):
            folder, instant_s = Path(place, str(n)), draw.uniform(0.0, whole_s)
            child = started(folder, settings, resume=False)
            time.sleep(instant_s)
            os.kill(child, signal.SIGKILL)
            ended(child)
            is_begun = (folder / "config.toml").is_file()
            code = ended(started(folder, settings, resume=is_begun))
            found = result(folder) if code == 0 else {}
            odd = [name for name in wanted if found.get(name) != wanted[name]]
            problems.append(f"killed after {instant_s:.2f} s of {whole_s:.2f}: exit {code}, {odd[:3]}" if odd else "")
    return problems


if __name__ == "__main__":
    found = kills(int(sys.argv[1]), seed=0, extra=sys.argv[2:])
    print(json.dumps({"kills": len(found), "differ": [line for line in found if line]}, indent=2))
    sys.exit(any(found))
