"""Connections of the HTTP port: let in at its gate, with TLS or without, and passed on to aiohttp.

aiohttp's own server has no limit of connections, asyncio's TLS none of unfinished handshakes, and both read 256 KiB at
once. Here all connections share one buffer to read into.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import aiohttp

from jellybean.serving.http.caller import HttpCaller
from jellybean.serving.http.calls import Calls, HttpCall, HttpClient, RefusalError
from jellybean_agent import (
    GATE_ENTRY,
    IDLE,
    TOO_MANY_HANDSHAKES,
    TURN_S,
    Admission,
    ConnectionGate,
    Entry,
    Handshakes,
    ListeningPort,
    PeerShare,
    PeerTurn,
    PeerTurns,
    PlanViewError,
    PortLimits,
    Role,
    TlsTransport,
    about,
    identities,
    peer_host,
    peer_name,
    peer_network,
    tls_auth_context,
)

READ_BYTES = 2**17  # of a body that one system call reads
HEAD_BYTES = 2**14  # of a request line and its headers
_LEAST_PIECE_BYTES = 2**11  # that are passed on before the time is looked at: more, while that takes little of a turn
_PIECE_S = TURN_S / 8
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_REQUEST_S = 0.0003  # what aiohttp's tasks take for the smallest request, behind its head
_HANDSHAKE_S, _HANDSHAKES = 10.0, 256  # longest one; most unfinished ones
_NOT_READ = "does not read its answer"
_PRIVILEGED = frozenset({Role.ADMIN, Role.GATEWAY})
LOG = logging.getLogger("jellybean.tls")


class HttpPort:
    """The listening socket's connections. `context`: TLS, asked for its credentials at each one; None without."""

    make_handler: Callable[[], Any]

    def __init__(self, limits: PortLimits, admission: Admission, context: ssl.SSLContext | None) -> None:
        self._limits, self._admission, self._context = limits, admission, context
        self.gate = ConnectionGate(ListeningPort.HTTP, limits, admission)
        self.gate.on_sweep = self._sweep
        self.calls = Calls(limits, admission)
        self.connections: dict[Any, HttpConnection] = {}  # aiohttp's protocol -> its connection
        self.unread: dict[HttpConnection, tuple[int, float]] = {}  # that wait for their peer to read: bytes, since when
        self.handshakes: Handshakes[TlsTransport] = Handshakes(_HANDSHAKES)
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.tls_buffer = memoryview(bytearray(READ_BYTES))

    @property
    def turns(self) -> PeerTurns:
        """The time of each peer at the event loop."""
        return self._admission.turns

    def waiting_of(self, client: str) -> PeerShare:
        """The client's share of the bytes that wait for its turn."""
        return self._admission.waiting.share_of(client)

    def use_handlers(self, make_handler: Callable[[], Any]) -> None:
        """Make aiohttp's protocol of each connection so. PlanViewError if this aiohttp leaves headers without a limit.

        To be called before the first connection.
        """
        if not hasattr(make_handler(), "_waiter"):
            raise PlanViewError(
                f"aiohttp {aiohttp.__version__} does not say when the headers of a request are complete, so that they "
                "would have no limit: install an earlier one"
            )
        self.make_handler = make_handler

    def accept(self) -> asyncio.BufferedProtocol:
        """The protocol of a new connection."""
        if self._context is None:
            return HttpConnection(self, None)
        context = self._context

        def wrap(incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
            return context.wrap_bio(incoming, outgoing, server_side=True)

        return TlsTransport(wrap, self, self.tls_buffer, _HANDSHAKE_S, is_server=True)

    def close(self) -> None:
        """End the unfinished handshakes."""
        for transport in list(self.handshakes):
            transport.abort()

    def _sweep(self, now_s: float) -> None:
        self.calls.end_slow(now_s)
        for connection, (before, since_s) in list(self.unread.items()):
            size = connection.unsent_bytes
            if size != before:
                self.unread[connection] = size, now_s
            elif now_s - since_s > self._limits.body_s:
                self._admission.refused[ListeningPort.HTTP, _NOT_READ] += 1
                connection.abort()

    # -- TlsEvents ----------------------------------------------------------------------------------------------------

    def connected(self, transport: TlsTransport, address: str) -> bool:
        victim = self.handshakes.begin(transport, address)
        if victim is not None:
            self.gate.count_refusal(TOO_MANY_HANDSHAKES)
            self.failed(victim, "too many unfinished handshakes")
            victim.abort()
        transport.turn = self.turns.of(address)
        transport.entry = self.gate.enter(address, partial(self._end_unfinished, transport))
        return transport.entry is not None

    def _end_unfinished(self, transport: TlsTransport, reason: str) -> None:
        self.failed(transport, f"ended before its handshake was complete: {reason}")
        transport.abort()

    def secured(self, transport: TlsTransport) -> asyncio.BufferedProtocol | None:
        try:
            certificate: Mapping[str, Any] = transport.tls.getpeercert() or {}
        except ValueError:
            self.failed(transport, "its certificate has invalid names")
            return None
        self.handshakes.finish(transport)
        auth = tls_auth_context(name for kind, name in certificate.get("subjectAltName", ()) if kind == "URI")
        identity = next(iter(identities(auth)), None)
        peer = peer_name(transport)
        client = peer_network(peer) if identity is None else identity.uri
        transport.turn, transport.memory = self.turns.of(client), self.waiting_of(client)
        if identity is None or transport.entry is None:
            return HttpConnection(self, HttpCaller(client, auth, peer))
        if not transport.entry.identify(identity.uri):
            return None
        is_privileged = identity.role in _PRIVILEGED
        return HttpConnection(self, HttpCaller(identity.uri, auth, peer), is_privileged=is_privileged)

    def failed(self, transport: TlsTransport, reason: str) -> None:
        self.handshakes.finish(transport)
        host = peer_host(peer_name(transport))
        LOG.info("refused at the handshake: %s (%s)", reason, host, extra=about(host))

    def lost(self, transport: TlsTransport) -> None:
        self.handshakes.finish(transport)
        if transport.entry is not None:
            transport.entry.leave()


class _HandlerTransport:
    """The transport of a connection as aiohttp's handler sees it, which pauses reading for reasons of its own."""

    def __init__(self, connection: HttpConnection, transport: asyncio.Transport) -> None:
        self._connection, self._transport = connection, transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def pause_reading(self) -> None:
        self._connection.pause_by_handler(is_paused=True)

    def resume_reading(self) -> None:
        self._connection.pause_by_handler(is_paused=False)


class HttpConnection(asyncio.BufferedProtocol):
    """One connection. `caller`: by its certificate; None: by its address, once it is connected."""

    def __init__(self, port: HttpPort, caller: HttpCaller | None, *, is_privileged: bool = False) -> None:
        self._port, self._caller, self._is_privileged = port, caller, is_privileged
        self._handler: Any = None
        self._entry: Entry | None = None
        self._client: HttpClient | None = None
        self._head_bytes = 0
        self._turn: PeerTurn | None = None
        self._waiting: PeerShare | None = None
        self._received = memoryview(b"")  # and not passed on yet
        self._piece_bytes = _LEAST_PIECE_BYTES
        self._waits_for_turn = self._passes_on_soon = self._is_paused = False  # paused: by its handler
        self._discards = False  # what still comes
        self._requests_begun = 0  # whose heads were charged, and that have not begun
        self._call: HttpCall | None = None  # the last one that has begun
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()

    @property
    def age_s(self) -> float:
        return self._loop.time() - self._began_s

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def begin_call(self, *, is_health: bool) -> HttpCall:
        """A request of this connection begins. RefusalError if there is no room for it."""
        if self._entry is None or self._client is None:
            raise RefusalError(503, "the connection is closed", closes=True)
        self._requests_begun = max(0, self._requests_begun - 1)
        self._call = self._port.calls.begin(self._client, self._entry, is_health=is_health)
        return self._call

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = peer_name(transport)
        caller = self._caller or HttpCaller(peer_network(peer), {}, peer)
        self._entry = transport.get_extra_info(GATE_ENTRY) or self._port.gate.enter(caller.client, self._end)
        if self._entry is None:
            self.abort()
            return
        self._entry.end = self._end
        self._client = self._port.calls.client_of(caller, is_privileged=self._is_privileged)
        self._turn, self._waiting = self._port.turns.of(caller.client), self._port.waiting_of(caller.client)
        self._handler = self._port.make_handler()
        self._port.connections[self._handler] = self
        self._handler.connection_made(_HandlerTransport(self, self._transport))

    def connection_lost(self, error: Exception | None) -> None:
        self._port.unread.pop(self, None)
        if self._handler is not None:
            self._port.connections.pop(self._handler, None)
            self._handler.connection_lost(error)
        if self._entry is not None:
            self._entry.leave()

    def get_buffer(self, sizehint: int) -> memoryview:
        in_progress = self._entry is not None and self._entry.calls
        return self._port.buffer if in_progress else self._port.buffer[:HEAD_BYTES]

    def discard(self) -> None:
        """The rest of a body is read by nobody, and the connection ends behind the answer: take it and drop it."""
        self._discards, self._received = True, memoryview(b"")
        self._is_paused = False
        if not self._waits_for_turn:
            self._transport.resume_reading()

    def buffer_updated(self, size: int) -> None:
        if self._handler is None or self._discards:
            return
        data = bytes(self._port.buffer[:size])
        self._received = memoryview(bytes(self._received) + data if self._received else data)
        self._pass_on()

    def pause_by_handler(self, *, is_paused: bool) -> None:
        """The handler takes no more for now, or again."""
        if self._discards:
            return
        self._is_paused = is_paused
        if is_paused:
            self._transport.pause_reading()
        elif not self._waits_for_turn:
            self._transport.resume_reading()
            if self._received and not self._passes_on_soon:
                self._passes_on_soon = True
                self._loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        """Pass what was received on to the handler, as far as the client has time in this turn of the event loop."""
        self._passes_on_soon = False
        turn = self._turn
        if turn is None or self._waits_for_turn:
            return
        if not turn.is_used_up:
            began_s, until_s = turn.begin()
            try:
                self._pass_pieces(turn, until_s)
            finally:
                turn.end(began_s)
        if not self._received or self._is_paused or self._transport.is_closing() or self._waiting is None:
            return
        if not self._waiting.take(READ_BYTES):
            self.abort()  # the client's other connections have too much that waits
            return
        self._waits_for_turn = True
        self._transport.pause_reading()
        turn.wait(self._continue)

    def _pass_pieces(self, turn: PeerTurn, until_s: float) -> None:
        """Small pieces first, as a piece of many chunks takes a multiple of the time of one of plain bytes."""
        while self._received and not (self._is_paused or self._transport.is_closing()):
            piece, self._received = self._received[: self._piece_bytes], self._received[self._piece_bytes :]
            is_of_head, began_s = self._awaits_request, turn.clock()
            self._handler.data_received(bytes(piece))
            now_s = turn.clock()
            took_s = now_s - began_s
            self._piece_bytes = self._piece_bytes // 2 if took_s > _PIECE_S else min(READ_BYTES, self._piece_bytes * 2)
            self._piece_bytes = max(_LEAST_PIECE_BYTES, self._piece_bytes)
            if self._call is not None and not is_of_head:
                self._call.framed += len(piece)
            if is_of_head:
                if not self._awaits_request:
                    self._requests_begun += 1
                    turn.charge(_REQUEST_S)
                self._count_head(len(piece))
            if now_s >= until_s or turn.is_used_up:
                return

    def _continue(self) -> None:
        """The client's next turn."""
        self._waits_for_turn = False
        if self._waiting is not None:
            self._waiting.give(READ_BYTES)
        if not (self._transport.is_closing() or self._is_paused):
            self._transport.resume_reading()
            self._pass_on()

    async def await_turn(self) -> None:
        """Wait until the client has time for a request that came behind another one: those are not charged before."""
        turn = self._turn
        if turn is None or self._requests_begun:
            return
        turn.charge(_REQUEST_S)
        if turn.is_used_up:
            await turn.next()

    def _count_head(self, size: int) -> None:
        self._head_bytes = self._head_bytes + size if self._awaits_request else 0
        if self._head_bytes > HEAD_BYTES:
            self._transport.write(_HEAD_TOO_LARGE)
            self._transport.close()

    @property
    def _awaits_request(self) -> bool:
        """True until the headers of the next request are complete; only an attribute of aiohttp's own says so."""
        waiter: asyncio.Future[None] | None = self._handler._waiter
        return waiter is not None and not waiter.done()

    def pause_writing(self) -> None:
        self._port.unread[self] = self.unsent_bytes, self._loop.time()
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._port.unread.pop(self, None)
        self._handler.resume_writing()

    def _end(self, reason: str) -> None:
        """End an idle connection in order, unless its peer does not read what it was sent; any other one at once."""
        if reason == IDLE and not self.unsent_bytes:
            self._transport.close()
        else:
            self.abort()
