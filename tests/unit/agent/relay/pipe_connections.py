"""Connections of pipes in memory, with what happens to them, and the offers of a pool that they carry."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from jellybean_agent.relay.endpoints import Endpoint, Sink
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.offers import OfferPool
from tests.support.http2_client import settle
from tests.support.simulated_time import run_in_simulated_time
from tests.unit.agent.relay.memory_endpoint import MemoryEndpoint

LIMITS = RelayLimits(pipes=2, offer_wait_s=10.0, start_s=3.0, ping_s=10.0, offer_age_s=300.0, half_closed_s=120.0)


class RecordingSink(Sink):
    """Records what happens to a connection."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def opened(self, endpoint: Endpoint) -> None:
        self.events.append("opened")

    def received(self, data: bytes) -> None:
        self.events.append(data)

    def ended(self) -> None:
        self.events.append("ended")

    def lost(self, reason: str) -> None:
        self.events.append(("lost", reason))

    def paused(self) -> None:
        self.events.append("paused")

    def resumed(self) -> None:
        self.events.append("resumed")


class Connection(MemoryEndpoint):
    """An endpoint, its transport and what its sink has noted. `socket`: a real one, for the options that are set."""

    socket: socket.socket

    def __init__(self, sink: Sink | None = None) -> None:
        self.noted = RecordingSink()
        super().__init__(sink or self.noted, self.socket)


def in_simulated_time(test: Callable[[], object]) -> None:
    """Run a test, which may be a coroutine function, and the tasks that it leaves."""

    async def run() -> None:
        found = test()
        if asyncio.iscoroutine(found):
            await found
        await settle()

    run_in_simulated_time(run)


class Offered:
    """An offer of a pool, and its tunnel's end."""

    def __init__(self, pool: OfferPool) -> None:
        self.connection = Connection()
        pool.add(self.connection.endpoint)

    def said(self) -> bytes:
        return self.connection.take()
