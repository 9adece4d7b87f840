"""Emulated links between tiers, so that tiers mean something on one machine.

Per (upstream tier, downstream tier) there is one FIFO bandwidth pipe that all processes of a run share, then a latency.
The pipe's state is the CLOCK_MONOTONIC time at which it is next free and the bytes it has carried, in a small file that
every process maps; an fcntl lock makes `reserve` atomic between processes.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from jellybean_agent.brain.plan_view import LinkView

_SLOT = struct.Struct("<dd")  # next free second, bytes sent so far


class EmulatedLinks:
    """The pipes of a run. `reserve` says when a message may arrive; whoever sends it waits until then."""

    def __init__(self, links: Sequence[LinkView], path: Path | None) -> None:
        """`path`: the file that the processes of a run share; None: a file of this process alone, which has no name."""
        self._links = {(link.upstream_tier, link.downstream_tier): (slot, link) for slot, link in enumerate(links)}
        size = max(1, len(links)) * _SLOT.size
        self._file = _unnamed() if path is None else os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_size < size:
            os.ftruncate(self._file, size)  # zero bytes read as 0.0: free, nothing sent
        self._map = mmap.mmap(self._file, size)

    def reserve(self, upstream_tier: str, downstream_tier: str, message_bytes: int, now: float | None = None) -> float:
        """CLOCK_MONOTONIC second at which a message handed over now has crossed. Inside one tier: now."""
        at = time.monotonic() if now is None else now
        found = self._links.get((upstream_tier, downstream_tier))
        if upstream_tier == downstream_tier or found is None:
            return at
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
        next_free_s, total = _SLOT.unpack_from(self._map, offset)
        return float(next_free_s), float(total)

    def close(self) -> None:
        """Unmap; the file belongs to the run and goes with its folder."""
        self._map.close()
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _unnamed() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
