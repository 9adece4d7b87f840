"""A relay and tunnels in simulated time, over real sockets and TLS: silence, ages, limits, refusals and recovery."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jellybean_agent import CertificateFolder, Identity, Role
from jellybean_agent.errors import TransientError
from jellybean_agent.relay.endpoints import Endpoint, Sink, TlsEndpoint, read_buffer
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.server import Relay
from jellybean_agent.relay.traffic import TrafficCollector
from jellybean_agent.relay.wire import (
    ACCEPTED,
    ASK,
    OFFER,
    OTHER_DEPLOYMENT,
    PING,
    PONG,
    REFUSED,
    RELAY_ALPN,
    START,
    STARTED,
    Greeting,
    parse_refusal,
    refusal,
)
from jellybean_agent.security.tls_context import client_context
from jellybean_agent.tunnel.backoff import Backoff
from jellybean_agent.tunnel.conversation import Conversation, OtherDeploymentError
from jellybean_agent.tunnel.dialling import Dialler
from jellybean_agent.tunnel.tunnel import Tunnel, TunnelSettings
from tests.support.http2_client import settle
from tests.support.ports import free_port
from tests.support.relayed import RelayNet, echo_server, exchange
from tests.support.simulated_time import run_in_simulated_time
from tests.unit.agent.relay.memory_endpoint import MemoryEndpoint

IN_FLIGHT_S = 0.002  # for TCP on this machine
LIMITS = RelayLimits()


def in_net(folder: Path, test: Callable[[RelayNet], Awaitable[None]], **net: Any) -> None:
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
    await asyncio.sleep(seconds)


def test_connections_pass_both_ways_and_offers_are_kept(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        async with echo_server(b"agent: ") as agent, echo_server(b"gateway: ") as gateway:
            net.targets = {"": ("127.0.0.1", gateway), "down": ("127.0.0.1", free_port())}
            ports = {name: free_port() for name in ("", "edge-1", "down", "elsewhere")}
            peers = {port: name for name, port in ports.items()}
            async with net.relay() as relay, net.tunnel(agent) as first, net.tunnel(agent, "edge-2", peers) as second:
                await pause()
                assert relay.offers() == {"edge-1": 4, "edge-2": 4}
                assert first.offers() == {"edge-1": 4}
                assert await exchange(net.ports["edge-1"], b"x" * 300_000) == b"agent: " + b"x" * 300_000
                assert await exchange(ports[""], b"hello") == b"gateway: hello"
                assert await exchange(ports["edge-1"], b"hello") == b"agent: hello"
                for name in ("down", "elsewhere"):
                    with pytest.raises(ConnectionError):
                        await exchange(ports[name], b"x")
                await pause()
                assert relay.offers() == {"edge-1": 4, "edge-2": 4}
                assert second.traffic.failed_dials == {"down": 1, "elsewhere": 1}
                assert second.traffic.connections == {("edge-2", "from_worker"): 2}
                assert first.traffic.connections == {("edge-1", "to_worker"): 2}
                assert first.traffic.bytes["edge-1", "to_worker"] == 300_005
                assert first.traffic.bytes["edge-1", "from_worker"] == 300_000 + 5 + 2 * 7
                assert relay.traffic.refusals == {"dial": 1, "unknown_target": 1}
                assert not relay.traffic.open.total() + first.traffic.open.total() + second.traffic.open.total()
                text = _metrics(net, relay)
                assert text['relay_offers{"worker": "edge-1"}'] == 4
                assert text['relay_connections{"worker": "edge-1", "direction": "to_worker"}'] == 2
                assert text['relay_refusals{"reason": "dial"}'] == 1
                assert text['relay_dials_failed{"target": "down"}'] == 1

    in_net(tmp_path, test)


def _metrics(net: RelayNet, relay: Relay) -> dict[str, float]:
    """Name and labels -> value."""
    certificate = CertificateFolder(net.folder(Role.RELAY, "relay"))
    collector = TrafficCollector("relay", relay.traffic, relay.offers, certificate)
    return {
        f"{metric.name.removeprefix('jellybean_')}{json.dumps(sample.labels)}": sample.value
        for metric in collector.collect()
        for sample in metric.samples
    }


def test_a_tunnel_is_ready_while_it_has_an_offer(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        ready: list[bool] = []
        settings = TunnelSettings(net.listen, "edge-1", ("127.0.0.1", 1), offers=2, limits=net.limits)
        tunnel = Tunnel(settings, CertificateFolder(net.folder()))
        await tunnel.start(ready.append)
        await pause(60.0)
        assert ready == []
        assert tunnel.traffic.failed_dials["relay"] >= 2 * 8, "pauses of up to ten seconds"
        assert tunnel.traffic.failed_dials["relay"] <= 2 * 30
        async with net.relay():
            await pause(11.0)
            assert (ready, tunnel.offers()) == ([True], {"edge-1": 2})
        await pause(1.0)
        assert (ready, tunnel.offers()) == ([True, False], {"edge-1": 0})
        async with net.relay():
            await pause(11.0)
            assert (ready, tunnel.offers()) == ([True, False, True], {"edge-1": 2})
            assert await tunnel.stop(1.0) == 0
            assert ready == [True, False, True, False]

    in_net(tmp_path, test)


def test_offers_are_pinged_and_renewed_for_as_long_as_both_live(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        async with echo_server() as agent, net.relay() as relay, net.tunnel(agent) as tunnel:
            await pause(700.0)
            assert relay.offers()["edge-1"] == 4
            assert tunnel.traffic.failed_dials == {}
            assert relay.traffic.refusals == {}
            assert await exchange(net.ports["edge-1"], b"on") == b"on"

    in_net(tmp_path, test)


def test_a_tunnel_leaves_a_relay_that_is_silent(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        net.limits = RelayLimits(ping_s=3600.0, silence_s=25.0)
        async with echo_server() as agent, net.relay() as relay, net.tunnel(agent, offers=1) as tunnel:
            await pause(1.0)
            assert relay.offers()["edge-1"] == 1
            await pause(23.5)
            assert tunnel.offers()["edge-1"] == 1
            seen = {tunnel.offers()["edge-1"]}
            for _ in range(40):
                await pause(0.05)
                seen.add(tunnel.offers()["edge-1"])
            assert seen == {0, 1}, "it has dialled again"

    in_net(tmp_path, test)


def test_a_connection_without_its_agent_or_an_offer_fails(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        async with net.relay() as relay:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            with pytest.raises(ConnectionError):
                await exchange(net.ports["edge-1"], b"x")
            assert 9.9 < loop.time() - began_s < 10.5
            async with net.tunnel(free_port()) as tunnel:
                await pause()
                with pytest.raises(ConnectionError):
                    await exchange(net.ports["edge-1"], b"x")
                await pause()
                assert tunnel.traffic.failed_dials == {"agent": 1}
                assert relay.offers()["edge-1"] == 4
            assert relay.traffic.refusals == {"no_offer": 2}

    in_net(tmp_path, test)


def test_an_agent_that_is_down_is_logged_again_after_it_was_reached(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> int:
        return sum("the agent is not reached" in line for line in caplog.messages)

    async def test(net: RelayNet) -> None:
        port = free_port()
        async with net.relay(), net.tunnel(port):
            await pause()
            for _ in range(2):
                with pytest.raises(ConnectionError):
                    await exchange(net.ports["edge-1"], b"x")
            assert told() == 1

            async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.close()

            async with await asyncio.start_server(close, "127.0.0.1", port):
                await exchange(net.ports["edge-1"], b"x")
                await pause()
            with pytest.raises(ConnectionError):
                await exchange(net.ports["edge-1"], b"x")
            assert told() == 2

    in_net(tmp_path, test)


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


def test_a_relay_that_drains_takes_nothing_new_and_waits_for_pipes(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        async with echo_server() as agent, net.relay() as relay, net.tunnel(agent):
            await pause()
            held = [await asyncio.open_connection("127.0.0.1", net.ports["edge-1"]) for _ in range(2)]
            for reader, writer in held:
                writer.write(b"1")
                assert await reader.read(1) == b"1"
            stopping = asyncio.create_task(relay.stop(30.0))
            await pause(1.0)
            assert relay.offers()["edge-1"] == 0
            with pytest.raises(ConnectionError):
                await asyncio.open_connection("127.0.0.1", net.ports["edge-1"])
            reader, writer = held[0]
            writer.write(b"2")
            assert await reader.read(1) == b"2"
            writer.close()
            await pause(28.0)
            assert not stopping.done()
            assert await stopping == 1
            with pytest.raises(ConnectionError):
                await held[1][0].read(1)
            held[1][1].close()

    in_net(tmp_path, test)


def test_a_tunnel_that_stops_ends_what_it_is_connecting(tmp_path: Path) -> None:
    async def test(net: RelayNet) -> None:
        port = free_port()
        async with echo_server() as agent, net.relay():
            tunnel = Tunnel(
                TunnelSettings(net.listen, "edge-1", ("127.0.0.1", agent), {port: "edge-2"}),
                CertificateFolder(net.folder()),
            )
            await tunnel.start(lambda _: None)
            waiting = asyncio.create_task(exchange(port, b"x"))
            await pause(2.0)
            assert not waiting.done(), "edge-2 has no offer"
            assert await tunnel.stop(5.0) == 0
            with pytest.raises(ConnectionError):
                await waiting
            with pytest.raises(ConnectionError):
                await asyncio.open_connection("127.0.0.1", port)

    in_net(tmp_path, test)


# -- dialling ----------------------------------------------------------------------------------------------------------


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


# -- conversations -----------------------------------------------------------------------------------------------------


class Talk:
    """A tunnel's conversation with a relay that a test writes."""

    def __init__(self, silence_s: float = 25.0, deployment: str = "") -> None:
        self.relay = MemoryEndpoint()
        self.conversation = Conversation(self.relay.endpoint, silence_s, deployment)
        self.accepted = 0

    def _accept(self) -> None:
        self.accepted += 1

    async def offer(self) -> asyncio.Task[bool]:
        task = asyncio.create_task(self.conversation.offer(self._accept))
        await settle()
        return task

    async def ask(self, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self.conversation.ask(name))
        await settle()
        return task


