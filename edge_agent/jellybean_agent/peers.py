"""The sending end of a long-lived stream of messages to one other process.

One task per peer, none per message. Messages leave in the order of their due times (a link's delay is spent here, at
the sender) and only while the receiver has granted credit. Where certificates may change, a stream is moved to a new
connection every now and then: the new one stands before the old one ends, so that the receiver always has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from jellybean_agent.channels import Transport
from jellybean_agent.errors import AgentError, TransientError
from jellybean_agent.identity import SENDER_KEY
from jellybean_protos.agent.v1 import agent_pb2

DELIVER = "/jellybean.agent.v1.Agent/Deliver"
_RETRY_S = 0.1
_TAKEOVER_S = 10.0  # for a new connection to stand, and for the old one to end

Lost = Callable[[str, str, Sequence[agent_pb2.Message]], None]


@dataclass(eq=False, slots=True)
class _Stream:
    """One Deliver call on a connection of its own. `until_s`: when another is to take over."""

    channel: grpc.aio.Channel
    call: Any
    until_s: float
    credit: int = 0
    granted: asyncio.Event = field(default_factory=asyncio.Event)
    reader: asyncio.Task[None] = field(init=False)

    async def close(self) -> None:
        self.reader.cancel()
        self.call.cancel()
        await asyncio.gather(self.reader, return_exceptions=True)
        await self.channel.close(None)


class Peer:
    """A process that messages are sent to. `on_lost(peer, reason, undelivered)` when the stream breaks.

    An eager peer (the gateway's view of a worker) keeps its stream open and tries again after a loss; another opens it
    when there is something to send.
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
    ) -> None:
        self.name = name
        self.connected = False
        self._address, self._sender, self._eager, self._transport = address, sender, eager, transport
        self._on_lost, self._on_credit = on_lost, on_credit
        self._waiting: list[tuple[float, int, agent_pb2.Message]] = []
        self._order = itertools.count()
        self._ending = False
        self._wake = asyncio.Event()
        self._leaving: set[asyncio.Task[None]] = set()  # streams that another has taken over from
        self._task = asyncio.create_task(self._run(), name=f"peer {name}")

    @property
    def queued(self) -> int:
        """Messages that have not left yet."""
        return len(self._waiting)

    def put(self, message: agent_pb2.Message, due_s: float = 0.0) -> None:
        """Send `message`, not before CLOCK_MONOTONIC second `due_s`. A failure goes first and needs no credit."""
        if message.HasField("failure"):
            due_s = -math.inf
        heapq.heappush(self._waiting, (due_s, next(self._order), message))
        self._wake.set()

    def end(self) -> None:
        """Close this end once everything queued has left; the receiver learns that nothing more will come."""
        self._ending = True
        self._wake.set()

    async def close(self) -> None:
        """Drop what is queued and the stream."""
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
            try:
                stream = await self._converse(stream or self._open())
            except (AgentError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                stream = None
                self._lose(error)
                await asyncio.sleep(_RETRY_S)

    def _open(self) -> _Stream:
        channel = self._transport.channel(self._address, self.name)
        deliver: Callable[..., Any] = channel.stream_stream(
            DELIVER,
            request_serializer=agent_pb2.Message.SerializeToString,
            response_deserializer=agent_pb2.Credit.FromString,
        )
        age_s = self._transport.stream_age_s
        until_s = math.inf if age_s is None else time.monotonic() + age_s
        stream = _Stream(channel, deliver(metadata=((SENDER_KEY, self._sender),)), until_s)
        stream.reader = asyncio.create_task(self._read_credit(stream))
        stream.reader.add_done_callback(lambda _: self._wake.set())
        return stream

    async def _converse(self, stream: _Stream) -> _Stream | None:
        """Send on a stream until it ends (None), or its time is over: then the stream that goes on."""
        reader = stream.reader
        following: _Stream | None = None
        try:
            while not reader.done():
                if self._ending and not self._waiting:
                    await stream.call.done_writing()
                    await reader
                    return None
                if time.monotonic() >= stream.until_s:
                    following = await self._successor()
                    return following
                if await self._is_due(stream):
                    entry = heapq.heappop(self._waiting)
                    stream.credit -= entry[0] > -math.inf
                    try:
                        await stream.call.write(entry[2])
                    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        heapq.heappush(self._waiting, entry)  # it is among the undelivered
                        raise
            await reader
            if not self._ending:
                raise TransientError("it closed the stream")
            return None
        finally:
            if following is not None:
                task = asyncio.create_task(self._leave(stream))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
            else:
                self.connected = False
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
                stream.reader.result()
            raise TransientError("it takes no new connection")
        except BaseException:
            await stream.close()
            raise
        finally:
            granted.cancel()

    async def _leave(self, stream: _Stream) -> None:
        """End a stream that another has taken over from; what was sent on it arrives."""
        try:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await stream.call.done_writing()
                await asyncio.wait({stream.reader}, timeout=_TAKEOVER_S)
        finally:
            await stream.close()

    async def _is_due(self, stream: _Stream) -> bool:
        """True when a message may leave now; otherwise waits for anything to change and says False."""
        first_s = self._waiting[0][0] if self._waiting else math.inf
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
            stream.credit += credit.messages
            stream.granted.set()
            if credit.draining:
                stream.until_s = math.inf  # it waits for this very stream to end
            self._wake.set()
            if self._on_credit is not None:
                self._on_credit(self.name, credit)

    def _lose(self, error: Exception) -> None:
        undelivered = [message for _, _, message in sorted(self._waiting, key=lambda item: item[:2])]
        self._waiting.clear()
        reason = error.details() or error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
        self._on_lost(self.name, reason, undelivered)
