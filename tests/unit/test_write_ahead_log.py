"""Processes that open a new file of SQLite at the same moment."""

from __future__ import annotations

import multiprocessing
import sqlite3
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from jellybean.write_ahead_log import use_write_ahead_log

PROCESSES, FILES = 6, 60


def _opens(folder: Path, barrier: Barrier) -> None:
    for number in range(FILES):
        barrier.wait(60.0)
        connection = sqlite3.connect(folder / f"{number}.db", timeout=30.0)
        use_write_ahead_log(connection, 30.0)
        connection.execute("CREATE TABLE IF NOT EXISTS opened (once)")
        connection.execute("INSERT INTO opened VALUES (1)")
        connection.commit()
        connection.close()


def test_processes_that_open_a_new_file_at_once_all_can(tmp_path: Path) -> None:
    """Without the wait about every fourth file refuses one of them: `database is locked`."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(PROCESSES)
    processes = [context.Process(target=_opens, args=(tmp_path, barrier)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120.0)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    for number in range(FILES):
        connection = sqlite3.connect(tmp_path / f"{number}.db")
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("SELECT count(*) FROM opened").fetchone() == (PROCESSES,)
        connection.close()


def test_a_file_that_stays_locked_is_told_after_the_time(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        waiting = sqlite3.connect(tmp_path / "a.db", timeout=0.0)
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            use_write_ahead_log(waiting, 0.1)
        other.execute("ROLLBACK")
        use_write_ahead_log(waiting, 0.1)
        waiting.close()
