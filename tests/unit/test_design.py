"""The house keeps its plan: floors, vendors, budgets and names, read from the source itself.

Each rule is a function from the folder of a package to its problems, one line each (`file:line: what, and what to do`).
Each has two tests: the project keeps it, and a small package that breaks it is caught.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "practicum"

FLOORS = (
    ("types", "errors"),  # the ground under floor 1: everyone may import them, they import nobody
    ("config", "workers", "models"),
    ("environments", "sampling", "curriculum", "statistics", "runs"),
    ("learning", "rewards", "agents", "tracking", "skills"),
    ("simulator",),
    ("evaluation", "ledger", "plan"),  # a step below training, which measures dev success to choose its checkpoint
    ("training", "synthesis"),
    ("build",),
    ("verbs", "viewer", "serving", "cluster"),
    ("cli",),
)
FLOOR_OF = {name: number for number, names in enumerate(FLOORS) for name in names}

TORCH_HOMES = ("learning/", "sampling/local/", "models/")
NEEDS_TORCH = (*TORCH_HOMES, "training.py")
"training.py introduces the trainer to the simulator; whoever calls it meets it inside a function."
HOMES_OF = {
    **dict.fromkeys(("torch", "transformers", "safetensors", "tokenizers"), TORCH_HOMES),
    "numpy": ("environments/", "sampling/", "curriculum/", "statistics/", "runs/", "learning/", "rewards/", "models/"),
    "typer": ("cli/",),
    "rich": ("cli/", "tracking/", "models/", "runs/show.py"),
}
"Libraries used in several files, with the folders they may be used in. Any other outside package lives in one file."

CONFIG_READERS = ("build/", "verbs/", "cli/")
"verbs and cli turn a recipe into a RunConfig and hand it on; only build looks inside."

BROAD_EXCEPT = {("errors.py", "boundary")}
FORBIDDEN_WORDS = {"common", "controller", "engine", "handler", "helper", "manager", "orchestrator", "util"}
FILE_LINES, FILE_LINES_AT_MOST, TRAINING_LINES, FUNCTION_LINES, EXPORTS = 300, 500, 200, 60, 25


# --- reading source -------------------------------------------------------------------------------------------------


def sources(root: Path) -> Iterator[tuple[str, str, ast.Module]]:
    """Path relative to `root`, text and syntax tree of every Python file, in order of path."""
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        yield path.relative_to(root).as_posix(), text, ast.parse(text, str(path))


def imported(file: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a file imports, wherever the import stands and however it is written."""
    package = ["practicum", *Path(file).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            if base in ("practicum", "unittest"):
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, base
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """Numbers of the lines that hold code: no blanks, no comments, no docstrings and field explanations."""
    prose: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - prose


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method, nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def lives_in(file: str, homes: tuple[str, ...]) -> bool:
    """True when a file is one of `homes` or lies in a folder among them (written with a slash at the end)."""
    return any(file == home or (home.endswith("/") and file.startswith(home)) for home in homes)


# --- the rules ------------------------------------------------------------------------------------------------------


def floor_problems(root: Path) -> list[str]:
    """A file imports from strictly lower floors and from its own folder; `__init__` files are left out."""
    problems = []
    for file, _, tree in sources(root):
        own = file.split("/")[0].removesuffix(".py")
        if own in ("__init__", "__main__") or file.endswith("/__init__.py"):
            continue
        if own not in FLOOR_OF:
            problems.append(f"{file}:1: {own} stands on no floor; give it one in FLOORS")
            continue
        for line, name in imported(file, tree):
            if name.split(".")[0] != "practicum" or name == "practicum.__version__":
                continue
            target = name.split(".")[1] if "." in name else "__init__"
            if target not in FLOOR_OF:
                problems.append(
                    f"{file}:{line}: imports {name}, which is no module on a floor; import where it is defined"
                )
            elif target != own and FLOOR_OF[target] >= FLOOR_OF[own]:
                problems.append(
                    f"{file}:{line}: {own} (floor {FLOOR_OF[own]}) imports {name} (floor {FLOOR_OF[target]}); "
                    f"only lower floors may be imported"
                )
    return problems


def vendor_problems(root: Path) -> list[str]:
    """A general library stays in its folders, any other outside package in one file."""
    problems, users = [], defaultdict(dict)
    for file, _, tree in sources(root):
        for line, name in imported(file, tree):
            vendor = name.split(".")[0]
            if vendor in sys.stdlib_module_names or vendor == "practicum":
                continue
            if vendor not in HOMES_OF:
                users[vendor].setdefault(file, line)
            elif not lives_in(file, HOMES_OF[vendor]):
                problems.append(f"{file}:{line}: {vendor} may be imported only in {', '.join(HOMES_OF[vendor])}")
    for vendor, files in users.items():
        if len(files) > 1:
            places = ", ".join(f"{file}:{line}" for file, line in files.items())
            problems.append(f"{places}: {vendor} is imported in {len(files)} files; an outside package lives in one")
    return problems


def undeclared_problems(root: Path, project: Mapping[str, Any]) -> list[str]:
    """Whatever is imported is asked for by name in pyproject.toml, not found there by luck."""
    asked = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    declared = {re.split(r"[^\w-]", requirement)[0].replace("-", "_").lower() for requirement in asked}
    return [
        f"{file}:{line}: {name} is imported but no requirement in pyproject.toml"
        for file, _, tree in sources(root)
        for line, name in imported(file, tree)
        if name.split(".")[0] not in (sys.stdlib_module_names | declared | {"practicum"})
    ]


def config_problems(root: Path) -> list[str]:
    """Parts are built by build from the config and never read it themselves."""
    return [
        f"{file}:{line}: imports {name}; only {', '.join(CONFIG_READERS)} know the config, pass the values in"
        for file, _, tree in sources(root)
        if not lives_in(file, (*CONFIG_READERS, "config.py", "__init__.py"))
        for line, name in imported(file, tree)
        if name == "practicum.config" or name.startswith("practicum.config.")
    ]


def size_problems(root: Path) -> list[str]:
    """Files and functions keep their budgets; a file between 300 and 500 lines only warns."""
    problems = []
    for file, text, tree in sources(root):
        lines = code_lines(text, tree)
        most = TRAINING_LINES if file == "training.py" else FILE_LINES_AT_MOST
        if len(lines) > most:
            problems.append(f"{file}:1: {len(lines)} lines of code, at most {most}; split it by noun")
        elif len(lines) > FILE_LINES:
            warnings.warn(f"{file}: {len(lines)} lines of code, the budget is {FILE_LINES}", stacklevel=2)
        for function in functions(tree):
            size = len(lines.intersection(range(function.lineno, (function.end_lineno or 0) + 1)))
            if size > FUNCTION_LINES:
                problems.append(f"{file}:{function.lineno}: {function.name} has {size} lines, at most {FUNCTION_LINES}")
    return problems


def exports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of everything in a module's `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            for item in ast.walk(node.value):
                if isinstance(item, ast.Constant):
                    yield item.lineno, str(item.value)


def name_problems(root: Path) -> list[str]:
    """No exported name hides a module, the package exports few names, and no file is named after what it is not."""
    problems = []
    parts = {part.removesuffix(".py") for file, _, _ in sources(root) for part in file.split("/")}
    for file, _, tree in sources(root):
        words = {word for part in file.removesuffix(".py").split("/") for word in part.split("_")}
        for word in sorted(words | {word.removesuffix("s") for word in words}):
            if word in FORBIDDEN_WORDS:
                problems.append(f"{file}:1: {word} is no noun of the design; name the file after what it holds")
        if file.endswith("__init__.py"):
            exported = list(exports(tree))
            problems += [
                f"{file}:{line}: exports {name}, which is also a module's name; importing that module would replace it"
                for line, name in exported
                if name in parts
            ]
            if len(exported) > EXPORTS:
                problems.append(f"{file}:1: exports {len(exported)} names, at most {EXPORTS}")
    return problems


def except_problems(root: Path, allowed: set[tuple[str, str]] = BROAD_EXCEPT) -> list[str]:
    """A broad `except` stands only where it says whose failure it was."""
    problems = []
    for file, _, tree in sources(root):
        permitted = {
            id(node) for function in functions(tree) if (file, function.name) in allowed for node in ast.walk(function)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.ExceptHandler) or id(node) in permitted:
                continue
            caught = [n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)] if node.type else ["everything"]
            if {"everything", "Exception", "BaseException"} & set(caught):
                problems.append(f"{file}:{node.lineno}: catches {', '.join(caught)}; use errors.boundary(whose)")
    return problems


