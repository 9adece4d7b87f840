"""The report store: plans, predictions and measurements of one project, in one SQLite file.

The tables are append-only (enforced by triggers), so that old reports can be reproduced. A call returns only after its
row is on disk (write-ahead log, synchronous = FULL).
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from jellybean.folders import STATE_FOLDER, require_plain, shell_text, state_folder
from jellybean.write_ahead_log import is_of_full_disk, use_write_ahead_log
from jellybean_agent import describe_error, full_disk_text, planned_rate_per_s
from jellybean_protos import plan_format
from jellybean_protos.plan_format import qualified_name
from jellybean_solver import JellyBeanError

SCHEMA_VERSION = 1
LOCK_TIMEOUT_S = 10.0
SAME_RATE = 0.01
# What SQLite calls a disk on which it can make no file.
_NO_WRITE = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_PERM")
_NO_RECORD = "{}"
STORE_FILE = Path(STATE_FOLDER) / "report.db"

Record = Mapping[str, Any]
MeasurementKind = Literal["bench", "scaled", "saturate"]
RowKind = Literal["plan", "prediction", "bench", "scaled", "saturate"]

_TABLES = """
CREATE TABLE plans (hash TEXT PRIMARY KEY, document TEXT NOT NULL, created_s REAL NOT NULL);
CREATE TABLE plannings (
    id INTEGER PRIMARY KEY AUTOINCREMENT, plan_hash TEXT NOT NULL REFERENCES plans (hash),
    record TEXT NOT NULL, created_s REAL NOT NULL);
CREATE TABLE predictions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, plan_hash TEXT NOT NULL REFERENCES plans (hash),
    record TEXT NOT NULL, created_s REAL NOT NULL);
CREATE TABLE measurements (
    id INTEGER PRIMARY KEY AUTOINCREMENT, plan_hash TEXT NOT NULL REFERENCES plans (hash),
    kind TEXT NOT NULL CHECK (kind IN ('bench', 'scaled', 'saturate')), record TEXT NOT NULL, created_s REAL NOT NULL);
"""
_APPEND_ONLY = """
CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, 'append-only'); END;
"""
_ROWS = """
SELECT kind, plan_hash, record, created_s FROM (
    SELECT 'plan' AS kind, plan_hash, record, created_s, id FROM plannings
    UNION ALL SELECT 'prediction', plan_hash, record, created_s, id FROM predictions
    UNION ALL SELECT kind, plan_hash, record, created_s, id FROM measurements)
WHERE :plan IS NULL OR plan_hash = :plan ORDER BY {order}
"""
_PLANS = """
SELECT plan_hash, MAX(created_s), (SELECT COUNT(*) FROM measurements AS m WHERE m.plan_hash = p.plan_hash),
    (SELECT MAX(created_s) FROM measurements AS m WHERE m.plan_hash = p.plan_hash)
