"""Counters in a memory-mapped file, which outlive their process: kill -9 loses nothing that was counted.

A counter is one aligned machine word in the page cache, so an increment costs as little as one in memory, and no system
call. A row of counters has a key; rows are only ever added, and their numbers only grow.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from jellybean.ledger.errors import LedgerError

Key = tuple[str, ...]

KEY_BYTES = 512  # of a row's key as JSON
MAX_ROWS = 4096
_WORD = 8
_MAGIC = b"JBLIVE1\n"
_HEADER = struct.Struct("<8sqq16s")  # magic, counters per row, rows in use, mark
_HEADER_BYTES = 64
_ROWS_AT = 2  # index of the number of rows, in words


class LiveCounters:
    """Rows of counters by key, in one file of one process at a time."""

    def __init__(self, path: Path, columns: int) -> None:
        """Open or create the file. LedgerError if another process has it open, or if it has other columns."""
        self._columns = columns
        self._row_bytes = KEY_BYTES + columns * _WORD
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._file, path)
            self._map = self._mapped(path)
        except BaseException:
            os.close(self._file)
            raise
        self._words = memoryview(self._map).cast("q")
        self.mark = self._map[_HEADER.size - 16 : _HEADER.size].hex()  # identifies the file: a new one counts from 0
        self._rows: dict[Key, memoryview] = {}
        for number in range(self._words[_ROWS_AT]):
            self._rows[self._key(number)] = self._row(number)

    def row(self, key: Key) -> memoryview:
        """The counters of a key, all 0 at first.

        Once there are `MAX_ROWS`, and for a key that is too long, those of the empty key.
        """
        found = self._rows.get(key)
        if found is not None:
            return found
        text = json.dumps(key).encode()
        if key and (len(text) > KEY_BYTES - _WORD or len(self._rows) >= MAX_ROWS - 1):
            return self.row(())
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
        """Write the file to the disk, so that it outlives the machine's power too."""
        self._map.flush()

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

    def _mapped(self, path: Path) -> mmap.mmap:
        size = _HEADER_BYTES + MAX_ROWS * self._row_bytes
        header = os.pread(self._file, _HEADER.size, 0)
        if header and (len(header) < _HEADER.size or _HEADER.unpack(header)[:2] != (_MAGIC, self._columns)):
            raise LedgerError(
                f"{path} is damaged, or of another version of JellyBean: move it away. Requests that it counted since "
                "the last interval of the ledger are lost then"
            )
        os.ftruncate(self._file, size)  # sparse: only pages that are written take space
        mapped = mmap.mmap(self._file, size)
        if not header:
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
        raise LedgerError(f"{path}: another process counts there; a ledger has one gateway") from error
