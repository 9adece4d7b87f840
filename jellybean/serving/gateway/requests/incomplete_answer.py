"""The bytes of answers of which parts are missing: of other sinks, or other children of a fan-out.

A worker chooses how many children it has and how large they are, and may never send the last one.
"""

from __future__ import annotations

from jellybean_agent import MAX_TENSOR_BYTES, PeerShare, SharedLimit

_PART_BYTES = 2**9  # what a part takes besides its tensor


class IncompleteAnswer:
    """The parts of one answer, from its first one until it is complete or given up. `limit`: of the process."""

    __slots__ = ("_claims", "_limit", "size")

    def __init__(self, limit: SharedLimit) -> None:
        self._limit = limit
        self._claims: list[tuple[PeerShare, int]] = []
        self.size = 0  # bytes of its tensors

    def keep(self, worker: str, parts: int, size: int) -> str:
        """Count parts of `size` bytes that a worker has sent; else why they cannot be kept."""
        self.size += size
        if self.size > MAX_TENSOR_BYTES:
            return f"the answer has {self.size} bytes before it is complete, above the limit of {MAX_TENSOR_BYTES}"
        share, kept = self._limit.share_of(worker), parts * _PART_BYTES + size
        if kept and not share.take(kept):
            return (
                f"incomplete answers of {self._limit.held} bytes are kept, {share.held} of them of worker {worker}: "
                f"{kept} more would be above its share of {self._limit.total}"
            )
        if kept:  # a repeated part keeps nothing
            self._claims.append((share, kept))
        return ""

    def release(self) -> None:
        """The answer is not kept any more."""
        for share, size in self._claims:
            share.give(size)
        self._claims.clear()
