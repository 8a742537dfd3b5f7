"""Every trajectory, metric and event of a run, in one SQLite file with one writer."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.errors import UserError
from practicum.runs.codec import pack_json, storable, text_of, turn_from_row, turn_to_row, unpack_numbers
from practicum.types import Ending, Group, Trajectory

TurnKey = tuple[str, int, int]
"(task id, attempt, turn index)"

LAYOUT = 1
"Number of the table layout, kept in SQLite's user_version; a file with another one is refused."

SCHEMA = """
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, phase TEXT NOT NULL, step INTEGER NOT NULL, name TEXT NOT NULL, task_id TEXT NOT NULL);
CREATE INDEX groups_by_place ON groups (phase, step, task_id);
CREATE INDEX groups_by_task ON groups (task_id);
CREATE TABLE trajectories (
    id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    task_id TEXT NOT NULL, scenario_id TEXT NOT NULL, attempt INTEGER NOT NULL,
    ending TEXT NOT NULL, discarded INTEGER NOT NULL,
    success REAL NOT NULL, reward REAL NOT NULL, rewards TEXT NOT NULL,
    answer TEXT NOT NULL, error TEXT NOT NULL, seconds REAL NOT NULL,
    n_turns INTEGER NOT NULL, n_tokens_added INTEGER NOT NULL, n_tokens_sampled INTEGER NOT NULL);
CREATE INDEX trajectories_by_group ON trajectories (group_id);
CREATE TABLE turns (
    id INTEGER PRIMARY KEY, trajectory_id INTEGER NOT NULL REFERENCES trajectories ON DELETE CASCADE,
    position INTEGER NOT NULL, continues INTEGER, policy TEXT NOT NULL,
    added BLOB NOT NULL, tokens BLOB NOT NULL, logprobs BLOB NOT NULL, versions BLOB NOT NULL,
    stop_reason TEXT NOT NULL,
    messages TEXT NOT NULL, action TEXT NOT NULL, sampling TEXT NOT NULL, observation_key TEXT NOT NULL,
    rewards TEXT NOT NULL, seconds TEXT NOT NULL, delivered INTEGER NOT NULL, advantages BLOB,
    UNIQUE (trajectory_id, position));
