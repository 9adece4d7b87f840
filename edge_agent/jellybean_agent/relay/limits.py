"""Limits of relay and tunnel: what others can use up, and after which time silence counts as loss."""

from __future__ import annotations

from dataclasses import dataclass

from jellybean_agent.admission.limits import PORT_LIMITS, ListeningPort

READ_BYTES = 2**18  # that one system call reads: a relay's throughput depends on the number of calls
WRITE_BYTES = 2**18  # unsent bytes of a connection above which the other end of its pipe is not read


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Limits of a relay, and of a tunnel where they concern both.

    `greeting_s`: for TLS handshake and greeting together. `unknown`: most connections without a
    complete greeting, of which the oldest of an address with too many ends. `offers`: most idle
    ones of a worker. `pipes`: most open and beginning ones of a worker, in each direction.
    `offer_wait_s`: how long a connection waits for an offer of its worker, and for a tunnel to
    start. `start_s`: after which a tunnel that does not start counts as lost, and the next offer is
    tried. `ping_s`: between pings of an idle offer; one that has not answered by the next is lost.
    `silence_s`: after which a tunnel without pings dials again. `offer_age_s`: of an idle offer, so
    that a certificate that was withdrawn or has expired ends. `dial_s`: for a connection to a
    target. `half_closed_s`: after which a pipe with one direction ended, and no bytes in the other,
    is reset.
    """

    greeting_s: float = PORT_LIMITS[ListeningPort.TUNNELS].first_call_s
    unknown: int = 256
    offers: int = 16
    pipes: int = PORT_LIMITS[ListeningPort.RELAYED].calls
    offer_wait_s: float = 10.0
    start_s: float = 3.0
    ping_s: float = 10.0
    silence_s: float = 25.0
    offer_age_s: float = PORT_LIMITS[ListeningPort.TUNNELS].idle_s
    dial_s: float = 10.0
    half_closed_s: float = 120.0
