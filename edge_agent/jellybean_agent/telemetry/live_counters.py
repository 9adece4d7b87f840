"""Counters in a memory-mapped file, which outlive their process: kill -9 loses nothing that was counted.

A counter is one aligned machine word in the page cache, so an increment costs as little as one in memory, and no system
call. A row of counters has a key; rows are only ever added, and their numbers only grow.
"""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from jellybean_agent.errors import CountersError, describe_error

Key = tuple[str, ...]
LOG = logging.getLogger("jellybean.counters")

KEY_BYTES = 512  # of a row's key as JSON
MAX_ROWS = 4096  # unless stated otherwise
_OVERFLOWS = 8  # rows that are left for overflow keys
_WORD = 8
_MAGIC = b"JBLIVE1\n"
_HEADER = struct.Struct("<8sqq16s")  # magic, counters per row, rows in use, mark
_HEADER_BYTES = 64
_ROWS_AT = 2  # index of the number of rows, in words


class LiveCounters:
    """Rows of counters by key, in one file of one process at a time."""

    def __init__(self, path: Path, columns: int, most_rows: int = MAX_ROWS) -> None:
        """Open or create the file. CountersError if another process has it open, or if the disk has no room for it.

        A file that is damaged, or has other columns or more rows, is moved away first.
        """
        self.path, self._most_rows = path, most_rows
        self._columns = columns
        self._row_bytes = KEY_BYTES + columns * _WORD
        try:
            self._file = self._opened(path)
        except OSError as error:
            raise CountersError(f"{path}: {describe_error(error, file=path)}: nothing can be counted there") from error
        self._words = memoryview(self._map).cast("q")
        self.mark = self._map[_HEADER.size - 16 : _HEADER.size].hex()  # identifies the file: a new one counts from 0
        self._rows: dict[Key, memoryview] = {}
        for number in range(self._words[_ROWS_AT]):
            self._rows[self._key(number)] = self._row(number)

    def _opened(self, path: Path) -> int:
        """The file, locked, mapped, and with all its space on the disk: a write to the map must not fail."""
        for _ in range(2):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _lock(file, path)
                if self._fits(file):
                    self._map = self._mapped(file)
                    return file
                aside = path.with_name(f"{path.name}.damaged-{time.time():.0f}")
                LOG.error("%s is damaged or of another version of JellyBean: it is moved to %s", path, aside.name)
                path.rename(aside)
            except BaseException:
                os.close(file)
                raise
            os.close(file)
        raise CountersError(f"{path} cannot be replaced")

    def _fits(self, file: int) -> bool:
        """True for a new file, and for one of these columns whose keys can be read."""
        header = os.pread(file, _HEADER.size, 0)
        if not header:
            return True
        if len(header) < _HEADER.size or _HEADER.unpack(header)[:2] != (_MAGIC, self._columns):
            return False
        rows = _HEADER.unpack(header)[2]
        return 0 <= rows <= self._most_rows and all(self._has_key(file, number) for number in range(rows))

    def _has_key(self, file: int, number: int) -> bool:
        text = os.pread(file, KEY_BYTES, _HEADER_BYTES + number * self._row_bytes)
        try:
            (size,) = struct.unpack("<q", text[:_WORD])
            return isinstance(json.loads(text[_WORD : _WORD + size]), list)
        except (struct.error, ValueError):
            return False

    def row(self, key: Key, overflow: Key = ()) -> memoryview:
        """The counters of a key, all 0 at first.

        Once there are nearly as many as the file holds, and for a key that is too long, those of `overflow`.
        """
        found = self._rows.get(key)
        if found is not None:
            return found
        text = json.dumps(key).encode()
        if key != overflow and (len(text) > KEY_BYTES - _WORD or len(self._rows) >= self._most_rows - _OVERFLOWS):
            return self.row(overflow, overflow)
        number = len(self._rows)
        at = _HEADER_BYTES + number * self._row_bytes
        self._map[at : at + _WORD + len(text)] = struct.pack("<q", len(text)) + text
        self._words[_ROWS_AT] = number + 1  # last: before, a reader does not see the row
        self._rows[key] = self._row(number)
        return self._rows[key]

    def readings(self) -> Iterator[tuple[Key, tuple[int, ...]]]:
        """Every key with its counters."""
        for key, row in list(self._rows.items()):
            yield key, tuple(row)

    def sync(self) -> None:
        """Write the file to the disk, so that it outlives the machine's power too. Other threads go on meanwhile."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file; its counters stay."""
        for row in self._rows.values():
            row.release()
        self._words.release()
        self._map.close()
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mapped(self, file: int) -> mmap.mmap:
        size, is_new = _HEADER_BYTES + self._most_rows * self._row_bytes, not os.pread(file, _HEADER.size, 0)
        os.posix_fallocate(file, 0, size)
        mapped = mmap.mmap(file, size)
        if is_new:
            mapped[: _HEADER.size] = _HEADER.pack(_MAGIC, self._columns, 0, os.urandom(16))
        return mapped

    def _row(self, number: int) -> memoryview:
        first = (_HEADER_BYTES + number * self._row_bytes + KEY_BYTES) // _WORD
        return self._words[first : first + self._columns]

    def _key(self, number: int) -> Key:
        at = _HEADER_BYTES + number * self._row_bytes
        (size,) = struct.unpack("<q", self._map[at : at + _WORD])
        return tuple(json.loads(self._map[at + _WORD : at + _WORD + size]))


def _lock(file: int, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise CountersError(f"{path}: another process counts there") from error