def talking(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    run_in_simulated_time(run)


def test_an_offer_is_accepted_pinged_and_started() -> None:
    async def test() -> None:
        talk = Talk(deployment="blue")
        offering = await talk.offer()
        assert talk.relay.take() == Greeting(OFFER, "", "blue").encode()
        assert talk.accepted == 0
        talk.relay.receive(ACCEPTED + PING)
        assert (talk.accepted, talk.relay.take()) == (1, PONG)
        for _ in range(5):
            await asyncio.sleep(20.0)
            talk.relay.receive(PING)
            assert talk.relay.take() == PONG
        talk.relay.receive(START + b"early")
        assert not talk.relay.transport.is_reading
        talk.relay.receive(b" bytes")
        assert await offering
        assert talk.conversation.early == b"early bytes"
        await asyncio.sleep(100.0)
        assert not talk.relay.transport.is_closing()

    talking(test)


def test_a_peer_that_is_asked_for() -> None:
    async def test() -> None:
        talk = Talk()
        asking = await talk.ask("edge-2")
        assert talk.relay.take() == Greeting(ASK, "edge-2").encode()
        talk.relay.receive(STARTED + b"hello")
        await asking
        assert talk.conversation.early == b"hello"

    talking(test)


@pytest.mark.parametrize("kind", ["offer", "ask"])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (refusal("no room"), "the relay refuses: no room"),
        (b"x", "it speaks another protocol"),
        (PING, "it speaks another protocol"),
        (None, "it ended the connection"),
    ],
)
def test_a_relay_that_refuses_or_says_something_else(kind: str, answer: bytes | None, reason: str) -> None:
    async def test() -> None:
        talk = Talk()
        task: Any = await (talk.offer() if kind == "offer" else talk.ask("x"))
        if answer is None:
            talk.relay.transport.end()
        elif len(answer) > 3:
            talk.relay.receive(answer[:3])
            assert not task.done()
            talk.relay.receive(answer[3:])
        else:
            talk.relay.receive(answer)
        with pytest.raises(TransientError, match=f"^{reason}$"):
            await task
        assert talk.relay.transport.is_aborted

    talking(test)


