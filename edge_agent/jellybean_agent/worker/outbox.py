"""Sends a worker's messages: outputs to other workers and the gateway, failures to the gateway."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import grpc

from jellybean_agent.brain.messages import GATEWAY, EdgeMessage
from jellybean_agent.brain.plan_view import PlanView, WorkerView
from jellybean_agent.system.timers import loop_s
from jellybean_agent.telemetry.logs import log_fields
from jellybean_agent.transport.gateway_peers import AnyPeer
from jellybean_agent.worker.counters import WorkerCounters
from jellybean_agent.worker.emulated_links import EmulatedLinks
from jellybean_agent.worker.request_tracer import RequestTracer
from jellybean_protos.agent.v1 import agent_pb2

LOG = logging.getLogger("jellybean.agent")


class Outbox:
    """The outgoing messages of one worker. `peers`: the other workers, and the gateways under GATEWAY."""

    def __init__(
        self,
        view: PlanView,
        worker: WorkerView,
        peers: Mapping[str, AnyPeer],
        links: EmulatedLinks,
        counters: WorkerCounters,
        tracer: RequestTracer,
    ) -> None:
        self._view, self._worker, self._peers, self._links = view, worker, peers, links
        self._counters, self._tracer = counters, tracer

    def send(self, worker: str, message: EdgeMessage) -> None:
        """Send a message to a worker. PermanentError when its tensor cannot be sent."""
        wire, data = self._tracer.write_message(self._view.hash, message)
        due_s = 0.0
        if worker != GATEWAY and (tier := self._view.workers[worker].tier) != self._worker.tier:
            due_s = self._links.reserve(self._worker.tier, tier, len(data), loop_s())
            self._counters.sent(message.upstream, tier, len(data))
        self._peers[worker].put(wire, due_s, message.until, data)

    def report_failure(
        self, request: str, operator: str, reason: str, status: grpc.StatusCode, worker: str | None = None
    ) -> None:
        """Tell the gateway that a request failed. `worker`: where it failed; by default this worker."""
        name, trace = self._worker.name, self._tracer.trace_id(request)
        fields = log_fields(request_id=request, operator=operator, worker=name, trace_id=trace, status=status.name)
        LOG.warning("failed: %s", reason, extra=fields)
        failure = agent_pb2.Failure(
            worker=worker or name, operator=operator, reason=reason, status=int(status.value[0])
        )
        self._peers[GATEWAY].put(agent_pb2.Message(request_id=request, failure=failure, plan=self._view.hash))

    def forget(self, request: str) -> None:
        """Drop unsent messages of a request that was given up; the gateway still gets its failure."""
        for name, peer in self._peers.items():
            if name != GATEWAY:
                peer.forget(request)

    def expire(self, now_s: float) -> None:
        """Drop unsent messages whose deadline has passed."""
        for peer in self._peers.values():
            peer.expire(now_s)

    @property
    def expired(self) -> int:
        """Number of messages whose deadline passed before they could be sent."""
        return sum(peer.expired for peer in self._peers.values())
