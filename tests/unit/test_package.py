"""The package as someone who just installed it meets it: a quick import, a few names, no torch."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import practicum

ROOT = Path(__file__).parents[2]
SECONDS_AT_MOST = 0.5

HEAVY = ("torch", "transformers", "numpy", "matplotlib")
HELP = """
from practicum.cli.main import main
sys.argv = ["practicum", "--help"]
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
"""


def quickest(program: str) -> tuple[float, set[str]]:
    """Seconds, start of Python included, and heavy modules of a program.

    The best of up to five runs, since other load only ever adds time.
    """
    program = f"import sys\n{program}\nprint('heavy', *({set(HEAVY)} & set(sys.modules)), file=sys.stderr)"
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT / "src", timeout=60
        )
        best = min(best, time.perf_counter() - started)
        assert done.returncode == 0, done.stderr
        if best < SECONDS_AT_MOST:
            break
    return best, set(done.stderr.splitlines()[-1].split()[1:])


def test_import_practicum_is_quick_and_brings_no_heavy_library() -> None:
    seconds, heavy = quickest("import practicum")
    assert heavy == set()
    assert seconds < SECONDS_AT_MOST


def test_practicum_help_is_quick_and_imports_no_torch() -> None:
    seconds, heavy = quickest(HELP)
    assert not heavy - {"numpy"}
    assert seconds < SECONDS_AT_MOST


@pytest.mark.parametrize("name", practicum.__all__)
def test_every_public_name_can_be_met_and_is_what_its_home_defines(name: str) -> None:
    assert getattr(practicum, name) is getattr(importlib.import_module(practicum._HOMES[name]), name)


def test_type_checkers_see_the_names_that_exist_at_run_time() -> None:
    tree = ast.parse((ROOT / "src/practicum/__init__.py").read_text())
    (guard,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in guard.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == practicum._HOMES
    assert sorted(practicum.__all__) == sorted(seen)
    assert set(practicum.__all__) <= set(dir(practicum))


def test_a_name_that_does_not_exist_is_refused_with_the_names_that_do() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Taks'; it has .*Task"):
        practicum.Taks  # noqa: B018


def test_the_base_install_asks_for_nothing_heavy() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {requirement.split(">")[0] for requirement in project["dependencies"]}
    assert names == {"numpy", "rich", "tomli-w", "typer"}


def test_every_licence_that_the_project_names_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [(ROOT / name).read_text() for name in project["license-files"]]
    assert project["license"] == "Apache-2.0 AND MIT"
    assert any("Apache License" in text for text in texts) and any("MIT License" in text for text in texts)
