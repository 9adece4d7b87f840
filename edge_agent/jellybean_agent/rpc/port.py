"""One listening socket of a gRPC server: its connections and calls, within the limits of its table."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import grpc
import numpy as np

from jellybean_agent.admission.gate import IDLE, SILENT, ConnectionGate, End, Entry
from jellybean_agent.admission.limits import ListeningPort, PortLimits
from jellybean_agent.admission.process import Admission
from jellybean_agent.admission.shares import PeerShare, SharedLimit
from jellybean_agent.admission.turns import PeerTurn
from jellybean_agent.errors import StatusError
from jellybean_agent.rpc.calls import AuthContext, Caller, Method, OpenConnection, RpcCall
from jellybean_agent.rpc.flood_limits import FloodLimits
from jellybean_agent.security.identity import Role, identities
from jellybean_agent.system.addresses import peer_network

_PRIVILEGED = frozenset({Role.ADMIN, Role.GATEWAY})
_READ_BYTES = 2**16  # that one system call reads; all connections read into the same memory, one after another
_LOOKED_AT = 32  # calls in one step of the event loop: to end them takes less than a millisecond
_STOPPED_S = 2.0  # without a byte, after which a request may end for others
_BODY, _CALLS = "no request", "too many calls"


class Served(Protocol):
    """What the ports of a server share."""

    methods: Mapping[str, Method]
    flood_limits: FloodLimits

    @property
    def check(self) -> Callable[[str, Any], bool]:
        """Checks a call (path of its method, context) against the policy; StatusError if it is refused."""
        ...


class RpcPort:
    """What the connections of one socket ask their server for: the `CallServer` of their calls.

    A unary call whose request has not arrived is the first to end when there are too many calls.
    """

    def __init__(self, server: Served, port: ListeningPort, limits: PortLimits, admission: Admission) -> None:
        self._server, self._port, self._limits, self._admission = server, port, limits, admission
        self.max_streams, self.max_message_bytes = limits.streams, limits.message_bytes
        self.methods: Mapping[str, Method] = server.methods
        self.connections: set[OpenConnection] = set()
        self.calls: set[RpcCall] = set()
        self.gate = ConnectionGate(port, limits, admission)
        self.gate.on_sweep = self._end_stalled
        self.turns = admission.turns
        self.read_buffer: memoryview = np.empty(_READ_BYTES, np.uint8).data
        self._calls_limit = SharedLimit(limits.calls, limits.reserved_calls)
        self._waiting: dict[RpcCall, tuple[int, float]] = {}  # without their request: bytes received, since when

    @property
    def flood_limits(self) -> FloodLimits:
        return self._server.flood_limits

    # -- connections --------------------------------------------------------------------------------------------------

    def opened(self, connection: OpenConnection, peer: str, auth: AuthContext, entry: Entry | None) -> Caller | None:
        """A connection begins; None: it has to be closed, as there are too many.

        `entry`: of a connection that was let in before its handshake.
        """
        identity = next(iter(identities(auth)), None)
        who = _peer_of(auth, peer)
        if entry is None:
            entry = self.gate.enter(who, _ending(connection))
        elif identity is not None and not entry.identify(who):
            return None
        if entry is None:
            return None
        entry.end = _ending(connection)
        self.connections.add(connection)
        is_privileged = self._port is ListeningPort.OWNER or (identity is not None and identity.role in _PRIVILEGED)
        admission = self._admission
        calls, memory = self._calls_limit.share_of(who), admission.bytes.share_of(who)
        return Caller(entry, calls, memory, admission.waiting.share_of(who), self.turns.of(who), is_privileged)

    def shares_of(self, auth: AuthContext, peer: str) -> tuple[PeerTurn, PeerShare]:
        """The time of a peer at the event loop, and its share of the bytes that wait for it. `peer`: its address."""
        who = _peer_of(auth, peer)
        return self.turns.of(who), self._admission.waiting.share_of(who)

    def closed(self, connection: OpenConnection, caller: Caller | None) -> None:
        self.connections.discard(connection)
        if caller is not None:
            caller.entry.leave()

    # -- calls --------------------------------------------------------------------------------------------------------

    def admit(self, call: RpcCall) -> str:
        """Count a call; else the reason why it is refused."""
        caller = call.connection.caller
        if caller is None:
            return "the connection is closed"
        share = caller.calls
        if not (share.take() or self._take_else(share, is_privileged=caller.is_privileged or call.method.is_health)):
            self._admission.refused[self._port, _CALLS] += 1
            if len(self.calls) >= self._limits.calls:
                return f"{len(self.calls)} calls are in progress, which is the limit"
            return (
                f"{share.held} of the {len(self.calls)} calls in progress are of this client, which is the limit for it"
            )
        self.calls.add(call)
        entry = caller.entry
        entry.has_called = True
        entry.calls += 1
        return ""

    def _take_else(self, share: PeerShare, *, is_privileged: bool) -> bool:
        """Admit a call that has no share of the limit: from the reserve, or in place of another."""
        if is_privileged and share.take(is_privileged=True):
            return True
        return self._make_room(share) and share.take(is_privileged=is_privileged)

    def ended(self, call: RpcCall) -> None:
        """A call is over, and its answer sent; also one that was refused."""
        if self._waiting:
            self._waiting.pop(call, None)
        if call in self.calls:
            self.calls.discard(call)
            caller = call.connection.caller
            if caller is not None:
                caller.calls.give()
                entry = caller.entry
                entry.calls -= 1
                if not entry.calls:
                    entry.quiet_since_s = self.gate.now_s

    def authorise(self, call: RpcCall) -> None:
        """Check a call against the policy; ends it when it is refused."""
        try:
            call.headers.is_authorised = self._server.check(call.method.path, call)
        except StatusError as error:
            call.end(error.status, str(error))

    # -- requests that do not arrive ----------------------------------------------------------------------------------

    def awaits_request(self, call: RpcCall) -> None:
        """A unary call has been opened without its whole request."""
        self._waiting[call] = (-1, self.gate.now_s)

    def has_request(self, call: RpcCall) -> None:
        """The request is here."""
        if self._waiting:
            self._waiting.pop(call, None)

    def make_room_for_bytes(self, call: RpcCall) -> bool:
        """End the oldest call whose request has stopped, of the peer that holds most bytes. False if there is none."""
        most = self._admission.bytes.largest_share()
        for other, (_, since_s) in self._waiting.items():
            caller = other.connection.caller
            has_stopped = other is not call and self.gate.now_s - since_s >= _STOPPED_S
            if has_stopped and caller is not None and caller.bytes is most:
                self._end_waiting(other, "its request does not go on, and others need the memory")
                return True
        return False

    def _make_room(self, share: PeerShare) -> bool:
        """End the oldest call without its request: of a peer that has too many, else of the one that has most."""
        crowded = share if share.is_dominant else self._calls_limit.largest_share()
        oldest = next((call for call in self._waiting if _share(call) is crowded), None)
        if oldest is None:
            return False
        self._end_waiting(oldest, "its request has not arrived, and others wait")
        return True

    def _end_stalled(self, now_s: float) -> None:
        """End calls whose request has made no progress for too long."""
        self._look_at(deque(self._waiting.items()), now_s)

    def _look_at(self, waiting: deque[tuple[RpcCall, tuple[int, float]]], now_s: float) -> None:
        """Some of the calls that wait for their requests, then the next ones behind what else is due."""
        for _ in range(min(_LOOKED_AT, len(waiting))):
            call, (before, since_s) = waiting.popleft()
            if call not in self._waiting:
                continue
            size = call.connection.received_bytes(call)
            if size != before:
                self._waiting[call] = (size, now_s)
            elif now_s - since_s > self._limits.body_s:
                self._end_waiting(call, f"nothing of its request has arrived for {self._limits.body_s:g} s")
        if waiting:
            asyncio.get_running_loop().call_soon(self._look_at, waiting, now_s)

    def _end_waiting(self, call: RpcCall, reason: str) -> None:
        self._admission.refused[self._port, _BODY] += 1
        self._waiting.pop(call, None)
        call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)


def _peer_of(auth: AuthContext, peer: str) -> str:
    """As whom a connection counts: its identity, else the network of its address."""
    identity = next(iter(identities(auth)), None)
    return peer_network(peer) if identity is None else identity.uri


def _share(call: RpcCall) -> PeerShare | None:
    caller = call.connection.caller
    return None if caller is None else caller.calls


def _ending(connection: OpenConnection) -> End:
    """Ends a connection: one without a call is told first, so that its client makes its next call on another one."""

    def end(reason: str) -> None:
        if reason in (IDLE, SILENT):
            connection.expire()
        else:
            connection.abort()

    return end
