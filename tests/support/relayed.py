"""Relays, tunnels and echoing servers for tests, in this process's event loop and with real certificates."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jellybean.serving import Authority, open_authority
from jellybean_agent import CertificateFolder, Identity, Role
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.server import Relay, Routes
from jellybean_agent.tunnel.tunnel import Tunnel, TunnelSettings
from tests.support.ports import free_port
from tests.support.waiting import wait_until_async

WORKFLOW = "tiny"
QUICK = RelayLimits(offer_wait_s=1.0, start_s=0.5)


@dataclass
class RelayNet:
    """A relay with two remote workers, edge-1 and edge-2, and the ports of it.

    `deployment`: ID of relay and tunnels. `dialled`: where tunnels dial, the relay's own address unless it is set.
    """

    root: Path
    limits: RelayLimits = QUICK
    targets: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    deployment: str = ""
    dialled: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        self.authority: Authority = open_authority(self.root / "ca")
        self.listen = ("127.0.0.1", free_port())
        self.ports = {"edge-1": free_port(), "edge-2": free_port()}

    def folder(self, role: Role = Role.AGENT, name: str = "edge-1", workflow: str = WORKFLOW, **more: object) -> Path:
        """A folder with a certificate, made or renewed."""
        found = self.root / workflow / role.value / (name or "gateway")
        self.authority.equip(found, Identity(workflow, role, name), **more)  # type: ignore[arg-type]
        return found

    @contextlib.asynccontextmanager
    async def relay(self, drain_s: float = 0.0) -> AsyncIterator[Relay]:
        """The relay, until the context ends."""
        routes = Routes({port: name for name, port in self.ports.items()}, self.targets)
        relay = Relay(CertificateFolder(self.folder(Role.RELAY, "relay")), routes, self.limits, self.deployment)
        await relay.start(self.listen, "127.0.0.1")
        try:
            yield relay
        finally:
            await relay.stop(drain_s)

    @contextlib.asynccontextmanager
    async def tunnel(
        self, agent: int, name: str = "edge-1", peers: Mapping[int, str] | None = None, **more: Any
    ) -> AsyncIterator[Tunnel]:
        """The tunnel of a worker whose agent listens on a port."""
        at = ("127.0.0.1", agent)
        own = {"limits": self.limits, "deployment": self.deployment}
        settings = TunnelSettings(self.dialled or self.listen, name, at, peers or {}, **{**own, **more})
        tunnel = Tunnel(settings, CertificateFolder(self.folder(name=name)))
        await tunnel.start(lambda _: None)
        try:
            yield tunnel
        finally:
            await tunnel.stop(0.0)


@contextlib.asynccontextmanager
async def echo_server(prefix: bytes = b"") -> AsyncIterator[int]:
    """The port of a server that answers what it reads with the same, behind a prefix, and an end with an end."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(prefix)
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def exchange(port: int, data: bytes) -> bytes:
    """What a server answers to data and its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


async def offers(relay: Relay, worker: str = "edge-1", count: int = 1) -> None:
    """Wait until a worker has so many idle offers."""
    await wait_until_async(lambda: relay.offers()[worker] >= count)
