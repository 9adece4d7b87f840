"""SQLite's write-ahead log, so that readers of a file do not wait for its writer."""

from __future__ import annotations

import sqlite3
import time

_PAUSE_S = 0.01


def use_write_ahead_log(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Turn the write-ahead log on, and write to the disk at each commit.

    A file that several processes open for the first time at once is changed by one of them; SQLite refuses the others
    without waiting (sqlite.org/wal.html), so this waits. sqlite3.OperationalError after `timeout_s`.
    """
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