CREATE VIRTUAL TABLE texts USING fts5 (text);
CREATE TABLE metrics (step INTEGER NOT NULL, name TEXT NOT NULL, value REAL, PRIMARY KEY (name, step)) WITHOUT ROWID;
CREATE TABLE events (id INTEGER PRIMARY KEY, step INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """A trajectory and its place: Stored("train", 3, trajectory, {0: (0.5, 0.5), 2: (0.5,)})."""

    phase: str
    "What it was collected for: 'train', 'dev', 'test/base', …"
    step: int
    trajectory: Trajectory
    advantages: Mapping[int, tuple[float, ...]]
    "By turn index, shape (T,) each: what was trained, with which advantage. A turn that is absent was not trained."


@dataclass(frozen=True, slots=True)
class Hit:
    """One turn whose messages hold the words looked for."""

    phase: str
    step: int
    task_id: str
    attempt: int
    turn: int
    excerpt: str
    "The words in their surroundings, marked »so«."


class Database:
    """The store of a run. One process writes (the run's lock sees to that), any number read with `read_only`.

    Each `add_…` is one transaction on the disk: a process killed at any instant leaves a valid file.

    Example:
        with Database(run.database) as database:
            database.add_groups("train", step=3, groups=groups, advantages={("retail_7", 0, 2): (0.5, 0.5)})
            database.add_metrics(3, {"success": 0.6})
    """

    def __init__(self, path: str | Path, read_only: bool = False) -> None:
        """Open `path`, making it unless `read_only`. Raises UserError when it is absent, unwritable or no store."""
        self.path = Path(path)
        self._writing = threading.Lock()
        try:
            self._connection = open_for_reading(self.path) if read_only else open_for_writing(self.path)
        except sqlite3.Error as error:
            raise UserError(f"the run's database {self.path} cannot be opened: {error}") from error
        self._connection.row_factory = sqlite3.Row

    def add_groups(
        self,
        phase: str,
        step: int,
        groups: Iterable[Group],
        advantages: Mapping[TurnKey, Sequence[float]] | None = None,
    ) -> None:
        """Store groups, all or none.

        `advantages` says what was trained: by (task id, attempt, turn index) one number per sampled token. Raises
        ValueError when one has the wrong length, UserError when the disk is full.
        """
        with self._transaction() as connection:
            for group in groups:
                group_id = insert(
                    connection, "groups", {"phase": phase, "step": step, "name": group.id, "task_id": group.task_id}
                )
                for trajectory in group:
                    add_trajectory(connection, group_id, trajectory, advantages or {})

    def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Store numbers of a step; a name that the step already has is overwritten."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO metrics (step, name, value) VALUES (?, ?, ?)",
                [(step, name, float(value)) for name, value in metrics.items()],
            )

    def add_event(self, step: int, kind: str, text: str) -> None:
        """Store something worth telling: an alarm, a resume, the first traceback of a kind."""
        with self._transaction() as connection:
            insert(connection, "events", {"step": step, "kind": kind, "text": storable(text)})

    def forget_after(self, step: int) -> None:
        """Delete everything of later steps: a run that resumes at a checkpoint's step will live them again.

        The warm-up counts its metrics in epochs: they stay unless all goes, with step -1.
        """
        with self._transaction() as connection:
            connection.execute(
                "DELETE FROM texts WHERE rowid IN (SELECT turns.id FROM turns JOIN trajectories ON trajectory_id = "
                "trajectories.id JOIN groups ON group_id = groups.id WHERE step > ?)",
                (step,),
            )
            for table in ("groups", "events"):
                connection.execute(f"DELETE FROM {table} WHERE step > ?", (step,))
            connection.execute("DELETE FROM metrics WHERE step > ?1 AND (?1 < 0 OR name NOT LIKE 'warm-up/%')", (step,))

    def trajectories(
        self, phase: str | None = None, step: int | None = None, task_id: str | None = None
    ) -> Iterator[tuple[str, int, Trajectory]]:
        """(phase, step, trajectory) in the order stored, each equal to what was added; read one at a time."""
        for stored in self.stored(phase, step, task_id):
            yield stored.phase, stored.step, stored.trajectory

    def groups(self, phase: str, step: int) -> list[Group]:
        """Whole groups as they were added, in the order stored."""
        rows = self._connection.execute(
            "SELECT name, task_id FROM groups WHERE phase = ? AND step = ? ORDER BY id", (phase, step)
        ).fetchall()
        return [
            Group(row["name"], row["task_id"], tuple(t for _, _, t in self.trajectories(phase, step, row["task_id"])))
            for row in rows
        ]

    def stored(self, phase: str | None = None, step: int | None = None, task_id: str | None = None) -> Iterator[Stored]:
        """As `trajectories`, with the advantages that each turn was trained with."""
        for row in self._select("*, trajectories.id AS trajectory", phase, step, task_id):
            turns = self._connection.execute(
                "SELECT * FROM turns WHERE trajectory_id = ? ORDER BY position", (row["trajectory"],)
            ).fetchall()
            trajectory = Trajectory(
                task_id=row["task_id"],
                attempt=row["attempt"],
                turns=tuple(turn_from_row(turn) for turn in turns),
                ending=Ending(row["ending"]),
                answer=row["answer"],
                rewards=json.loads(row["rewards"]),
                reward=row["reward"],
                scenario_id=row["scenario_id"],
                seconds=row["seconds"],
                error=row["error"],
            )
            trained = {t["position"]: unpack_numbers(t["advantages"]) for t in turns if t["advantages"] is not None}
            yield Stored(row["phase"], row["step"], trajectory, trained)

    def successes(
        self, phase: str | None = None, step: int | None = None, task_id: str | None = None
    ) -> dict[tuple[str, int], dict[str, list[float]]]:
        """Successes of valid attempts: {(phase, step): {task id: [1.0, 0.0, …]}}, without reading any turn."""
        found: dict[tuple[str, int], dict[str, list[float]]] = {}
        for row in self._select("phase, step, trajectories.task_id, success, discarded", phase, step, task_id):
            if not row["discarded"]:
                found.setdefault((row["phase"], row["step"]), {}).setdefault(row["task_id"], []).append(row["success"])
        return found

    def places(self, task_id: str) -> list[tuple[str, int]]:
        """(phase, step) of every group of a task, in the order stored, each once."""
        rows = self._connection.execute("SELECT phase, step FROM groups WHERE task_id = ? ORDER BY id", (task_id,))
        return list(dict.fromkeys((row["phase"], row["step"]) for row in rows))

    def task_ids(self) -> list[str]:
        """Every task that was attempted, sorted."""
        return [row[0] for row in self._connection.execute("SELECT DISTINCT task_id FROM groups ORDER BY task_id")]

    def metrics(self, name: str | None = None) -> list[tuple[int, str, float]]:
        """(step, name, value) in order of step; SQLite keeps NaN as NULL, which is read as NaN again."""
        rows = self._connection.execute(
            "SELECT step, name, value FROM metrics WHERE ?1 IS NULL OR name = ?1 ORDER BY step, name", (name,)
        )
        return [(row["step"], row["name"], float("nan") if row["value"] is None else row["value"]) for row in rows]

    def events(self, kind: str | None = None) -> list[tuple[int, str, str]]:
        """(step, kind, text) in the order stored."""
        rows = self._connection.execute(
            "SELECT step, kind, text FROM events WHERE ?1 IS NULL OR kind = ?1 ORDER BY id", (kind,)
        )
        return [(row["step"], row["kind"], row["text"]) for row in rows]

    def search(self, words: str, limit: int = 20) -> list[Hit]:
        """Turns whose messages hold all of `words`, best first."""
        phrase = " ".join('"' + word.replace('"', '""') + '"' for word in words.split())
        if not phrase:
            return []
        rows = self._connection.execute(
            "SELECT phase, step, trajectories.task_id, attempt, position, snippet(texts, 0, '»', '«', '…', 16) "
            "FROM texts JOIN turns ON turns.id = texts.rowid JOIN trajectories ON trajectory_id = trajectories.id "
            "JOIN groups ON group_id = groups.id WHERE texts MATCH ? ORDER BY rank LIMIT ?",
            (phrase, limit),
        )
        return [Hit(*row) for row in rows]

    def damage(self) -> list[str]:
        """What SQLite finds wrong with the file, empty when it is whole."""
        found = [row[0] for row in self._connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
        return found + [f"orphan in {row[0]}" for row in self._connection.execute("PRAGMA foreign_key_check")]

    def close(self) -> None:
        """Fold the write-ahead log into the file and close it; calling it twice does no harm."""
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._writing:
            try:
                with self._connection:
                    yield self._connection
            except sqlite3.OperationalError as error:
                raise UserError(
                    f"the run's database {self.path} cannot be written: {error}; "
                    "what was stored before is intact: free some space and train again"
                ) from error

    def _select(self, columns: str, phase: str | None, step: int | None, task_id: str | None) -> list[sqlite3.Row]:
        wanted = {"phase": phase, "step": step, "groups.task_id": task_id}
        wanted = {column: value for column, value in wanted.items() if value is not None}
        where = " AND ".join(f"{column} = ?" for column in wanted) or "1"
        # Fetched at once, so that the caller may write while it walks through them; turns are read later, one by one.
        return self._connection.execute(
            f"SELECT {columns} FROM trajectories JOIN groups ON group_id = groups.id WHERE {where} "
            "ORDER BY trajectories.id",
            tuple(wanted.values()),
        ).fetchall()


def open_for_writing(path: Path) -> sqlite3.Connection:
    """A connection to a store that is there, or to a new one. Raises sqlite3.Error, UserError for another layout."""
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    if connection.execute("PRAGMA schema_version").fetchone()[0] == 0:
        connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {LAYOUT}; COMMIT;")
    check_layout(connection, path)
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. Raises sqlite3.Error, UserError for another layout."""
    address = path.absolute().as_uri() + "?mode=ro"
    connection = sqlite3.connect(address, uri=True, check_same_thread=False)
    try:
        check_layout(connection, path)
    except sqlite3.OperationalError:
        # A folder that cannot be written has no room for the files that WAL readers share: nobody writes there either.
        if not path.is_file() or os.access(path.parent, os.W_OK):
            raise
        connection.close()
        connection = sqlite3.connect(address + "&immutable=1", uri=True, check_same_thread=False)
        check_layout(connection, path)
    return connection


def check_layout(connection: sqlite3.Connection, path: Path) -> None:
    """Raise UserError unless the file has the tables that this version of practicum writes."""
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != LAYOUT:
        connection.close()
        raise UserError(
            f"{path} has table layout {found}, this practicum reads layout {LAYOUT}; use the version that wrote it"
        )


def add_trajectory(
    connection: sqlite3.Connection, group_id: int, trajectory: Trajectory, advantages: Mapping[TurnKey, Sequence[float]]
) -> None:
    """Insert one trajectory with its turns and their texts."""
    t = trajectory
    trajectory_id = insert(
        connection,
        "trajectories",
        {
            "group_id": group_id,
            "task_id": t.task_id,
            "scenario_id": t.scenario_id,
            "attempt": t.attempt,
            "ending": t.ending.value,
            "discarded": int(t.ending.discarded),
            "success": t.success,
            "reward": t.reward,
            "rewards": pack_json(t.rewards),
            "answer": storable(t.answer),
            "error": storable(t.error),
            "seconds": t.seconds,
            "n_turns": len(t.turns),
            "n_tokens_added": sum(len(turn.added) for turn in t.turns),
            "n_tokens_sampled": sum(turn.completion.size for turn in t.turns),
        },
    )
    for turn in t.turns:
        columns = turn_to_row(turn, advantages.get((t.task_id, t.attempt, turn.index)))
        turn_id = insert(connection, "turns", {"trajectory_id": trajectory_id, **columns})
        insert(connection, "texts", {"rowid": turn_id, "text": text_of(turn)})


def insert(connection: sqlite3.Connection, table: str, columns: Mapping[str, Any]) -> int:
    """Insert one row and return its id."""
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    cursor = connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(columns.values()))
    return int(cursor.lastrowid or 0)
