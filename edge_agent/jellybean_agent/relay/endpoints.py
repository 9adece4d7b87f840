"""The two kinds of connections that a pipe joins: plain TCP, and TLS that can be closed in one direction.

asyncio's TLS, and the one of the RPC server, end both directions together. A pipe has to pass a half-close on, so this
one sends close_notify (`end`) and goes on reading. A connection that ends without close_notify was reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from typing import cast

from jellybean_agent.admission.gate import Entry
from jellybean_agent.admission.turns import PeerTurn
from jellybean_agent.relay.limits import READ_BYTES, WRITE_BYTES
from jellybean_agent.security.tls_context import tls_error_text
from jellybean_protos.addresses import plain_host

WrapBio = Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]
_SEND_BYTES = 2**17  # of ciphertext above which it is sent before more is encrypted, so that it stays in the cache
_LINGER_S = 1.0  # for a peer to read the last bytes and close
_RECORD_BYTES = 2**14  # largest plaintext of a record
_HANDSHAKE_BYTES = 2**14  # that one system call reads before the handshake is complete
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
# A peer that is gone without a word is noticed by the kernel after 15 s + 3 * 5 s of silence.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class Sink:
    """What a connection's events do. The default ignores them."""

    def connected(self, endpoint: Endpoint) -> None:
        """The connection is established; with TLS, its handshake begins. The sink may reset it."""

    def opened(self, endpoint: Endpoint) -> None:
        """The connection is established; with TLS, the handshake is complete."""

    def received(self, data: bytes) -> None:
        """Bytes have arrived."""

    def ended(self) -> None:
        """The peer sends no more; it may still read."""

    def lost(self, reason: str) -> None:
        """The connection is over. `reason`: empty if both directions had ended before."""

    def paused(self) -> None:
        """Too many bytes are unsent."""

    def resumed(self) -> None:
        """Bytes may be sent again."""


