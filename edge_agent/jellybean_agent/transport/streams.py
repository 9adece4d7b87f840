"""One Deliver stream at its sender: its call, by our own protocol (Unix sockets, TLS) or gRPC, and its credit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import grpc.aio
from google.protobuf.message import DecodeError

from jellybean_agent.errors import AgentError, TransientError
from jellybean_agent.rpc.tls.stream import TlsStream
from jellybean_agent.rpc.unix_socket_client import UnixSocketRpcUnsupportedError
from jellybean_agent.rpc.unix_socket_stream import UnixSocketStream
from jellybean_agent.security.identity import SENDER_KEY, WORKFLOW_KEY
from jellybean_agent.system.protocol_version import protocol_metadata
from jellybean_agent.system.timers import loop_s
from jellybean_agent.transport.channels import Transport
from jellybean_agent.transport.message_wire import message_parts
from jellybean_agent.transport.outgoing_queue import OutgoingMessage
from jellybean_agent.transport.reply_address import ReplyAddress
from jellybean_protos.agent.v1 import agent_pb2

DELIVER_METHOD = "/jellybean.agent.v1.Agent/Deliver"
SILENT_S = 2.0  # a receiver without a heartbeat for so long (four periods) counts as lost
CONNECT_S = 5.0  # longest wait for the first credit of a new stream
_CHECK_EVERY_S = 0.25
CALL_ERRORS = (  # how a call may fail; grpc's client raises the last two while the other end is closing the call
    *(AgentError, UnixSocketRpcUnsupportedError, grpc.aio.AioRpcError),
    *(asyncio.InvalidStateError, grpc.aio.InternalError),
)
OnCredit = Callable[[agent_pb2.Credit], None]


class DeliverCall(Protocol):
    """A Deliver call: messages out, credit back. Its failures are `CALL_ERRORS`."""

    ended: asyncio.Future[None]  # done when the receiver has ended the call, with an exception if it failed

    @property
    def may_send(self) -> bool:
        """Whether `send` is possible now."""
        ...

    def send(self, outgoing: OutgoingMessage) -> None: ...
    async def write(self, outgoing: OutgoingMessage) -> None:
        """Wait until `send` is possible, then send."""
        ...

    async def half_close(self) -> None:
        """Send nothing further."""
        ...

    def cancel(self) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Receiver:
    """The process at the receiving end of a stream, and the name of this (sending) process.

    `workflow`: of the stream's messages, if the plan has several. `reply`: where this process takes answers, if it is
    one of several gateways.
    """

    name: str
    address: str
    sender: str
    workflow: str = ""
    reply: ReplyAddress | None = None


def open_deliver_call(
    transport: Transport, receiver: Receiver, on_credit: OnCredit, *, by_own_protocol: bool
) -> DeliverCall:
    """Open a call on a new connection, as an existing one may be dead without knowing it.

    `by_own_protocol`: instead of gRPC, on Unix sockets and over TLS. A call to a server without it ends with
    UnixSocketRpcUnsupportedError, and nothing has been sent.
    """
    metadata: tuple[tuple[str, str], ...] = ((SENDER_KEY, receiver.sender), *protocol_metadata())
    if receiver.workflow:
        metadata += ((WORKFLOW_KEY, receiver.workflow),)
    if receiver.reply is not None:
        metadata += receiver.reply.metadata
    address = transport.check(receiver.address)
    if by_own_protocol and address.startswith("unix:"):
        path = address.removeprefix("unix:")
        return _OwnProtocolCall(partial(UnixSocketStream, path, DELIVER_METHOD, metadata), on_credit)
    if by_own_protocol and (tls := transport.stream_tls(receiver.name)) is not None:
        return _OwnProtocolCall(partial(TlsStream, address, tls, DELIVER_METHOD, metadata), on_credit)
    channel = transport.channel(receiver.address, receiver.name)
    deliver: Callable[..., Any] = channel.stream_stream(
        DELIVER_METHOD, request_serializer=_serialised, response_deserializer=agent_pb2.Credit.FromString
    )
    return _GrpcCall(channel, deliver(metadata=metadata), on_credit)


class _OwnProtocolCall:
    """A call by our own protocol, on a Unix socket or over TLS; `make` makes its stream."""

    def __init__(self, make: Callable[[Callable[[bytes], None]], UnixSocketStream], on_credit: OnCredit) -> None:
        self._on_credit = on_credit
        self._stream = make(self._received)
        self.ended = self._stream.ended
        self._stream.start()

    @property
    def may_send(self) -> bool:
        return self._stream.may_send

    def send(self, outgoing: OutgoingMessage) -> None:
        self._stream.send(*message_parts(outgoing.message, outgoing.data))

    async def write(self, outgoing: OutgoingMessage) -> None:
        await self._stream.writable()
        self.send(outgoing)

    async def half_close(self) -> None:
        self._stream.half_close()

    def cancel(self) -> None:
        self._stream.cancel()

    async def close(self) -> None:
        self._stream.cancel()

    def _received(self, data: bytes) -> None:
        try:
            credit = agent_pb2.Credit.FromString(data)
        except DecodeError:
            self._stream.cancel()
        else:
            self._on_credit(credit)


class _GrpcCall:
    may_send = False  # always use `write`, which waits for gRPC's flow control

    def __init__(self, channel: grpc.aio.Channel, call: Any, on_credit: OnCredit) -> None:
        self._channel, self._call = channel, call
        self.ended: asyncio.Future[None] = asyncio.ensure_future(_read_credit(call, on_credit))

    def send(self, outgoing: OutgoingMessage) -> None:
        raise NotImplementedError

    async def write(self, outgoing: OutgoingMessage) -> None:
        await self._call.write(outgoing)

    async def half_close(self) -> None:
        await self._call.done_writing()

    def cancel(self) -> None:
        self._call.cancel()

    async def close(self) -> None:
        self.ended.cancel()
        self._call.cancel()
        await asyncio.gather(self.ended, return_exceptions=True)
        await self._channel.close(None)


async def _read_credit(call: Any, on_credit: OnCredit) -> None:
    async for credit in call:
        on_credit(credit)


def _serialised(outgoing: OutgoingMessage) -> bytes:
    return b"".join(message_parts(outgoing.message, outgoing.data))


@dataclass(eq=False, slots=True)
class DeliverStream:
    """A Deliver call and its credit.

    `until_s`: when a new stream is to take over. `silent_s`: a receiver that sends no heartbeat for longer counts as
    lost. `unacknowledged`: messages sent for which no credit has come back, with tensors only where they may be resent.
    """

    until_s: float
    silent_s: float
    call: DeliverCall = field(init=False)
    credit: int = 0
    unacknowledged: deque[OutgoingMessage] = field(default_factory=deque)
    heard_s: float = field(default_factory=loop_s)
    silence: str = ""  # why the stream was given up
    has_credit: asyncio.Event = field(default_factory=asyncio.Event)
    watcher: asyncio.Task[None] = field(init=False)

    def start(self, call: DeliverCall) -> None:
        """Use a call, and watch its receiver."""
        self.call = call
        self.watcher = asyncio.create_task(self._watch())

    def add_credit(self, credit: agent_pb2.Credit) -> None:
        """Count credit. The first acknowledges nothing; later ones acknowledge as many messages as they grant."""
        self.heard_s = loop_s()
        if self.has_credit.is_set():
            for _ in range(min(credit.messages, len(self.unacknowledged))):
                self.unacknowledged.popleft()
        elif credit.messages:
            self.has_credit.set()
        self.credit += credit.messages

    def uncount(self, unsent: OutgoingMessage) -> bool:
        """Take back the newest message, which could not be sent; False if it was acknowledged after all."""
        if not self.unacknowledged or self.unacknowledged[-1] is not unsent:
            return False
        self.unacknowledged.pop()
        self.credit += 1
        return True

    async def _watch(self) -> None:
        """Cancel the call when its receiver is silent. Time in which this process was suspended does not count."""
        checked_s = loop_s()
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            now_s = loop_s()
            if now_s - checked_s > 3 * _CHECK_EVERY_S:
                self.heard_s += now_s - checked_s
            checked_s = now_s
            if now_s - self.heard_s > (self.silent_s if self.has_credit.is_set() else CONNECT_S):
                self.silence = f"nothing was heard from it for {now_s - self.heard_s:.1f} s"
                self.call.cancel()
                return

    async def accepted(self, timeout_s: float) -> None:
        """Wait for the first credit. Raises one of `CALL_ERRORS` if the call ends first, or at the timeout."""
        has_credit = asyncio.create_task(self.has_credit.wait())
        try:
            either: set[asyncio.Future[Any]] = {has_credit, self.call.ended}
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            has_credit.cancel()
        if self.has_credit.is_set():
            return
        if self.call.ended.done():
            await self.ended()
        raise TransientError("it takes no new connection")

    async def ended(self) -> None:
        """Wait for the receiver to end the stream. Raises one of `CALL_ERRORS` unless it ended it with status OK."""
        await asyncio.wait({self.call.ended})
        if self.silence:
            raise TransientError(self.silence)
        self.call.ended.result()

    async def close(self) -> None:
        """Cancel the stream."""
        self.watcher.cancel()
        await asyncio.gather(self.watcher, return_exceptions=True)
        await self.call.close()
