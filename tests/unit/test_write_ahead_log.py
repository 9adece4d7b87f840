"""Processes that open a new file of SQLite at the same moment."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jellybean.write_ahead_log import use_write_ahead_log
from tests.support.at_once import run_at_once
from tests.unit import opening_files

PROCESSES = 6


@pytest.mark.slow
def test_processes_that_open_a_new_file_at_once_all_can(tmp_path: Path) -> None:
    """Without the wait about every fourth file refuses one of them: `database is locked`."""
    run_at_once(opening_files.__name__, PROCESSES, str(tmp_path))
    for number in range(opening_files.FILES):
        connection = sqlite3.connect(tmp_path / f"{number}.db")
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("SELECT count(*) FROM opened").fetchone() == (PROCESSES,)
        connection.close()


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
