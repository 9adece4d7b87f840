"""What a relay refuses in simulated time: callers, numbers, silence before a greeting, other deployments."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jellybean_agent import CertificateFolder, Identity, Role
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.wire import (
    ACCEPTED,
    ASK,
    OFFER,
    OTHER_DEPLOYMENT,
    REFUSED,
    RELAY_ALPN,
    Greeting,
    parse_refusal,
)
from jellybean_agent.tunnel.tunnel import Tunnel, TunnelSettings
from tests.support.ports import free_port
from tests.support.relayed import RelayNet, echo_server, exchange
from tests.unit.agent.relay.timed_net import connected, in_net, pause


def test_a_certificate_without_an_identity_is_no_agent(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        async with net.relay() as relay:
            for names in ((), (("URI", "spiffe://x"),), (("URI", Identity("tiny", Role.AGENT, "a").uri),) * 2):
                tls = SimpleNamespace(getpeercert=lambda names=names: {"subjectAltName": names})
                endpoint: Any = SimpleNamespace(tls=tls)
                reason = "a certificate without an identity is no agent"
                assert relay.identify(endpoint) == ("", "role", reason)

    in_net(tmp_path, test)


def test_what_a_worker_may_have_is_limited(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        async with echo_server() as agent, net.relay() as relay, net.tunnel(agent, offers=3):
            await pause(1.0)
            assert relay.offers()["edge-1"] == 2
            assert set(relay.traffic.refusals) == {"too_many_offers"}
            held = [await asyncio.open_connection("127.0.0.1", net.ports["edge-1"]) for _ in range(2)]
            for reader, writer in held:
                writer.write(b"1")
                assert await reader.read(1) == b"1"
            with pytest.raises(ConnectionError):
                await exchange(net.ports["edge-1"], b"x")
            assert relay.traffic.refusals["too_many_connections"] == 1
            for _, writer in held:
                writer.close()
            await pause()
            assert await exchange(net.ports["edge-1"], b"x") == b"x"

    in_net(tmp_path, test, limits=RelayLimits(pipes=2, offers=2))


def test_connections_without_a_greeting_are_few_and_short(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        async with net.relay() as relay:
            silent = [await asyncio.open_connection(*net.listen) for _ in range(3)]
            await pause(1.0)
            late = await asyncio.open_connection(*net.listen)
            with contextlib.suppress(ConnectionError):
                assert await silent[0][0].read() == b"", "the oldest ends"
            async with connected(net) as (reader, writer):
                with contextlib.suppress(ConnectionError):
                    assert await silent[1][0].read() == b""
                writer.write(Greeting(OFFER).encode()[:3])
                await pause(9.5)
                for found, _ in (silent[2], late):
                    with contextlib.suppress(ConnectionError):
                        assert await found.read() == b""
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b"", "a greeting that is not complete"
            assert relay.traffic.refusals == {"handshake": 4, "greeting": 1}
            for _, writer in (*silent, late):
                writer.close()
            async with connected(net) as (reader, writer):
                writer.write(Greeting(OFFER).encode())
                assert await reader.read(1) == ACCEPTED
                await pause(1.0)
                assert relay.offers()["edge-1"] == 1

    in_net(tmp_path, test, limits=RelayLimits(unknown=3, greeting_s=10.0))


def test_silent_connections_of_one_address_end_no_handshake_of_another(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        async with net.relay() as relay:
            other = await asyncio.open_connection(*net.listen, local_addr=("127.0.0.2", 0))
            await pause()
            crowd = [await asyncio.open_connection(*net.listen) for _ in range(20)]
            await pause()
            assert relay.traffic.refusals == {"handshake": 13}
            assert other[0].exception() is None
            for reader, _ in crowd[:13]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            for _, writer in (other, *crowd):
                writer.close()

    in_net(tmp_path, test, limits=RelayLimits(unknown=8, greeting_s=10.0))


@pytest.mark.parametrize(
    ("who", "data", "reason"),
    [
        ({"role": Role.CLIENT, "name": "alice"}, Greeting(OFFER).encode(), "client alice is no agent"),
        ({"workflow": "other"}, Greeting(OFFER).encode(), "agent edge-1 is of workflow other, this is tiny"),
        ({"name": "cloud-1"}, Greeting(OFFER).encode(), "agent cloud-1 is no remote worker of this relay"),
        ({}, b"GET / HTTP/1.1", "its first byte is no kind of connection"),
        ({}, Greeting(OFFER).encode() + b"x", "it sends more before it has an answer"),
        ({"alpn": "h2"}, Greeting(OFFER).encode(), "agent edge-1 does not speak jellybean-relay/1"),
        ({}, Greeting(ASK, "elsewhere").encode(), "this relay has no peer 'elsewhere'"),
        ({}, Greeting(ASK, "").encode(), "this relay has no peer 'gateway'"),
    ],
)
def test_a_caller_that_is_refused_is_told_why(tmp_path: Path, who: dict[str, Any], data: bytes, reason: str) -> None:
    async def test(net: RelayNet) -> None:
        alpn = who.pop("alpn", RELAY_ALPN)
        async with net.relay() as relay, connected(net, net.folder(**who), alpn) as (reader, writer):
            writer.write(data)
            found = await reader.read()
            assert found[:1] == REFUSED
            assert parse_refusal(found) == reason
            assert relay.traffic.refusals.total() == 1
            assert relay.offers()["edge-1"] == 0

    in_net(tmp_path, test)


def test_another_deployment_is_told_so(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        async with net.relay() as relay:
            for deployment in ("", "green"):
                async with connected(net) as (reader, writer):
                    writer.write(Greeting(OFFER, "", deployment).encode())
                    assert await reader.read() == OTHER_DEPLOYMENT
            assert relay.traffic.refusals == {"deployment": 2}
            async with connected(net) as (reader, writer):
                writer.write(Greeting(OFFER, "", "blue").encode())
                assert await reader.read(1) == ACCEPTED

    in_net(tmp_path, test, deployment="blue")


def test_while_only_others_answer_one_offer_is_tried_until_the_own_relay_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(net: RelayNet) -> None:
        async with echo_server() as agent:
            settings = TunnelSettings(net.listen, "edge-1", ("127.0.0.1", agent), deployment="green")
            tunnel = Tunnel(settings, CertificateFolder(net.folder()))
            await tunnel.start(lambda _: None)
            async with net.relay() as relay:
                await pause(20.0)
                assert 15 <= relay.traffic.refusals["deployment"] <= 55
                assert not any("only relays of other deployments" in line for line in caplog.messages)
                await pause(60.0)
                assert sum("only relays of other deployments" in line for line in caplog.messages) == 1
                refused = relay.traffic.refusals["deployment"]
                await pause(60.0)
                assert relay.traffic.refusals["deployment"] - refused <= 20, "pauses have grown"
            net.deployment = "green"
            async with net.relay() as relay:
                await pause(11.0)
                assert relay.offers()["edge-1"] == 4
                assert await tunnel.stop(1.0) == 0

    in_net(tmp_path, test, deployment="blue")


def test_a_peer_is_asked_for_again_while_other_deployments_answer(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        port = free_port()
        async with net.relay(), echo_server() as agent:
            loop = asyncio.get_running_loop()
            async with net.tunnel(agent, peers={port: ""}, deployment="green") as tunnel:
                began_s = loop.time()
                with pytest.raises(ConnectionError):
                    await exchange(port, b"x")
                assert 19.0 < loop.time() - began_s < 22.0
                assert tunnel.traffic.failed_dials["gateway"] == 1

    in_net(tmp_path, test, deployment="blue")
