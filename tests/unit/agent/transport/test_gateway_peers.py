"""Several gateways at a worker: who may make itself known, which of them gets a message, and when one is forgotten."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from jellybean.serving import open_authority
from jellybean_agent import (
    DELIVER_METHOD,
    CertificateFolder,
    Identity,
    Inboxes,
    PeerSettings,
    PlanViewError,
    Policy,
    ReplyAddress,
    Role,
    RpcServer,
    StatusError,
    Transport,
    agent_service_handler,
    tls_auth_context,
)
from jellybean_agent.transport import gateway_peers
from jellybean_agent.transport.gateway_peers import MAX_GATEWAYS, GatewayPeers
from jellybean_agent.transport.inboxes import MAX_STREAMS, StreamSource
from jellybean_agent.transport.reply_address import gateway_key, read_reply_address
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.waiting import wait_until_async

PLAIN = Transport("w", insecure=True)
FIRST, SECOND = ReplyAddress("0" * 8, ""), ReplyAddress("f" * 8, "")


@dataclass
class Call:
    """The context of a call with this metadata; `names`: in the caller's certificate."""

    metadata: Mapping[str, str]
    names: tuple[str, ...] = ()
    caller: str = "ipv4:10.0.0.7:31000"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.metadata.items())

    def auth_context(self) -> Mapping[str, object]:
        return tls_auth_context(self.names) if self.names else {}

    def peer(self) -> str:
        return self.caller


def stated(address: str, key: str = FIRST.key) -> dict[str, str]:
    return dict(ReplyAddress(key, address).metadata)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("127.0.0.1:7001", "127.0.0.1:7001"),
        ("[::1]:7001", "[::1]:7001"),
        ("::1:7001", "[::1]:7001"),  # as of a pod, whose address has no brackets
        ("unix:/run/x/gateway.sock", "unix:/run/x/gateway.sock"),
    ],
)
def test_the_address_of_a_gateway(address: str, found: str) -> None:
    one, other = ReplyAddress.of(address, PLAIN), ReplyAddress.of(address, PLAIN)
    assert one.address == found
    assert one.key != other.key, "each process has a key of its own"
    assert gateway_key(f"{one.request_prefix}0123abcd-17") == one.key
    assert gateway_key("0123abcd-17") == "", "the only gateway has none"


def test_an_address_that_workers_cannot_call_is_refused() -> None:
    with pytest.raises(PlanViewError, match=r"127\.0\.0\.1 and"):
        ReplyAddress.of("fd00::7:7001", PLAIN)
    with pytest.raises(PlanViewError, match="TCP needs a certificate"):
        ReplyAddress.of("10.0.0.7:7001", Transport("w"))


def test_a_stream_that_states_no_reply_address() -> None:
    assert read_reply_address(Call({}), PLAIN) is None


def test_only_a_gateways_certificate_says_where_answers_go(tmp_path: Path) -> None:
    open_authority(tmp_path / "ca").equip(tmp_path / "own", Identity("w", Role.AGENT, "a-1"))
    secure = Transport("w", CertificateFolder(tmp_path / "own"))
    metadata = stated("10.0.0.7:7001")
    gateway = (Identity("w", Role.GATEWAY).uri,)
    assert read_reply_address(Call(metadata, gateway), secure) == ReplyAddress(FIRST.key, "10.0.0.7:7001")
    for role, name in ((Role.AGENT, "edge-1"), (Role.ADMIN, "alice"), (Role.CLIENT, "alice")):
        with pytest.raises(StatusError, match=f"{role.value} {name} is no gateway") as refused:
            read_reply_address(Call(metadata, (Identity("w", role, name).uri,)), secure)
        assert refused.value.status is grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(StatusError, match="without a certificate is no gateway"):
        read_reply_address(Call(metadata), secure)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (stated("127.0.0.1:7001", "a-b"), "no key of a gateway"),
        (stated("127.0.0.1:7001", "x" * 10_000), "no key of a gateway"),
        (stated("10.0.0.7:7001"), "--insecure works on 127.0.0.1 and"),
        (stated("nonsense"), "is no address"),
        (stated(""), "is no address"),
        (stated("unix:/var/run/other.sock"), "a socket of this machine"),
    ],
)
def test_reply_addresses_that_are_refused(metadata: dict[str, str], reason: str) -> None:
    with pytest.raises(StatusError, match=re.escape(reason)) as refused:
        read_reply_address(Call(metadata), PLAIN)
    assert refused.value.status is grpc.StatusCode.INVALID_ARGUMENT


def test_a_caller_on_a_unix_socket_may_name_one() -> None:
    call = Call(stated("unix:/run/x/gateway.sock"), caller="unix:")
    assert read_reply_address(call, Transport("w")) == ReplyAddress(FIRST.key, "unix:/run/x/gateway.sock")


@dataclass
class Gateway:
    """A gateway's server, that notes what it got."""

    socket: str
    key: str
    got: list[str] = field(default_factory=list)

    @property
    def reply(self) -> ReplyAddress:
        return ReplyAddress(self.key, self.socket)

    async def start(self) -> RpcServer:
        inboxes = Inboxes(lambda found, _: self.got.append(found.request_id), lambda _: False)
        server = PLAIN.server(Policy("w", ("a-1",)))
        server.add_generic_rpc_handlers((agent_service_handler(),))
        server.add_raw_stream(DELIVER_METHOD, inboxes.deliver_raw)
        PLAIN.bind(server, self.socket)
        await server.start()
        return server


