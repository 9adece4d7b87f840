"""SQLite's write-ahead log, so that readers of a file do not wait for its writer."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

_PAUSE_S = 0.01
_MAGIC = bytes.fromhex("d9d505f920a163d7")  # that ends a rollback journal with the name of a further file


def use_write_ahead_log(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Turn the write-ahead log on, and write to the disk at each commit.

    To be called before the file is read. A file that several processes open for the first time at once is changed by
    one of them; SQLite refuses the others without waiting (sqlite.org/wal.html), so this waits.
    sqlite3.OperationalError after `timeout_s`, sqlite3.DatabaseError for a journal that names a further file.
    """
    _require_single_file(connection)
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end_s:
                raise
            time.sleep(_PAUSE_S)
    connection.execute("PRAGMA synchronous = FULL")


def require_no_triggers(connection: sqlite3.Connection) -> None:
    """DatabaseError if a file has triggers: JellyBean makes none in it, and those of a file from elsewhere may do
    anything at each line that is written, without end.
    """
    found = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchone()
    if found is not None:
        raise sqlite3.DatabaseError(f"it has a trigger {found[0]!a}, as no file of JellyBean: move the file away")


def _require_single_file(connection: sqlite3.Connection) -> None:
    """DatabaseError if the rollback journal beside the file names a super-journal: SQLite would delete that file.

    SQLite writes such names for transactions over several databases, and JellyBean has none. In a folder from elsewhere
    it may be the name of any file.
    """
    journal = Path(f"{connection.execute('PRAGMA database_list').fetchone()[2]}-journal")  # reads no file
    with contextlib.suppress(FileNotFoundError), journal.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_MAGIC)))
        if file.read() == _MAGIC:
            raise sqlite3.DatabaseError(f"{journal.name} names a further file, as no journal of JellyBean: remove it")
