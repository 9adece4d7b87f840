"""The sending end of a long-lived stream of messages to one other process.

One task per peer, none per message: one that may leave at once does so without that task. Messages leave in the order
of their due times (a link's delay is spent here, at the sender) and only while the receiver has granted credit; one
that is too late does not leave at all. Credit says which messages arrived: those that may not have are told when the
stream breaks, or are sent again. A receiver that says nothing for `SILENT_S` is given up, whether its process, its
machine or the way to it is at fault. Where certificates may change, a stream is moved to a new connection now and then:
the new one stands before the old one ends, so that the receiver always has one.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc.aio

from jellybean_agent.errors import TransientError
from jellybean_agent.rpc.unix_socket_client import UnixSocketRpcUnsupportedError
from jellybean_agent.transport.channels import Transport
from jellybean_agent.transport.message_wire import Data
from jellybean_agent.transport.streams import BROKEN, Parcel, Stream, carried
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.agent")
_RETRY_S = 0.1
_TAKEOVER_S = 10.0  # for a new connection to stand, and for the old one to end
_LEFT_S = 0.5  # before a receiver that left is looked for again

Lost = Callable[[str, str, Sequence[agent_pb2.Message]], None]


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
        self._streams: set[Stream] = set()
        self._current: Stream | None = None  # that messages leave on
        self._by_lane = True  # the next stream, if there is one
        self._leaving: set[asyncio.Task[None]] = set()  # of streams that another has taken over from
        self._finishing = self._ending = self._writing = False
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"peer {name}")

    @property
    def queued(self) -> int:
        """Messages that have not left yet, or may not have arrived where they are kept."""
        return len(self._waiting) + (sum(len(stream.sent) for stream in self._streams) if self._keeps else 0)

    def put(self, message: agent_pb2.Message, due_s: float = 0.0, until_s: float = math.inf, data: Data = b"") -> None:
        """Send `message`, not before CLOCK_MONOTONIC second `due_s`. A failure goes first and needs no credit.

        `data`: its tensor's bytes, where they are not in it: they are not copied, and must stay as they are.
        """
        if message.HasField("failure"):
            due_s = -math.inf
        parcel, stream = Parcel(due_s, next(self._order), until_s, message, data), self._current
        if stream is not None and stream.carrier.may_send and self._is_next(parcel, stream):
            if self._in_time(parcel):
                stream.carrier.send(parcel)
                self._count(parcel, stream)
            return
        heapq.heappush(self._waiting, parcel)
        self._wake.set()

    def _is_next(self, parcel: Parcel, stream: Stream) -> bool:
        """Whether a message may leave before all that waits."""
        if self._writing or (self._waiting and self._waiting[0].due_s <= parcel.due_s):
            return False
        if parcel.due_s == -math.inf:
            return True
        return stream.credit > 0 and (parcel.due_s == 0.0 or parcel.due_s <= time.monotonic())

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
        stream: Stream | None = None
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
            except UnixSocketRpcUnsupportedError as error:
                LOG.info("%s is spoken to over gRPC: %s", self.name, error)
                self._by_lane, stream = False, None
                if current is not None and current.sent:  # on a stream that was to go on elsewhere
                    self._lose(error, list(current.sent))
            except BROKEN as error:
                stream, self._finishing, self._by_lane = None, False, True
                parcels = sorted(self._waiting, key=lambda parcel: parcel[:2])
                self._waiting = []
                self._lose(error, [*(current.sent if current else ()), *parcels])
                await asyncio.sleep(_RETRY_S)

    def _open(self) -> Stream:
        age_s = self._transport.stream_age_s
        stream = Stream(math.inf if age_s is None else time.monotonic() + age_s)

        def take(credit: agent_pb2.Credit) -> None:
            self._credited(stream, credit)

        stream.begin(carried(self._transport, self._address, self.name, self._sender, take, by_lane=self._by_lane))
        stream.carrier.ended.add_done_callback(lambda _: self._wake.set())
        self._streams.add(stream)
        return stream

    async def _converse(self, stream: Stream) -> Stream | None:
        """Send on a stream until it ends (None), or its time is over: then the stream that goes on."""
        following: Stream | None = None
        self._current = stream
        try:
            while not stream.carrier.ended.done():
                if self._finishing and not self._waiting:
                    await stream.carrier.finish()
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
            self._current = None
            if following is not None:
                task = asyncio.create_task(self._leave(stream))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
            else:
                self.connected = False
                self._streams.discard(stream)
                await stream.close()

    async def _successor(self) -> Stream:
        """A new stream, once the receiver has taken it."""
        stream = self._open()
        granted = asyncio.create_task(stream.granted.wait())
        try:
            either: set[asyncio.Future[Any]] = {granted, stream.carrier.ended}
            await asyncio.wait(either, timeout=_TAKEOVER_S, return_when=asyncio.FIRST_COMPLETED)
            if stream.granted.is_set():
                return stream
            if stream.carrier.ended.done():
                await stream.ended()
            raise TransientError("it takes no new connection")
        except BaseException:
            self._streams.discard(stream)
            await stream.close()
            raise
        finally:
            granted.cancel()

    async def _leave(self, stream: Stream) -> None:
        """End a stream that another has taken over from; what was sent on it arrives, or is known not to have."""
        why: Exception = TransientError("the connection before this one did not end")
        try:
            await stream.carrier.finish()
            async with asyncio.timeout(_TAKEOVER_S):
                await stream.ended()
            stream.sent.clear()
        except (*BROKEN, TimeoutError) as error:
            why = error
        finally:
            self._streams.discard(stream)
            await stream.close()
        if stream.sent:
            self._lose(why, list(stream.sent))

    async def _write(self, stream: Stream, parcel: Parcel) -> None:
        if not self._in_time(parcel):
            return
        stream.credit -= parcel.due_s > -math.inf
        self._writing = True  # nothing may leave before it
        try:
            await stream.carrier.write(parcel)
        except BaseException as error:
            heapq.heappush(self._waiting, parcel)  # it is among those that did not leave
            if stream.silent:
                raise TransientError(stream.silent) from error
            raise
        finally:
            self._writing = False
        stream.credit += parcel.due_s > -math.inf
        self._count(parcel, stream)

    def _in_time(self, parcel: Parcel) -> bool:
        """Whether a message is not too late to leave; then it says how much time is left."""
        if parcel.until_s < math.inf:
            left_s = parcel.until_s - time.monotonic()
            if left_s <= 0:
                self.expired += 1
                return False
            parcel.message.left_s = left_s
        return True

    def _count(self, parcel: Parcel, stream: Stream) -> None:
        """A message has left: with credit, unless it is a failure."""
        if parcel.due_s > -math.inf:
            stream.credit -= 1
            stream.sent.append(parcel if self._keeps else parcel._replace(message=_stub(parcel.message), data=b""))

    async def _is_due(self, stream: Stream) -> bool:
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

    def _credited(self, stream: Stream, credit: agent_pb2.Credit) -> None:
        self.connected = True
        is_first = not stream.granted.is_set()
        stream.take(credit)
        if credit.draining:
            stream.until_s = math.inf  # it waits for this very stream to end
        if is_first or self._waiting or self._finishing:
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
