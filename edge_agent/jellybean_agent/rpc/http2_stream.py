"""The state of an HTTP/2 connection's streams: one per call, each with its flow control and partial messages."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from jellybean_agent.admission.shares import PeerShare
from jellybean_agent.rpc.calls import RpcCall
from jellybean_agent.rpc.frames import (
    CLOSED,
    FLOW,
    LARGEST_WINDOW,
    PROTOCOL_ERROR,
    WINDOW_BYTES,
    BrokenError,
    StreamError,
)

_REMEMBERED_GAPS = 16  # in the numbers of streams: clients have none, and each is looked through for a late frame
_REMEMBERED = 1024  # closed streams: more than a client can have in flight when one of them is closed
MESSAGE_BYTES = 64  # what a message takes besides its bytes
DIRECT_BYTES = 2**14  # messages from this size on are received without a copy through the read buffer


class Stream:
    """One call's stream: the request message being received, flow control, and the response bytes not yet sent."""

    __slots__ = (
        *("backlog", "call", "charged", "content_bytes", "credit", "got", "has_headers", "inflation", "is_compressed"),
        *("is_half_closed", "last", "messages", "need", "part", "queued", "request", "timer", "unread", "unsent"),
        *("waiter", "whole", "window"),
    )

    def __init__(self, window: int) -> None:
        self.call: RpcCall | None = None
        self.window = window  # send window: bytes that the client still accepts
        self.credit = WINDOW_BYTES  # receive window: bytes that the client may still send
        self.content_bytes = 0  # bytes of DATA received, without padding
        self.unread = 0  # bytes received for which no WINDOW_UPDATE was sent yet
        self.part = bytearray()  # the beginning of the message being received, copied from the read buffer
        self.got, self.need = 0, -1  # of that message: bytes received, and its size without the prefix (-1: unknown)
        self.whole: memoryview | None = None  # buffer of a large message, received into it without a copy
        self.is_compressed = False
        self.request: memoryview | None = None  # of a unary call, handled once the client has half-closed the stream
        self.messages = 0
        self.inflation: asyncio.Task[None] | None = None  # decompresses messages
        self.backlog: deque[tuple[memoryview | bytes, bool]] = deque()  # messages behind it; True: compressed
        self.queued = 0  # bytes of messages that are complete and still used
        self.charged = 0  # bytes that are counted as the client's
        self.is_half_closed = False  # by the client
        self.has_headers = False  # response headers were sent
        self.unsent: deque[memoryview] = deque()  # response bytes that flow control holds back
        self.last: bytes | None = None  # trailers to send after the unsent bytes
        self.timer: asyncio.TimerHandle | None = None  # drops unsent bytes at the call's deadline
        self.waiter: asyncio.Future[None] | None = None  # of a handler that waits for its response to be sent

    def keep_request(self) -> None:
        """Copy a small request out of the read buffer, which is larger, until the client half-closes the stream."""
        if self.request is not None and len(self.request) < DIRECT_BYTES:
            self.request = memoryview(bytes(self.request))

    def hold(self, share: PeerShare) -> bool:
        """Count what is kept of the client's requests; False if it may not have as much.

        A large message counts from its beginning, as its memory is made in one piece.
        """
        kept = (self.need if self.need > DIRECT_BYTES else self.got) + self.queued
        if self.request is not None:
            kept += len(self.request)
        more = kept - self.charged
        if more > 0 and not share.take(more):
            return False
        if more < 0:
            share.give(-more)
        self.charged = kept
        return True

    def consumed(self, size: int, share: PeerShare | None) -> None:
        """A message of so many bytes is not used any more."""
        self.queued -= size + MESSAGE_BYTES
        if share is not None and self.charged > self.queued:
            self.hold(share)

    def release(self, share: PeerShare | None) -> None:
        """Nothing is used any more."""
        if self.inflation is not None:
            self.inflation.cancel()
            self.inflation = None  # else its traceback would keep what is unpacked until a garbage collection
        if share is not None and self.charged:
            share.give(self.charged)
            self.charged = 0

    def receive_bytes(self, size: int) -> None:
        """Subtract received bytes from the receive window. BrokenError if it is exceeded; StreamError after the end."""
        if self.is_half_closed:
            raise StreamError(CLOSED)
        self.credit -= size
        if self.credit < 0:
            raise BrokenError(FLOW, "more than a stream's window")
        self.unread += size

    def widen(self, more: int) -> None:
        """Add to the send window. StreamError when it exceeds the protocol's maximum."""
        self.window += more
        if self.window > LARGEST_WINDOW:
            raise StreamError(FLOW)


class StreamTable:
    """The streams of a connection by number. `by_number`: the open ones, one dict for the connection's life.

    A stream that the server closed before the client's end may still get frames, which are ignored. Frames of
    other closed streams are errors. Only the last closed streams of a kind are remembered.
    """

    __slots__ = ("_skipped", "_unfinished", "by_number", "initial_window", "last")

    def __init__(self) -> None:
        self.by_number: dict[int, Stream] = {}
        self._unfinished: OrderedDict[int, None] = OrderedDict()  # closed before the client's end
        self._skipped: deque[range] = deque(maxlen=_REMEMBERED_GAPS)  # numbers that were never opened
        self.last = 0  # highest number that was opened
        self.initial_window = 2**16 - 1  # send window of a new stream, by the client's settings

    def begin(self, number: int) -> None:
        """A client uses a new number: those below it can be used no more."""
        if number > self.last + 2:
            self._skipped.append(range(self.last + 1, number))
        self.last = number

    def open(self, number: int) -> Stream:
        stream = self.by_number[number] = Stream(self.initial_window)
        return stream

    def closed_early(self, number: int) -> None:
        """The server has closed a stream whose client may not know of it yet."""
        self._unfinished[number] = None
        if len(self._unfinished) > _REMEMBERED:
            self._unfinished.popitem(last=False)

    def may_get_frames(self, number: int) -> bool:
        """True for a closed stream whose client did not know when it sent a frame. BrokenError if it was never open."""
        if any(number in numbers for numbers in self._skipped):
            raise BrokenError(PROTOCOL_ERROR, f"stream {number} is below one that is open already")
        return number in self._unfinished

    def change_initial_window(self, window: int) -> None:
        """Apply the client's setting, to open streams too."""
        more = window - self.initial_window
        self.initial_window = window
        try:
            for stream in self.by_number.values() if more else ():
                stream.widen(more)
        except StreamError as error:  # SETTINGS are of the connection (RFC 9113, 6.9.2)
            raise BrokenError(error.code, "a stream's window out of bounds") from None

    def take_all(self) -> list[Stream]:
        """Remove and return all streams."""
        streams = list(self.by_number.values())
        self.by_number.clear()
        return streams
