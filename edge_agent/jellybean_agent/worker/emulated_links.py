"""Emulated links between tiers, so that a plan with several tiers can run on one machine.

Per (upstream tier, downstream tier) a FIFO bandwidth queue is shared by all processes of a run, followed by a latency.
Its state, the CLOCK_MONOTONIC time at which it is next free and the bytes carried so far, lies in a small file that
every process maps; an fcntl lock makes `reserve` atomic between processes.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from jellybean_agent.brain.plan_view import LinkView

_SLOT = struct.Struct("<dd")  # CLOCK_MONOTONIC second from which the link is free, bytes sent so far


class EmulatedLinks:
    """The links of a run, from `open` to `close`. `reserve` says when a message may arrive."""

    def __init__(self, links: Sequence[LinkView], path: Path | None) -> None:
        """`path`: the file that the processes of a run share; None: an unnamed file of this process alone."""
        self._links = {(link.upstream_tier, link.downstream_tier): (slot, link) for slot, link in enumerate(links)}
        self._path, self._size = path, max(1, len(links)) * _SLOT.size
        self._file = -1
        self._map: mmap.mmap | None = None

    def open(self) -> Self:
        """Open and map the file, which is created if it does not exist."""
        self._file = (
            _unnamed() if self._path is None else os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        )
        if os.fstat(self._file).st_size < self._size:
            os.ftruncate(self._file, self._size)  # zero bytes read as 0.0: free, nothing sent
        self._map = mmap.mmap(self._file, self._size)
        return self

    def reserve(self, upstream_tier: str, downstream_tier: str, message_bytes: int, now: float | None = None) -> float:
        """CLOCK_MONOTONIC second at which a message sent now arrives over the link; `now` if both tiers are equal."""
        at = time.monotonic() if now is None else now
        found = self._links.get((upstream_tier, downstream_tier))
        if upstream_tier == downstream_tier or found is None:
            return at
        if self._map is None:
            raise ValueError("the links are not open")
        slot, link = found
        offset = slot * _SLOT.size
        fcntl.lockf(self._file, fcntl.LOCK_EX, _SLOT.size, offset)
        try:
            next_free_s, total = self._read(offset)
            if link.bandwidth_bytes_per_s:
                at = next_free_s = max(at, next_free_s) + message_bytes / link.bandwidth_bytes_per_s
            _SLOT.pack_into(self._map, offset, next_free_s, total + message_bytes)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, _SLOT.size, offset)
        return at + link.latency_s

    def bytes_sent(self) -> dict[tuple[str, str], float]:
        """Bytes that all processes of the run have sent so far, by (upstream tier, downstream tier)."""
        return {tiers: self._read(slot * _SLOT.size)[1] for tiers, (slot, _) in self._links.items()}

    def _read(self, offset: int) -> tuple[float, float]:
        if self._map is None:
            raise ValueError("the links are not open")
        next_free_s, total = _SLOT.unpack_from(self._map, offset)
        return float(next_free_s), float(total)

    def close(self) -> None:
        """Unmap and close the file, which stays in the run's folder."""
        if self._map is not None:
            self._map.close()
            self._map = None
            os.close(self._file)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _unnamed() -> int:
    if sys.platform == "linux":  # needs no folder for temporary files, which a container may lack
        return os.memfd_create("jellybean-links")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
