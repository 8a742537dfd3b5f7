"""What someone gets who installs the wheel without extras; run by that environment, with the path of the wheel."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
SECONDS_AT_MOST = 0.5


def run(*command: str, folder: str) -> subprocess.CompletedProcess[str]:
    """Run outside the clone, so that only what was installed can be found."""
    return subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=folder, capture_output=True, text=True, timeout=600
    )


def check_contents(wheel: str) -> None:
    """Everything under src/practicum and every recipe is in the wheel, and every licence."""
    inside = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "practicum").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {f"practicum/recipes/{path.name}" for path in (ROOT / "recipes").glob("*.toml")}
    assert not wanted - inside, f"missing in the wheel: {sorted(wanted - inside)}"
    licences = importlib.metadata.metadata("practicum").get_all("License-File") or []
    assert len(licences) == 3, licences
    print(f"wheel: {len(inside)} files, {Path(wheel).stat().st_size / 1e6:.1f} MB, licences {', '.join(licences)}")


def check_light(folder: str) -> None:
    """No torch here, and a bare import or --help takes under half a second, start of Python included."""
    found = [name for name in ("torch", "transformers", "matplotlib") if importlib.util.find_spec(name)]
    assert not found, f"the base install brought {found}"
    for command in (["python", "-c", "import practicum"], ["practicum", "--help"]):
        seconds = []
        for _ in range(5):
            started = time.perf_counter()
            done = run(*command, folder=folder)
            seconds.append(time.perf_counter() - started)
            assert done.returncode == 0, done.stderr
        print(f"{' '.join(command)}: {min(seconds):.2f} s, best of {len(seconds)}")
        assert min(seconds) < SECONDS_AT_MOST, seconds


def check_expert(folder: str) -> None:
    """The environments work without torch: the expert solves every task of the recipe that came with the package."""
    done = run("practicum", "evaluate", "recipes/retail.toml", "--policy", "expert", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    print(f"retail, expert: success {result['success']} on {result['n_tasks']} tasks, endings {result['endings']}")
    assert result["success"] == 1.0 and result["n_tasks"] > 0, result


def check_refusal(folder: str) -> None:
    """What needs torch says so in one message, with the command that installs it, and exits with 2."""
    done = run("practicum", "train", "recipes/retail.toml", "--folder", "run", folder=folder)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2 and "Traceback" not in said, said
    assert "practicum[train]" in said, said
    print(f"train without torch: exit 2, {said}")


def main() -> None:
    check_contents(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        check_light(folder)
        check_expert(folder)
        check_refusal(folder)


if __name__ == "__main__":
    main()
