"""A relay and tunnels with real sockets and certificates: bytes, ends, limits and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
from pathlib import Path

import pytest

from jellybean.serving import open_authority
from jellybean_agent import CERTIFICATE_FILE, PRIVATE_KEY_FILE, CertificateFolder, Identity, Role
from jellybean_agent.errors import TransientError
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.wire import ACCEPTED, OFFER, PING, REFUSED, RELAY_ALPN, Greeting, parse_refusal
from jellybean_agent.security.tls_context import client_context
from jellybean_agent.tunnel.conversation import Conversation
from jellybean_agent.tunnel.dialling import Dialler
from tests.support.ports import free_port
from tests.support.relayed import QUICK, RelayNet, echo_server, exchange, offers
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.slow

BLOCK = random.Random(1).randbytes(3_000_000)


def test_bytes_and_ends_pass_in_both_directions_and_are_counted(tmp_path: Path) -> None:
    async def run() -> None:
        net = RelayNet(tmp_path)
        async with echo_server() as agent, net.relay() as relay, net.tunnel(agent) as tunnel:
            assert await exchange(net.ports["edge-1"], BLOCK) == BLOCK
            answers = await asyncio.gather(*(exchange(net.ports["edge-1"], BLOCK[:1000]) for _ in range(20)))
            assert answers == [BLOCK[:1000]] * 20
            await wait_until_async(lambda: not relay.traffic.open.total() + tunnel.traffic.open.total())
            for traffic in (relay.traffic, tunnel.traffic):
                assert traffic.connections == {("edge-1", "to_worker"): 21}
                size = len(BLOCK) + 20_000
                assert traffic.bytes == {("edge-1", "to_worker"): size, ("edge-1", "from_worker"): size}
            await offers(relay, count=4)
            assert relay.offers() == {"edge-1": 4, "edge-2": 0}

    asyncio.run(run())


def test_a_worker_reaches_targets_and_other_workers_by_name_and_nothing_else(tmp_path: Path) -> None:
    async def run() -> None:
        async with echo_server() as agent, echo_server(b"2: ") as second, echo_server(b"gateway: ") as gateway:
            targets = {"": ("127.0.0.1", gateway), "cloud-1": ("127.0.0.1", free_port())}
            net = RelayNet(tmp_path, targets=targets)
            names = ("", "edge-2", "cloud-1", "elsewhere")
            peers = {free_port(): name for name in names}
            port = {name: number for number, name in peers.items()}
            async with net.relay() as relay, net.tunnel(agent, peers=peers), net.tunnel(second, "edge-2"):
                await offers(relay, "edge-2")
                assert await exchange(port[""], b"hello") == b"gateway: hello"
                assert await exchange(port["edge-2"], BLOCK) == b"2: " + BLOCK
                for name in ("cloud-1", "elsewhere"):
                    with pytest.raises(ConnectionError):
                        await exchange(port[name], b"hello")
                assert relay.traffic.refusals == {"dial": 1, "unknown_target": 1}
                assert relay.traffic.failed_dials == {"cloud-1": 1}
                assert relay.traffic.bytes["edge-2", "to_worker"] == len(BLOCK)
                assert relay.traffic.bytes["edge-1", "from_worker"] == len(BLOCK) + 5

    asyncio.run(run())


def test_a_half_close_ends_one_direction_only(tmp_path: Path) -> None:
    async def run() -> None:
        ended = asyncio.Event()

        async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()  # until the end
            ended.set()
            for _ in range(10):
                writer.write(BLOCK[:100_000])
                await asyncio.sleep(0.001)
            writer.close()

        server = await asyncio.start_server(answer_late, "127.0.0.1", 0)
        net = RelayNet(tmp_path)
        async with server, net.relay(), net.tunnel(server.sockets[0].getsockname()[1]):
            assert await exchange(net.ports["edge-1"], b"request") == BLOCK[:100_000] * 10
            assert ended.is_set()

    asyncio.run(run())


@pytest.mark.parametrize("side", ["client", "agent"])
def test_a_reset_passes(tmp_path: Path, side: str) -> None:
    async def run() -> None:
        outcomes: asyncio.Queue[str] = asyncio.Queue()

        def reset(writer: asyncio.StreamWriter) -> None:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            if side == "agent":
                reset(writer)
                return
            writer.write(b"x")
            try:
                await reader.read(1)
                outcomes.put_nowait("end")
            except ConnectionResetError:
                outcomes.put_nowait("reset")
            writer.close()

        server = await asyncio.start_server(agent, "127.0.0.1", 0)
        net = RelayNet(tmp_path)
        async with server, net.relay() as relay, net.tunnel(server.sockets[0].getsockname()[1]):
            reader, writer = await asyncio.open_connection("127.0.0.1", net.ports["edge-1"])
            writer.write(b"1")
            if side == "client":
                await reader.read(1)
                reset(writer)
                assert await outcomes.get() == "reset"
            else:
                with pytest.raises(ConnectionResetError):
                    await reader.read(1)
                writer.close()
            await wait_until_async(lambda: not relay.traffic.open.total())

    asyncio.run(run())


@pytest.mark.slow
def test_a_reader_that_stops_is_not_sent_more_than_the_buffers_hold(tmp_path: Path) -> None:
    async def run() -> None:
        may_read = asyncio.Event()
        got = 0

        async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal got
            await may_read.wait()
            while data := await reader.read(2**16):
                got += len(data)
            writer.close()

        server = await asyncio.start_server(agent, "127.0.0.1", 0, limit=2**16)
        net = RelayNet(tmp_path)
        async with server, net.relay() as relay, net.tunnel(server.sockets[0].getsockname()[1]):
            _, writer = await asyncio.open_connection("127.0.0.1", net.ports["edge-1"])
            size = 200_000_000
            data = bytes(1_000_000)
            sending = asyncio.ensure_future(_send(writer, data, size))
            await wait_until_async(lambda: relay.traffic.bytes["edge-1", "to_worker"] > 0)
            last = -1
            while last != relay.traffic.bytes["edge-1", "to_worker"]:
                last = relay.traffic.bytes["edge-1", "to_worker"]
                await asyncio.sleep(0.2)
            assert last < size / 2  # what the kernel's buffers hold of six sockets, and the processes' own
            may_read.set()
            await sending
            await wait_until_async(lambda: got == size)

    asyncio.run(run())


async def _send(writer: asyncio.StreamWriter, data: bytes, size: int) -> None:
    for _ in range(size // len(data)):
        writer.write(data)
        await writer.drain()
    writer.close()


def test_without_an_offer_a_connection_waits_then_is_closed(tmp_path: Path) -> None:
    async def run() -> None:
        net = RelayNet(tmp_path, RelayLimits(offer_wait_s=0.2))
        async with echo_server() as agent, net.relay() as relay:
            with pytest.raises(ConnectionError):
                await exchange(net.ports["edge-1"], b"hello")
            assert relay.traffic.refusals == {"no_offer": 1}
        net = RelayNet(tmp_path)
        async with echo_server() as agent, net.relay():
            early = asyncio.ensure_future(exchange(net.ports["edge-1"], b"hello"))
            await asyncio.sleep(0.05)
            async with net.tunnel(agent):
                assert await early == b"hello"

    asyncio.run(run())


def test_an_agent_that_is_down_closes_the_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        net = RelayNet(tmp_path)
        async with net.relay() as relay, net.tunnel(free_port()) as tunnel:
            for _ in range(3):
                with pytest.raises(ConnectionError):
                    await exchange(net.ports["edge-1"], b"hello")
            assert relay.traffic.refusals == {"no_offer": 3}
            assert tunnel.traffic.failed_dials == {"agent": 3}
            await offers(relay, count=4)

    asyncio.run(run())
    assert sum("the agent is not reached" in line for line in caplog.messages) == 1


def test_more_connections_than_a_worker_may_have_are_refused(tmp_path: Path) -> None:
    async def run() -> None:
        net = RelayNet(tmp_path, RelayLimits(pipes=2, offers=2))
        async with echo_server() as agent, net.relay() as relay, net.tunnel(agent, offers=4):
            await offers(relay, count=2)
            await wait_until_async(lambda: relay.traffic.refusals["too_many_offers"] >= 2)
            assert set(relay.traffic.refusals) == {"too_many_offers"}
            held = [await asyncio.open_connection("127.0.0.1", net.ports["edge-1"]) for _ in range(2)]
            for reader, writer in held:
                writer.write(b"1")
                assert await reader.read(1) == b"1"
            with pytest.raises(ConnectionError):
                await exchange(net.ports["edge-1"], b"hello")
            assert relay.traffic.refusals["too_many_connections"] == 1
            held[0][1].close()
            await wait_until_async(lambda: relay.traffic.open.total() == 1)
            assert await exchange(net.ports["edge-1"], b"hello") == b"hello"
            held[1][1].close()

    asyncio.run(run())


def test_connections_without_a_greeting_are_few_and_short(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        net = RelayNet(tmp_path, RelayLimits(unknown=3, greeting_s=0.3))
        async with net.relay() as relay:
            silent = [await asyncio.open_connection(*net.listen) for _ in range(5)]
            for reader, writer in silent:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
            assert relay.traffic.refusals == {"handshake": 5}
            reader, writer = await asyncio.open_connection(*net.listen)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert not (await reader.read()).startswith(b"HTTP")
            writer.close()
            await wait_until_async(lambda: relay.traffic.refusals["handshake"] == 6)

    asyncio.run(run())
    assert sum("too many connections without a greeting" in line for line in caplog.messages) == 1
    assert sum("no TLS handshake and greeting within 0.3 s" in line for line in caplog.messages) == 1


async def _said(net: RelayNet, folder: Path, data: bytes, alpn: str = RELAY_ALPN) -> bytes:
    """What the relay answers to the first bytes on a connection of a certificate."""
    context = client_context(CertificateFolder(folder).current(), (alpn,))
    name = Identity("tiny", Role.RELAY, "relay").tls_name
    try:
        reader, writer = await asyncio.open_connection(*net.listen, ssl=context, server_hostname=name)
        writer.write(data)
        found = await reader.read(300)
    except (ssl.SSLError, ConnectionError):
        return b""
    writer.close()
    return found


def test_only_agents_of_the_workflow_are_let_in_and_only_by_the_protocol(tmp_path: Path) -> None:
    async def run() -> None:
        net = RelayNet(tmp_path)
        offer = Greeting(OFFER).encode()
        async with net.relay() as relay:
            for folder, data, why in (
                (net.folder(Role.CLIENT, "alice"), offer, "client alice is no agent"),
                (net.folder(Role.GATEWAY, ""), offer, "gateway is no agent"),
                (net.folder(workflow="other"), offer, "agent edge-1 is of workflow other, this is tiny"),
                (net.folder(name="cloud-1"), offer, "agent cloud-1 is no remote worker of this relay"),
                (net.folder(), b"GET / HTTP", "its first byte is no kind of connection"),
                (net.folder(), OFFER + b"\0\xff\xff", "its name has 65535 bytes, at most 1024 are allowed"),
                (net.folder(), offer + b"more", "it sends more before it has an answer"),
            ):
                found = await _said(net, folder, data)
                assert found[:1] == REFUSED, why
                assert parse_refusal(found) == why
            assert parse_refusal(await _said(net, net.folder(), offer, "h2")) == (
                "agent edge-1 does not speak jellybean-relay/1"
            )
            assert relay.offers() == {"edge-1": 0, "edge-2": 0}
            assert relay.traffic.refusals == {"role": 2, "workflow": 1, "unknown_worker": 1, "greeting": 4}
            assert await _said(net, net.folder(), offer) == b"A"

    asyncio.run(run())


def test_a_foreign_and_an_expired_certificate_are_refused_with_a_reason_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        net = RelayNet(tmp_path)
        other, mixed = open_authority(tmp_path / "other-ca"), tmp_path / "mixed"
        async with echo_server() as agent, net.relay() as relay, net.tunnel(agent) as tunnel:
            await offers(relay)
            other.equip(mixed, Identity("tiny", Role.AGENT, "edge-1"))
            (mixed / "ca.crt").write_bytes(net.authority.bundle)
            for _ in range(3):
                with pytest.raises(TransientError, match="unknown ca"):
                    await _offered(net, mixed)
            assert relay.traffic.refusals == {"handshake": 3}
            folder = net.folder(life_s=3600.0)
            found = CertificateFolder(folder)
            net.folder(life_s=-60.0)
            with pytest.raises(TransientError, match="certificate expired"):
                await _offered(net, folder, found)
            net.folder()  # renewed: taken up without a restart
            await _offered(net, folder, found)
            assert tunnel.traffic.failed_dials == {}

    asyncio.run(run())
    refusals = [line for line in caplog.messages if line.startswith("refused: ")]
    assert len(refusals) == 2
    assert "issuer certificate" in refusals[0]
    assert "expired" in refusals[1]


async def _offered(net: RelayNet, folder: Path, found: CertificateFolder | None = None) -> None:
    dialler = Dialler(net.listen, found or CertificateFolder(folder), 5.0, memoryview(bytearray(2**16)))
    endpoint = await dialler.dial()
    accepted = asyncio.Event()
    conversation = Conversation(endpoint, 5.0)
    offering = asyncio.ensure_future(conversation.offer(accepted.set))
    waiting = asyncio.ensure_future(accepted.wait())
    await asyncio.wait([offering, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if offering.done():
        offering.result()
    offering.cancel()
    await asyncio.gather(offering, waiting, return_exceptions=True)


def test_a_tunnel_offers_only_the_worker_of_its_certificate(tmp_path: Path) -> None:
    async def run() -> None:
        net = RelayNet(tmp_path, RelayLimits(offer_wait_s=0.2))
        async with echo_server() as agent, net.relay() as relay, net.tunnel(agent, "edge-1"):
            await offers(relay, "edge-1", 4)
            assert relay.offers()["edge-2"] == 0
            assert parse_refusal(await _said(net, net.folder(), Greeting(OFFER, "edge-2").encode())) is None
            with pytest.raises(ConnectionError):
                await exchange(net.ports["edge-2"], b"hello")

    asyncio.run(run())


@pytest.mark.parametrize(("role", "name"), [(Role.AGENT, "edge-2"), (Role.CLIENT, "alice")])
def test_a_tunnel_refuses_a_relay_with_another_certificate(tmp_path: Path, role: Role, name: str) -> None:
    async def run() -> None:
        net = RelayNet(tmp_path)
        folder = net.folder(role, name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / CERTIFICATE_FILE, folder / PRIVATE_KEY_FILE)
        context.set_alpn_protocols([RELAY_ALPN])
        server = await asyncio.start_server(lambda _, writer: writer.close(), *net.listen, ssl=context)
        async with server:
            with pytest.raises(TransientError, match=f"tiny/{role.value}/{name}, not a relay's of workflow tiny"):
                await _offered(net, net.folder())

    asyncio.run(run())


def test_a_silent_relay_and_a_silent_tunnel_are_noticed(tmp_path: Path) -> None:
    async def run() -> None:
        net = RelayNet(tmp_path, RelayLimits(ping_s=0.1, silence_s=5.0))
        async with echo_server() as agent, net.relay() as relay, net.tunnel(agent, offers=1):
            await offers(relay)
            reader, writer = await _connected(net)
            writer.write(Greeting(OFFER).encode())
            await offers(relay, count=2)
            with pytest.raises(ConnectionError):  # it has answered no ping
                while await reader.read(1) in (ACCEPTED, PING):
                    pass
            assert relay.offers()["edge-1"] == 1
            writer.close()
        net.limits = RelayLimits(ping_s=60.0, silence_s=0.1)
        async with echo_server() as agent, net.relay() as relay, net.tunnel(agent, offers=1) as tunnel:
            await offers(relay)
            await wait_until_async(lambda: tunnel.offers()["edge-1"] == 0)
            await offers(relay)

    asyncio.run(run())


async def _connected(net: RelayNet) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = client_context(CertificateFolder(net.folder()).current(), (RELAY_ALPN,))
    name = Identity("tiny", Role.RELAY, "relay").tls_name
    return await asyncio.open_connection(*net.listen, ssl=context, server_hostname=name)


def test_idle_offers_are_renewed_and_a_connection_finds_the_next_one(tmp_path: Path) -> None:
    async def run() -> None:
        net = RelayNet(tmp_path, RelayLimits(offer_age_s=0.1))
        async with echo_server() as agent, net.relay() as relay, net.tunnel(agent) as tunnel:
            await offers(relay)
            for _ in range(5):
                assert await exchange(net.ports["edge-1"], b"hello") == b"hello"
                await asyncio.sleep(0.05)
            assert tunnel.traffic.failed_dials == {}

    asyncio.run(run())


def test_pipes_finish_when_the_relay_drains_and_are_reset_when_they_do_not(tmp_path: Path) -> None:
    async def run() -> None:
        net = RelayNet(tmp_path, QUICK)
        async with echo_server() as agent, net.relay() as relay, net.tunnel(agent):
            await offers(relay, count=2)
            held = [await asyncio.open_connection("127.0.0.1", net.ports["edge-1"]) for _ in range(2)]
            for reader, writer in held:
                writer.write(b"1")
                assert await reader.read(1) == b"1"
            stopping = asyncio.ensure_future(relay.stop(0.3))
            await asyncio.sleep(0.05)
            with pytest.raises(ConnectionError):
                await asyncio.open_connection("127.0.0.1", net.ports["edge-1"])
            held[0][1].write(b"2")
            assert await held[0][0].read(1) == b"2"
            held[0][1].write_eof()
            assert await held[0][0].read() == b""
            assert await stopping == 1
            with pytest.raises(ConnectionError):
                await held[1][0].read(1)
            for _, writer in held:
                writer.close()

    asyncio.run(run())
