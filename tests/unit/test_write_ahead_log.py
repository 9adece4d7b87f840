"""Processes that open a new file of SQLite at the same moment."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from jellybean.write_ahead_log import use_write_ahead_log
from tests.support.at_once import run_at_once
from tests.unit import opening_files

PROCESSES = 6
MAGIC = bytes.fromhex("d9d505f920a163d7")


@pytest.mark.slow
def test_processes_that_open_a_new_file_at_once_all_can(tmp_path: Path) -> None:
    """Without the wait about every fourth file refuses one of them: `database is locked`."""
    run_at_once(opening_files.__name__, PROCESSES, str(tmp_path))
    for number in range(opening_files.FILES):
        connection = sqlite3.connect(tmp_path / f"{number}.db")
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("SELECT count(*) FROM opened").fetchone() == (PROCESSES,)
        connection.close()


def _journal_naming(victim: Path, database: Path) -> bytes:
    """A rollback journal of the database that is to be applied, and names `victim` as its super-journal (pager.c)."""
    page = 4096
    head = struct.pack(">8sIIIII", MAGIC, 0, 0, database.stat().st_size // page, 512, page).ljust(512, b"\0")
    name = bytes(victim)
    return head + struct.pack(">I", 2**30 // page + 1) + name + struct.pack(">II8s", len(name), sum(name), MAGIC)


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_journal_from_elsewhere_deletes_no_file(tmp_path: Path, is_checked: bool) -> None:
    """SQLite itself deletes what such a journal names."""
    victim, database = tmp_path / "victim", tmp_path / "a.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript("CREATE TABLE a (b); INSERT INTO a VALUES (1);")
    victim.write_bytes(b"precious")
    (tmp_path / "a.db-journal").write_bytes(_journal_naming(victim, database))
    with closing(sqlite3.connect(database)) as connection:
        if is_checked:
            with pytest.raises(sqlite3.DatabaseError, match=r"a\.db-journal names a further file"):
                use_write_ahead_log(connection, 1.0)
        else:
            assert connection.execute("SELECT b FROM a").fetchall() == [(1,)]
    assert victim.exists() == is_checked


def test_a_journal_of_a_crash_is_applied(tmp_path: Path) -> None:
    database, journal = tmp_path / "a.db", tmp_path / "a.db-journal"
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.executescript("PRAGMA cache_size = 1; CREATE TABLE a (b); INSERT INTO a VALUES ('before');")
        connection.executescript("BEGIN; UPDATE a SET b = 'within'; INSERT INTO a VALUES (zeroblob(100000));")
        crashed = database.read_bytes(), journal.read_bytes()
    database.write_bytes(crashed[0])
    journal.write_bytes(crashed[1])
    with closing(sqlite3.connect(database)) as connection:
        use_write_ahead_log(connection, 1.0)
        assert connection.execute("SELECT b FROM a").fetchall() == [("before",)]


def test_a_file_that_stays_locked_is_told_after_the_time(tmp_path: Path) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other,
        closing(sqlite3.connect(tmp_path / "a.db", timeout=0.0)) as waiting,
    ):
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            use_write_ahead_log(waiting, 0.1)
        other.execute("ROLLBACK")
        use_write_ahead_log(waiting, 0.1)
