"""Relays, tunnels and connections to them in simulated time, over real sockets and TLS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from jellybean_agent import CertificateFolder, Identity, Role
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.wire import RELAY_ALPN
from jellybean_agent.security.tls_context import client_context
from tests.support.relayed import RelayNet
from tests.support.simulated_time import run_in_simulated_time

IN_FLIGHT_S = 0.002  # for TCP on this machine
LIMITS = RelayLimits()


def in_net(folder: Path, test: Callable[[RelayNet], Awaitable[None]], **net: Any) -> None:
    """Run a test with a `RelayNet` of these settings in simulated time."""

    async def run() -> None:
        await test(RelayNet(folder, net.pop("limits", LIMITS), **net))

    run_in_simulated_time(run, IN_FLIGHT_S)


@contextlib.asynccontextmanager
async def connected(net: RelayNet, folder: Path | None = None, alpn: str = RELAY_ALPN) -> AsyncIterator[Any]:
    """A TLS connection to the relay, as a tunnel makes it."""
    context = client_context(CertificateFolder(folder or net.folder()).current(), (alpn,))
    name = Identity("tiny", Role.RELAY, "relay").tls_name
    reader, writer = await asyncio.open_connection(*net.listen, ssl=context, server_hostname=name)
    try:
        yield reader, writer
    finally:
        writer.close()


async def pause(seconds: float = 0.5) -> None:
    """Let simulated time pass, and the connections that are under way be made."""
    await asyncio.sleep(seconds)