FROM plannings AS p GROUP BY plan_hash ORDER BY MAX(id) DESC
"""
_BY_TIME = _ROWS.format(order="created_s, id")
_BY_ADDITION = _ROWS.format(order="id")  # in the order of insertion, which changes of the clock do not affect


class StoreError(JellyBeanError):
    """The report store cannot be read or written; the message says what to do."""


@dataclass(frozen=True, slots=True)
class StoreRow:
    """One stored row. `record` holds plain JSON values; `created_s` is Unix time."""

    kind: RowKind
    plan_hash: str
    record: Record
    created_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The newest row of each kind about one plan; None for a kind that was not recorded."""

    plan_hash: str
    document: Record
    planning: StoreRow
    prediction: StoreRow | None
    bench: StoreRow | None
    saturate: StoreRow | None


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan of the store, with the number of its measurements. Times are Unix times; None: never measured."""

    plan_hash: str
    planned_s: float
    measurements: int
    measured_s: float | None


@dataclass(frozen=True)
class Store:
    """Appends and reads rows of one project. Each call opens the file, so several processes can share it."""

    path: Path
    clock: Callable[[], float] = field(default=time.time, repr=False)
    directory: Path | None = None  # the project folder, if the file is a copy elsewhere

    @classmethod
    def of(cls, directory: Path) -> Store:
        """The store of a project folder."""
        return cls(directory / STORE_FILE)

    @property
    def project(self) -> str:
        """The project folder as text, for messages."""
        if self.directory is not None:
            return str(self.directory)
        parent = self.path.parent
        return str(parent.parent if parent.name == STORE_FILE.parent.name else parent)

    def add_plan(self, document: Record, info: Record | None = None) -> str:
        """Record a plan document and return its hash.

        `info` describes how it was found: `solve_s`, `status`, `selections_tried`, `baselines` as [name, USD/h or null,
        note].
        """
        plan_hash = document.get("hash")
        if document.get("kind") != plan_format.KIND or not isinstance(plan_hash, str):
            raise StoreError("not a plan document: it has no hash; make one with jellybean_solver.to_document")
        now = self.clock()
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO plans (hash, document, created_s) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (plan_hash, _to_json(document), now),
            )
            connection.execute(
                "INSERT INTO plannings (plan_hash, record, created_s) VALUES (?, ?, ?)",
                (plan_hash, _to_json(info or {}), now),
            )
        return plan_hash

    def add_prediction(self, plan_hash: str, record: Record) -> None:
        """Record predicted (simulated) figures of a plan."""
        with self._writing() as connection:
            self._require_plan(connection, plan_hash)
            connection.execute(
                "INSERT INTO predictions (plan_hash, record, created_s) VALUES (?, ?, ?)",
                (plan_hash, _to_json(record), self.clock()),
            )

    def add_measurement(self, plan_hash: str, record: Record, kind: MeasurementKind | None = None) -> None:
        """Record measured figures of a plan.

        Kinds: `bench` at the declared rates, `scaled` at a multiple of them, `saturate` for the highest sustained rate.
        By default the kind is derived from `highest_rate_per_s`, `rate_per_s` and `beside` of the record.
        """
        if kind is not None and kind not in get_args(MeasurementKind):
            raise StoreError(f"unknown kind of measurement {kind!r}: one of {', '.join(get_args(MeasurementKind))}")
        with self._writing() as connection:
            document = self._require_plan(connection, plan_hash)
            kind = kind or _kind(record, document)
            connection.execute(
                "INSERT INTO measurements (plan_hash, kind, record, created_s) VALUES (?, ?, ?, ?)",
                (plan_hash, kind, _to_json(record), self.clock()),
            )

    def latest(self, plan_hash: str | None = None) -> Snapshot | None:
        """The newest rows of the plan with this hash (or unique prefix of it), by default of the newest plan.

        None if there is no such plan.
        """
        if not self._exists():
            return None
        with self._reading() as connection:
            if plan_hash is None:
                newest = connection.execute("SELECT plan_hash FROM plannings ORDER BY id DESC LIMIT 1").fetchone()
                full_hash = newest[0] if newest else None
            else:
                full_hash = self._find(connection, plan_hash)
            return None if full_hash is None else self._snapshot(connection, full_hash)

    def plans(self) -> tuple[StoredPlan, ...]:
        """All plans, the newest first."""
        if not self._exists():
            return ()
        with self._reading() as connection:
            return tuple(StoredPlan(*values) for values in connection.execute(_PLANS))

    def history(self, plan_hash: str | None = None) -> tuple[StoreRow, ...]:
        """All rows of one plan, by default of all plans, oldest first."""
        if not self._exists():
            return ()
        with self._reading() as connection:
            rows = connection.execute(_BY_TIME, {"plan": plan_hash}).fetchall()
        return tuple(_row(values) for values in rows)

    def add_stores(self, others: Iterable[Store]) -> None:
        """Add the rows of other stores to this one, which is new, in the order of their times.

        Each row once: a plan that one store only noted, as it was served, has been planned in another one.
        """
        plans: dict[str, tuple[str, str, float]] = {}
        rows: dict[tuple[RowKind, str, str, float], None] = {}
        for other in others:
            if not other._exists():
                continue
            with other._reading() as connection:
                plans |= {values[0]: values for values in connection.execute("SELECT * FROM plans")}
                rows |= dict.fromkeys(tuple(values) for values in connection.execute(_BY_TIME, {"plan": None}))
        planned = {plan_hash for kind, plan_hash, record, _ in rows if kind == "plan" and record != _NO_RECORD}
        with self._writing() as connection:
            for plan in plans.values():
                connection.execute("INSERT INTO plans (hash, document, created_s) VALUES (?, ?, ?)", plan)
            for kind, *values in sorted(rows, key=lambda row: row[3]):
                if kind == "plan" and values[1] == _NO_RECORD and values[0] in planned:
                    continue
                table = {"plan": "plannings", "prediction": "predictions"}.get(kind, "measurements")
                columns, more = ("kind, ", [kind]) if table == "measurements" else ("", [])
                marks = ", ".join("?" * (3 + len(more)))
                query = f"INSERT INTO {table} ({columns}plan_hash, record, created_s) VALUES ({marks})"
                connection.execute(query, [*more, *values])

    def _snapshot(self, connection: sqlite3.Connection, plan_hash: str) -> Snapshot:
        document = connection.execute("SELECT document FROM plans WHERE hash = ?", (plan_hash,)).fetchone()[0]
        newest: dict[RowKind, StoreRow] = {}
        for values in connection.execute(_BY_ADDITION, {"plan": plan_hash}):
            row = _row(values)
            if row.kind == "plan" and not row.record and (known := newest.get("plan")) is not None:
                row = replace(row, record=known.record)  # keep earlier planning info if the new row has none
            newest[row.kind] = row
        return Snapshot(
            plan_hash=plan_hash,
            document=json.loads(document),
            planning=newest["plan"],
            prediction=newest.get("prediction"),
            bench=newest.get("bench"),
            saturate=newest.get("saturate"),
        )

    def _find(self, connection: sqlite3.Connection, start: str) -> str | None:
        query = "SELECT hash FROM plans WHERE substr(hash, 1, ?) = ? ORDER BY hash LIMIT 2"
        found = [row[0] for row in connection.execute(query, (len(start), start))]
        if len(found) > 1:
            raise StoreError(f"several plan hashes start with {start!r}: give more digits")
        return found[0] if found else None

    def _require_plan(self, connection: sqlite3.Connection, plan_hash: str) -> Record:
        found = connection.execute("SELECT document FROM plans WHERE hash = ?", (plan_hash,)).fetchone()
        if found is None:
            command = f"jellybean plan {shell_text(self.project)}"
            raise StoreError(f"plan {plan_hash[:12]} is not in {self.path}: run `{command}` first")
        document: Record = json.loads(found[0])
        return document

    def _exists(self) -> bool:
        with _explained(self.path):
            return self.path.exists()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with _explained(self.path):
            if self.path.parent.name == STATE_FOLDER:
                state_folder(self.path.parent.parent)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._connect()) as connection:
                self._migrate(connection)
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with _explained(self.path), closing(self._connect_to_read()) as connection:
            connection.execute("BEGIN")
            yield connection

    def _connect_to_read(self) -> sqlite3.Connection:
        """A connection for questions, also on a disk that is full or read-only, where SQLite writes nothing beside."""
        log = self.path.with_name(f"{self.path.name}-wal")
        has_log = log.is_file() and log.stat().st_size > 0
        try:
            connection = self._connect()
        except sqlite3.OperationalError as error:
            if has_log or not error.sqlite_errorname.startswith(_NO_WRITE):
                raise  # what the log has would be left out
            connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?immutable=1", uri=True, isolation_level=None)
        try:
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self) -> sqlite3.Connection:
        if self.path.parent.name == STATE_FOLDER:
            require_plain(self.path.parent)
        connection = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        try:
            use_write_ahead_log(connection, LOCK_TIMEOUT_S)
            connection.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Create the tables if they do not exist. The write lock serialises concurrent first uses.

        StoreError for a file with anything else: triggers and views of a file from elsewhere may run without end.
        """
        if _version(connection) != SCHEMA_VERSION:
            self._create_tables(connection)
        if foreign := _schema(connection) - _own_schema():
            names = ", ".join(sorted(ascii(name) for _, name, _ in foreign))
            raise StoreError(f"{self.path} has what no report store has: {names}. Move it away to start a new history.")

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        version = _version(connection)
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} has schema version {version}, this JellyBean knows {SCHEMA_VERSION}: update JellyBean, "
                "or move the file away to start a new history"
            )
        if version == 0:
            for statement in _creating_statements():
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")


