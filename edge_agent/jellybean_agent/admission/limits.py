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


@dataclass(frozen=True, slots=True)
class PortLimits:
    """Limits of one listening socket. Connections and calls are shared by peers: see `shares`.

    `connections`: most open ones. `first_call_s`: from the connection to its first call. `idle_s`: without a call, then
    the connection ends. `calls`: most in progress. `reserved_calls`: besides, for administrators and health. `body_s`:
    the longest pause within a request's body. `streams`: most calls of one connection. `message_bytes`: of one message.
    """

    connections: int = 1024
    first_call_s: float = 30.0
    idle_s: float = 3600.0
    calls: int = 4096
    reserved_calls: int = 64
    body_s: float = 15.0
    streams: int = 8192
    message_bytes: int = MAX_MESSAGE_BYTES


_PROBES = PortLimits(
    connections=64, first_call_s=5.0, idle_s=60.0, calls=64, body_s=5.0, streams=64, message_bytes=2**12
)
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
    ListeningPort.METRICS: PortLimits(
        connections=16, first_call_s=5.0, idle_s=5.0, calls=16, reserved_calls=0, streams=1, message_bytes=0
    ),
    ListeningPort.OPERATOR: PortLimits(
        connections=16, first_call_s=5.0, idle_s=5.0, calls=16, reserved_calls=0, streams=1, message_bytes=0
    ),
}
