"""A tunnel's dial: whom it accepts as a relay, time limits, TLS that fails, and pauses between dials."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from jellybean_agent import CertificateFolder, Role
from jellybean_agent.errors import TransientError
from jellybean_agent.relay.endpoints import Endpoint, Sink, TlsEndpoint, read_buffer
from jellybean_agent.relay.wire import RELAY_ALPN
from jellybean_agent.security.tls_context import client_context
from jellybean_agent.tunnel.backoff import Backoff
from jellybean_agent.tunnel.dialling import Dialler
from tests.support.relayed import RelayNet
from tests.unit.agent.relay.timed_net import in_net, pause


async def dialled(net: RelayNet, folder: Path) -> TlsEndpoint:
    return await Dialler(net.listen, CertificateFolder(folder), 5.0, read_buffer()).dial()


@pytest.mark.parametrize("role", [Role.RELAY, Role.GATEWAY])
def test_a_relay_or_a_gateway_of_the_workflow_is_dialled(tmp_path: Path, role: Role) -> None:
    async def test(net: RelayNet) -> None:
        async with tls_server(net, net.folder(role, "relay" if role is Role.RELAY else "")):
            endpoint = await dialled(net, net.folder())
            assert not endpoint.is_over
            endpoint.reset("the end")

    in_net(tmp_path, test)


@contextlib.asynccontextmanager
async def tls_server(net: RelayNet, folder: Path, alpn: str = RELAY_ALPN) -> AsyncIterator[None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.set_alpn_protocols([alpn])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, *net.listen, ssl=context):
        yield
        await pause()  # its connections end


@pytest.mark.parametrize(
    ("who", "alpn", "reason"),
    [
        ({"role": Role.AGENT, "name": "edge-2"}, RELAY_ALPN, "tiny/agent/edge-2, not a relay's of workflow tiny"),
        ({"role": Role.RELAY, "name": "relay", "workflow": "other"}, RELAY_ALPN, "other/relay/relay, not a relay's"),
        ({"role": Role.RELAY, "name": "relay"}, "h2", "does not speak jellybean-relay/1: is this the relay's --listen"),
    ],
)
def test_what_is_no_relay_of_the_workflow_is_not_used(
    tmp_path: Path, who: dict[str, Any], alpn: str, reason: str
) -> None:
    async def test(net: RelayNet) -> None:
        async with tls_server(net, net.folder(**who), alpn):
            with pytest.raises(TransientError, match=reason):
                await dialled(net, net.folder())

    in_net(tmp_path, test)


def test_a_dial_without_an_answer_fails_in_time(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        with pytest.raises(TransientError, match=rf"^127.0.0.1:{net.listen[1]}: "):
            await dialled(net, net.folder())

        async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(60.0)
            writer.close()

        async with await asyncio.start_server(silent, *net.listen):
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            with pytest.raises(TransientError, match="no answer"):
                await dialled(net, net.folder())
            assert 4.9 < loop.time() - began_s < 5.5
            await pause(61.0)

        async def closes(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(closes, *net.listen):
            with pytest.raises(TransientError):
                await dialled(net, net.folder())
            await pause()

    in_net(tmp_path, test)


def test_pauses_double_up_to_a_bound() -> None:
    backoff = Backoff(1.0, 8.0)
    for _ in range(2):
        for most_s in (1.0, 2.0, 4.0, 8.0, 8.0):
            assert most_s / 2 <= backoff.next_s() <= most_s
        backoff.reset()


def test_tls_that_fails_says_so_and_closes(tmp_path: Path) -> None:
    """Bytes that are no record, after the handshake and before it; and an end without close_notify."""

    async def test(net: RelayNet) -> None:
        lost: list[str] = []

        class Noting(Sink):
            def lost(self, reason: str) -> None:
                lost.append(reason)

        context = client_context(CertificateFolder(net.folder()).current(), (RELAY_ALPN,))
        context.check_hostname = False
        for data in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""):

            async def serve(_reader: Any, writer: asyncio.StreamWriter, data: bytes = data) -> None:
                writer.write(data)
                writer.write_eof()
                await asyncio.sleep(2.0)
                writer.close()

            async with await asyncio.start_server(serve, *net.listen):
                make: Callable[[], Endpoint] = lambda: TlsEndpoint(context.wrap_bio, Noting(), read_buffer())  # noqa: E731
                await asyncio.get_running_loop().create_connection(make, *net.listen)
                await pause(3.0)
        assert len(lost) == 2
        assert lost[0] in ("wrong version number", "packet length too long", "record layer failure")
        assert lost[1] == "it ended the connection without a word"

    in_net(tmp_path, test)
