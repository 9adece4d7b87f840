"""Long computations in the event loop: one short step a turn, of their clients one after another.

Python's JSON does not release the interpreter, so a thread would hold everybody up for up to 5 ms at a time, again and
again. A turn takes half a millisecond, and between two of them the loop does everything else that is due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from jellybean_agent.admission.turns import ClientTurns

STEP_S = 0.0005
Result = TypeVar("Result")
# Does less than half a millisecond of work, again and again, then returns a result.
Steps = Generator[None, None, Result]


class StepTurns:
    """The computations of one event loop, in steps."""

    def __init__(self) -> None:
        self._turns = ClientTurns()

    async def run(self, client: str, steps: Steps[Result]) -> Result:
        """Compute the result of `steps`."""
        while True:
            async with self._turns.turn(client):
                until_s = time.perf_counter() + STEP_S
                try:
                    while time.perf_counter() < until_s:
                        next(steps)
                except StopIteration as done:
                    result: Result = done.value
                    return result
            await asyncio.sleep(0)

    def turn(self, client: str) -> AbstractAsyncContextManager[None]:
        """A turn of the client at work that is no generator, and has steps of its own."""
        return self._turns.turn(client)

    async def pieces(self, client: str, steps: Generator[bytes, None, None]) -> AsyncIterator[bytes]:
        """What `steps` make, joined by turns."""
        is_over = False
        while not is_over:
            made: list[bytes] = []
            async with self._turns.turn(client):
                until_s = time.perf_counter() + STEP_S
                while not is_over and time.perf_counter() < until_s:
                    piece = next(steps, None)
                    is_over = piece is None
                    made.append(piece or b"")
            yield b"".join(made)
            await asyncio.sleep(0)


def at_once(steps: Steps[Result]) -> Result:
    """The result of `steps`, without turns."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Result = done.value
            return result
