"""A relay and its tunnels in simulated time: connections both ways, silence, recovery, logs and drains."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from jellybean_agent import CertificateFolder, Role
from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.server import Relay
from jellybean_agent.relay.traffic import TrafficCollector
from jellybean_agent.tunnel.tunnel import Tunnel, TunnelSettings
from tests.support.ports import free_port
from tests.support.relayed import RelayNet, echo_server, exchange
from tests.unit.agent.relay.timed_net import in_net, pause


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
