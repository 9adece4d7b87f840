"""The limits of every listening socket of every process: the table in docs/security.md says the same."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from jellybean_agent.tensors.tensors import MAX_MESSAGE_BYTES


class ListeningPort(StrEnum):
    """The kinds of listening sockets, by what they are for."""

    CLIENTS = "clients"
    OWNER = "owner"
    WORKERS = "workers"
    AGENT = "agent"
    HEALTH = "health"
    ENROLMENT = "enrolment"
    HTTP = "http"
    METRICS = "metrics"
    OPERATOR = "operator"
    TUNNELS = "tunnels"
    RELAYED = "relayed"
    PEERS = "peers"


class BusyEnd(StrEnum):
    """For whom a connection with a call in progress ends, where there are too many."""

    NEVER = "nobody"
    FOR_OTHERS = "peers with fewer"  # of whoever has most, where none is idle
    FOR_ALL = "everybody"  # before idle ones, also for the peer's own next one


@dataclass(frozen=True, slots=True)
class PortLimits:
    """Limits of one listening socket. Connections and calls are shared by peers: see `shares`.

    `connections`: most open ones. `first_call_s`: from the connection to its first call. `idle_s`: without a call, then
    the connection ends. `calls`: most in progress. `reserved_calls`: besides, for administrators and health. `body_s`:
    the longest pause within a request's body. `streams`: most calls of one connection. `message_bytes`: of one message.
    `busy_end`: for whom connections with a call end.
    """

    connections: int = 1024
    first_call_s: float = 30.0
    idle_s: float = 3600.0
    calls: int = 4096
    reserved_calls: int = 64
    body_s: float = 15.0
    streams: int = 8192
    message_bytes: int = MAX_MESSAGE_BYTES
    busy_end: BusyEnd = BusyEnd.NEVER


_PROBES = PortLimits(
    connections=64,
    first_call_s=5.0,
    idle_s=60.0,
    calls=64,
    body_s=5.0,
    streams=64,
    message_bytes=2**12,
    busy_end=BusyEnd.FOR_ALL,  # a check takes no time: what lasts is a Watch, or a request that does not come
)
_PAGES = PortLimits(
    connections=16,
    first_call_s=5.0,
    idle_s=5.0,
    calls=16,
    reserved_calls=0,
    streams=1,
    message_bytes=0,
    busy_end=BusyEnd.FOR_OTHERS,
)
_PIPES = PortLimits(connections=512, idle_s=300.0, calls=256, reserved_calls=0, streams=1, message_bytes=0)
PORT_LIMITS = {
    ListeningPort.CLIENTS: PortLimits(),
    ListeningPort.OWNER: PortLimits(connections=256),
    ListeningPort.WORKERS: PortLimits(),
    ListeningPort.AGENT: PortLimits(),
    ListeningPort.HEALTH: _PROBES,
    ListeningPort.ENROLMENT: PortLimits(
        connections=128, first_call_s=10.0, idle_s=60.0, calls=32, streams=16, message_bytes=2**15
    ),
    ListeningPort.HTTP: PortLimits(idle_s=75.0, calls=512, streams=1),
    ListeningPort.METRICS: _PAGES,
    ListeningPort.OPERATOR: _PAGES,
    ListeningPort.TUNNELS: PortLimits(
        connections=16_384, first_call_s=10.0, idle_s=300.0, calls=528, reserved_calls=0, streams=1, message_bytes=2**11
    ),
    ListeningPort.RELAYED: _PIPES,
    ListeningPort.PEERS: _PIPES,
}
