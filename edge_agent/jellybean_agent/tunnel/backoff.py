"""Exponential back-off between a tunnel's dials."""

from __future__ import annotations

import asyncio
import random


class Backoff:
    """Pauses that double from `first_s` to `most_s` until `reset`.

    Each is shortened at random by up to half, so that tunnels do not dial all at once.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        self.most_s = most_s
        self._first_s = self._next_s = first_s

    def reset(self) -> None:
        """Begin with the shortest pause again."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """The length of a pause, after which the next one is twice as long."""
        pause_s = min(self._next_s, self.most_s)
        self._next_s = 2 * pause_s
        return pause_s * random.uniform(0.5, 1.0)

    async def pause(self) -> None:
        """Sleep, and double the next pause."""
        await asyncio.sleep(self.next_s())
