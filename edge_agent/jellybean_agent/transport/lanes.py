"""Streams to one process by workflow: a flood of one workflow's messages holds up none of another's.

Credit is granted by stream, so each workflow of a plan has a stream of its own to each worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Self

from jellybean_agent.transport.message_wire import Data
from jellybean_agent.transport.peers import OnLost, Peer, PeerSettings
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.plan_format import WORKFLOW_SEPARATOR


class PeerLanes:
    """A process that messages of several workflows are sent to: as a `Peer`, with a stream for each workflow."""

    def __init__(
        self, name: str, address: str, settings: PeerSettings, workflows: Iterable[str], *, on_lost: OnLost
    ) -> None:
        self._lanes = {
            workflow: Peer(name, address, replace(settings, workflow=workflow), on_lost=on_lost)
            for workflow in workflows
        }

    def start(self) -> Self:
        """Start the tasks of all streams, each of which is opened when there is something to send."""
        for lane in self._lanes.values():
            lane.start()
        return self

    @property
    def queued(self) -> int:
        return sum(lane.queued for lane in self._lanes.values())

    @property
    def expired(self) -> int:
        return sum(lane.expired for lane in self._lanes.values())

    def put(self, message: agent_pb2.Message, due_s: float = 0.0, until_s: float = math.inf, data: Data = b"") -> None:
        """Send a message of an operator, on the stream of its workflow; arguments as of `Peer.put`."""
        self._lanes[message.upstream.partition(WORKFLOW_SEPARATOR)[0]].put(message, due_s, until_s, data)

    def forget(self, request: str) -> None:
        for lane in self._lanes.values():
            lane.forget(request)

    def expire(self, now_s: float) -> None:
        for lane in self._lanes.values():
            lane.expire(now_s)

    def end(self) -> None:
        for lane in self._lanes.values():
            lane.end()

    async def close(self) -> None:
        for lane in self._lanes.values():
            await lane.close()
