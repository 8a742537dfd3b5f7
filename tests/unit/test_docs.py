"""The pages say what the code says: every key, file, field, ending and table, and none that is gone."""

from __future__ import annotations

import inspect
import re
import sqlite3
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from practicum.config import EnvironmentConfig, RunConfig
from practicum.environments.retail import Retail
from practicum.evaluation import evaluated
from practicum.runs.database import SCHEMA
from practicum.types import Completion, Ending, Group, Message, Trajectory, Turn
from practicum.verbs.evaluating import Measured

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def sections(page: str) -> dict[str, str]:
    """Heading of level 2 -> the text below it."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text: str) -> list[list[str]]:
    """Cells of the body rows of all tables in a text."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def first_names(text: str) -> list[str]:
    """What stands in backticks in the first cells, `a`, `b` giving two."""
    return [name for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])]


def in_toml(value: Any) -> Any:
    """A default as TOML gives it back."""
    return list(value) if isinstance(value, tuple) else value


def defaults(section: Any) -> dict[str, Any]:
    """Key -> default of a section of the recipe, an environment's options beside its kind."""
    found = {f.name: in_toml(getattr(section, f.name)) for f in fields(section)}
    if isinstance(section, EnvironmentConfig):
        del found["options"]
        found |= {name: in_toml(p.default) for name, p in inspect.signature(Retail).parameters.items()}
    return found


SECTIONS = {
    f.name: getattr(RunConfig(), f.name) for f in fields(RunConfig) if is_dataclass(getattr(RunConfig(), f.name))
}


def test_the_recipes_page_has_every_section_in_the_order_of_the_config() -> None:
    titles = list(sections((DOCS / "recipes.md").read_text()))
    assert titles == ["Top", *(f"[{name}]" for name in SECTIONS)]


@pytest.mark.parametrize("name", SECTIONS)
def test_the_recipes_page_has_every_key_with_its_default(name: str) -> None:
    table = rows(sections((DOCS / "recipes.md").read_text())[f"[{name}]"])
    said = {key.strip("`"): tomllib.loads(f"value = {default.strip('`')}")["value"] for key, default, _ in table}
    assert said == defaults(SECTIONS[name])
    assert list(said) == list(defaults(SECTIONS[name]))


def test_the_architecture_page_names_every_file_and_no_other() -> None:
    text = sections((ROOT / "ARCHITECTURE.md").read_text())["Files"]
    package = ROOT / "src" / "practicum"
    files = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if path.parent == package or path.name != "__init__.py"
    }
    assert sorted(first_names(text)) == sorted(files)


def test_the_index_links_every_page() -> None:
    linked = set(re.findall(r"\]\((\w+\.md)\)", (DOCS / "index.md").read_text()))
    assert linked == {path.name for path in DOCS.glob("*.md")} - {"index.md"}


@pytest.mark.parametrize(
    "page", [ROOT / "ARCHITECTURE.md", ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name
)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:\s]+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_trajectories_page_says_of_every_ending_what_the_code_does_with_it() -> None:
    table = rows(sections((DOCS / "trajectories.md").read_text())["Endings"])
    assert [row[0].strip("`") for row in table] == [ending.value for ending in Ending]
    for ending, (_, _, then) in zip(Ending, table, strict=True):
        assert (then == "discarded") is ending.discarded
        assert ("truncated" in then) is ending.truncated


def test_the_evaluation_page_has_every_field_of_the_json_output() -> None:
    turn = Turn(0, None, (1,), Completion((2,), (0.0,), (0,), "stop"), (), Message("assistant", ""))
    played = Group("0:a", "a", (Trajectory("a", 0, (turn,), Ending.FINISHED, rewards={"success": 1.0}),))
    summary = Measured(evaluated([played], 1.0)).summary()
    assert sorted(first_names(sections((DOCS / "evaluation.md").read_text())["`--json`"])) == sorted(summary)


def test_the_runs_page_names_every_table_and_only_columns_that_there_are() -> None:
    with sqlite3.connect(":memory:") as database:
        database.executescript(SCHEMA)
        real = [
            name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        ]
        table = rows(sections((DOCS / "runs.md").read_text())["The database"])
        assert {row[0].strip("`") for row in table} == {name for name in real if not name.startswith("texts_")}
        for name, _, columns in table:
            there = {row[1] for row in database.execute(f"PRAGMA table_info({name.strip('`')})")}
            assert set(re.findall(r"`(\w+)`", columns)) <= there, name