class Endpoint(asyncio.BufferedProtocol):
    """A TCP connection. `buffer`: memory to read into, which the connections of one event loop may share."""

    def __init__(self, sink: Sink, buffer: memoryview) -> None:
        self.sink, self._buffer = sink, buffer
        self._socket: asyncio.Transport | None = None
        self.peer = ""  # its IP address, once connected
        self._reason = ""  # why the connection is being ended
        self._is_over = self._has_ended = self._peer_has_ended = False
        self.is_lost = False
        self.entry: Entry | None = None  # at the gate of a port here
        self._linger: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        """True once the connection is lost, or is being reset or closed."""
        return self._is_over

    @property
    def peer_has_ended(self) -> bool:
        """True once the peer sends no more."""
        return self._peer_has_ended

    # -- asyncio.BufferedProtocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        if self._is_over:
            self._socket.abort()
            return
        name = self._socket.get_extra_info("peername")
        self.peer = plain_host(str(name[0])) if name else ""
        self._socket.set_write_buffer_limits(WRITE_BYTES)
        with contextlib.suppress(OSError):
            raw = self._socket.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                raw.setsockopt(socket.IPPROTO_TCP, option, value)
        self.sink.connected(self)
        if not self._is_over:
            self._connected()

    def connection_lost(self, error: Exception | None) -> None:
        is_whole = self._has_ended and self._peer_has_ended and error is None and not self._reason
        self._socket, self._is_over, self.is_lost = None, True, True
        if self._linger is not None:
            self._linger.cancel()
        if self.entry is not None:
            self.entry.leave()
        self.sink.lost("" if is_whole else self._reason or (str(error) if error else "it was closed"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        if not self._is_over:
            self.sink.received(bytes(self._buffer[:size]))

    def eof_received(self) -> bool:
        self._peer_ended()
        return self._linger is None  # the other direction stays open

    def pause_writing(self) -> None:
        self.sink.paused()

    def resume_writing(self) -> None:
        self.sink.resumed()

    # -- what a pipe calls --------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes; nothing once the connection is over."""
        if self._socket is not None and not self._is_over and not self._has_ended:
            self._socket.write(data)

    def end(self) -> None:
        """End this direction after what was sent."""
        if self._socket is not None and not self._is_over and not self._has_ended:
            self._has_ended = True
            self._send_end(self._socket)

    def close(self) -> None:
        """Send what is left, then close. What the peer still sends is not passed on."""
        self.end()
        self._is_over = True
        if self._socket is not None:
            self._close(self._socket)

    def reset(self, reason: str) -> None:
        """End the connection at once, so that the peer sees a reset. `reason` is reported to the sink."""
        if self._socket is None:
            self._is_over = True
            return
        self._reason = self._reason or reason
        self._is_over = True
        with contextlib.suppress(OSError):
            raw = self._socket.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        self._socket.abort()

    def pause_reading(self) -> None:
        if self._socket is not None and not self._socket.is_closing():
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        if self._socket is not None and not self._socket.is_closing():
            self._socket.resume_reading()

    def _close(self, transport: asyncio.Transport) -> None:
        """Close once the peer has, at the latest after `_LINGER_S`.

        If bytes were left unread, the kernel would reset the connection, and the peer might not read why it ended.
        """
        if self._peer_has_ended:
            transport.close()
            return
        transport.write_eof()
        transport.resume_reading()
        self._linger = asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)

    # -- differs with TLS ---------------------------------------------------------------------------------------------

    def _connected(self) -> None:
        self.sink.opened(self)

    def _peer_ended(self) -> None:
        if not self._peer_has_ended and not self._is_over:
            self._peer_has_ended = True
            self.sink.ended()

    def _send_end(self, transport: asyncio.Transport) -> None:
        transport.write_eof()


class TlsEndpoint(Endpoint):
    """A TLS connection. `wrap`: makes its TLS object; at a server once the peer has begun, as it takes memory."""

    tls: ssl.SSLObject

    def __init__(self, wrap: WrapBio, sink: Sink, buffer: memoryview, *, is_server: bool = False) -> None:
        super().__init__(sink, buffer)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._wrap, self._is_server, self._has_tls = wrap, is_server, False
        self._is_secure = self._waits_for_turn = False
        self.turn: PeerTurn | None = None  # of the address, for handshakes with a relay

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer if self._is_secure else self._buffer[:_HANDSHAKE_BYTES]

    def _connected(self) -> None:
        if not self._is_server:
            self._shake_hands()

    def buffer_updated(self, size: int) -> None:
        if self._is_over:
            return
        self._incoming.write(self._buffer[:size])
        if self._is_secure:
            self._deliver()
        else:
            self._shake_hands_in_turn()

    def _shake_hands_in_turn(self) -> None:
        """Continue the handshake, once the address has time for it: a flood of handshakes holds up no pipe."""
        turn = self.turn
        if self._waits_for_turn:
            return
        if turn is not None and turn.is_used_up:
            self._waits_for_turn = True
            self.pause_reading()
            turn.wait(self._continue_handshake)
            return
        began_s = 0.0 if turn is None else turn.begin()[0]
        try:
            is_complete = self._shake_hands()
        finally:
            if turn is not None:
                turn.end(began_s)
        if is_complete:
            self._deliver()

    def _continue_handshake(self) -> None:
        self._waits_for_turn = False
        if not self._is_over:
            self.resume_reading()
            self._shake_hands_in_turn()

    def eof_received(self) -> bool:
        if not self._peer_has_ended and not self._is_over:
            self.reset("it ended the connection without a word")
        return self._linger is None

    def send(self, data: bytes) -> None:
        if self._is_over or self._has_ended:
            return
        view = memoryview(data)
        for at in range(0, len(view), _SEND_BYTES):
            try:
                self.tls.write(view[at : at + _SEND_BYTES])
            except ssl.SSLError as error:
                self._fail(error)
                return
            self._send_outgoing()

    def _send_end(self, transport: asyncio.Transport) -> None:
        if self._has_tls:
            with contextlib.suppress(ssl.SSLError):  # that the peer's close_notify is not here yet
                self.tls.unwrap()
            self._send_outgoing()

    def _shake_hands(self) -> bool:
        if not self._has_tls:
            self._has_tls = True
            self.tls = self._wrap(self._incoming, self._outgoing)
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send_outgoing()
            return False
        except ssl.SSLError as error:
            self._fail(error)
            return False
        self._send_outgoing()
        self._is_secure = True
        self.sink.opened(self)
        return not self._is_over

    def _deliver(self) -> None:
        """Pass all complete records to the sink, in one piece."""
        found: list[bytes] = []
        error: ssl.SSLError | None = None
        is_end = False
        try:
            while self._incoming.pending or self.tls.pending():
                data = self.tls.read(_RECORD_BYTES)
                if not data:  # close_notify
                    is_end = True
                    break
                found.append(data)
        except ssl.SSLWantReadError:  # the rest is an incomplete record
            pass
        except ssl.SSLZeroReturnError:  # close_notify, after ours
            is_end = True
        except ssl.SSLError as failure:
            error = failure
        self._send_outgoing()  # the answer to a key update
        if found:
            self.sink.received(found[0] if len(found) == 1 else b"".join(found))
        if error is not None:
            self._fail(error)
        elif is_end:
            self._peer_ended()

    def _fail(self, error: ssl.SSLError) -> None:
        """TLS has failed: send the alert that says why, and close."""
        self._send_outgoing()
        self._reason = self._reason or tls_error_text(error)
        self._is_over = True
        if self._socket is not None:
            self._close(self._socket)

    def _send_outgoing(self) -> None:
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())


def read_buffer() -> memoryview:
    """Memory for the connections of one event loop to read into."""
    return memoryview(bytearray(READ_BYTES))
