"""The gateways that a worker answers: the one in its peers file, and each that has made itself known.

A message goes to the gateway whose key its request's id begins with (`reply_address.py`). A gateway is known while it
has a stream to this worker, and for a while after: it has given up what it sent over a stream that broke, so its
answers are not waited for.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import grpc

from jellybean_agent.brain.messages import GATEWAY
from jellybean_agent.errors import StatusError
from jellybean_agent.transport.lanes import PeerLanes
from jellybean_agent.transport.message_wire import Data
from jellybean_agent.transport.peers import OnLost, Peer, PeerSettings
from jellybean_agent.transport.reply_address import ReplyAddress, gateway_key
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.agent")
MAX_GATEWAYS = 32  # most that are known besides the one in the peers file
FORGET_S = 10.0  # after a gateway's last stream has ended


@dataclass(eq=False, slots=True)
class _Gateway:
    """A gateway that has made itself known. `streams`: those that it has open to this worker.

    `loss`: why it could not be reached, as logged last.
    """

    reply: ReplyAddress
    peer: Peer = field(init=False)
    streams: int = 0
    loss: str = ""
    forgetting: asyncio.TimerHandle | None = None


class GatewayPeers:
    """Sends messages to the gateway that asked: as a `Peer`, with one for each gateway."""

    def __init__(self, address: str, settings: PeerSettings, *, on_lost: OnLost) -> None:
        """`address`: of the gateway in the peers file, for requests whose ids have no key."""
        self._settings, self._on_lost = settings, on_lost
        self._default = Peer(GATEWAY, address, settings, on_lost=on_lost)
        self._known: dict[str, _Gateway] = {}  # by key, the one whose stream began last at the end
        self._closing: set[asyncio.Task[None]] = set()
        self._expired = 0  # of gateways that are forgotten

    def start(self) -> Self:
        """Start the task for the gateway in the peers file."""
        self._default.start()
        return self

    def __len__(self) -> int:
        """Number of gateways that have made themselves known."""
        return len(self._known)

    def stream_began(self, reply: ReplyAddress) -> Callable[[], None]:
        """A gateway has a stream here from now on; returns the function to be called at the stream's end.

        StatusError if too many gateways have one.
        """
        found = self._known.pop(reply.key, None)
        if found is not None and found.reply != reply:  # two have drawn the same key: the last one has it
            self._drop(found)
            found = None
        if found is None:
            self._make_room()
            LOG.info("the gateway at %s has connected", reply.address)
            found = _Gateway(reply)
            found.peer = Peer(GATEWAY, reply.address, self._settings, on_lost=partial(self._lost, found)).start()
        if found.forgetting is not None:
            found.forgetting.cancel()
            found.forgetting = None
        found.loss = ""
        found.streams += 1
        self._known[reply.key] = found
        return partial(self._stream_ended, found)

    def _lost(self, gateway: _Gateway, _peer: str, reason: str, messages: Sequence[agent_pb2.Message]) -> None:
        if reason != gateway.loss or messages:  # it is called ten times a second until it is forgotten
            gateway.loss = reason
            self._on_lost(f"the gateway at {gateway.reply.address}", reason, messages)

    def _stream_ended(self, gateway: _Gateway) -> None:
        gateway.streams -= 1
        if gateway.streams == 0 and self._known.get(gateway.reply.key) is gateway:
            gateway.forgetting = asyncio.get_running_loop().call_later(FORGET_S, self._forget, gateway)

    def _make_room(self) -> None:
        if len(self._known) < MAX_GATEWAYS:
            return
        gone = next((one for one in self._known.values() if one.streams == 0), None)
        if gone is None:
            reason = f"{MAX_GATEWAYS} gateways have a stream to this worker, which is the most"
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        self._forget(gone)

    def _forget(self, gateway: _Gateway) -> None:
        del self._known[gateway.reply.key]
        self._drop(gateway)

    def _drop(self, gateway: _Gateway) -> None:
        """Give up what a gateway has not taken."""
        if gateway.forgetting is not None:
            gateway.forgetting.cancel()
        peer = gateway.peer
        LOG.info("the gateway at %s is gone: %d messages for it are dropped", gateway.reply.address, peer.queued)
        self._expired += peer.expired
        task = asyncio.create_task(peer.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    @property
    def _peers(self) -> list[Peer]:
        return [self._default, *(gateway.peer for gateway in self._known.values())]

    @property
    def queued(self) -> int:
        return sum(peer.queued for peer in self._peers)

    @property
    def expired(self) -> int:
        return self._expired + sum(peer.expired for peer in self._peers)

    def put(self, message: agent_pb2.Message, due_s: float = 0.0, until_s: float = math.inf, data: Data = b"") -> None:
        """Send a message to the gateway whose request it is of; one that is not known has given the request up."""
        key = gateway_key(message.request_id)
        if not key:
            self._default.put(message, due_s, until_s, data)
        elif (gateway := self._known.get(key)) is not None:
            gateway.peer.put(message, due_s, until_s, data)
        else:
            LOG.info("dropped a message of request %s: its gateway is gone", message.request_id[:60])

    def forget(self, request: str) -> None:
        for peer in self._peers:
            peer.forget(request)

    def expire(self, now_s: float) -> None:
        for peer in self._peers:
            peer.expire(now_s)

    def end(self) -> None:
        for peer in self._peers:
            peer.end()

    async def close(self) -> None:
        for gateway in self._known.values():
            if gateway.forgetting is not None:
                gateway.forgetting.cancel()
        for peer in self._peers:
            await peer.close()
        await asyncio.gather(*self._closing, return_exceptions=True)


AnyPeer = Peer | PeerLanes | GatewayPeers
