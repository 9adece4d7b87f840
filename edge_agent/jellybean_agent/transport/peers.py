"""The sending end of a long-lived stream of messages to one other process.

One asyncio task per peer, none per message: a message that may be sent immediately is sent without the task. Messages
are sent in the order of their due times (the delay of an emulated link is spent at the sender), only while the receiver
has granted credit, and never after their deadline. Credit acknowledges messages: when the stream breaks, unacknowledged
ones are reported as lost, or sent again. A receiver that is silent for too long counts as lost. With certificates, the
stream moves to a new connection periodically; the new one is established before the old one ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import grpc.aio

from jellybean_agent.admission.shares import SharedLimit
from jellybean_agent.errors import TransientError
from jellybean_agent.rpc.unix_socket_client import UnixSocketRpcUnsupportedError
from jellybean_agent.telemetry.printable import printable
from jellybean_agent.transport.channels import Transport
from jellybean_agent.transport.message_wire import Data
from jellybean_agent.transport.outgoing_queue import OutgoingMessage, OutgoingQueue
from jellybean_agent.transport.reply_address import ReplyAddress
from jellybean_agent.transport.streams import (
    CALL_ERRORS,
    SILENT_S,
    DeliverStream,
    Receiver,
    open_deliver_call,
)
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.agent")
_RETRY_S = 0.1
_TAKEOVER_S = 10.0  # time limit for a new connection to be established, and for the old one to end
_MAX_REASON = 500  # characters of why a receiver ended a stream, which it chooses itself
_LEFT_S = 0.5  # pause before a receiver that shut down is called again

OnLost = Callable[[str, str, Sequence[agent_pb2.Message]], None]
OnPeerCredit = Callable[[str, agent_pb2.Credit], None]


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Settings for sending to peers.

    `sender`: the name of this process. `eager`: keep the stream open, and reconnect after a loss (the gateway's view of
    a worker); else it is opened when there is something to send. `resends`: after a loss, send unacknowledged messages
    again as long as they are in time, which the receiver must tolerate (a worker's view of the gateway). `silent_s`: a
    receiver that sends no heartbeat for longer counts as lost. `workflow`: of the messages, if the plan has several,
    for each of which credit is granted apart. `reply`: where this process takes answers, if it is one of several
    gateways. `queued_bytes`: of the tensors that wait for a receiver that grants no credit, shared by its workflows;
    further messages are lost. None: any number.
    """

    sender: str
    transport: Transport
    eager: bool = False
    resends: bool = False
    silent_s: float = SILENT_S
    workflow: str = ""
    reply: ReplyAddress | None = None
    queued_bytes: SharedLimit | None = None


