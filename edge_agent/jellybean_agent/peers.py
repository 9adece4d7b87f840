"""The sending end of a long-lived stream of messages to one other process.

One task per peer, none per message. Messages leave in the order of their due times (a link's delay is spent here, at
the sender) and only while the receiver has granted credit.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from jellybean_agent.channels import open_channel
from jellybean_agent.errors import AgentError, TransientError
from jellybean_protos.agent.v1 import agent_pb2

DELIVER = "/jellybean.agent.v1.Agent/Deliver"
SENDER_KEY = "jellybean-sender"
_RETRY_S = 0.1

Lost = Callable[[str, str, Sequence[agent_pb2.Message]], None]


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
        on_credit: Callable[[str, agent_pb2.Credit], None] | None = None,
        eager: bool = False,
    ) -> None:
        self.name = name
        self.connected = False
        self._address, self._sender, self._eager = address, sender, eager
        self._on_lost, self._on_credit = on_lost, on_credit
        self._waiting: list[tuple[float, int, agent_pb2.Message]] = []
        self._order = itertools.count()
        self._credit = 0
        self._ending = False
        self._wake = asyncio.Event()
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
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        async with open_channel(self._address) as channel:
            deliver: Callable[..., Any] = channel.stream_stream(
                DELIVER,
                request_serializer=agent_pb2.Message.SerializeToString,
                response_deserializer=agent_pb2.Credit.FromString,
            )
            while not self._ending:
                while not self._eager and not self._waiting and not self._ending:
                    self._wake.clear()
                    await self._wake.wait()
                try:
                    await self._converse(deliver(metadata=((SENDER_KEY, self._sender),)))
                except (AgentError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                    self._lose(error)
                    await asyncio.sleep(_RETRY_S)

    async def _converse(self, call: Any) -> None:
        self._credit = 0
        reader = asyncio.create_task(self._read_credit(call))
        reader.add_done_callback(lambda _: self._wake.set())
        try:
            while not reader.done():
                if self._ending and not self._waiting:
                    await call.done_writing()
                    await reader
                    return
                if await self._is_due():
                    entry = heapq.heappop(self._waiting)
                    self._credit -= entry[0] > -math.inf
                    try:
                        await call.write(entry[2])
                    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        heapq.heappush(self._waiting, entry)  # it is among the undelivered
                        raise
            await reader
            if not self._ending:
                raise TransientError("it closed the stream")
        finally:
            self.connected = False
            reader.cancel()
            call.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _is_due(self) -> bool:
        """True when a message may leave now; otherwise waits for anything to change and says False."""
        first_s = self._waiting[0][0] if self._waiting else math.inf
        wait_s = first_s - time.monotonic() if self._credit > 0 or first_s == -math.inf else None
        if wait_s is not None and wait_s <= 0:
            return True
        self._wake.clear()
        if wait_s is None or wait_s == math.inf:
            await self._wake.wait()
        else:
            timer = asyncio.get_running_loop().call_later(wait_s, self._wake.set)
            await self._wake.wait()
            timer.cancel()
        return False

    async def _read_credit(self, call: Any) -> None:
        async for credit in call:
            self.connected = True
            self._credit += credit.messages
            self._wake.set()
            if self._on_credit is not None:
                self._on_credit(self.name, credit)

    def _lose(self, error: Exception) -> None:
        undelivered = [message for _, _, message in sorted(self._waiting, key=lambda item: item[:2])]
        self._waiting.clear()
        reason = error.details() or error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
        self._on_lost(self.name, reason, undelivered)
