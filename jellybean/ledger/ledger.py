"""The ledger's database: an interval and the reading that it ends with are written in one transaction.

So nothing is counted twice or left out, whenever the process that writes is killed: what it had counted since the last
interval is in the live counters and in its workers, and is part of the next interval.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    PoolProxiedConnection,
    create_engine,
    event,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateColumn

from jellybean.folders import LEDGER_FILE, STATE_FOLDER, require_plain
from jellybean.ledger import tables
from jellybean.ledger.columns import ANSWERED_US, KINDS, RECEIVED
from jellybean.ledger.deployments import Deployment, Written, share
from jellybean.ledger.errors import LedgerError
from jellybean.ledger.events import Event, events
from jellybean.ledger.lines import Interval, interval, latencies
from jellybean.ledger.reading_document import reading_from_text, reading_to_text
from jellybean.ledger.readings import Reading
from jellybean.ledger.views import add_missing_views
from jellybean.write_ahead_log import OpenFile, Place, is_of_full_disk, require_no_triggers, use_write_ahead_log
from jellybean_agent import full_disk_text
from jellybean_protos.extras import install_command

LOG = logging.getLogger("jellybean.ledger")
_LOCK_TIMEOUT_S = 10.0
_COMPLETING = 7_240_911  # number of a lock in PostgreSQL
_CREATE_TRIES, _CREATE_PAUSE_S = 20, 0.1
_CREATING = threading.Lock()
_CHANGES = "jellybean_changes"  # an SQLite transaction that changes something is the only one from its first read on


def ledger_url(directory: Path) -> str:
    """Where a project's own ledger is: the path of an SQLite file.

    InputError for a state folder with links in it.
    """
    require_plain(directory / STATE_FOLDER)
    return str((directory / STATE_FOLDER / LEDGER_FILE).resolve())


@contextmanager
def opened_ledger(directory: Path, url: str | None) -> Iterator[Ledger | None]:
    """The ledger of a URL, else the project's own; None if nothing was ever written to the project's."""
    url = url or ledger_url(directory)
    path = sqlite_path(url)
    if path is not None and not path.exists():
        yield None
        return
    ledger = Ledger(url)
    try:
        yield ledger
    finally:
        ledger.close()


def sqlite_path(url: str) -> Path | None:
    """The file of a path or of an SQLite URL; None for another database."""
    if "://" not in url:
        return Path(url)
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


class Ledger:
    """Writes intervals of one gateway, and answers questions about all of them."""

    def __init__(self, url: str, gateway: str = "", deployment: Deployment | None = None) -> None:
        """The database of this URL (postgresql+psycopg://...), or an SQLite file of this path.

        It is opened, and its tables are created, when it is used first, as a server may be away for a while. `gateway`:
        who writes; only needed to write. `deployment`: if it is one of several gateways of the same workers.
        LedgerError if the URL is none.
        """
        self._deployment = deployment
        self._gateway, self._is_open, self._is_complete = gateway, False, False
        self._path = sqlite_path(url)
        self._file: OpenFile | None = None
        self._held: PoolProxiedConnection | None = None  # to the SQLite file, so that it can be written again
        self._placing = threading.Lock()
        with _explained(url):
            self._engine = _engine(url)
            self._changes = self._engine.execution_options(**{_CHANGES: True})

    def close(self) -> None:
        """Close all connections."""
        if self._held is not None:
            self._held.close()
            self._held = None
        self._engine.dispose()

    def write(self, now: Reading) -> Interval | None:
        """Write the interval since this gateway's last reading; None for its first one, which only begins the count."""
        with self.changing() as connection:
            query = select(tables.cursor.c.reading).where(tables.cursor.c.gateway == self._gateway)
            text = connection.execute(query).scalar()
            found, before = None, None if text is None else self._last_reading(text)
            _add_events(connection, events(before, now))
            if before is not None:
                found = interval(before, now)
                _add(connection, found)
                own = update(tables.cursor).where(tables.cursor.c.gateway == self._gateway)
                connection.execute(own.values(reading=reading_to_text(now.with_unread(before))))
            else:
                values = {"gateway": self._gateway, "reading": reading_to_text(now)}
                connection.execute(insert(tables.cursor).values(**values))
        return found

    def write_shared(self, now: Reading) -> Written:
        """Write what this gateway did since its last reading, and what the workers cost, if it is who bills them."""
        if self._deployment is None:
            raise LedgerError(f"ledger {self._engine.url}: this gateway shares its workers with no other")
        sources = {key: sent for key, sent in now.sent.items() if not key.sender}
        own_text = reading_to_text(replace(now, work={}, sent=sources))
        columns = tables.cursor.c
        with self.changing() as connection:
            text = connection.execute(select(columns.reading).where(columns.gateway == self._gateway)).scalar()
            before = None if text is None else self._last_reading(text)
            found = share(connection, self._deployment, self._gateway, before, now)
            _add_events(connection, found.events)
            for one in found.intervals:
                _add(connection, one)
            if before is None:
                connection.execute(insert(tables.cursor).values(gateway=self._gateway, reading=own_text))
            else:
                own = update(tables.cursor).where(columns.gateway == self._gateway)
                connection.execute(own.values(reading=own_text))
        return found

    @property
    def is_shared(self) -> bool:
        """True if other gateways use the same workers."""
        return self._deployment is not None

    def _last_reading(self, text: str) -> Reading:
        try:
            return reading_from_text(text)
        except (ValueError, KeyError, TypeError) as error:
            where = f"ledger {self._engine.url}: the last reading of gateway {self._gateway[:12]} in ledger_cursor"
            raise LedgerError(
                f"{where} is damaged ({error!r}): delete its row; what was counted since is lost"
            ) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for questions. LedgerError if the database cannot be opened, or is of a later version."""
        with _explained(self._engine.url):
            self._open()
            with self._engine.connect() as connection, self._closing_of_removed(connection):
                yield connection

    @contextmanager
    def changing(self) -> Iterator[Connection]:
        """A connection in a transaction. LedgerError as of `reading`."""
        with _explained(self._engine.url):
            self._open()
            self._complete()
            with self._changes.begin() as connection:
                yield connection

    @contextmanager
    def _closing_of_removed(self, connection: Connection) -> Iterator[None]:
        """Close a connection behind its use if its file was removed meanwhile: no pool has it any more."""
        pool = self._engine.pool
        try:
            yield
        finally:
            if self._engine.pool is not pool and not connection.closed:
                connection.detach()

    def _open(self) -> None:
        """Create what is missing. Another process, or thread, may be doing the same at this moment: then try again."""
        with self._placing:
            self._keep_in_place()
        if self._is_open:
            return
        for left in reversed(range(_CREATE_TRIES)):
            try:
                with _CREATING:
                    self._create()
                break
            except DBAPIError as error:
                if not left or not (isinstance(error, IntegrityError) or "already exists" in str(error)):
                    raise
                time.sleep(_CREATE_PAUSE_S)
        with self._placing:
            if self._path is not None and self._file is None:
                self._file, self._held = OpenFile.of(self._path), self._engine.raw_connection()
        self._is_open = True

    def _keep_in_place(self) -> None:
        """Write an SQLite file again that was removed while it is open, with all that was in it.

        Where another file is in its place, that is used from now on: somebody has put it there.
        """
        if self._file is None or self._held is None or (place := self._file.place) is Place.SAME:
            return
        if place is Place.NOTHING:
            LOG.warning("%s is gone: it is written again", self._file.path)
            self._file.write_again(cast(sqlite3.Connection, self._held.driver_connection))
        self.close()
        self._file, self._is_open, self._is_complete = None, False, False

    def _create(self) -> None:
        with self._engine.connect() as connection:
            known = _version_of(connection)
        if known is None:
            with self._changes.begin() as connection:
                _wait_for_turn(connection)
                tables.METADATA.create_all(connection)
                _add_missing_columns(connection)
                known = _version_of(connection)
                if known is None:
                    known = tables.VERSION
                    connection.execute(insert(tables.version).values(version=known))
        if known != tables.VERSION:
            versions = f"has version {known} of its tables, this JellyBean knows {tables.VERSION}"
            raise LedgerError(f"ledger {self._engine.url} {versions}: update JellyBean")

    def _complete(self) -> None:
        """Add indices and views that a ledger of an earlier version lacks; who only reads may not be allowed to."""
        if self._is_complete:
            return
        with self._changes.begin() as connection:
            _wait_for_turn(connection)
            for table in tables.METADATA.sorted_tables:
                for index in table.indexes:
                    index.create(connection, checkfirst=True)
            add_missing_views(connection)
        self._is_complete = True


def _wait_for_turn(connection: Connection) -> None:
    """Let one gateway at a time change the tables; SQLite's transactions of changes do so by themselves."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_COMPLETING)))


def _version_of(connection: Connection) -> int | None:
    """The version of a ledger's tables; None if one of them, or a column, does not exist."""
    found = set(inspect(connection).get_table_names())
    if not found.issuperset(tables.METADATA.tables) or list(_missing_columns(connection)):
        return None
    return connection.execute(select(tables.version.c.version)).scalar()


def _missing_columns(connection: Connection) -> Iterator[Column[Any]]:
    """The columns that a ledger of an earlier version lacks."""
    known = inspect(connection).get_multi_columns(filter_names=[*tables.METADATA.tables])
    names = {table: {column["name"] for column in columns} for (_, table), columns in known.items()}
    for name, table in tables.METADATA.tables.items():
        yield from (column for column in table.columns if name in names and column.name not in names[name])


def _add_missing_columns(connection: Connection) -> None:
    quoted = connection.dialect.identifier_preparer.format_table
    for column in list(_missing_columns(connection)):
        definition = CreateColumn(column).compile(dialect=connection.dialect)
        connection.execute(text(f"ALTER TABLE {quoted(column.table)} ADD COLUMN {definition}"))


def _add_events(connection: Connection, found: Iterable[Event]) -> None:
    rows = [
        {"at_s": event.at_unix_s, "run": event.run, "kind": event.kind.value, "plan": event.plan, "note": event.note}
        for event in found
    ]
    if rows:
        connection.execute(insert(tables.events), rows)


def _add(connection: Connection, found: Interval) -> None:
    """Insert an interval's lines; lines and intervals in which nothing was done or paid are left out."""
    if not found.seconds and not (found.work or found.sent or found.requests):
        return
    row = {"run": found.run, "plan": found.plan, "length": tables.LIVE, "seconds": found.seconds}
    times = {"begin_s": found.begin_unix_s, "end_s": found.end_unix_s}
    made = connection.execute(insert(tables.intervals).values(**row, **times).returning(tables.intervals.c.id))
    common = {"interval": made.scalar_one(), "begin_s": int(found.begin_unix_s)}
    workflow = found.workflow
    for table, rows in (
        (tables.work, _work_rows(found, workflow)),
        (tables.sent, _sent_rows(found, workflow)),
        (tables.requests, _request_rows(found)),
        (tables.latencies, _latency_rows(found)),
    ):
        if rows:
            connection.execute(insert(table), [{**common, **row} for row in rows])


def _work_rows(found: Interval, workflow: str) -> Sequence[Mapping[str, Any]]:
    return [
        {
            "workflow": workflow, "plan": line.key.plan, "operator": line.key.operator, "variant": line.key.variant,
            "worker": line.key.worker, "tier": line.tier, "site": line.site, "completed": line.completed,
            "failed": line.failed, "busy_s": line.busy_s, "worker_s": line.worker_s, "usd": line.usd,
        }
        for line in found.work
    ]  # fmt: skip


def _sent_rows(found: Interval, workflow: str) -> Sequence[Mapping[str, Any]]:
    return [
        {
            "workflow": workflow, "plan": line.key.plan, "operator": line.key.operator, "variant": line.key.variant,
            "sender": line.key.sender, "tier": line.tier, "to_tier": line.to_tier, "site": line.site,
            "sent_bytes": line.sent_bytes, "usd": line.usd,
        }
        for line in found.sent
    ]  # fmt: skip


def _request_rows(found: Interval) -> Sequence[Mapping[str, Any]]:
    return [
        {
            "workflow": line.key.workflow, "plan": found.plan, "client": line.key.client,
            "received": line.counts[RECEIVED], "answered_us": line.counts[ANSWERED_US], "usd": line.usd,
            **{kind: line.counts[column] for kind, column in KINDS.items()},
        }
        for line in found.requests
    ]  # fmt: skip


def _latency_rows(found: Interval) -> Sequence[Mapping[str, Any]]:
    by_workflow: dict[tuple[str, int], int] = {}
    for line in found.requests:
        for bucket, count in enumerate(latencies(line.counts)):
            if count:
                key = line.key.workflow, bucket
                by_workflow[key] = by_workflow.get(key, 0) + count
    return [
        {"workflow": workflow, "plan": found.plan, "bucket": bucket, "answers": count}
        for (workflow, bucket), count in by_workflow.items()
    ]


def _engine(url: str) -> Engine:
    path = sqlite_path(url)
    if path is None:
        try:
            return create_engine(url, pool_pre_ping=True)
        except ImportError as error:
            raise LedgerError(f"ledger {url}: {error}: {install_command('ledger-postgres')}") from error
    at = URL.create("sqlite", database=str(path))  # not parsed: a path may hold what means something in a URL
    engine = create_engine(at, connect_args={"timeout": _LOCK_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def _settings(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # sqlite3 would begin a transaction at its first change, after what it read
        try:
            use_write_ahead_log(connection, _LOCK_TIMEOUT_S)
            require_no_triggers(connection)
        except BaseException:  # older SQLAlchemy leaves a connection open of which a listener fails
            connection.close()
            raise

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        is_change = connection.get_execution_options().get(_CHANGES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_change else "BEGIN")

    return engine


@contextmanager
def _explained(url: Any) -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        cause = getattr(error, "orig", None) or error
        path = sqlite_path(str(url))
        if path is not None and is_of_full_disk(cause):
            raise LedgerError(f"ledger {path}: {full_disk_text(path)}") from error
        hint = "Check the file, or server (postgresql+psycopg://USER@HOST/NAME), its owner and free space"
        raise LedgerError(f"ledger {url}: {cause}. {hint}") from error
