"""A server's TLS listener in memory, and clients that speak TLS with it."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

from jellybean_agent import CertificateFolder, Identity, Role
from jellybean_agent.rpc.tls.listener import SERVER_ALPN, TlsLimits, TlsListener
from jellybean_agent.security.tls_context import ReloadingTlsContext, TlsSettings, client_context
from tests.support.http2_client import CallServer, settle
from tests.support.memory_connection import MemoryTransport
from tests.support.simulated_time import run_in_simulated_time

GATEWAY, ALICE = Identity("w", Role.GATEWAY), Identity("w", Role.CLIENT, "alice")


class Listener:
    """A server's TLS listener with these limits."""

    def __init__(self, folders: tuple[CertificateFolder, CertificateFolder], limits: TlsLimits) -> None:
        self.calls = CallServer()
        self.client_files = folders[1].current()
        context = ReloadingTlsContext.of(folders[0], TlsSettings(minimum=ssl.TLSVersion.TLSv1_2, alpn=SERVER_ALPN))
        self.tls = TlsListener(self.calls.port, context, limits)

    def accept(self, address: str = "127.0.0.1") -> MemoryTransport:
        """A new connection whose client has sent nothing yet."""
        connection = MemoryTransport(self.tls.accept())
        connection.peer = address, 40_000
        connection.connect()
        return connection

    def client(self, *alpn: str, address: str = "127.0.0.1") -> Client:
        """A new connection with a client that speaks TLS."""
        return Client(self.accept(address), client_context(self.client_files, alpn or ("h2",)))


class Client:
    """The client of a connection: its TLS and the bytes that it has read."""

    def __init__(self, connection: MemoryTransport, context: ssl.SSLContext) -> None:
        self.connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=GATEWAY.tls_name)

    def shake_hands(self, pieces: int = 0) -> Client:
        """Complete the handshake."""
        for _ in range(10):
            if self.step(pieces):
                return self
        raise AssertionError("the handshake does not end")

    def step(self, pieces: int = 0) -> bool:
        """Continue the handshake; True once it is complete."""
        try:
            self.tls.do_handshake()
            return True
        except ssl.SSLWantReadError:
            return False
        finally:
            self._exchange(pieces)

    def _exchange(self, pieces: int = 0) -> None:
        self.connection.receive(self._outgoing.read(), pieces)
        self._incoming.write(self.connection.take())

    def send(self, data: bytes, pieces: int = 0) -> None:
        """Send bytes."""
        for at in range(0, len(data), 2**14):
            self.tls.write(data[at : at + 2**14])
        self._exchange(pieces)

    async def read(self) -> bytes:
        """What the server has sent; nothing more after its close_notify."""
        await settle()
        self._exchange()
        data = b""
        try:
            while part := self.tls.read(2**16):
                data += part
        except ssl.SSLWantReadError:
            pass
        return data

    def has_been_closed(self) -> bool:
        """Whether the server has sent close_notify."""
        try:
            return self.tls.read(1) == b""
        except ssl.SSLWantReadError:
            return False


def in_simulated_time(
    folders: tuple[CertificateFolder, CertificateFolder],
    limits: TlsLimits,
    test: Callable[[Listener], Awaitable[None]],
) -> None:
    async def run() -> None:
        await test(Listener(folders, limits))

    run_in_simulated_time(run)
