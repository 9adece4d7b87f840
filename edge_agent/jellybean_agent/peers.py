"""The sending end of a long-lived stream of messages to one other process.

One task per peer, none per message. Messages leave in the order of their due times (a link's delay is spent here, at
the sender) and only while the receiver has granted credit; one that is too late does not leave at all. Credit says
which messages arrived: those that may not have are told when the stream breaks, or are sent again. A receiver that says
nothing for `SILENT_S` is given up, whether its process, its machine or the way to it is at fault. Where certificates
may change, a stream is moved to a new connection now and then: the new one stands before the old one ends, so that
the receiver always has one.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
import grpc.aio

from jellybean_agent import versions
from jellybean_agent.channels import Transport
from jellybean_agent.errors import AgentError, TransientError
from jellybean_agent.identity import SENDER_KEY
from jellybean_protos.agent.v1 import agent_pb2

DELIVER = "/jellybean.agent.v1.Agent/Deliver"
SILENT_S = 2.0  # four heartbeats
CONNECT_S = 5.0  # until the first one
_LOOK_S = 0.25
_RETRY_S = 0.1
_TAKEOVER_S = 10.0  # for a new connection to stand, and for the old one to end
_LEFT_S = 0.5  # before a receiver that left is looked for again


class Parcel(NamedTuple):
    """A message on its way: not to leave before `due_s`, nor after `until_s` (CLOCK_MONOTONIC)."""

    due_s: float
    order: int
    until_s: float
    message: agent_pb2.Message


Lost = Callable[[str, str, Sequence[agent_pb2.Message]], None]


@dataclass(eq=False, slots=True)
class _Stream:
    """One Deliver call on a connection of its own. `until_s`: when another is to take over.

    `sent`: what no credit has come back for yet; with tensors only where they are kept.
    """

    channel: grpc.aio.Channel
    call: Any
    until_s: float
    credit: int = 0
    sent: deque[Parcel] = field(default_factory=deque)
    heard_s: float = field(default_factory=time.monotonic)
    silent: str = ""  # why it was given up
    granted: asyncio.Event = field(default_factory=asyncio.Event)
    reader: asyncio.Task[None] = field(init=False)
    watcher: asyncio.Task[None] = field(init=False)

    def take(self, credit: agent_pb2.Credit) -> None:
        """Count credit: the first acknowledges nothing, all after it acknowledge as many messages as they grant."""
        self.heard_s = time.monotonic()
        if self.granted.is_set():
            for _ in range(min(credit.messages, len(self.sent))):
                self.sent.popleft()
        elif credit.messages:
            self.granted.set()
        self.credit += credit.messages

    async def watch(self) -> None:
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
                self.call.cancel()
                return

    async def ended(self) -> None:
        """Wait for the receiver to end the stream; raises why, unless it ended well."""
        await asyncio.wait({self.reader})
        if self.silent:
            raise TransientError(self.silent)
        self.reader.result()

    async def close(self) -> None:
        """Break it off."""
        for task in (self.reader, self.watcher):
            task.cancel()
        self.call.cancel()
        await asyncio.gather(self.reader, self.watcher, return_exceptions=True)
        await self.channel.close(None)


class Peer:
    """A process that messages are sent to. `on_lost(peer, reason, messages)` when the stream breaks.

    These are what did not leave, and what did but may not have arrived (without tensors).

    An eager peer (the gateway's view of a worker) keeps its stream open and tries again after a loss; another opens it
    when there is something to send. One that keeps (a worker's view of the gateway) loses nothing with a stream: it
    sends on the next what may not have arrived, as long as it is in time; the receiver must not mind it twice.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        sender: str,
        on_lost: Lost,
        transport: Transport,
        on_credit: Callable[[str, agent_pb2.Credit], None] | None = None,
        eager: bool = False,
        keeps: bool = False,
    ) -> None:
        self.name = name
        self.connected = False
        self.expired = 0  # messages that did not leave because they were too late
        self._address, self._sender, self._transport = address, sender, transport
        self._eager, self._keeps = eager, keeps
        self._on_lost, self._on_credit = on_lost, on_credit
        self._waiting: list[Parcel] = []
        self._order = itertools.count()
        self._streams: set[_Stream] = set()
        self._leaving: set[asyncio.Task[None]] = set()  # of streams that another has taken over from
        self._finishing = self._ending = False
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"peer {name}")

    @property
    def queued(self) -> int:
        """Messages that have not left yet, or may not have arrived where they are kept."""
        return len(self._waiting) + (sum(len(stream.sent) for stream in self._streams) if self._keeps else 0)

    def put(self, message: agent_pb2.Message, due_s: float = 0.0, until_s: float = math.inf) -> None:
        """Send `message`, not before CLOCK_MONOTONIC second `due_s`. A failure goes first and needs no credit."""
        if message.HasField("failure"):
            due_s = -math.inf
        heapq.heappush(self._waiting, Parcel(due_s, next(self._order), until_s, message))
        self._wake.set()

    def forget(self, request: str) -> None:
        """Do not send what waits of a request that was given up."""
        if self._waiting:
            self._keep([parcel for parcel in self._waiting if parcel.message.request_id != request])

    def expire(self, now_s: float) -> None:
        """Drop what is too late, also where no credit lets it leave."""
        if self._waiting:
            in_time = [parcel for parcel in self._waiting if parcel.until_s > now_s]
            self.expired += len(self._waiting) - len(in_time)
            self._keep(in_time)

    def _keep(self, parcels: list[Parcel]) -> None:
        if len(parcels) < len(self._waiting):
            self._waiting = parcels
            heapq.heapify(self._waiting)
            self._wake.set()

    def finish(self) -> None:
        """Close this stream once everything queued has left; an eager peer looks for its receiver again later."""
        self._finishing = True
        self._wake.set()

    def end(self) -> None:
        """As `finish`, for good."""
        self._ending = True
        self.finish()

    async def close(self) -> None:
        """Drop what is queued and the stream."""
        self._ending = True
        tasks = [self._task, *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        stream: _Stream | None = None
        while stream is not None or not self._ending:
            while stream is None and not self._eager and not self._waiting and not self._ending:
                self._wake.clear()
                await self._wake.wait()
            current = stream
            try:
                current = current or self._open()
                stream = await self._converse(current)
                if stream is None and not self._ending:
                    self._finishing = False
                    self._on_lost(self.name, "it left", ())
                    await asyncio.sleep(_LEFT_S)
            except (AgentError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                stream, self._finishing = None, False
                parcels = sorted(self._waiting, key=lambda parcel: parcel[:2])
                self._waiting = []
                self._lose(error, [*(current.sent if current else ()), *parcels])
                await asyncio.sleep(_RETRY_S)

    def _open(self) -> _Stream:
        """A stream on a connection of its own: one that went silent may be dead without knowing it."""
        channel = self._transport.channel(self._address, self.name)
        deliver: Callable[..., Any] = channel.stream_stream(
            DELIVER,
            request_serializer=agent_pb2.Message.SerializeToString,
            response_deserializer=agent_pb2.Credit.FromString,
        )
        age_s = self._transport.stream_age_s
        until_s = math.inf if age_s is None else time.monotonic() + age_s
        stream = _Stream(channel, deliver(metadata=((SENDER_KEY, self._sender), *versions.metadata())), until_s)
        stream.reader = asyncio.create_task(self._read_credit(stream))
        stream.watcher = asyncio.create_task(stream.watch())
        stream.reader.add_done_callback(lambda _: self._wake.set())
        self._streams.add(stream)
        return stream

    async def _converse(self, stream: _Stream) -> _Stream | None:
        """Send on a stream until it ends (None), or its time is over: then the stream that goes on."""
        following: _Stream | None = None
        try:
            while not stream.reader.done():
                if self._finishing and not self._waiting:
                    await stream.call.done_writing()
                    await stream.ended()
                    stream.sent.clear()  # all of it was read
                    return None
                if time.monotonic() >= stream.until_s:
                    following = await self._successor()
                    return following
                if await self._is_due(stream):
                    await self._write(stream, heapq.heappop(self._waiting))
            await stream.ended()
            if not self._finishing:
                raise TransientError("it closed the stream")
            return None
        finally:
            if following is not None:
                task = asyncio.create_task(self._leave(stream))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
            else:
                self.connected = False
                self._streams.discard(stream)
                await stream.close()

    async def _successor(self) -> _Stream:
        """A new stream, once the receiver has taken it."""
        stream = self._open()
        granted = asyncio.create_task(stream.granted.wait())
        try:
            await asyncio.wait({granted, stream.reader}, timeout=_TAKEOVER_S, return_when=asyncio.FIRST_COMPLETED)
            if stream.granted.is_set():
                return stream
            if stream.reader.done():
                await stream.ended()
            raise TransientError("it takes no new connection")
        except BaseException:
            self._streams.discard(stream)
            await stream.close()
            raise
        finally:
            granted.cancel()

    async def _leave(self, stream: _Stream) -> None:
        """End a stream that another has taken over from; what was sent on it arrives, or is known not to have."""
        why: Exception = TransientError("the connection before this one did not end")
        try:
            await stream.call.done_writing()
            async with asyncio.timeout(_TAKEOVER_S):
                await stream.ended()
            stream.sent.clear()
        except (AgentError, grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError) as error:
            why = error
        finally:
            self._streams.discard(stream)
            await stream.close()
        if stream.sent:
            self._lose(why, list(stream.sent))

    async def _write(self, stream: _Stream, parcel: Parcel) -> None:
        message = parcel.message
        left_s = parcel.until_s - time.monotonic()
        if left_s <= 0:
            self.expired += 1
            return
        if parcel.until_s < math.inf:
            message.left_s = left_s
        needs_credit = parcel.due_s > -math.inf
        stream.credit -= needs_credit
        try:
            await stream.call.write(message)
        except BaseException as error:
            heapq.heappush(self._waiting, parcel)  # it is among those that did not leave
            if isinstance(error, asyncio.CancelledError) and stream.silent:
                raise TransientError(stream.silent) from error
            raise
        if needs_credit:
            stream.sent.append(parcel if self._keeps else parcel._replace(message=_stub(message)))

    async def _is_due(self, stream: _Stream) -> bool:
        """True when a message may leave now; otherwise waits for anything to change and says False."""
        first_s = self._waiting[0].due_s if self._waiting else math.inf
        at_s = min(first_s if stream.credit > 0 or first_s == -math.inf else math.inf, stream.until_s)
        now_s = time.monotonic()
        if at_s <= now_s:
            return at_s == first_s
        self._wake.clear()
        if at_s == math.inf:
            await self._wake.wait()
        else:
            timer = asyncio.get_running_loop().call_later(at_s - now_s, self._wake.set)
            await self._wake.wait()
            timer.cancel()
        return False

    async def _read_credit(self, stream: _Stream) -> None:
        async for credit in stream.call:
            self.connected = True
            stream.take(credit)
            if credit.draining:
                stream.until_s = math.inf  # it waits for this very stream to end
            self._wake.set()
            if self._on_credit is not None:
                self._on_credit(self.name, credit)

    def _lose(self, error: Exception, parcels: Sequence[Parcel]) -> None:
        """Say, or put back where they are kept, what may not have arrived."""
        reason = error.details() or error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
        if self._keeps:
            for parcel in parcels:
                heapq.heappush(self._waiting, parcel)
        self._on_lost(self.name, reason, () if self._keeps else [parcel.message for parcel in parcels])


def _stub(message: agent_pb2.Message) -> agent_pb2.Message:
    """All that is needed of a message to say that its request may be lost."""
    return agent_pb2.Message(request_id=message.request_id, downstream=message.downstream)
