"""Requests in progress at the HTTP port: whose they are, what is held for them, and when they are given up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from aiohttp import StreamReader

from jellybean.serving.http.caller import HttpCaller
from jellybean_agent import Admission, Entry, ListeningPort, PeerShare, PeerTurn, PortLimits, SharedLimit

CALL_BYTES = 2**17 + 2**15  # what a request costs before its body is read: what is read at once, and what aiohttp keeps
LARGE_BYTES = 2**19  # of a request; smaller ones have bytes that larger ones may not use
_SMALL_SHARE = 1 / 8  # of all bytes, which are for small requests
_MOST_OF_ONE = 3 / 4  # of all bytes
_STALLED_S = 1.0  # without a byte of its body, after which a request may end for others
_FRAMING_BYTES = 2**18  # that a body may have besides its content, and as much again as that: more are tiny chunks
_BODY_BYTES_PER_S = 500.0  # least mean rate of a body, after the first pause that is allowed (Apache's default)
TOO_MANY_CALLS, TOO_MANY_BYTES, NO_BODY = "too many calls", "too many bytes", "no request"
RETRY_LATER = {"Retry-After": "1"}


class RefusalError(Exception):
    """A request is refused; its text is the reason. `status`: of the answer, with these `headers`.

    `closes`: the connection ends with it, as what comes next is not known.
    """

    def __init__(
        self, status: int, reason: str, headers: Mapping[str, str] | None = None, *, closes: bool = False
    ) -> None:
        super().__init__(reason)
        self.status, self.headers, self.closes = status, headers or {}, closes


@dataclass(frozen=True, slots=True)
class HttpClient:
    """Who makes the requests of a connection, and the client's shares of requests, of bytes and of the loop's time."""

    caller: HttpCaller
    requests: PeerShare
    bytes: PeerShare
    turn: PeerTurn
    is_privileged: bool


class Calls:
    """All requests in progress at one port. `now_s` of their methods: the event loop's time."""

    def __init__(self, limits: PortLimits, admission: Admission) -> None:
        self._limits, self._admission = limits, admission
        self._limit = SharedLimit(limits.calls, limits.reserved_calls)
        self._reading: dict[HttpCall, None] = {}  # the oldest first
        total = admission.bytes.total
        self.small_bytes, self._most_bytes = int(_SMALL_SHARE * total), int(_MOST_OF_ONE * total)

    def client_of(self, caller: HttpCaller, *, is_privileged: bool) -> HttpClient:
        """The client of a new connection."""
        name, admission = caller.client, self._admission
        shares = self._limit.share_of(name), admission.bytes.share_of(name)
        return HttpClient(caller, *shares, admission.turns.of(name), is_privileged)

    def begin(self, client: HttpClient, entry: Entry, *, is_health: bool) -> HttpCall:
        """A request begins. RefusalError if its client has too many, or all have. Health costs no bytes."""
        call, is_privileged = HttpCall(self, client, entry), client.is_privileged or is_health
        while not call.share.take(is_privileged=is_privileged):
            if not self._make_room(call, self._limit):
                self.count_refusal(TOO_MANY_CALLS)
                held = f"{call.share.held} requests of this client, and {self._limit.held} in all, are in progress"
                raise _overload(held, is_own=call.share.is_dominant)
        call.begin(0 if is_health else CALL_BYTES, is_privileged=is_privileged)
        return call

    def check_size(self, size: int) -> None:
        """RefusalError if no request may ever have so many bytes."""
        if size > self._most_bytes:
            self.count_refusal(TOO_MANY_BYTES)
            reason = (
                f"its body, tensors and answer need {size} bytes, and a request has at most {self._most_bytes} here"
            )
            raise RefusalError(413, reason)

    def make_room_for_bytes(self, call: HttpCall) -> bool:
        """End a stalled request of the client that holds too many bytes, or most; False: there is none."""
        return self._make_room(call, self._admission.bytes)

    def end_slow(self, now_s: float) -> None:
        """End the requests whose body pauses for too long, or is too slow altogether."""
        for call in list(self._reading):
            pause_s = call.pause_s(now_s)
            waited_s, received = call.waited_s + pause_s, call.received
            if pause_s > self._limits.body_s:
                call.give_up(f"nothing of its body has arrived for {self._limits.body_s:g} s")
            elif waited_s > self._limits.body_s + received / _BODY_BYTES_PER_S:
                call.give_up(f"{received} bytes of its body have arrived in {waited_s:.0f} s, which is too slow")

    def count_refusal(self, reason: str) -> None:
        self._admission.refused[ListeningPort.HTTP, reason] += 1

    def _make_room(self, call: HttpCall, limit: SharedLimit) -> bool:
        """End the oldest request with a stalled body, of the client that has too much of a limit, else the most."""
        share = call.share if limit is self._limit else call.bytes
        crowded = share if share.is_dominant else limit.largest_share()
        stalled = (other for other in self._reading if other.is_stalled and other is not call)
        oldest = next((other for other in stalled if crowded in (other.share, other.bytes)), None)
        if oldest is None:
            return False
        oldest.give_up("its body has stalled, and other requests wait")
        return True

    @contextlib.contextmanager
    def reading(self, call: HttpCall) -> Iterator[None]:
        """While the body of a request is read."""
        self._reading[call] = None
        try:
            yield
        finally:
            self._reading.pop(call, None)


