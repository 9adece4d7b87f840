"""SQLite's write-ahead log, so that readers of a file do not wait for its writer; and files that lose their name.

SQLite goes on without a word in a file that was removed: what it writes is gone with the process.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self

_PAUSE_S = 0.01
_MAGIC = bytes.fromhex("d9d505f920a163d7")  # that ends a rollback journal with the name of a further file
_BESIDE = ("-wal", "-shm")  # endings of the files that SQLite keeps beside one with a write-ahead log


class Place(Enum):
    """What is where a file was opened."""

    SAME = "the file"
    NOTHING = "nothing"
    OTHER = "another file"


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A database file as it was opened: its path, and the inode that identifies it."""

    path: Path
    inode: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> Self:
        """The file that a path leads to now. OSError if there is none."""
        return cls(path, _inode(path))

    @property
    def place(self) -> Place:
        """What the path leads to now."""
        try:
            return Place.SAME if _inode(self.path) == self.inode else Place.OTHER
        except FileNotFoundError:
            return Place.NOTHING

    def write_again(self, connection: sqlite3.Connection) -> None:
        """Write what an open connection still has of the file to its path, where nothing is any more.

        The connection keeps the file without a name: close it, and open the path. OSError or sqlite3.Error.
        """
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        part = self.path.with_name(f"{self.path.name}.part")
        try:
            part.unlink(missing_ok=True)
            os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
            with contextlib.closing(sqlite3.connect(part)) as copy:
                connection.backup(copy)
            for ending in _BESIDE:  # of the file without a name: they would be taken for those of the copy
                self.path.with_name(f"{self.path.name}{ending}").unlink(missing_ok=True)
            part.replace(self.path)
        finally:
            for ending in ("", *_BESIDE):
                part.with_name(f"{part.name}{ending}").unlink(missing_ok=True)


def _inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


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


def is_of_full_disk(error: object) -> bool:
    """True for SQLite's error where nothing more can be written; it names no file."""
    return getattr(error, "sqlite_errorname", "").startswith("SQLITE_FULL")


def require_no_triggers(connection: sqlite3.Connection) -> None:
    """DatabaseError if a file has triggers: JellyBean makes none in it, and those of a file from elsewhere may do
    anything at each line that is written, without end.
    """
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchone()
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
