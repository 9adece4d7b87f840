"""Calls in progress, independent of the protocol that carries them.

`RpcCall` is the context passed to handlers written for grpc.aio. A handler may also be raw: it gets the request bytes
as they arrive, without an asyncio task per call.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, Self

import grpc
import grpc.aio

from jellybean_agent.admission.gate import Entry
from jellybean_agent.admission.shares import PeerShare
from jellybean_agent.admission.turns import PeerTurn
from jellybean_agent.rpc.flood_limits import FloodLimits
from jellybean_agent.system.timers import loop_s

LOG = logging.getLogger("jellybean.calls")
SHUTTING_DOWN = "the server is shutting down"
_HEALTH_CHECK = "/grpc.health.v1.Health/Check"
EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009 (missing from the type stubs)
AuthContext = Mapping[str, Iterable[bytes]]
NO_AUTH_CONTEXT: AuthContext = MappingProxyType({})
Metadata = tuple[tuple[str, str | bytes], ...]
RawUnary = Callable[["RpcCall", memoryview], bool]  # serves the request by `reply` or `end`; False: use the handler
RawStream = Callable[["RpcCall"], "StreamReceiver | None"]  # takes the requests; None: call ended


_RUNNING: set[asyncio.Task[None]] = set()  # keeps tasks of handlers alive, as the event loop has weak references only


class StreamReceiver(Protocol):
    """Receives a stream's requests without a task; the call's done callbacks report its end."""

    def receive(self, message: bytes) -> None: ...
    def end_of_requests(self) -> None:
        """The client has half-closed the stream."""
        ...


@dataclass(slots=True, eq=False)
class Caller:
    """What a connection counts as: at the gate of its port, and of the limits on its peer's calls and bytes.

    `waiting`: the peer's share of what was read and waits for its turn. `turn`: its time at the event loop.
    `is_privileged`: may use what is reserved for administrators.
    """

    entry: Entry
    calls: PeerShare
    bytes: PeerShare
    waiting: PeerShare
    turn: PeerTurn
    is_privileged: bool


class CallConnection(Protocol):
    """The connection that carries a call. `auth_context`: the client's certificate, as grpc gives it; empty without.

    `caller`: None before the connection is let in, and where there was no room for it.
    """

    peer: str
    auth_context: AuthContext
    caller: Caller | None

    def send(self, call: RpcCall, message: bytes) -> None: ...
    def finish(self, call: RpcCall, status: grpc.StatusCode, details: str) -> None:
        """Send the trailing status."""
        ...

    def consumed(self, call: RpcCall, size: int) -> None:
        """The handler has consumed a request message of so many bytes."""
        ...

    def received_bytes(self, call: RpcCall) -> int:
        """Bytes of the call's request that have arrived."""
        ...

    async def writable(self, call: RpcCall) -> None:
        """Wait until most of the call's response bytes have left."""
        ...


class CallServer(Protocol):
    """The server behind the connections of a port: its methods, limits and policy."""

    methods: Mapping[str, Method]
    max_message_bytes: int
    max_streams: int
    read_buffer: memoryview  # of all connections, which take out of it what they have read at once

    @property
    def flood_limits(self) -> FloodLimits: ...

    def opened(self, connection: OpenConnection, peer: str, auth: AuthContext, entry: Entry | None) -> Caller | None:
        """A connection begins; None: it has to be closed. `entry`: of a connection that was let in before."""
        ...

    def closed(self, connection: OpenConnection, caller: Caller | None) -> None: ...
    def admit(self, call: RpcCall) -> str:
        """Count a new call; else the reason why it is refused."""
        ...

    def ended(self, call: RpcCall) -> None: ...
    def awaits_request(self, call: RpcCall) -> None:
        """A unary call was opened whose request has not arrived completely."""
        ...

    def make_room_for_bytes(self, call: RpcCall) -> bool:
        """End a call whose request does not go on, for one that needs memory; False if there is none."""
        ...

    def has_request(self, call: RpcCall) -> None:
        """A unary call's request is complete."""
        ...

    def authorise(self, call: RpcCall) -> None:
        """Check a call against the access policy; ends the call if the policy refuses it."""
        ...