def zip_problems(root: Path) -> list[str]:
    """Lists that are walked together say what happens when their lengths differ."""
    return [
        f"{file}:{node.lineno}: zip without strict=; write strict=True (neighbours: itertools.pairwise)"
        for file, _, tree in sources(root)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip"
        if not any(keyword.arg == "strict" for keyword in node.keywords)
    ]


def idle_test_problems(root: Path) -> list[str]:
    """A test can fail: it asserts nothing that always holds, and replaces nothing that it should exercise."""
    problems = []
    for file, _, tree in sources(root):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                choices = (
                    node.test.values if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or) else []
                )
                if any(
                    isinstance(test, (ast.Constant, ast.Tuple)) and ast.unparse(test) != "False"
                    for test in (node.test, *choices)
                ):
                    problems.append(f"{file}:{node.lineno}: `{ast.unparse(node)}` holds whatever the code does")
        for line, name in imported(file, tree):
            if name.split(".")[0] in ("mock", "pytest_mock") or name.startswith("unittest.mock"):
                problems.append(f"{file}:{line}: imports {name}; use real parts or a hand-written double")
    return problems


# --- the project keeps them -----------------------------------------------------------------------------------------


def report(problems: list[str]) -> str:
    return "\n".join(["", *problems])


def test_a_file_imports_only_from_lower_floors_and_its_own_folder() -> None:
    assert not floor_problems(PACKAGE), report(floor_problems(PACKAGE))


