"""The TLS connections of a server: handshakes, the identity of the client, the protocol by ALPN, and the maximum age.

What clients without a certificate can use up is bounded: a handshake has a time limit, and the unfinished ones are
shared by addresses. Connections end at a maximum age, so that a certificate that was replaced, has expired
or was withdrawn stops working.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from jellybean_agent.admission.handshakes import TOO_MANY_HANDSHAKES, Handshakes
from jellybean_agent.rpc.calls import OpenConnection
from jellybean_agent.rpc.http2 import Http2Connection
from jellybean_agent.rpc.port import RpcPort
from jellybean_agent.rpc.tls.transport import READ_BYTES, TlsTransport
from jellybean_agent.rpc.unix_socket import UnixSocketConnection
from jellybean_agent.rpc.unix_socket_frames import STREAMS_ALPN
from jellybean_agent.security.identity import tls_auth_context
from jellybean_agent.system.addresses import peer_name
from jellybean_agent.telemetry.logs import about

HTTP2_ALPN = "h2"
SERVER_ALPN = (STREAMS_ALPN, HTTP2_ALPN)
_AGE_JITTER = 0.1  # fraction by which ages differ, so that clients do not all reconnect at once
_CLOSE_POLLS, _POLL_S = 100, 0.005  # for closed connections to end when the server stops
_CLOSE_S = 5.0  # for a closed connection's last bytes to be read, before it is aborted
LOG = logging.getLogger("jellybean.tls")


@dataclass(frozen=True, slots=True)
class TlsLimits:
    """Limits of a server's TLS connections.

    `handshake_s`: time limit of a handshake. `handshakes`: most unfinished ones. `age_s`: when a connection is told to
    end; after `grace_s` more its calls in progress are ended.
    """

    handshake_s: float = 10.0
    handshakes: int = 256
    age_s: float = 600.0
    grace_s: float = 120.0


class TlsListener:
    """Makes the TLS connections of one listening socket. `context`: credentials and versions, asked per connection."""

    def __init__(self, server: RpcPort, context: ssl.SSLContext, limits: TlsLimits) -> None:
        self._server, self._context, self._limits = server, context, limits
        self._buffer: memoryview = np.empty(READ_BYTES, np.uint8).data
        self._handshakes: Handshakes[TlsTransport] = Handshakes(limits.handshakes)
        self._open: set[TlsTransport] = set()
        self._ends: dict[TlsTransport, asyncio.TimerHandle] = {}  # when a connection's next step towards its end is due

    def accept(self) -> TlsTransport:
        """A new connection, whose handshake begins."""

        def wrap(incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
            return self._context.wrap_bio(incoming, outgoing, server_side=True)

        transport = TlsTransport(wrap, self, self._buffer, self._limits.handshake_s, is_server=True)
        self._open.add(transport)
        return transport

    async def close(self) -> None:
        """Abort the unfinished handshakes, and wait for the end of all connections, which are closed before."""
        for transport in list(self._handshakes):
            transport.abort()
        for _ in range(_CLOSE_POLLS):
            if not self._open:
                return
            await asyncio.sleep(_POLL_S)
        for transport in list(self._open):  # their clients do not read
            transport.abort()
        await asyncio.sleep(_POLL_S)

    # -- TlsEvents ----------------------------------------------------------------------------------------------------

    def connected(self, transport: TlsTransport, address: str) -> bool:
        victim = self._handshakes.begin(transport, address)
        if victim is not None:
            self._server.gate.count_refusal(TOO_MANY_HANDSHAKES)
            self.failed(victim, "too many unfinished handshakes")
            victim.abort()
        transport.turn = self._server.turns.of(address)
        transport.entry = self._server.gate.enter(address, partial(self._end_unfinished, transport))
        return transport.entry is not None

    def _end_unfinished(self, transport: TlsTransport, reason: str) -> None:
        self.failed(transport, f"ended before its handshake was complete: {reason}")
        transport.abort()

    def secured(self, transport: TlsTransport) -> asyncio.BufferedProtocol | None:
        tls = transport.tls
        protocol = tls.selected_alpn_protocol()
        if protocol not in SERVER_ALPN:
            self.failed(transport, f"it offers none of the protocols {', '.join(SERVER_ALPN)} (ALPN)")
            return None
        try:
            certificate: Mapping[str, Any] = tls.getpeercert() or {}
        except ValueError:
            self.failed(transport, "its certificate has invalid names")
            return None
        if _has_expired(certificate):  # OpenSSL checks it in a full handshake only, not when TLS 1.2 resumes a session
            self.failed(transport, "certificate has expired")
            return None
        self._handshakes.finish(transport)
        auth = tls_auth_context(name for kind, name in certificate.get("subjectAltName", ()) if kind == "URI")
        transport.turn, transport.memory = self._server.shares_of(auth, peer_name(transport))
        is_http2 = protocol == HTTP2_ALPN
        connection = Http2Connection(self._server, auth) if is_http2 else UnixSocketConnection(self._server, b"", auth)
        age_s = self._limits.age_s * random.uniform(1 - _AGE_JITTER, 1 + _AGE_JITTER)
        self._after(age_s, transport, self._retire, connection)
        return connection

    def failed(self, transport: TlsTransport, reason: str) -> None:
        self._handshakes.finish(transport)
        name = transport.get_extra_info("peername")
        host = name[0] if name else "gone"
        LOG.info("refused at the handshake: %s (%s)", reason, host, extra=about(host))

    def lost(self, transport: TlsTransport) -> None:
        if transport.entry is not None:
            transport.entry.leave()
        self._open.discard(transport)
        self._handshakes.finish(transport)
        timer = self._ends.pop(transport, None)
        if timer is not None:
            timer.cancel()

    # -- the end of a connection --------------------------------------------------------------------------------------

    def _retire(self, transport: TlsTransport, connection: OpenConnection) -> None:
        connection.retire()
        self._after(self._limits.grace_s, transport, self._close, connection)

    def _close(self, transport: TlsTransport, connection: OpenConnection) -> None:
        connection.close("the connection has reached its maximum age")
        self._after(_CLOSE_S, transport, lambda closed, _: closed.abort(), connection)

    def _after(self, delay_s: float, transport: TlsTransport, step: Any, connection: OpenConnection) -> None:
        self._ends[transport] = asyncio.get_running_loop().call_later(delay_s, step, transport, connection)


def _has_expired(certificate: Mapping[str, Any]) -> bool:
    end = certificate.get("notAfter")
    return end is not None and ssl.cert_time_to_seconds(end) < time.time()