class HttpCall:
    """One request.

    `received`: bytes of its body as they came, `framed`: with what is around them; `waited_s`: how long was waited
    for them.
    """

    __slots__ = (
        "_calls",
        "_end_reason",
        "_entry",
        "_held",
        "_is_over",
        "_patience",
        "_turn",
        "_waits_since_s",
        "bytes",
        "caller",
        "framed",
        "received",
        "share",
        "waited_s",
    )

    def __init__(self, calls: Calls, client: HttpClient, entry: Entry) -> None:
        self._calls, self._entry = calls, entry
        self.caller, self.share, self.bytes = client.caller, client.requests, client.bytes
        self._turn = client.turn
        self._held = self.received = self.framed = 0
        self._is_over = False
        self.waited_s = 0.0
        self._waits_since_s: float | None = None
        self._patience: asyncio.Timeout | None = None
        self._end_reason = ""  # not the error itself, whose traceback would keep the body until a garbage collection

    def begin(self, size: int, *, is_privileged: bool) -> None:
        """It has its place among its client's requests. RefusalError if it may not have the least memory."""
        self._entry.call_began()
        try:
            self.hold(size, is_privileged=is_privileged)
        except RefusalError:
            self.end()
            raise

    def hold(self, size: int, *, is_privileged: bool = False) -> None:
        """Count bytes that are kept until the request is over. RefusalError if its client may not have them."""
        if self._end_reason:
            raise RefusalError(408, self._end_reason, closes=True)
        self._calls.check_size(self._held + size)
        while not self._take(size, is_privileged=is_privileged):
            if not self._calls.make_room_for_bytes(self):
                self._calls.count_refusal(TOO_MANY_BYTES)
                held = f"{self.bytes.held} bytes of this client's requests and answers are in memory, and {size} more"
                raise _overload(f"{held} are not to be had", is_own=self.bytes.held > self._held)
        self._held += size

    def _take(self, size: int, *, is_privileged: bool) -> bool:
        is_large = self._held + size > LARGE_BYTES
        if is_large and not self.bytes.may_take(size, self._calls.small_bytes):
            return False
        return self.bytes.take(size, is_privileged=is_privileged)

    def hold_instead(self, size: int) -> None:
        """What was held is not kept any more: these bytes are."""
        self.give(self._held)
        self.hold(size)

    def give(self, size: int) -> None:
        """Some bytes are not kept any more."""
        if not self._is_over:
            self._held -= size
            self.bytes.give(size)

    def end(self) -> None:
        """The request is over."""
        if not self._is_over:
            self._is_over = True
            self.bytes.give(self._held)
            self.share.give()
            self._entry.call_ended()

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read the body in this context, in which the request may be given up: RefusalError."""
        try:
            async with asyncio.timeout(None) as self._patience:
                with self._calls.reading(self):
                    yield
        except TimeoutError:
            if not self._end_reason:
                raise
            raise RefusalError(408, self._end_reason, closes=True) from None

    async def receive(self, content: StreamReader) -> bytes:
        """The next bytes of the body; empty at its end. RefusalError if it has far more chunks than content.

        Many small chunks take time to put together, which is the client's.
        """
        loop, turn = asyncio.get_running_loop(), self._turn
        if turn.is_used_up:
            await turn.next()
        chunk = self._take_received(content)
        if not chunk:
            began_s = self._waits_since_s = loop.time()
            first = await content.read(1)
            self._waits_since_s = None
            self.waited_s += loop.time() - began_s
            chunk = first + self._take_received(content) if first else first
        self.received += len(chunk)
        if self.framed > 2 * self.received + _FRAMING_BYTES:
            reason = f"{self.framed} bytes of its body have {self.received} bytes of content: send larger chunks"
            raise RefusalError(400, reason, closes=True)
        return chunk

    def _take_received(self, content: StreamReader) -> bytes:
        began_s, _ = self._turn.begin()
        try:
            chunk: bytes = content.read_nowait()
            return chunk
        finally:
            self._turn.end(began_s)

    def pause_s(self, now_s: float) -> float:
        """How long it has waited for the next bytes of its body; none while it is busy with those that came."""
        return 0.0 if self._waits_since_s is None else now_s - self._waits_since_s

    @property
    def is_stalled(self) -> bool:
        return self.pause_s(asyncio.get_running_loop().time()) > _STALLED_S

    def give_up(self, reason: str) -> None:
        """End a request whose body is being read; what is held for it is free at once."""
        if self._patience is not None and not self._end_reason:
            self._calls.count_refusal(NO_BODY)
            self._end_reason = reason
            self._patience.reschedule(asyncio.get_running_loop().time())
            self.end()


CURRENT_CALL: ContextVar[HttpCall] = ContextVar("http-call")  # set in the task of each request


def _overload(reason: str, *, is_own: bool) -> RefusalError:
    """429 if the client itself is the reason, 503 if others are."""
    return RefusalError(429 if is_own else 503, f"{reason}: try again later", RETRY_LATER)