def _kind(record: Record, plan: Record) -> MeasurementKind:
    if record.get("highest_rate_per_s") is not None:
        return "saturate"
    if any(not math.isclose(scale, 1.0, rel_tol=SAME_RATE) for scale in (record.get("beside") or {}).values()):
        return "scaled"  # another workflow's load is not as planned
    offered = record.get("rate_per_s")
    if offered is None or not plan.get("sources"):
        return "bench"
    return "bench" if math.isclose(offered, _planned_per_s(record, plan), rel_tol=SAME_RATE) else "scaled"


def _planned_per_s(record: Record, plan: Record) -> float:
    """Requests per second that a plan was made for; of several workflows, those of the one that was measured."""
    if not plan.get("workflows"):
        return planned_rate_per_s(plan)
    own = qualified_name(str(record.get("workflow", "")), "")
    return planned_rate_per_s({**plan, "sources": [one for one in plan["sources"] if one["name"].startswith(own)]})


def _row(values: tuple[RowKind, str, str, float]) -> StoreRow:
    kind, plan_hash, record, created_s = values
    return StoreRow(kind, plan_hash, json.loads(record), created_s)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _creating_statements() -> Iterator[str]:
    """What makes the tables of a new file."""
    script = _TABLES
    for table in ("plans", "plannings", "predictions", "measurements"):
        script += "".join(_APPEND_ONLY.format(table=table, verb=verb) for verb in ("UPDATE", "DELETE"))
    return _statements(script)