def test_general_libraries_stay_in_their_folders_and_other_packages_in_one_file() -> None:
    assert not vendor_problems(PACKAGE), report(vendor_problems(PACKAGE))


def test_every_outside_package_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not undeclared_problems(PACKAGE, project), report(undeclared_problems(PACKAGE, project))


def test_only_build_and_those_that_hand_it_a_recipe_know_the_config() -> None:
    assert not config_problems(PACKAGE), report(config_problems(PACKAGE))


def test_files_and_functions_keep_their_budgets() -> None:
    assert not size_problems(PACKAGE), report(size_problems(PACKAGE))


def test_names_hide_no_module_and_say_what_a_file_holds() -> None:
    assert not name_problems(PACKAGE), report(name_problems(PACKAGE))


def test_a_broad_except_stands_only_in_boundary() -> None:
    assert not except_problems(PACKAGE), report(except_problems(PACKAGE))


@pytest.mark.parametrize("folder", ["src", "tests", "examples", "benchmarks"])
def test_every_zip_says_strict(folder: str) -> None:
    assert not zip_problems(ROOT / folder), report(zip_problems(ROOT / folder))


def test_no_test_is_unable_to_fail() -> None:
    assert not idle_test_problems(ROOT / "tests"), report(idle_test_problems(ROOT / "tests"))


def test_everything_outside_the_torch_folders_imports_without_torch() -> None:
    names = [
        ".".join(["practicum", *Path(file).with_suffix("").parts])
        for file, _, _ in sources(PACKAGE)
        if not lives_in(file, NEEDS_TORCH) and not file.endswith("__init__.py")
    ]
    blocked = ["torch", "transformers", "safetensors", "tokenizers", "gguf", "matplotlib"]
    program = (
        f"import importlib, sys\nsys.modules.update(dict.fromkeys({blocked}))\n"
        f"for name in {names}: importlib.import_module(name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT / "src", timeout=120
    )
    assert done.returncode == 0, done.stderr


# --- and each of them bites -----------------------------------------------------------------------------------------