def answer(key: str, number: int) -> agent_pb2.Message:
    prefix = f"{key}." if key else ""
    return agent_pb2.Message(request_id=f"{prefix}0123abcd-{number}", upstream="double", plan="p")


def failure(key: str, number: int) -> agent_pb2.Message:
    found = answer(key, number)
    found.failure.reason = "it failed"
    return found


def with_gateways(root: Path, test: Callable[[GatewayPeers, list[Gateway]], Awaitable[None]]) -> list[tuple[str, str]]:
    """Run a test with the peers of a worker and three gateways, the first that of the peers file; what was lost."""
    root.chmod(0o700)
    lost: list[tuple[str, str]] = []

    async def run() -> None:
        gateways = [Gateway(f"unix:{root}/{n}", key) for n, key in enumerate(("", FIRST.key, SECOND.key))]
        servers = [await gateway.start() for gateway in gateways]
        peers = GatewayPeers(
            gateways[0].socket,
            PeerSettings("a-1", PLAIN, resends=True),
            on_lost=lambda name, why, _messages: lost.append((name, why)),
        ).start()
        try:
            await test(peers, gateways)
        finally:
            await peers.close()
            for server in servers:
                await server.stop(0)

    asyncio.run(run())
    return lost


def test_a_message_goes_to_the_gateway_that_asked(tmp_path: Path) -> None:
    async def test(peers: GatewayPeers, gateways: list[Gateway]) -> None:
        for gateway in gateways[1:]:
            peers.stream_began(gateway.reply)
        for number in range(200):
            gateway = gateways[number % 3]
            peers.put(failure(gateway.key, number) if number % 7 == 0 else answer(gateway.key, number))
        await wait_until_async(lambda: sum(len(gateway.got) for gateway in gateways) == 200)
        for gateway in gateways:
            assert {gateway_key(request) for request in gateway.got} == {gateway.key}
        await wait_until_async(lambda: peers.queued < 60)  # acknowledged in lots

    assert with_gateways(tmp_path, test) == []


def test_a_message_for_a_gateway_that_is_not_known_is_dropped(tmp_path: Path) -> None:
    async def test(peers: GatewayPeers, gateways: list[Gateway]) -> None:
        peers.put(answer(FIRST.key, 1))
        assert peers.queued == 0
        peers.put(answer("", 2))
        await wait_until_async(lambda: len(gateways[0].got) == 1)
        assert not gateways[1].got

    with_gateways(tmp_path, test)


def test_a_gateway_is_forgotten_after_its_last_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_peers, "FORGET_S", 0.2)

    async def test(peers: GatewayPeers, gateways: list[Gateway]) -> None:
        gone = ReplyAddress(SECOND.key, f"unix:{tmp_path}/nobody")
        ends = [peers.stream_began(gone), peers.stream_began(gone)]
        peers.stream_began(gateways[1].reply)
        peers.put(answer(gone.key, 1))
        peers.put(failure(gone.key, 2))
        ends[0]()
        await asyncio.sleep(0.4)
        assert (len(peers), peers.queued) == (2, 2), "it has a stream still"
        ends[1]()
        peers.stream_began(gone)()  # it came again meanwhile
        await wait_until_async(lambda: len(peers) == 1)
        assert peers.queued == 0
        peers.put(answer(gateways[1].key, 3))
        await wait_until_async(lambda: len(gateways[1].got) == 1)

    lost = with_gateways(tmp_path, test)
    assert 1 <= len(lost) <= 3, "one reason is told once while it lasts"
    assert {name for name, _ in lost} == {f"the gateway at unix:{tmp_path}/nobody"}


def test_a_key_that_is_drawn_twice_is_that_of_the_gateway_that_came_last(tmp_path: Path) -> None:
    async def test(peers: GatewayPeers, gateways: list[Gateway]) -> None:
        old_ended = peers.stream_began(ReplyAddress(FIRST.key, f"unix:{tmp_path}/nobody"))
        peers.stream_began(gateways[1].reply)
        old_ended()
        peers.put(answer(FIRST.key, 1))
        await wait_until_async(lambda: len(gateways[1].got) == 1)
        assert len(peers) == 1

    with_gateways(tmp_path, test)


def test_the_number_of_gateways_is_bounded(tmp_path: Path) -> None:
    async def test(peers: GatewayPeers, gateways: list[Gateway]) -> None:
        ends = [peers.stream_began(ReplyAddress(f"{n:08x}", gateways[1].socket)) for n in range(MAX_GATEWAYS)]
        with pytest.raises(StatusError, match=f"{MAX_GATEWAYS} gateways have a stream") as refused:
            peers.stream_began(gateways[2].reply)
        assert refused.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        ends[3]()
        peers.stream_began(gateways[2].reply)  # in place of the one that is gone
        assert len(peers) == MAX_GATEWAYS
        peers.put(answer(gateways[2].key, 1))
        await wait_until_async(lambda: len(gateways[2].got) == 1)

    with_gateways(tmp_path, test)


def test_streams_of_two_gateways_are_counted_apart() -> None:
    async def run() -> None:
        inboxes = Inboxes(lambda _: None, lambda _: False)
        for key in (FIRST.key, SECOND.key):
            for _ in range(MAX_STREAMS):
                inboxes.open(StreamSource("", gateway=key), lambda _: None, lambda _: None)
            with pytest.raises(StatusError, match="which is the most"):
                inboxes.open(StreamSource("", gateway=key), lambda _: None, lambda _: None)

    asyncio.run(run())
