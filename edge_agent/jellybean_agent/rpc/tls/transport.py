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
from enum import Enum, auto
from typing import Any, Protocol, cast

from jellybean_agent.admission.gate import GATE_ENTRY, Entry
from jellybean_agent.admission.shares import PeerShare
from jellybean_agent.admission.turns import PeerTurn
from jellybean_agent.security.tls_context import tls_error_text
from jellybean_agent.system.addresses import peer_name, peer_network

WrapBio = Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]
READ_BYTES = 2**17  # of ciphertext that one system call reads
_HANDSHAKE_BYTES = 2**14  # the same before the handshake is complete: certificates of a chain
_RECORDS_AT_ONCE = 64  # that are decrypted before the time is looked at
_RECORD_BYTES = 2**14  # largest plaintext of a record
_SEND_BYTES = 2**17  # of ciphertext above which it is sent before more is encrypted, so that it stays in the cache
_HANDSHAKE_RECORD = 0x16  # first byte of every TLS connection


class _Read(Enum):
    """Why no more was decrypted: the room is full, a record is incomplete or invalid, or the peer has sent its last."""

    FULL = auto()
    INCOMPLETE = auto()
    INVALID = auto()
    ENDED = auto()


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
    event loop may share it. The handshake must be complete within `handshake_s`. `is_server`: the peer has to begin.

    A server makes the TLS object, which takes a hundred kilobytes, once the peer has begun a handshake.
    """

    tls: ssl.SSLObject

    def __init__(
        self, wrap: WrapBio, events: TlsEvents, buffer: memoryview, handshake_s: float, *, is_server: bool = False
    ) -> None:
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._wrap, self._is_server = wrap, is_server
        self._has_tls = False
        self._events, self._buffer, self._handshake_s = events, buffer, handshake_s
        self._socket: asyncio.Transport | None = None
        self._app: asyncio.BufferedProtocol | None = None  # set once the handshake is complete
        self._timer: asyncio.TimerHandle | None = None
        self._has_received = self._is_closing = self._is_paused = self._waits_for_turn = False
        self.entry: Entry | None = None  # at the gate of a server's port
        self.turn: PeerTurn | None = None  # at a server: of the address, and then of the identity
        self.memory: PeerShare | None = None  # of the identity, for what waits for its turn

    # -- the socket's protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        if self._is_closing or not self._events.connected(self, peer_network(peer_name(transport))):
            self.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(self._handshake_s, self._time_out)
        if not self._is_server:
            self._shake_hands()

    def connection_lost(self, error: Exception | None) -> None:
        self._socket = None
        self._is_closing = True
        self._end_wait()
        if self._timer is not None:
            self._timer.cancel()
        if self._app is not None:
            self._app.connection_lost(error)
        self._events.lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer if self._app is not None else self._buffer[:_HANDSHAKE_BYTES]

    def buffer_updated(self, size: int) -> None:
        if self._is_closing:
            return
        if not self._has_received:
            self._has_received = True
            if self._is_server and self._buffer[0] != _HANDSHAKE_RECORD:
                self._fail("it does not speak TLS")
                return
        self._incoming.write(self._buffer[:size])
        self._proceed_in_turn()

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

    def _proceed_in_turn(self) -> None:
        """Handshake and decryption of what was received, as far as the peer has time: a flood delays no other peer."""
        turn = self.turn
        if turn is None:
            if self._app is not None or self._shake_hands():
                self._deliver()
            return
        if self._waits_for_turn:
            return
        if not turn.is_used_up:
            began_s, until_s = turn.begin()
            try:
                if self._app is not None:
                    is_over = self._deliver(turn.clock, until_s)
                else:
                    is_over = not self._shake_hands() or self._deliver(turn.clock, until_s)
            finally:
                turn.end(began_s)
            if is_over:
                return
        if self._socket is None or self._is_closing:
            return
        if self.memory is not None and not self.memory.take(READ_BYTES):
            self.abort()  # its other connections have too much that waits
            return
        self._waits_for_turn = True
        self._socket.pause_reading()
        turn.wait(self._continue, is_first=self._has_tls and self._app is None)  # a handshake that has begun

    def _continue(self) -> None:
        """The peer's next turn."""
        self._end_wait()
        if self._socket is None or self._is_closing:
            return
        if not self._is_paused:
            self._socket.resume_reading()
        self._proceed_in_turn()

    def _end_wait(self) -> None:
        if self._waits_for_turn and self.memory is not None:
            self.memory.give(READ_BYTES)
        self._waits_for_turn = False

    def _shake_hands(self) -> bool:
        """Continue the handshake; True once it is complete and the protocol above is connected."""
        if not self._has_tls:
            self._has_tls = True
            self.tls = self._wrap(self._incoming, self._outgoing)
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

    def _deliver(self, clock: Callable[[], float] | None = None, until_s: float = 0.0) -> bool:
        """Pass all complete records to the protocol above. False if the time was over before the last one."""
        is_over = True
        while self._may_deliver and self._app is not None and (self._incoming.pending or self.tls.pending()):
            room = memoryview(self._app.get_buffer(-1))
            size, what = self._decrypt(room)
            if what is _Read.INVALID:
                self._break()  # first, as answers to what came before cannot be encrypted any more
            if size:
                self._app.buffer_updated(size)
            if what is _Read.ENDED:
                self.close()
            elif what is _Read.INCOMPLETE:
                break
            elif clock is not None and self._incoming.pending and clock() >= until_s and self._may_deliver:
                is_over = False
                break
        self._send_outgoing()  # the answer to a key update
        return is_over

    @property
    def _may_deliver(self) -> bool:
        return not (self._is_closing or self._is_paused)

    def _decrypt(self, room: memoryview) -> tuple[int, _Read]:
        """Decrypt some records into `room`; returns the number of bytes, and why there are not more.

        After an invalid record OpenSSL has written an alert, and encrypts nothing more.
        """
        size, incoming, tls = 0, self._incoming, self.tls
        read: Any = tls.read
        try:
            for _ in range(_RECORDS_AT_ONCE):
                count = read(len(room) - size, room[size:])
                if not count:  # close_notify
                    return size, _Read.ENDED
                size += count
                if size == len(room) or not (incoming.pending or tls.pending()):
                    break
        except ssl.SSLWantReadError:  # the rest is an incomplete record
            return size, _Read.INCOMPLETE
        except ssl.SSLError:
            return size, _Read.INVALID
        return size, _Read.FULL

    def _break(self) -> None:
        """TLS has failed: send the alert that says why, and close."""
        self._is_closing = True
        self._send_outgoing()
        if self._socket is not None:
            self._socket.close()

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
        if self._has_tls:
            with contextlib.suppress(
                ssl.SSLError
            ):  # that the peer's close_notify is not here yet: it is not waited for
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
            asyncio.get_running_loop().call_soon(self._deliver_waiting)
        if self._socket is not None and not self._waits_for_turn:
            self._socket.resume_reading()

    def _deliver_waiting(self) -> None:
        if self._app is not None and not self._is_closing:
            self._proceed_in_turn()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._socket is None else self._socket.get_write_buffer_size()