class OpenConnection(Protocol):
    """A connection as its server sees it."""

    def retire(self) -> None:
        """Tell the client to use another connection, and `drain` once it can know."""
        ...

    def drain(self) -> None:
        """Accept no further call; the calls in progress go on."""
        ...

    def close(self, reason: str = SHUTTING_DOWN) -> None:
        """End the calls, with UNAVAILABLE and a reason, and the connection."""
        ...

    def expire(self) -> None:
        """End a connection that is idle: its client is told first, where the protocol can."""
        ...

    def abort(self) -> None:
        """End the connection at once."""
        ...


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the server. `raw`, `raw_stream`: used instead of the handler once the policy accepted the call."""

    path: str
    handler: Any
    raw: RawUnary | None = None
    raw_stream: RawStream | None = None

    @property
    def is_unary(self) -> bool:
        """Whether a call has a single request."""
        return not self.handler.request_streaming

    @property
    def is_health(self) -> bool:
        """True for health checks, which are answered when nothing else is."""
        return self.path == _HEALTH_CHECK


@dataclass(slots=True, eq=False)
class CallHeaders:
    """The headers of calls. Parsed once and shared by all calls with equal headers."""

    path: str
    metadata: Metadata
    timeout_s: float | None
    compression: str = "identity"
    content_bytes: int | None = None  # of all DATA of the request, if the client has declared it
    method: Method | None = None
    size: int = 0  # bytes of memory
    is_authorised: bool = False  # the policy has accepted a call with these headers, and would accept the next one


class RpcCall:
    """One call: the context that its handler gets."""

    __slots__ = (
        *(
            "_callbacks",
            "_deserialise",
            "_has_all_requests",
            "_receiver",
            "_requests",
            "_rounding_s",
            "_timer",
            "_waiter",
        ),
        *("connection", "headers", "is_over", "method", "number", "on_cancel", "task", "until_s", "wire_state"),
    )

    def __init__(
        self, connection: CallConnection, number: int, headers: CallHeaders, method: Method, timeout_s: float | None
    ) -> None:
        self.connection, self.number, self.headers, self.method = connection, number, headers, method
        self.until_s = None if timeout_s is None else loop_s() + timeout_s
        self._rounding_s = 0.0 if timeout_s is None else timeout_rounding_s(timeout_s)
        self.task: asyncio.Task[None] | None = None
        self.wire_state: Any = None  # the connection's state of this call
        self.is_over = False
        self.on_cancel: Callable[[], None] | None = None  # called when the client cancels a raw unary call
        self._deserialise: Callable[[bytes], Any] | None = None
        self._requests: deque[bytes] | None = None
        self._receiver: StreamReceiver | None = None
        self._has_all_requests = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._callbacks: list[Callable[[Any], None]] = []

    # -- from the connection ------------------------------------------------------------------------------------------

    def start_stream(self) -> None:
        """Start the handler of a call whose requests are a stream."""
        if self.method.raw_stream is not None:
            self._receiver = self.method.raw_stream(self)
            self.start_deadline()
            return
        self._requests = deque()
        self._deserialise = self.method.handler.request_deserializer
        self._start_task(_RequestIterator(self))

    def receive(self, message: memoryview | bytes) -> None:
        """Take a complete request message. Its memory is valid until this returns; for a unary call until its end."""
        if self.method.is_unary:
            if self._timer is not None:
                self._timer.cancel()
            if not self._takes_raw(memoryview(message)):
                read = self.method.handler.request_deserializer
                self._start_task(message if read is None else read(bytes(message)))
        elif self._receiver is not None:
            self.connection.consumed(self, len(message))
            try:
                self._receiver.receive(bytes(message))
            except Exception as error:  # noqa: BLE001
                self.fail_unexpectedly(error)
        elif self._requests is not None:
            self._requests.append(bytes(message))  # a copy, as the read buffer is reused
            self._wake()

    def _takes_raw(self, message: memoryview) -> bool:
        """True if the method's raw handler takes the request, or has failed with it: other calls go on."""
        raw = self.method.raw
        if raw is None or not self.headers.is_authorised:
            return False
        try:
            return raw(self, message)
        except Exception as error:  # noqa: BLE001
            self.fail_unexpectedly(error)
            return True

    def start_deadline(self) -> None:
        """End the call at its deadline; for calls without an asyncio task, which no other timer ends."""
        if self.until_s is not None and not self.is_over:
            self._timer = asyncio.get_running_loop().call_at(self.until_s, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "the call's time is up")

    def end_of_requests(self) -> None:
        """The client has half-closed the stream."""
        self._has_all_requests = True
        if self._receiver is not None:
            self._receiver.end_of_requests()
        self._wake()

    def cancel(self) -> None:
        """The client has cancelled the call, or is gone."""
        self.is_over = True
        if self.on_cancel is not None:
            self.on_cancel()
        if self.task is not None:
            self.task.cancel()
        self._done()

    def _start_task(self, request: Any) -> None:
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(_run_handler(self, request))
        _RUNNING.add(self.task)
        self.task.add_done_callback(_RUNNING.discard)
        if self.until_s is not None:
            self._timer = loop.call_at(self.until_s, self.task.cancel)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def is_authorised(self) -> bool:
        """True if the policy has accepted this call."""
        return self.headers.is_authorised

    # -- for handlers, as grpc.aio.ServicerContext --------------------------------------------------------------------

    def invocation_metadata(self) -> Metadata:
        return self.headers.metadata

    def auth_context(self) -> AuthContext:
        return self.connection.auth_context

    def peer(self) -> str:
        return self.connection.peer

    def time_remaining(self) -> float | None:
        """The least number of seconds until the client's deadline; None if it has none."""
        return None if self.until_s is None else max(0.0, self.until_s - self._rounding_s - loop_s())

    def done(self) -> bool:
        return self.is_over

    def cancelled(self) -> bool:
        return self.is_over

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def read(self) -> Any:
        """The next request of a stream; grpc's EOF after the last one."""
        requests = self._requests
        if requests is None:
            raise grpc.aio.UsageError("the call's request is no stream")
        while not requests:
            if self._has_all_requests:
                return EOF
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = requests.popleft()
        self.connection.consumed(self, len(data))
        return data if self._deserialise is None else self._deserialise(data)

    async def write(self, message: Any) -> None:
        serialise = self.method.handler.response_serializer
        self.connection.send(self, message if serialise is None else serialise(message))
        await self.connection.writable(self)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self.end(code, details)
        raise grpc.aio.AbortError(f"{code.name}: {details}")

    # -- for raw handlers ---------------------------------------------------------------------------------------------

    def send_response(self, message: bytes) -> None:
        """Send one more response of a stream."""
        if not self.is_over:
            self.connection.send(self, message)

    def reply(self, message: bytes) -> None:
        """Send the only response, and end the call."""
        if not self.is_over:
            self.connection.send(self, message)
            self.end(grpc.StatusCode.OK)

    def end(self, code: grpc.StatusCode, details: str = "") -> None:
        """End the call with a status, unless it is over already."""
        if not self.is_over:
            self.is_over = True
            self.connection.finish(self, code, details)
            if self.task is not None and self.task is not asyncio.current_task():
                self.task.cancel()  # its response would not be read
            self._done()

    def fail_unexpectedly(self, error: Exception) -> None:
        """End the call with an error after an exception in its handler; connection and other calls continue."""
        LOG.exception("a call of %s failed unexpectedly", self.method.path)
        self.end(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error).__name__}")

    def _done(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


def timeout_rounding_s(timeout_s: float) -> float:
    """The most by which a client's deadline may come before the end of the timeout that it states, in seconds.

    gRPC's C core, which Python clients use, rounds timeouts up to three digits (`timeout_encoding.cc`): 10.01 s is
    sent as 10.1 s.
    """
    return 10.0 ** (math.floor(math.log10(timeout_s)) - 2) if timeout_s > 0.0 else 0.0


class _RequestIterator:
    """A stream's requests, for handlers that iterate over them."""

    def __init__(self, call: RpcCall) -> None:
        self._call = call

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        request = await self._call.read()
        if request is EOF:
            raise StopAsyncIteration
        return request


async def _run_handler(call: RpcCall, request: Any) -> None:
    """Run a call's handler, and end the call even if the handler raises or is cancelled."""
    handler = call.method.handler
    kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
    try:
        result = getattr(handler, kind)(request, call)
        if not handler.response_streaming:
            response = await result
            serialise = handler.response_serializer
            call.reply(response if serialise is None else serialise(response))
        elif hasattr(result, "__aiter__"):
            async for response in result:
                await call.write(response)
            call.end(grpc.StatusCode.OK)
        else:
            await result
            call.end(grpc.StatusCode.OK)
    except grpc.aio.AbortError:
        pass
    except asyncio.CancelledError:
        late = call.until_s is not None and loop_s() >= call.until_s
        if late:
            call.end(grpc.StatusCode.DEADLINE_EXCEEDED, "the call's time is up")
        else:
            call.end(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN)
    except Exception as error:  # noqa: BLE001
        call.fail_unexpectedly(error)


def unknown_method(path: str) -> Method:
    """A placeholder for a method that the server does not have; its handler is never called."""
    return Method(path, grpc.unary_unary_rpc_method_handler(_not_implemented))


def _not_implemented(_request: object, _context: object) -> None:
    raise NotImplementedError
