"""Relays of two deployments behind one address: each tunnel ends up at its own, and nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from jellybean_agent.relay.limits import RelayLimits
from jellybean_agent.relay.server import Relay
from jellybean_agent.tunnel.tunnel import Tunnel
from tests.support.balancer import balancer
from tests.support.ports import free_port
from tests.support.relayed import RelayNet, echo_server, exchange
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.slow

PATIENT = RelayLimits(offer_wait_s=60.0, start_s=60.0)
QUICK_RETRIES = {"other_retry_s": 0.01, "most_other_retry_s": 0.05}


class Deployment(NamedTuple):
    """One deployment whose relay shares its address with another one's.

    `to_gateway`: the tunnel's port for it. `dials`: ports of relays that connections to the address went to.
    """

    net: RelayNet
    relay: Relay
    tunnel: Tunnel
    to_gateway: int
    dials: list[int]


@contextlib.asynccontextmanager
async def two_deployments(root: Path) -> AsyncIterator[tuple[Deployment, Deployment]]:
    """Deployments blue and green; tunnels reach the relays of both in turn. Echoes begin with ID and server."""
    async with contextlib.AsyncExitStack() as stack:
        nets = []
        for name in ("blue", "green"):
            gateway = await stack.enter_async_context(echo_server(f"{name} gateway: ".encode()))
            nets.append(RelayNet(root, PATIENT, {"": ("127.0.0.1", gateway)}, name))
        ports, dials = itertools.cycle([net.listen[1] for net in nets]), list[int]()

        def choose() -> tuple[str, int]:
            dials.append(next(ports))
            return "127.0.0.1", dials[-1]

        host, _, port = stack.enter_context(balancer(choose)).rpartition(":")
        relays = [await stack.enter_async_context(net.relay()) for net in nets]
        found = []
        for net, relay in zip(nets, relays, strict=True):
            net.dialled, to_gateway = (host, int(port)), free_port()
            agent = await stack.enter_async_context(echo_server(f"{net.deployment}: ".encode()))
            tunnel = await stack.enter_async_context(net.tunnel(agent, peers={to_gateway: ""}, **QUICK_RETRIES))
            found.append(Deployment(net, relay, tunnel, to_gateway, dials))
        yield found[0], found[1]


@pytest.mark.slow
def test_each_tunnel_offers_and_asks_at_the_relay_of_its_deployment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> None:
        async with two_deployments(tmp_path) as found:
            for one in found:
                await wait_until_async(lambda one=one: one.tunnel.offers()["edge-1"] == 4)
                assert one.relay.offers() == {"edge-1": 4, "edge-2": 0}
            for one in found:
                name = one.net.deployment.encode()
                answers = await asyncio.gather(*(exchange(one.net.ports["edge-1"], b"%d" % at) for at in range(10)))
                assert answers == [b"%s: %d" % (name, at) for at in range(10)]
                asked = await asyncio.gather(*(exchange(one.to_gateway, b"%d" % at) for at in range(20)))
                assert asked == [b"%s gateway: %d" % (name, at) for at in range(20)]
            for one in found:  # used offers are replaced
                await wait_until_async(lambda one=one: one.tunnel.offers()["edge-1"] == 4)
            for one in found:
                assert one.tunnel.traffic.failed_dials == {}
                accepted = 4 + 10 + 20  # idle and used offers, requests
                assert one.relay.traffic.refusals == {"deployment": one.dials.count(one.net.listen[1]) - accepted}

    asyncio.run(run())
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    refusals = sorted(line for line in caplog.messages if line.startswith("refused: "))
    assert refusals == [
        "refused: worker edge-1: its tunnel has --deployment 'blue', this relay 'green'",
        "refused: worker edge-1: its tunnel has --deployment 'green', this relay 'blue'",
    ]


def test_relays_of_other_deployments_are_warned_of_once_and_only_when_it_lasts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jellybean.tunnel")

    async def run() -> None:
        other, own = RelayNet(tmp_path, deployment="green"), RelayNet(tmp_path, deployment="blue")
        own.listen = other.listen
        async with echo_server() as agent, other.relay() as relay:
            async with own.tunnel(agent, offers=1, **QUICK_RETRIES) as tunnel:
                await wait_until_async(lambda: relay.traffic.refusals["deployment"] >= 3)
                assert set(relay.traffic.refusals) == {"deployment"}
                assert tunnel.traffic.failed_dials == {}
                assert not caplog.messages
            async with own.tunnel(agent, other_warning_s=0.0, **QUICK_RETRIES) as tunnel:
                before = relay.traffic.refusals["deployment"]
                await wait_until_async(lambda: relay.traffic.refusals["deployment"] >= before + 5)
                assert tunnel.traffic.failed_dials == {}
                await relay.stop(0.0)
                async with own.relay() as successor:
                    await wait_until_async(lambda: successor.offers()["edge-1"] == 4)

    asyncio.run(run())
    assert "offers are accepted at the relay" in caplog.messages
    (line,) = [one for one in caplog.messages if one.startswith("no new offer is accepted for ")]
    assert "only relays of other deployments answer at 127.0.0.1:" in line
    assert line.endswith("none with --deployment 'blue'")


def test_one_offer_is_tried_while_only_other_deployments_answer_and_all_once_the_own_relay_does(tmp_path: Path) -> None:
    slots, first_s = 4, 0.01
    settings = {"offers": slots, "other_retry_s": first_s, "most_other_retry_s": 600.0}

    async def run() -> None:
        other = RelayNet(tmp_path, deployment="green")
        own = RelayNet(tmp_path, deployment="blue", dialled=other.listen)
        began_s = asyncio.get_running_loop().time()
        async with echo_server() as agent, other.relay() as relay, own.tunnel(agent, **settings) as tunnel:
            refusals = relay.traffic.refusals
            await wait_until_async(lambda: refusals["deployment"] >= slots + 7)
            passed_s = asyncio.get_running_loop().time() - began_s
            # One slot's pauses before n probes last at least half of (1 + 2 + ... + 2^(n-1)) * first_s.
            assert refusals["deployment"] <= slots + math.log2(1 + 2 * passed_s / first_s)
            await relay.stop(0.0)
            own.listen = other.listen
            async with own.relay() as successor:
                await wait_until_async(lambda: successor.offers()["edge-1"] == slots)
                await wait_until_async(lambda: tunnel.offers()["edge-1"] == slots)

    asyncio.run(run())


def test_a_request_that_only_other_deployments_answer_fails_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        other = RelayNet(tmp_path, deployment="green")
        own = RelayNet(tmp_path, RelayLimits(dial_s=1.0, offer_wait_s=1.0), deployment="blue", dialled=other.listen)
        port = free_port()
        async with echo_server() as agent, other.relay() as relay, own.tunnel(agent, peers={port: ""}, offers=0) as one:
            with pytest.raises(ConnectionError):
                await exchange(port, b"hello")
            assert relay.traffic.refusals["deployment"] >= 1
            assert one.traffic.failed_dials == {"gateway": 1}

    asyncio.run(run())
    (line,) = caplog.messages
    assert line.startswith("gateway is not reached through the relay: only relays of other deployments answer at ")


def test_another_deployment_is_told_from_a_worker_that_the_relay_does_not_know(tmp_path: Path) -> None:
    async def run() -> None:
        other = RelayNet(tmp_path, deployment="green")
        own = RelayNet(tmp_path, deployment="blue", dialled=other.listen)
        async with echo_server() as agent, other.relay() as relay, own.tunnel(agent, "cloud-1") as tunnel:
            await wait_until_async(lambda: relay.traffic.refusals["deployment"] >= 2)
            assert tunnel.traffic.failed_dials == {}
            assert set(relay.traffic.refusals) == {"deployment"}

    asyncio.run(run())
