"""Opens new files of SQLite at the moments at which other processes do, too."""

from __future__ import annotations

import sqlite3
from multiprocessing.synchronize import Barrier
from pathlib import Path

from jellybean.write_ahead_log import use_write_ahead_log

FILES = 30


def main(barrier: Barrier, folder: str) -> None:
    """Write a row to each file."""
    for number in range(FILES):
        barrier.wait(60.0)
        connection = sqlite3.connect(Path(folder, f"{number}.db"), timeout=30.0)
        use_write_ahead_log(connection, 30.0)
        connection.execute("CREATE TABLE IF NOT EXISTS opened (once)")
        connection.execute("INSERT INTO opened VALUES (1)")
        connection.commit()
        connection.close()
