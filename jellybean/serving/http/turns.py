"""Long computations in the event loop: one short step a turn, of their clients one after another.

Python's JSON does not release the interpreter, so a thread would hold everybody up for up to 5 ms at a time, again and
again. A turn takes half a millisecond, and between two of them the loop does everything else that is due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator
from contextlib import AsyncExitStack
from typing import TypeVar
from weakref import WeakValueDictionary

STEP_S = 0.0005
Result = TypeVar("Result")
Steps = Generator[
    None, None, Result
]  # does less than half a millisecond of work, again and again, then returns a result


class Turns:
    """The computations of one event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # first in, first out
        self._clients: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, client: str, steps: Steps[Result]) -> Result:
        """Compute the result of `steps`."""
        while True:
            async with self._next(client):
                until_s = time.perf_counter() + STEP_S
                try:
                    while time.perf_counter() < until_s:
                        next(steps)
                except StopIteration as done:
                    result: Result = done.value
                    return result
            await asyncio.sleep(0)

    async def pieces(self, client: str, steps: Generator[bytes, None, None]) -> AsyncIterator[bytes]:
        """What `steps` make, joined by turns."""
        is_over = False
        while not is_over:
            made: list[bytes] = []
            async with self._next(client):
                until_s = time.perf_counter() + STEP_S
                while not is_over and time.perf_counter() < until_s:
                    piece = next(steps, None)
                    is_over = piece is None
                    made.append(piece or b"")
            yield b"".join(made)
            await asyncio.sleep(0)

    def _next(self, client: str) -> AsyncExitStack:
        """The next turn of a client, which has one at a time however many computations it asks for."""
        turn = self._clients.get(client)
        if turn is None:
            turn = self._clients[client] = asyncio.Lock()
        return _Both(turn, self._turn)


class _Both(AsyncExitStack):
    """Two locks, one after the other."""

    def __init__(self, *locks: asyncio.Lock) -> None:
        super().__init__()
        self._locks = locks

    async def __aenter__(self) -> _Both:
        try:
            for lock in self._locks:
                await self.enter_async_context(lock)
        except BaseException:
            await self.aclose()
            raise
        return self


def at_once(steps: Steps[Result]) -> Result:
    """The result of `steps`, without turns."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Result = done.value
            return result