class Peer:
    """A process that messages are sent to, from `start` to `close`.

    `on_lost(name, reason, messages)` is called when the stream breaks, with the messages that were not sent and those
    that may not have arrived (without their tensors); with none where they are resent.
    """

    def __init__(
        self, name: str, address: str, settings: PeerSettings, *, on_lost: OnLost, on_credit: OnPeerCredit | None = None
    ) -> None:
        self.name = name
        self.connected = False
        self.expired = 0  # messages whose deadline passed before they could be sent
        self._receiver = Receiver(name, address, settings.sender, settings.workflow, settings.reply)
        self._settings = settings
        self._on_lost, self._on_credit = on_lost, on_credit
        self._queued_bytes = settings.queued_bytes or SharedLimit(sys.maxsize)
        self._queue = OutgoingQueue(self._queued_bytes.share_of(settings.workflow))
        self._streams: set[DeliverStream] = set()
        self._current: DeliverStream | None = None  # stream on which messages are sent
        self._by_own_protocol = True  # whether the next stream tries it instead of gRPC
        self._closing: set[asyncio.Task[None]] = set()  # tasks that end replaced streams
        self._is_finishing = self._is_ending = self._is_writing = False
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()  # whose clock is CLOCK_MONOTONIC
        self._task: asyncio.Task[None] | None = None

    def start(self) -> Self:
        """Start the peer's task."""
        self._task = asyncio.create_task(self._run(), name=f"peer {self.name}")
        return self

    @property
    def queued(self) -> int:
        """Number of messages not sent yet, or not acknowledged where they may be resent."""
        unacknowledged = sum(len(stream.unacknowledged) for stream in self._streams) if self._settings.resends else 0
        return len(self._queue) + unacknowledged

    def put(self, message: agent_pb2.Message, due_s: float = 0.0, until_s: float = math.inf, data: Data = b"") -> None:
        """Send `message`, not before CLOCK_MONOTONIC second `due_s`. A failure goes first and needs no credit.

        `data`: the tensor's bytes, if they are not in the message: they are not copied, so they must not change.
        """
        outgoing, stream = self._queue.make(message, due_s, until_s, data), self._current
        if stream is not None and stream.call.may_send and self._is_next(outgoing, stream):
            if self._is_in_time(outgoing):
                stream.call.send(outgoing)
                self._count(outgoing, stream)
            return
        if not self._queue.has_room(len(data)):
            reason = f"it takes no messages: {self._queued_bytes.held} bytes wait for it"
            self._loop.call_soon(self._on_lost, self.name, reason, (message,))  # not within what has made the message
            return
        self._queue.push(outgoing)
        self._wake.set()

    def _is_next(self, outgoing: OutgoingMessage, stream: DeliverStream) -> bool:
        """True if a message may be sent now, ahead of all queued ones."""
        if self._is_writing or (self._queue and self._queue.first_due_s <= outgoing.due_s):
            return False
        if not outgoing.needs_credit:
            return True
        return stream.credit > 0 and (outgoing.due_s == 0.0 or outgoing.due_s <= self._loop.time())

    def forget(self, request: str) -> None:
        """Drop the queued messages of a request that was given up."""
        if self._queue.remove(lambda outgoing: outgoing.message.request_id == request):
            self._wake.set()

    def expire(self, now_s: float) -> None:
        """Drop queued messages whose deadline has passed."""
        if expired := self._queue.remove(lambda outgoing: outgoing.until_s <= now_s):
            self.expired += expired
            self._wake.set()

    def finish(self) -> None:
        """End the stream once all queued messages have left; an eager peer reconnects later."""
        self._is_finishing = True
        self._wake.set()

    def end(self) -> None:
        """Like `finish`, without reconnecting."""
        self._is_ending = True
        self.finish()

    async def close(self) -> None:
        """Drop the queue and the stream."""
        self._is_ending = True
        tasks = [task for task in (self._task, *self._closing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        stream: DeliverStream | None = None
        while stream is not None or not self._is_ending:
            while stream is None and not self._settings.eager and not self._queue and not self._is_ending:
                self._wake.clear()
                await self._wake.wait()
            current = stream
            try:
                current = current or self._open()
                stream = await self._converse(current)
                if stream is None and not self._is_ending:
                    self._is_finishing = False
                    self._on_lost(self.name, "it left", ())
                    await asyncio.sleep(_LEFT_S)
            except UnixSocketRpcUnsupportedError as error:
                LOG.info("%s is called over gRPC: %s", self.name, error)
                self._by_own_protocol, stream = False, None
                if current is not None and current.unacknowledged:  # the stream could not move to a new connection
                    self._lose(error, list(current.unacknowledged))
            except CALL_ERRORS as error:
                stream, self._is_finishing, self._by_own_protocol = None, False, True
                self._lose(error, [*(current.unacknowledged if current else ()), *self._queue.take_all()])
                await asyncio.sleep(_RETRY_S)

    def _open(self) -> DeliverStream:
        age_s = self._settings.transport.stream_age_s
        stream = DeliverStream(math.inf if age_s is None else self._loop.time() + age_s, self._settings.silent_s)

        def on_credit(credit: agent_pb2.Credit) -> None:
            self._credited(stream, credit)

        transport, by_own_protocol = self._settings.transport, self._by_own_protocol
        stream.start(open_deliver_call(transport, self._receiver, on_credit, by_own_protocol=by_own_protocol))
        stream.call.ended.add_done_callback(lambda _: self._wake.set())
        self._streams.add(stream)
        return stream

    async def _converse(self, stream: DeliverStream) -> DeliverStream | None:
        """Send on a stream until it ends (returns None) or reaches its age limit (returns the successor stream)."""
        successor: DeliverStream | None = None
        self._current = stream
        try:
            while not stream.call.ended.done():
                if self._is_finishing and not self._queue:
                    await stream.call.half_close()
                    await stream.ended()
                    stream.unacknowledged.clear()  # the receiver has read all messages
                    return None
                if self._loop.time() >= stream.until_s:
                    successor = await self._open_successor()
                    return successor
                if await self._wait_for_message(stream):
                    await self._write(stream, self._queue.pop())
            await stream.ended()
            if not self._is_finishing:
                raise TransientError("it closed the stream")
            return None
        finally:
            self._current = None
            if successor is not None:
                task = asyncio.create_task(self._end_old(stream))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
            else:
                self.connected = False
                self._streams.discard(stream)
                await stream.close()

    async def _open_successor(self) -> DeliverStream:
        """Open a new stream; returns it once the receiver has accepted it."""
        stream = self._open()
        try:
            await stream.accepted(_TAKEOVER_S)
        except BaseException:
            self._streams.discard(stream)
            await stream.close()
            raise
        return stream

    async def _end_old(self, stream: DeliverStream) -> None:
        """End a stream that was replaced; if it fails, its unacknowledged messages are handled as lost."""
        reason: Exception = TransientError("the connection before this one did not end")
        try:
            await stream.call.half_close()
            async with asyncio.timeout(_TAKEOVER_S):
                await stream.ended()
            stream.unacknowledged.clear()
        except (*CALL_ERRORS, TimeoutError) as error:
            reason = error
        finally:
            self._streams.discard(stream)
            await stream.close()
        if stream.unacknowledged:
            self._lose(reason, list(stream.unacknowledged))

    async def _write(self, stream: DeliverStream, outgoing: OutgoingMessage) -> None:
        if not self._is_in_time(outgoing):
            return
        # Counted first: its credit may come back before `write` returns.
        counted = self._count(outgoing, stream)
        self._is_writing = True  # no other message may be sent before this one
        try:
            await stream.call.write(outgoing)
        except BaseException as error:
            if counted is None or stream.uncount(counted):
                self._queue.push(outgoing)  # not sent: queue it again
            if stream.silence:
                raise TransientError(stream.silence) from error
            raise
        finally:
            self._is_writing = False

    def _is_in_time(self, outgoing: OutgoingMessage) -> bool:
        """True if a message's deadline has not passed; otherwise counts the message as expired."""
        is_in_time = outgoing.set_time_left(self._loop.time())
        self.expired += not is_in_time
        return is_in_time

    def _count(self, outgoing: OutgoingMessage, stream: DeliverStream) -> OutgoingMessage | None:
        """Charge a message to the credit; returns what is kept of it until it is acknowledged, None for a failure."""
        if not outgoing.needs_credit:
            return None
        kept = outgoing if self._settings.resends else outgoing._replace(message=_stub(outgoing.message), data=b"")
        stream.credit -= 1
        stream.unacknowledged.append(kept)
        return kept

    async def _wait_for_message(self, stream: DeliverStream) -> bool:
        """True if a queued message may be sent now; otherwise wait for any change, then return False."""
        first_s = self._queue.first_due_s
        at_s = min(first_s if stream.credit > 0 or first_s == -math.inf else math.inf, stream.until_s)
        now_s = self._loop.time()
        if at_s <= now_s:
            return at_s == first_s
        self._wake.clear()
        if at_s == math.inf:
            await self._wake.wait()
        else:
            timer = self._loop.call_at(at_s, self._wake.set)
            await self._wake.wait()
            timer.cancel()
        return False

    def _credited(self, stream: DeliverStream, credit: agent_pb2.Credit) -> None:
        self.connected = True
        is_first = not stream.has_credit.is_set()
        stream.add_credit(credit)
        if credit.draining:
            stream.until_s = math.inf  # a draining receiver waits for this very stream to end
        if is_first or self._queue or self._is_finishing:
            self._wake.set()
        if self._on_credit is not None:
            self._on_credit(self.name, credit)

    def _lose(self, error: Exception, messages: Sequence[OutgoingMessage]) -> None:
        """Report messages that may not have arrived as lost, or queue them again if `resends` is set."""
        if self._settings.resends:
            self._queue.push_all(messages)
        reason = self._settings.transport.expiry_reason or printable(_reason(error), _MAX_REASON)
        self._on_lost(self.name, reason, () if self._settings.resends else [outgoing.message for outgoing in messages])


def _reason(error: Exception) -> str:
    return error.details() or error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)


def _stub(message: agent_pb2.Message) -> agent_pb2.Message:
    """A copy of a message with only the fields needed to report its request as lost."""
    return agent_pb2.Message(request_id=message.request_id, downstream=message.downstream)
