"""Calls under way, whatever carries them, as handlers made for grpc.aio see them: a context, requests, an end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import grpc
import grpc.aio

LOG = logging.getLogger("jellybean.calls")
EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009 (missing from the type stubs)
Metadata = tuple[tuple[str, str | bytes], ...]
Raw = Callable[["RpcCall", memoryview], bool]  # takes a request, to `reply` or `end` later; False: the handler is to
RawStream = Callable[["RpcCall"], "Receiver | None"]  # takes a stream of requests; None: it has ended the call


_RUNNING: set[asyncio.Task[None]] = set()  # of calls whose client is gone too: the event loop holds them weakly


class Receiver(Protocol):
    """Takes a stream's requests without a task. The call's callbacks tell it of the call's end."""

    def received(self, message: bytes) -> None: ...
    def no_more(self) -> None:
        """The client sends nothing further."""
        ...


class Wire(Protocol):
    """What carries calls: a connection."""

    peer: str

    def send(self, call: RpcCall, message: bytes) -> None: ...
    def finish(self, call: RpcCall, status: grpc.StatusCode, details: str) -> None:
        """The call's last word."""
        ...

    def taken(self, call: RpcCall, size: int) -> None:
        """The handler has taken a message of so many bytes: there is room for more."""
        ...

    async def room(self, call: RpcCall) -> None:
        """Wait until what was sent of a call has mostly left."""
        ...


class Calls(Protocol):
    """What connections serve, and whom they ask."""

    methods: Mapping[str, Method]
    most_message_bytes: int
    most_streams: int

    def opened(self, connection: Connected) -> None: ...
    def closed(self, connection: Connected) -> None: ...
    def refusal(self) -> str:
        """Why no further call is taken now; empty when one is."""
        ...

    def began(self, call: RpcCall) -> None: ...
    def ended(self, call: RpcCall) -> None: ...
    def allow(self, call: RpcCall) -> None:
        """Ask the policy for a call without a task, which ends when it refuses."""
        ...


class Connected(Protocol):
    """A connection as a server holds it."""

    def leave(self) -> None:
        """Take no further call; those under way go on."""
        ...

    def close(self) -> None:
        """End the calls and the connection."""
        ...


@dataclass(frozen=True, slots=True)
class Method:
    """A method as it is served. `raw`, `raw_stream`: also without a task, where the policy has been asked."""

    path: str
    handler: Any
    raw: Raw | None = None
    raw_stream: RawStream | None = None

    @property
    def is_unary(self) -> bool:
        return not self.handler.request_streaming


@dataclass(slots=True, eq=False)
class Head:
    """What a call's headers say, read once for all calls with the same."""

    path: str
    metadata: Metadata
    timeout_s: float | None
    encoding: str = "identity"
    method: Method | None = None
    is_allowed: bool = False  # the policy was asked, and would say the same again