@pytest.mark.parametrize("answer", [ACCEPTED + ACCEPTED, ACCEPTED + STARTED, ACCEPTED + OTHER_DEPLOYMENT, START])
def test_answers_out_of_turn_end_an_offer(answer: bytes) -> None:
    async def test() -> None:
        talk = Talk()
        offering = await talk.offer()
        talk.relay.receive(answer)
        with pytest.raises(TransientError, match="it speaks another protocol"):
            await offering

    talking(test)


@pytest.mark.parametrize("kind", ["offer", "ask"])
def test_a_relay_of_another_deployment(kind: str) -> None:
    async def test() -> None:
        talk = Talk()
        task: Any = await (talk.offer() if kind == "offer" else talk.ask("x"))
        talk.relay.receive(OTHER_DEPLOYMENT)
        with pytest.raises(OtherDeploymentError):
            await task

    talking(test)


def test_an_accepted_offer_that_the_relay_ends_is_no_failure() -> None:
    async def test() -> None:
        talk = Talk()
        offering = await talk.offer()
        talk.relay.receive(ACCEPTED)
        talk.relay.transport.end()
        assert not await offering
        assert talk.relay.transport.is_closing()

    talking(test)


def test_a_silent_or_lost_relay_ends_an_offer() -> None:
    async def test() -> None:
        silent, lost = Talk(), Talk()
        offering, other = await silent.offer(), await lost.offer()
        for talk in (silent, lost):
            talk.relay.receive(ACCEPTED)
        lost.relay.transport.lose(ConnectionResetError("reset"))
        with pytest.raises(TransientError, match="reset"):
            await other
        await asyncio.sleep(24.9)
        assert not offering.done()
        await asyncio.sleep(0.2)
        with pytest.raises(TransientError, match="it was silent for 25 s"):
            await offering
        gone = MemoryEndpoint()
        gone.transport.lose()
        conversation = Conversation(gone.endpoint, 25.0)
        with pytest.raises(TransientError, match="it closed the connection"):
            await conversation.ask("x")

    talking(test)


def test_an_offer_that_is_given_up_is_reset() -> None:
    async def test() -> None:
        talk = Talk()
        offering = await talk.offer()
        offering.cancel()
        await settle()
        assert talk.relay.transport.is_aborted

    talking(test)


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
