"""Message streams over TLS, in simulated time: opened, moved, refused, and answered by a server without them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from jellybean.serving import open_authority
from jellybean_agent import (
    DELIVER_METHOD,
    CertificateFolder,
    Identity,
    Inboxes,
    Peer,
    PeerSettings,
    Policy,
    Role,
    Transport,
    UnixSocketRpcUnsupportedError,
    agent_service_handler,
)
from jellybean_agent.errors import TransientError
from jellybean_agent.rpc.tls.stream import TlsStream
from jellybean_agent.rpc.unix_socket_frames import STREAMS_ALPN
from jellybean_agent.security.tls_context import client_context
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.simulated_time import run_in_simulated_time

SENDER, RECEIVER = Identity("w", Role.AGENT, "a-1"), Identity("w", Role.AGENT, "b-1")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a sender, a receiver and another worker."""
    found = tmp_path_factory.mktemp("certificates")
    authority = open_authority(found / "ca")
    for name in ("a-1", "b-1", "c-1"):
        authority.equip(found / name, Identity("w", Role.AGENT, name))
    return found


class Link:
    """A receiver's server, and a peer that sends to it."""

    def __init__(self, root: Path, receiver: str = "b-1", renew_s: float = 10.0) -> None:
        self.got: list[str] = []
        self.lost: list[tuple[str, list[str]]] = []
        self.inboxes = Inboxes(lambda message, _: self.got.append(message.request_id), lambda _: False)
        ours = Transport("w", CertificateFolder(root / receiver), renew_s=renew_s)
        self.server = ours.server(Policy("w", ("a-1",)))
        self.server.add_generic_rpc_handlers((agent_service_handler(),))
        self.server.add_raw_stream(DELIVER_METHOD, self.inboxes.deliver_raw)
        self.address = f"127.0.0.1:{ours.bind(self.server, '127.0.0.1:0')}"
        theirs = Transport("w", CertificateFolder(root / "a-1"), renew_s=renew_s)
        self.peer = Peer("b-1", self.address, PeerSettings("a-1", theirs), on_lost=self._lost)

    def _lost(self, _name: str, reason: str, messages: Any) -> None:
        self.lost.append((reason, [message.request_id for message in messages]))

    def put(self, number: int, size: int = 4) -> None:
        tensor = agent_pb2.Tensor(dtype="uint8", shape=[size], data=bytes(size))
        self.peer.put(agent_pb2.Message(request_id=str(number), downstream="op", tensor=tensor))


def linked(root: Path, test: Callable[[Link], Awaitable[None]], **more: Any) -> None:
    async def run() -> None:
        link = Link(root, **more)
        await link.server.start()
        link.peer.start()
        try:
            await test(link)
        finally:
            await link.peer.close()
            await link.server.stop(0.1)
            await asyncio.sleep(0.1)

    run_in_simulated_time(run, 0.002)


def test_messages_of_every_size_arrive_in_order(root: Path) -> None:
    async def test(link: Link) -> None:
        for number in range(40):
            link.put(number, 200_000 if number % 10 == 3 else number)
        await asyncio.sleep(2.0)
        assert link.got == [str(number) for number in range(40)]
        assert link.lost == []
        assert link.server.open_connections == 1
        link.peer.end()
        await asyncio.sleep(0.5)
        assert link.inboxes.senders() == frozenset()

    linked(root, test)


def test_a_stream_moves_to_a_new_connection_with_the_certificates_lifetime(root: Path) -> None:
    async def test(link: Link) -> None:
        for number in range(25):
            link.put(number)
            await asyncio.sleep(1.0)
        assert link.got == [str(number) for number in range(25)]
        assert link.lost == []
        assert link.server.open_connections == 1, "the old connections have ended"

    linked(root, test)


def test_a_server_with_another_certificate_is_not_sent_anything(root: Path) -> None:
    async def test(link: Link) -> None:
        link.put(1)
        await asyncio.sleep(0.05)
        ((reason, messages),) = link.lost
        assert "TLS" in reason and "hostname mismatch" in reason
        assert (link.got, messages) == ([], ["1"])

    linked(root, test, receiver="c-1")


def test_a_server_without_streams_says_so_by_its_protocol(root: Path) -> None:
    async def run() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(root / "b-1/tls.crt", root / "b-1/tls.key")
        context.set_alpn_protocols(["h2"])

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        credentials = CertificateFolder(root / "a-1").current()
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            for alpn, kind in (((STREAMS_ALPN, "h2"), UnixSocketRpcUnsupportedError), ((STREAMS_ALPN,), Exception)):
                tls = client_context(credentials, alpn), RECEIVER.tls_name
                stream = TlsStream(address, tls, DELIVER_METHOD, (), lambda _: None)
                stream.start()
                await asyncio.wait({stream.ended})
                assert isinstance(stream.ended.exception(), kind)
            await asyncio.sleep(0.5)
        refused = TlsStream(address, tls, DELIVER_METHOD, (), lambda _: None)
        refused.start()
        await asyncio.wait({refused.ended})
        assert isinstance(refused.ended.exception(), TransientError)
        assert str(refused.ended.exception()).startswith(f"cannot connect to {address}: ")

    run_in_simulated_time(run, 0.002)
