"""TLS of one connection: a transport for the protocol above, and the protocol of the socket's transport below.

It drives `ssl.SSLObject` itself: asyncio's TLS copies more and calls the protocol above once per record, which costs
1.3 times as much CPU for an echo of 10 KB and 1.6 times for 600 KB. Records are decrypted into the buffers of the
protocol above, so large messages are received without a further copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, Protocol, cast

from jellybean_agent.admission.gate import GATE_ENTRY, Entry
from jellybean_agent.admission.turns import PeerTurn
from jellybean_agent.security.tls_context import tls_error_text
from jellybean_agent.system.addresses import peer_name, peer_network

WrapBio = Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]
READ_BYTES = 2**17  # of ciphertext that one system call reads
_RECORD_BYTES = 2**14  # largest plaintext of a record
_SEND_BYTES = 2**17  # of ciphertext above which it is sent before more is encrypted, so that it stays in the cache
_HANDSHAKE_RECORD = 0x16  # first byte of every TLS connection


class TlsEvents(Protocol):
    """What a `TlsTransport` reports."""

    def connected(self, transport: TlsTransport, address: str) -> bool:
        """A connection with this address begins; False: it has to be closed, as there are too many."""
        ...

    def secured(self, transport: TlsTransport) -> asyncio.BufferedProtocol | None:
        """The handshake is complete: the protocol to use, or None to close the connection."""
        ...

    def failed(self, transport: TlsTransport, reason: str) -> None:
        """The handshake has failed; the connection is being closed."""
        ...

    def lost(self, transport: TlsTransport) -> None:
        """The connection is closed."""
        ...


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """One TLS connection, from the socket's `connection_made` on.

    `buffer`: memory to read ciphertext into. It is consumed before `buffer_updated` returns, so the connections of one
    event loop may share it. The handshake must be complete within `handshake_s`.
    """

    def __init__(self, wrap: WrapBio, events: TlsEvents, buffer: memoryview, handshake_s: float) -> None:
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = wrap(self._incoming, self._outgoing)
        self._events, self._buffer, self._handshake_s = events, buffer, handshake_s
        self._socket: asyncio.Transport | None = None
        self._app: asyncio.BufferedProtocol | None = None  # set once the handshake is complete
        self._timer: asyncio.TimerHandle | None = None
        self._has_received = self._is_closing = self._is_paused = False
        self.entry: Entry | None = None  # at the gate of a server's port
        self.turn: PeerTurn | None = None  # of the address, for handshakes with a server

    # -- the socket's protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        if self._is_closing or not self._events.connected(self, peer_network(peer_name(transport))):
            self.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(self._handshake_s, self._time_out)
        self._shake_hands()

    def connection_lost(self, error: Exception | None) -> None:
        self._socket = None
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._app is not None:
            self._app.connection_lost(error)
        self._events.lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        if self._is_closing:
            return
        if not self._has_received:
            self._has_received = True
            if self.tls.server_side and self._buffer[0] != _HANDSHAKE_RECORD:
                self._fail("it does not speak TLS")
                return
        self._incoming.write(self._buffer[:size])
        if self._app is not None or self._shake_hands_in_turn():
            self._deliver()

    def eof_received(self) -> None:
        """The socket was closed without close_notify: its transport closes itself."""
        if self._app is None and not self._is_closing:
            self._fail("it closed the connection")

    def pause_writing(self) -> None:
        if self._app is not None:
            self._app.pause_writing()

    def resume_writing(self) -> None:
        if self._app is not None:
            self._app.resume_writing()

    # -- TLS ----------------------------------------------------------------------------------------------------------

    def _shake_hands_in_turn(self) -> bool:
        """Continue the handshake, once the address has time for it: a flood of handshakes delays no other peer."""
        turn = self.turn
        if turn is None:
            return self._shake_hands()
        if turn.is_used_up:
            if self._socket is not None:
                self._socket.pause_reading()
            turn.wait(self._continue_handshake)
            return False
        began_s, _ = turn.begin()
        is_complete = self._shake_hands()
        turn.end(began_s)
        return is_complete

    def _continue_handshake(self) -> None:
        if self._socket is None or self._is_closing:
            return
        if not self._is_paused:
            self._socket.resume_reading()
        if self._shake_hands_in_turn():
            self._deliver()

    def _shake_hands(self) -> bool:
        """Continue the handshake; True once it is complete and the protocol above is connected."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send_outgoing()
            return False
        except ssl.SSLError as error:
            self._send_outgoing()  # the alert that tells the peer why
            self._fail(tls_error_text(error))
            return False
        self._send_outgoing()
        self._app = self._events.secured(self)
        if self._app is None:
            self.close()
            return False
        if self._timer is not None:
            self._timer.cancel()
        self._app.connection_made(self)
        return True

    def _time_out(self) -> None:
        if not self._is_closing:
            self._fail(f"no TLS handshake within {self._handshake_s:g} s")
        self.abort()  # `close` waits for a peer that does not read

    def _fail(self, reason: str) -> None:
        self._is_closing = True
        self._events.failed(self, reason)
        if self._socket is not None:
            self._socket.close()

    def _deliver(self) -> None:
        """Pass all complete records to the protocol above."""
        while self._may_deliver and self._app is not None and (self._incoming.pending or self.tls.pending()):
            room = memoryview(self._app.get_buffer(-1))
            size, is_over = self._decrypt(room)
            if size:
                self._app.buffer_updated(size)
            if is_over:
                self.close()
            elif size < len(room):
                break
        self._send_outgoing()  # the answer to a key update

    @property
    def _may_deliver(self) -> bool:
        return not (self._is_closing or self._is_paused)

    def _decrypt(self, room: memoryview) -> tuple[int, bool]:
        """Decrypt into `room`; returns the number of bytes, and whether the peer has ended the connection.

        Invalid records end it too: OpenSSL has then written an alert.
        """
        size, incoming, tls = 0, self._incoming, self.tls
        read: Any = tls.read
        try:
            while size < len(room) and (not size or incoming.pending or tls.pending()):
                count = read(len(room) - size, room[size:])
                if not count:  # close_notify
                    return size, True
                size += count
        except ssl.SSLWantReadError:  # the rest is an incomplete record
            pass
        except ssl.SSLError:
            return size, True
        return size, False

    def _send_outgoing(self) -> None:
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())

    # -- the transport of the protocol above --------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        """Encrypt and send. Nothing is sent after `close`."""
        if self._is_closing:
            return
        view = memoryview(data)
        for at in range(0, len(view), _RECORD_BYTES):
            self.tls.write(view[at : at + _RECORD_BYTES])
            if self._outgoing.pending >= _SEND_BYTES:
                self._send_outgoing()
        self._send_outgoing()

    def close(self) -> None:
        """Send close_notify after what was written, then close the socket."""
        if self._is_closing:
            return
        self._is_closing = True
        with contextlib.suppress(ssl.SSLError):  # also if the peer's close_notify is not here yet: it is not waited for
            self.tls.unwrap()
        self._send_outgoing()
        if self._socket is not None:
            self._socket.close()

    def abort(self) -> None:
        self._is_closing = True
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._app = cast(asyncio.BufferedProtocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self if self._app is None else self._app

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == GATE_ENTRY:
            return self.entry
        return default if self._socket is None else self._socket.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Deliver nothing more, of what was received already either."""
        self._is_paused = True
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            asyncio.get_running_loop().call_soon(self._deliver)
        if self._socket is not None:
            self._socket.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._socket is None else self._socket.get_write_buffer_size()