class RpcCall:
    """One call: the context that its handler gets."""

    __slots__ = (
        *(
            "_callbacks",
            "_deserialise",
            "_ended",
            "_got",
            "_receiver",
            "_timer",
            "_waiter",
            "head",
            "is_over",
            "method",
        ),
        *("number", "on_cancel", "state", "task", "until_s", "wire"),
    )

    def __init__(self, wire: Wire, number: int, head: Head, method: Method, timeout_s: float | None) -> None:
        self.wire, self.number, self.head, self.method = wire, number, head, method
        self.until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self.task: asyncio.Task[None] | None = None
        self.state: Any = None  # of the wire
        self.is_over = False
        self.on_cancel: Callable[[], None] | None = None  # of a raw call
        self._deserialise: Callable[[bytes], Any] | None = None
        self._got: deque[bytes] | None = None
        self._receiver: Receiver | None = None
        self._ended = False  # no further request will come
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._callbacks: list[Callable[[Any], None]] = []

    # -- from the wire ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the handler of a call whose requests are a stream."""
        if self.method.raw_stream is not None:
            self._receiver = self.method.raw_stream(self)
            self.await_request()
            return
        self._got = deque()
        self._deserialise = self.method.handler.request_deserializer
        self._run(_Requests(self))

    def received(self, message: memoryview | bytes) -> None:
        """A whole request has come; it lies where it may be until this returns or the call is over."""
        if self.method.is_unary:
            if self._timer is not None:
                self._timer.cancel()
            raw = self.method.raw
            if raw is None or not self.head.is_allowed or not raw(self, memoryview(message)):
                read = self.method.handler.request_deserializer
                self._run(bytes(message) if read is None else read(bytes(message)))
        elif self._receiver is not None:
            self.wire.taken(self, len(message))
            try:
                self._receiver.received(bytes(message))
            except Exception as error:  # noqa: BLE001
                self.broke(error)
        elif self._got is not None:
            self._got.append(bytes(message))  # not what it lies in, which may be larger
            self._wake()

    def await_request(self) -> None:
        """Its request is not whole yet: the call ends when its time is up."""
        if self.until_s is not None and not self.is_over:
            left_s = max(0.0, self.until_s - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(left_s, self._late)

    def _late(self) -> None:
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "the call's time is up")

    def no_more(self) -> None:
        """The client sends nothing further."""
        self._ended = True
        if self._receiver is not None:
            self._receiver.no_more()
        self._wake()

    def cancel(self) -> None:
        """Nobody waits for the call any more."""
        self.is_over = True
        if self.on_cancel is not None:
            self.on_cancel()
        if self.task is not None:
            self.task.cancel()
        self._done()

    def _run(self, request: Any) -> None:
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(_handle(self, request))
        _RUNNING.add(self.task)
        self.task.add_done_callback(_RUNNING.discard)
        if self.until_s is not None:
            self._timer = loop.call_later(max(0.0, self.until_s - time.monotonic()), self.task.cancel)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def was_allowed(self) -> bool:
        """Whether the policy was asked for such calls, and said yes."""
        return self.head.is_allowed

    # -- for handlers -------------------------------------------------------------------------------------------------

    def invocation_metadata(self) -> Metadata:
        return self.head.metadata

    def auth_context(self) -> Mapping[str, Any]:
        return {}  # no TLS: nobody has shown who he is

    def peer(self) -> str:
        return self.wire.peer

    def time_remaining(self) -> float | None:
        return None if self.until_s is None else max(0.0, self.until_s - time.monotonic())

    def done(self) -> bool:
        return self.is_over

    def cancelled(self) -> bool:
        return self.is_over

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def read(self) -> Any:
        """The next request of a stream; EOF when there is none."""
        got = self._got
        if got is None:
            raise grpc.aio.UsageError("the call's request is no stream")
        while not got:
            if self._ended:
                return EOF
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = got.popleft()
        self.wire.taken(self, len(data))
        return data if self._deserialise is None else self._deserialise(data)

    async def write(self, message: Any) -> None:
        serialise = self.method.handler.response_serializer
        self.wire.send(self, message if serialise is None else serialise(message))
        await self.wire.room(self)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self.end(code, details)
        raise grpc.aio.AbortError(f"{code.name}: {details}")

    def say(self, message: bytes) -> None:
        """One more response, of a call that is not waited for."""
        if not self.is_over:
            self.wire.send(self, message)

    def reply(self, message: bytes) -> None:
        """The one response of a call, and its end."""
        if not self.is_over:
            self.wire.send(self, message)
            self.end(grpc.StatusCode.OK)

    def end(self, code: grpc.StatusCode, details: str = "") -> None:
        """The end of a call, which is told once."""
        if not self.is_over:
            self.is_over = True
            self.wire.finish(self, code, details)
            if self.task is not None and self.task is not asyncio.current_task():
                self.task.cancel()  # nobody reads what it says
            self._done()

    def broke(self, error: Exception) -> None:
        """The call's boundary: the connection and other calls go on."""
        LOG.exception("a call of %s failed unexpectedly", self.method.path)
        self.end(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error).__name__}")

    def _done(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class _Requests:
    """A stream's requests, for handlers that iterate."""

    def __init__(self, call: RpcCall) -> None:
        self._call = call

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        found = await self._call.read()
        if found is EOF:
            raise StopAsyncIteration
        return found


async def _handle(call: RpcCall, request: Any) -> None:
    """Run a call's handler to its end, whatever that is."""
    handler = call.method.handler
    kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
    try:
        found = getattr(handler, kind)(request, call)
        if not handler.response_streaming:
            response = await found
            serialise = handler.response_serializer
            call.reply(response if serialise is None else serialise(response))
        elif hasattr(found, "__aiter__"):
            async for response in found:
                await call.write(response)
            call.end(grpc.StatusCode.OK)
        else:
            await found
            call.end(grpc.StatusCode.OK)
    except grpc.aio.AbortError:
        pass
    except asyncio.CancelledError:
        late = call.until_s is not None and time.monotonic() >= call.until_s
        if late:
            call.end(grpc.StatusCode.DEADLINE_EXCEEDED, "the call's time is up")
        else:
            call.end(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
    except Exception as error:  # noqa: BLE001
        call.broke(error)


def no_method(path: str) -> Method:
    """What stands for a method that there is not; it is never called."""
    return Method(path, grpc.unary_unary_rpc_method_handler(_nothing))


def _nothing(_request: object, _context: object) -> None:
    raise NotImplementedError
