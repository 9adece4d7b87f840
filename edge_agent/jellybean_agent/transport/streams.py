"""One Deliver call as its sender holds it, and what carries it: the fast lane on this host, else gRPC."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from jellybean_agent.errors import AgentError, TransientError
from jellybean_agent.rpc.unix_socket_client import UnixSocketRpcUnsupportedError
from jellybean_agent.rpc.unix_socket_stream import UnixSocketStream
from jellybean_agent.security.identity import SENDER_KEY
from jellybean_agent.system.protocol_version import protocol_metadata
from jellybean_agent.transport.channels import Transport
from jellybean_agent.transport.message_wire import Data, parts_of
from jellybean_protos.agent.v1 import agent_pb2

DELIVER_METHOD = "/jellybean.agent.v1.Agent/Deliver"
SILENT_S = 2.0  # four heartbeats
CONNECT_S = 5.0  # until the first one
_LOOK_S = 0.25
BROKEN = (  # how a call may end or fail; the last two: of grpc's client, when the other end is ending it
    *(AgentError, UnixSocketRpcUnsupportedError, grpc.aio.AioRpcError),
    *(asyncio.InvalidStateError, grpc.aio.InternalError),
)
TakeCredit = Callable[[agent_pb2.Credit], None]


class Parcel(NamedTuple):
    """A message on its way: not to leave before `due_s`, nor after `until_s` (CLOCK_MONOTONIC)."""

    due_s: float
    order: int
    until_s: float
    message: agent_pb2.Message
    data: Data = b""  # of its tensor, where they are not in it


class Carrier(Protocol):
    """A call that messages go out on and credit comes back. What breaks it is one of `BROKEN`."""

    ended: asyncio.Future[None]  # by the receiver, well or with why not

    @property
    def may_send(self) -> bool:
        """Whether `send` is possible now."""
        ...

    def send(self, parcel: Parcel) -> None: ...
    async def write(self, parcel: Parcel) -> None:
        """As `send`, once that is possible."""
        ...

    async def finish(self) -> None:
        """Send nothing further."""
        ...

    def cancel(self) -> None: ...
    async def close(self) -> None: ...


def carried(transport: Transport, address: str, name: str, sender: str, take: TakeCredit, *, by_lane: bool) -> Carrier:
    """A call on a connection of its own: one that went silent may be dead without knowing it.

    `by_lane`: where there is one; it ends with NoLaneError, with nothing sent, where there is none.
    """
    metadata = ((SENDER_KEY, sender), *protocol_metadata())
    if by_lane and transport.check(address).startswith("unix:"):
        return _ByLane(address.removeprefix("unix:"), metadata, take)
    return _ByGrpc(transport.channel(address, name), metadata, take)


class _ByLane:
    def __init__(self, path: str, metadata: tuple[tuple[str, str], ...], take: TakeCredit) -> None:
        self._take = take
        self._lane = UnixSocketStream(path, DELIVER_METHOD, metadata, self._taken)
        self.ended = self._lane.ended

    @property
    def may_send(self) -> bool:
        return self._lane.may_send

    def send(self, parcel: Parcel) -> None:
        self._lane.send(*parts_of(parcel.message, parcel.data))

    async def write(self, parcel: Parcel) -> None:
        await self._lane.room()
        self.send(parcel)

    async def finish(self) -> None:
        self._lane.finish()

    def cancel(self) -> None:
        self._lane.cancel()

    async def close(self) -> None:
        self._lane.cancel()

    def _taken(self, data: bytes) -> None:
        try:
            credit = agent_pb2.Credit.FromString(data)
        except DecodeError:
            self._lane.cancel()
        else:
            self._take(credit)


class _ByGrpc:
    may_send = False  # its flow control is waited for

    def __init__(self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...], take: TakeCredit) -> None:
        self._channel, self._take = channel, take
        deliver: Callable[..., Any] = channel.stream_stream(
            DELIVER_METHOD,
            request_serializer=_whole,
            response_deserializer=agent_pb2.Credit.FromString,
        )
        self._call = deliver(metadata=metadata)
        self.ended: asyncio.Future[None] = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for credit in self._call:
            self._take(credit)

    def send(self, parcel: Parcel) -> None:
        raise NotImplementedError

    async def write(self, parcel: Parcel) -> None:
        await self._call.write(parcel)

    async def finish(self) -> None:
        await self._call.done_writing()

    def cancel(self) -> None:
        self._call.cancel()

    async def close(self) -> None:
        self.ended.cancel()
        self._call.cancel()
        await asyncio.gather(self.ended, return_exceptions=True)
        await self._channel.close(None)


def _whole(parcel: Parcel) -> bytes:
    return b"".join(parts_of(parcel.message, parcel.data))


@dataclass(eq=False, slots=True)
class Stream:
    """A call and its credit. `until_s`: when another is to take over.

    `sent`: what no credit has come back for yet; with tensors only where they are kept.
    """

    until_s: float
    carrier: Carrier = field(init=False)
    credit: int = 0
    sent: deque[Parcel] = field(default_factory=deque)
    heard_s: float = field(default_factory=time.monotonic)
    silent: str = ""  # why it was given up
    granted: asyncio.Event = field(default_factory=asyncio.Event)
    watcher: asyncio.Task[None] = field(init=False)

    def begin(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.watcher = asyncio.create_task(self._watch())

    def take(self, credit: agent_pb2.Credit) -> None:
        """Count credit: the first acknowledges nothing, all after it acknowledge as many messages as they grant."""
        self.heard_s = time.monotonic()
        if self.granted.is_set():
            for _ in range(min(credit.messages, len(self.sent))):
                self.sent.popleft()
        elif credit.messages:
            self.granted.set()
        self.credit += credit.messages

    async def _watch(self) -> None:
        """Break the stream when its receiver says nothing. Time in which this process stood still does not count."""
        looked_s = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s = time.monotonic()
            if now_s - looked_s > 3 * _LOOK_S:
                self.heard_s += now_s - looked_s
            looked_s = now_s
            if now_s - self.heard_s > (SILENT_S if self.granted.is_set() else CONNECT_S):
                self.silent = f"nothing was heard from it for {now_s - self.heard_s:.1f} s"
                self.carrier.cancel()
                return

    async def ended(self) -> None:
        """Wait for the receiver to end the stream; raises why, unless it ended well."""
        await asyncio.wait({self.carrier.ended})
        if self.silent:
            raise TransientError(self.silent)
        self.carrier.ended.result()

    async def close(self) -> None:
        """Break it off."""
        self.watcher.cancel()
        await asyncio.gather(self.watcher, return_exceptions=True)
        await self.carrier.close()