def _schema(connection: sqlite3.Connection) -> frozenset[tuple[str, str, str]]:
    """Kind, name and definition of each table, index, view and trigger of a file, but SQLite's own."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'")
    return frozenset((str(kind), str(name), str(sql)) for kind, name, sql in rows)


@cache
def _own_schema() -> frozenset[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in _creating_statements():
            connection.execute(statement)
        return _schema(connection)


def _statements(script: str) -> Iterator[str]:
    """Split a script into statements, because `executescript` would commit the open transaction."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and the file system to StoreError with advice."""
    try:
        yield
    except sqlite3.Error as error:
        cause = full_disk_text(path) if is_of_full_disk(error) else error
        raise StoreError(f"{path}: {cause}. {_advice(error)}") from error
    except OSError as error:
        raise StoreError(
            f"{path}: {describe_error(error, file=path)}. Check the folder's owner and permissions."
        ) from error


def _advice(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if is_of_full_disk(error):
        return "Nothing was written; then repeat the command."
    if name.startswith("SQLITE_IOERR"):
        return "Nothing was written; check free space, quota and the disk's health, then repeat the command."
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return "The file is damaged or not a report store; move it away to start a new history."
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"Another process has locked it for {LOCK_TIMEOUT_S:.0f} s; wait until it ends, then repeat the command."
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return "Check the owner and permissions of the file and its folder."
    return "Move the file away to start a new history if this persists."


def _to_json(value: Any) -> str:
    """JSON text of a record; nan and inf become null (unknown)."""
    return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False, default=_plain)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    """Convert a NumPy scalar; TypeError for other types."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"a record must hold plain JSON values, not {type(value).__name__}")
    return _finite(item())
