"""The connections of a port: who is let in, and who ends for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from jellybean_agent import PORT_LIMITS, Admission, ConnectionGate, Entry, ListeningPort, PortLimits
from jellybean_agent.admission.limits import BusyEnd
from tests.support.simulated_time import run_in_simulated_time

LIMITS = replace(PORT_LIMITS[ListeningPort.CLIENTS], connections=8, first_call_s=5.0, idle_s=60.0)


class Connections:
    """Connections at a gate. `ended`: the names of those that it has ended, with its reasons."""

    def __init__(self, limits: PortLimits = LIMITS, admission: Admission | None = None) -> None:
        self.admission = admission or Admission()
        self.gate = ConnectionGate(ListeningPort.CLIENTS, limits, self.admission)
        self.ended: list[tuple[str, str]] = []

    def connect(self, name: str, peer: str = "mallory") -> Entry | None:
        """A new connection of a peer."""
        return self.gate.enter(peer, lambda reason: self.ended.append((name, reason)))

    def busy(self, name: str, peer: str = "mallory") -> Entry:
        """A new connection with a call."""
        entry = self.connect(name, peer)
        assert entry is not None
        entry.call_began()
        return entry


def test_a_silent_crowd_keeps_nobody_out() -> None:
    async def run() -> None:
        port = Connections()
        for number in range(100):
            assert port.connect(f"silent {number}") is not None
        assert len(port.gate) <= LIMITS.connections
        assert port.connect("alice", "alice") is not None
        assert ("alice", "to make room") not in port.ended
        assert port.ended[0] == ("silent 0", "to make room"), "the oldest ends first"

    run_in_simulated_time(run)


def test_a_newcomer_of_the_same_address_is_let_in_too() -> None:
    async def run() -> None:
        port = Connections()
        first = port.busy("speaks")
        for number in range(20):
            port.connect(f"silent {number}")
        assert port.connect("newcomer") is not None
        assert "speaks" not in dict(port.ended), "a connection with a call never ends for another one"
        first.call_ended()
        first.leave()

    run_in_simulated_time(run)


def test_busy_connections_stay_and_the_newcomer_is_refused() -> None:
    async def run() -> None:
        port = Connections()
        for number in range(7):
            port.busy(f"busy {number}")
        assert port.connect("one more") is None
        assert not port.ended
        assert port.connect("alice", "alice") is not None, "an eighth is left for others"
        assert port.admission.refused[ListeningPort.CLIENTS, "too many connections"] == 1

    run_in_simulated_time(run)


def test_idle_connections_end_before_busy_ones_the_longest_idle_first() -> None:
    async def run() -> None:
        port = Connections()
        entries = [port.busy(f"c{number}") for number in range(7)]
        entries[3].call_ended()
        await asyncio.sleep(3)
        entries[1].call_ended()
        assert port.connect("new") is not None
        assert port.ended == [("c3", "to make room")]

    run_in_simulated_time(run)


@pytest.mark.parametrize(("has_called", "after_s", "reason"), [(False, 5, "no call"), (True, 60, "idle")])
def test_what_is_of_no_use_ends_in_time(has_called: bool, after_s: float, reason: str) -> None:
    async def run() -> None:
        port = Connections()
        entry = port.connect("quiet")
        assert entry is not None
        busy = port.busy("busy")
        if has_called:
            entry.call_began()
            entry.call_ended()
        await asyncio.sleep(after_s - 1)
        assert not port.ended
        await asyncio.sleep(3)
        assert port.ended == [("quiet", reason)]
        assert len(port.gate) == 1
        busy.leave()
        assert port.admission.connections.held == 0

    run_in_simulated_time(run)


def test_a_connection_that_calls_again_and_again_is_never_idle() -> None:
    """The time of its last call may be that of the last sweep, a second before."""

    async def run() -> None:
        port = Connections(replace(LIMITS, idle_s=1.0))
        entry = port.busy("calls")
        for _ in range(1000):
            entry.call_ended()
            await asyncio.sleep(0.005)
            entry.call_began()
            await asyncio.sleep(0.002)
        assert not port.ended
        entry.leave()

    run_in_simulated_time(run)


def test_the_process_keeps_open_files_for_itself() -> None:
    async def run() -> None:
        admission = Admission(open_files=0)
        total = admission.connections.total
        ports = [Connections(replace(LIMITS, connections=10_000), admission) for _ in range(2)]
        for number in range(2 * total):
            for port in ports:
                port.connect(f"{number}")
        assert sum(len(port.gate) for port in ports) <= total
        assert all(port.connect("alice", "alice") is not None for port in ports)

    run_in_simulated_time(run)


def test_an_identity_counts_instead_of_the_address_once_it_is_proved() -> None:
    async def run() -> None:
        port = Connections()
        for number in range(7):
            entry = port.connect(f"{number}", "10.0.0.1")
            assert entry is not None
            assert entry.identify(f"client {number}")
            entry.call_began()
        assert port.connect("neighbour", "10.0.0.1") is not None, "its address holds nothing any more"

    run_in_simulated_time(run)


def test_one_identity_behind_many_addresses_has_one_share() -> None:
    async def run() -> None:
        port = Connections()
        entries = [port.connect(f"{number}", f"10.0.0.{number}") for number in range(8)]
        for entry in entries[:7]:
            assert entry is not None
            if entry.identify("mallory"):
                entry.call_began()
        last = port.connect("alice", "10.0.1.1")
        assert last is not None
        assert last.identify("alice")

    run_in_simulated_time(run)


def test_of_connections_with_calls_that_last_the_oldest_ends_for_a_probe() -> None:
    """At the port for health: a watch lasts, a check takes no time, and who probes may have the watcher's address."""

    async def run() -> None:
        port = Connections(replace(LIMITS, busy_end=BusyEnd.FOR_ALL))
        for number in range(20):
            port.busy(f"watch {number}")
        assert port.connect("probe of the same address") is not None
        assert port.connect("probe of another", "kubelet") is not None
        names = [name for name, _ in port.ended]
        assert names == [f"watch {number}" for number in range(len(names))]
        for number in range(20, 25):
            port.busy(f"watch {number}")
        assert not any(name.startswith("probe") for name, _ in port.ended), "watches end before who asks nothing yet"

    run_in_simulated_time(run)


def test_of_pages_that_wait_one_ends_for_an_address_with_fewer() -> None:
    async def run() -> None:
        port = Connections(replace(LIMITS, busy_end=BusyEnd.FOR_OTHERS))
        for number in range(7):
            port.busy(f"page {number}")
        assert port.connect("the eighth") is None, "its own pages wait, and go on waiting"
        assert [port.busy(f"{name} 0", name) for name in ("bob", "carol")]
        assert port.ended == [("page 0", "to make room")]
        port = Connections(replace(LIMITS, connections=2, busy_end=BusyEnd.FOR_OTHERS))
        port.busy("one", "bob")
        port.busy("two", "carol")
        assert port.connect("three", "dave") is None, "nobody has more than one"

    run_in_simulated_time(run)