def house(folder: Path, files: Mapping[str, str]) -> Path:
    """A small package with these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


FLOOR_BREAKERS = {
    "upwards": ("sampling/local.py", "from practicum.simulator.recorder import Recorder"),
    "sideways": ("learning/trainer.py", "import practicum.tracking.console"),
    "between files of one floor": ("training.py", "from practicum.synthesis import synthesise"),
    "inside a function": ("types.py", "def late():\n    from practicum.errors import UserError"),
    "for type checkers only": (
        "agents/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import practicum.cli",
    ),
    "relative": ("environments/shop.py", "from ..build import build"),
    "by string": ("runs/run.py", "import importlib\nimportlib.import_module('practicum.verbs.training')"),
    "from the roof": ("simulator/recorder.py", "import practicum"),
    "around the floors": ("simulator/episode.py", "from practicum import Task"),
    "no floor": ("orphan.py", ""),
}


@pytest.mark.parametrize(("file", "source"), FLOOR_BREAKERS.values(), ids=FLOOR_BREAKERS)
def test_an_import_that_breaks_the_floors_is_caught(tmp_path: Path, file: str, source: str) -> None:
    (problem,) = floor_problems(house(tmp_path, {file: source}))
    assert problem.startswith(f"{file}:{max(1, source.count(chr(10)) + 1)}:")


def test_imports_downwards_and_within_a_folder_are_fine(tmp_path: Path) -> None:
    files = {
        "simulator/collect.py": "from practicum.simulator import episode\nfrom .recorder import Recorder\nimport asyncio",
        "config.py": "from practicum.errors import UserError",
        "build/parts.py": "def build():\n    from practicum.learning.trainer import Trainer",
        "runs/__init__.py": "from practicum.cli import main",
    }
    assert floor_problems(house(tmp_path, files)) == []


def test_torch_outside_its_folders_is_caught_even_inside_a_function(tmp_path: Path) -> None:
    files = {
        "learning/losses.py": "import torch",
        "sampling/local/decode.py": "from torch import nn",
        "sampling/scripted.py": "def draw():\n    import torch.nn",
        "rewards/text.py": "import torch_geometric",
    }
    (problem,) = vendor_problems(house(tmp_path, files))
    assert problem.startswith("sampling/scripted.py:2: torch ")


def test_an_outside_package_in_two_files_is_caught(tmp_path: Path) -> None:
    files = {
        "tracking/wandb.py": "import wandb",
        "training.py": "import json\nfrom wandb import init",
        "cli/a.py": "import x",
    }
    (problem,) = vendor_problems(house(tmp_path, files))
    assert "tracking/wandb.py:1" in problem and "training.py:2" in problem


def test_an_outside_package_that_is_not_declared_is_caught(tmp_path: Path) -> None:
    project = {"dependencies": ["numpy>=2"], "optional-dependencies": {"hub": ["huggingface-hub[fast]>=2"]}}
    files = {"a.py": "import numpy.random, json\nfrom huggingface_hub import x\ndef f():\n    from tqdm import tqdm"}
    (problem,) = undeclared_problems(house(tmp_path, files), project)
    assert problem.startswith("a.py:4: tqdm ")


def test_a_part_that_reads_the_config_is_caught(tmp_path: Path) -> None:
    files = {
        "build/parts.py": "import practicum.config",
        "cli/main.py": "from practicum.config import read",
        "learning/trainer.py": "\nfrom practicum.config import RunConfig",
        "training.py": "from practicum import config",
    }
    problems = config_problems(house(tmp_path, files))
    assert [problem.split(": ")[0] for problem in problems] == ["learning/trainer.py:2", "training.py:1"]


def test_only_lines_of_code_count(tmp_path: Path) -> None:
    source = '"""Prose\nof two lines."""\n\n# a comment\nx = (\n    1  # two\n)\nclass A:\n    y: int = 0\n    "Explained."\n'
    assert code_lines(source, ast.parse(source)) == {5, 6, 7, 8, 9}


def test_a_file_over_its_budget_warns_and_then_fails(tmp_path: Path) -> None:
    files = {"a.py": "x = 1\n" * 301, "b.py": "x = 1\n" * 501, "c.py": "x = 1\n" * 300, "training.py": "x = 1\n" * 201}
    with pytest.warns(UserWarning, match=r"a\.py: 301") as caught:
        problems = size_problems(house(tmp_path, files))
    assert len(caught) == 1
    assert [problem.split(",")[0] for problem in problems] == [
        "b.py:1: 501 lines of code",
        "training.py:1: 201 lines of code",
    ]


def test_a_function_over_sixty_lines_is_caught(tmp_path: Path) -> None:
    fits = "def fits():\n    '''Docs.'''\n" + "    x = 1\n" * 59
    long = "class A:\n    async def long(self):\n" + "        x = 1\n" * 60
    (problem,) = size_problems(house(tmp_path, {"a.py": fits, "b.py": long}))
    assert problem == "b.py:2: long has 61 lines, at most 60"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"__init__.py": "__all__ = [\n    'collect']", "simulator/collect.py": ""}, "__init__.py:2: exports collect"),
        ({"__init__.py": f"__all__ = {[f'name{i}' for i in range(26)]}"}, "exports 26 names"),
        ({"utils.py": ""}, "utils.py:1: util "),
        ({"sampling/weight_manager.py": ""}, "manager"),
        ({"helpers/text.py": ""}, "helper"),
    ],
    ids=["export hides module", "too many exports", "utils", "manager", "helpers folder"],
)
def test_a_bad_name_is_caught(tmp_path: Path, files: dict[str, str], words: str) -> None:
    (problem,) = name_problems(house(tmp_path, files))
    assert words in problem


@pytest.mark.parametrize("caught", ["", " Exception", " BaseException as e", " (ValueError, Exception)"])
def test_a_broad_except_is_caught_wherever_it_stands(tmp_path: Path, caught: str) -> None:
    source = f"def boundary():\n    try:\n        x()\n    except{caught}:\n        pass\n"
    narrow = "try:\n    x()\nexcept (ValueError, OSError):\n    pass\n"
    problems = except_problems(house(tmp_path, {"errors.py": source, "runs/run.py": source, "a.py": narrow}))
    assert [problem.split(": ")[0] for problem in problems] == ["runs/run.py:4"]


def test_a_zip_without_strict_is_caught(tmp_path: Path) -> None:
    (problem,) = zip_problems(
        house(tmp_path, {"a.py": "zip(a, b, strict=True)\nzip(*rows)\nitertools.zip_longest(a, b)"})
    )
    assert problem.startswith("a.py:2:")


@pytest.mark.parametrize(
    "source",
    ["assert 1", "assert x() or 'fine'", "assert (x, 'words')", "from unittest import mock", "import unittest.mock"],
)
def test_a_test_that_cannot_fail_is_caught(tmp_path: Path, source: str) -> None:
    (problem,) = idle_test_problems(house(tmp_path, {"test_a.py": f"assert x()\n{source}"}))
    assert problem.startswith("test_a.py:2:")
