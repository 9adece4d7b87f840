"""The connections of one listening socket: how many there are, of whom, and how long they may be of no use.

A connection that makes no call is the first to end when there are too many, and the newcomer is let in: who connects
and says nothing keeps nobody out. With calls in progress a connection is ended to make room at ports alone whose calls
take no time, so that probes and scrapes get through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jellybean_agent.admission.limits import BusyEnd, ListeningPort, PortLimits
from jellybean_agent.admission.process import Admission
from jellybean_agent.admission.shares import PeerShare, SharedLimit

GATE_ENTRY = "gate-entry"  # `get_extra_info` of a transport whose connection was let in before its handshake
SWEEP_S = 1.0  # between two looks at the connections' times
ROOM, SILENT, IDLE, FULL = "to make room", "no call", "idle", "too many connections"
End = Callable[[str], None]  # ends a connection; its argument is the reason, one of those above


class Entry:
    """One connection at its gate. `calls`: in progress."""

    __slots__ = ("_gate", "calls", "end", "has_called", "quiet_since_s", "shares")

    def __init__(self, gate: ConnectionGate, end: End, shares: tuple[PeerShare, ...], now_s: float) -> None:
        self._gate, self.end, self.shares = gate, end, shares
        self.quiet_since_s = now_s
        self.has_called = False
        self.calls = 0

    def call_began(self) -> None:
        """Count a call of this connection."""
        self.has_called = True
        self.calls += 1

    def call_ended(self) -> None:
        """Count its end."""
        self.calls -= 1
        if not self.calls:
            self.quiet_since_s = self._gate.now_s

    def identify(self, peer: str) -> bool:
        """The peer has proved who it is: from now on its identity counts, not its address. False: it was ended."""
        return self._gate.identify(self, peer)

    def leave(self) -> None:
        """The connection is closed."""
        self._gate.remove(self)


class ConnectionGate:
    """Lets connections in, and ends them.

    `on_sweep`: called about once per second while there are connections. `now_s`: the loop's time at the last sweep or
    connection, which is exact enough for times of seconds and costs nothing per call.
    """

    def __init__(self, port: ListeningPort, limits: PortLimits, admission: Admission) -> None:
        self._port, self._limits, self._admission = port, limits, admission
        self._connections = SharedLimit(limits.connections)
        self._entries: dict[Entry, None] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None
        self.now_s = 0.0
        self.on_sweep: Callable[[float], None] = lambda now_s: None

    def __len__(self) -> int:
        return len(self._entries)

    def enter(self, peer: str, end: End) -> Entry | None:
        """Let a new connection in; None: it has to be closed. Another one may end for it."""
        shares = self._connections.share_of(peer), self._admission.connections.share_of(peer)
        if not _take(shares):
            victim = self._least_useful(shares)
            if victim is not None:
                self._end(victim, ROOM)
            if victim is None or not _take(shares):
                self._admission.refused[self._port, FULL] += 1
                return None
        loop = asyncio.get_running_loop()
        self.now_s = loop.time()
        entry = Entry(self, end, shares, self.now_s)
        self._entries[entry] = None
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_S, self._sweep)
        return entry

    def identify(self, entry: Entry, peer: str) -> bool:
        """Count a connection as one of another peer. False: it has ended, as that one may have no more."""
        if entry not in self._entries:
            return False
        shares = self._connections.share_of(peer), self._admission.connections.share_of(peer)
        for share in entry.shares:
            share.give()
        if not _take(shares):
            victim = self._least_useful(shares, but=entry)
            if victim is not None:
                self._end(victim, ROOM)
            if victim is None or not _take(shares):
                _ = self._entries.pop(entry)
                self._admission.refused[self._port, FULL] += 1
                entry.end(FULL)
                return False
        entry.shares = shares
        return True

    def count_refusal(self, reason: str) -> None:
        """A connection was ended for a reason that its port knows."""
        self._admission.refused[self._port, reason] += 1

    def remove(self, entry: Entry) -> None:
        """A connection is closed, for whatever reason."""
        if entry in self._entries:
            del self._entries[entry]
            for share in entry.shares:
                share.give()

    def _least_useful(self, shares: tuple[PeerShare, ...], but: Entry | None = None) -> Entry | None:
        """The connection to end for a new one: one with a call only where the port's limits say so.

        Of a peer that has too many, else of the one that has most, else of anyone.
        """
        mode = self._limits.busy_end
        if (own := next((share for share in shares if share.is_dominant), None)) is not None:
            busy = self._oldest_busy(own.peer, but) if mode is BusyEnd.FOR_ALL else None
            return busy or self._oldest_useless(own.peer, but)
        most = self._connections.largest_share()
        victim = self._oldest_useless(most.peer if most else "", but) or self._oldest_useless(None, but)
        if most is None or mode is BusyEnd.NEVER:
            return victim
        if mode is BusyEnd.FOR_OTHERS and most.held <= shares[0].held + 1:
            return victim
        busy = self._oldest_busy(most.peer, but)
        return (busy or victim) if mode is BusyEnd.FOR_ALL else (victim or busy)

    def _oldest_busy(self, peer: str, but: Entry | None) -> Entry | None:
        """The oldest connection of a peer that has a call."""
        theirs = (entry for entry in self._entries if entry.shares[0].peer == peer and entry is not but)
        return next((entry for entry in theirs if entry.calls), None)

    def _oldest_useless(self, peer: str | None, but: Entry | None) -> Entry | None:
        """The oldest connection that has made no call, else the one without a call for the longest time."""
        theirs = [entry for entry in self._entries if peer in (None, entry.shares[0].peer) and entry is not but]
        silent = next((entry for entry in theirs if not entry.has_called), None)
        idle = (entry for entry in theirs if not entry.calls)
        return silent or min(idle, key=lambda entry: entry.quiet_since_s, default=None)

    def _end(self, entry: Entry, reason: str) -> None:
        self._admission.refused[self._port, reason] += 1
        self.remove(entry)
        entry.end(reason)

    def _sweep(self) -> None:
        """End what was silent or idle for too long."""
        loop = asyncio.get_running_loop()
        self.now_s = loop.time()
        for entry in list(self._entries):
            quiet_s = self.now_s - entry.quiet_since_s
            if not entry.has_called and quiet_s > self._limits.first_call_s:
                self._end(entry, SILENT)
            elif entry.has_called and not entry.calls and quiet_s > self._limits.idle_s + SWEEP_S:  # `now_s` may be old
                self._end(entry, IDLE)
        self.on_sweep(self.now_s)
        self._timer = loop.call_later(SWEEP_S, self._sweep) if self._entries else None


def _take(shares: tuple[PeerShare, ...]) -> bool:
    """Take one of each share, or nothing."""
    for at, share in enumerate(shares):
        if not share.take():
            for taken in shares[:at]:
                taken.give()
            return False
    return True
