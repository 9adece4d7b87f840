"""Turns at work that clients share: one after another, however much each of them waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class ClientTurns:
    """One turn at a time, of one event loop.

    A client has one place among those that wait, so it waits for one turn of each other client.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # first in, first out
        self._clients: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for the client's turn, which lasts as long as this context."""
        of_client = self._clients.get(client)
        if of_client is None:
            of_client = self._clients[client] = asyncio.Lock()
        async with of_client, self._turn:
            yield
