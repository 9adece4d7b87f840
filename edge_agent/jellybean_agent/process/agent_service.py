"""The gRPC service of an agent: message streams, description, metrics, and a drain that loses no request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health

from jellybean_agent.admission.shares import SharedLimit
from jellybean_agent.brain.messages import GATEWAY, StreamPosition
from jellybean_agent.brain.plan_view import PlanView, WorkerView
from jellybean_agent.errors import AgentError, PlanViewError, StateMissingError, status_of
from jellybean_agent.execution.executor import Executor
from jellybean_agent.process.health import set_health
from jellybean_agent.process.machine_message import machine_message
from jellybean_agent.process.metrics import AgentCollector
from jellybean_agent.process.model_loading import ModelSettings, load_executors
from jellybean_agent.rpc.calls import RpcCall, StreamReceiver
from jellybean_agent.system.protocol_version import PROTOCOL_VERSION
from jellybean_agent.system.timers import loop_s
from jellybean_agent.tensors.tensors import decode_tensor, encode_tensor, tensor_spec
from jellybean_agent.transport.channels import Transport
from jellybean_agent.transport.gateway_peers import AnyPeer, GatewayPeers
from jellybean_agent.transport.inboxes import Inboxes, agent_service_handler
from jellybean_agent.transport.lanes import PeerLanes
from jellybean_agent.transport.peers import Peer, PeerSettings
from jellybean_agent.transport.reply_address import read_reply_address
from jellybean_agent.worker.counters import WorkerCounters
from jellybean_agent.worker.driver import Driver
from jellybean_agent.worker.emulated_links import EmulatedLinks
from jellybean_agent.worker.request_tracer import RequestTracer
from jellybean_agent.worker.stream_states import StreamStates
from jellybean_protos.agent.v1 import agent_pb2

if TYPE_CHECKING:
    from jellybean_agent.telemetry.spans import SpanFactory

LOG = logging.getLogger("jellybean.agent")
MAX_QUEUED_BYTES = 2**27  # of outputs that wait for one other worker, shared by workflows


class AgentService:
    """The Agent service of one worker: describe, deliver, metrics, drain. Ready after `load`."""

    def __init__(
        self,
        view: PlanView,
        worker: WorkerView,
        addresses: Mapping[str, str],
        links: EmulatedLinks,
        transport: Transport,
        models: ModelSettings,
        spans: SpanFactory | None = None,
        counters: WorkerCounters | None = None,
    ) -> None:
        self._models, self._spans = models, spans
        self.view, self.worker, self._addresses, self._links = view, worker, addresses, links
        self._transport = transport
        self.state = "loading"
        self.driver: Driver | None = None
        self.executors: Mapping[str, Executor] = {}
        self._peers: dict[str, AnyPeer] = {}
        self._inboxes: Inboxes | None = None
        self._began = time.monotonic()
        self._machine = machine_message(worker.device)
        self._counters = counters or WorkerCounters(worker.operators)
        self.metrics = AgentCollector(
            view, worker, self._counters, lambda: self.driver, transport.certificate, transport.admission
        )
        self.health: Any = health.aio.HealthServicer()  # type: ignore[attr-defined]

    async def load(self) -> None:
        """Load and warm up the models in a thread, so that Describe is answered meanwhile; then accept messages."""
        await set_health(self.health, serving=False)
        self.executors = await asyncio.to_thread(load_executors, self.view, self.worker, self._models)
        own = self.worker.name
        for name, address in self._addresses.items():
            if name != own:
                self._peers[name] = self._peer(name, address).start()
        worker, tracer = self.worker.name, self._tracer()
        self.driver = Driver(self.view, worker, self.executors, self._peers, self._links, tracer, self._counters)
        self.driver.start()
        self._inboxes = Inboxes(
            self.driver.receive,
            lambda workflow: self.driver is not None and self.driver.is_full(workflow),
            splits_tensors=True,
            workflows=self.view.workflows or ("",),
        )
        self.driver.on_capacity = self._inboxes.has_capacity
        self.state = "ready"
        await set_health(self.health, serving=True)

    def _peer(self, name: str, address: str) -> AnyPeer:
        """The sending end to another process."""
        settings = PeerSettings(self.worker.name, self._transport, resends=name == GATEWAY)
        if name == GATEWAY:
            return GatewayPeers(address, settings, on_lost=self._lost)
        settings = replace(settings, queued_bytes=SharedLimit(MAX_QUEUED_BYTES))
        if not self.view.workflows:
            return Peer(name, address, settings, on_lost=self._lost)
        return PeerLanes(name, address, settings, self.view.workflows, on_lost=self._lost)

    def _tracer(self) -> RequestTracer | None:
        """The tracer if traces are configured, else None; OpenTelemetry is imported only then."""
        if self._spans is None:
            return None
        from jellybean_agent.worker.span_tracer import SpanTracer

        return SpanTracer(self._spans, self.view, self.worker.name)

    def _lost(self, peer: str, reason: str, undelivered: Any) -> None:
        LOG.warning("lost %s: %s (%d messages)", peer or "the gateway", reason, len(undelivered))
        if self.driver is not None:
            self.driver.peer_lost(peer, reason, undelivered)

    def handler(self) -> Any:
        """The service's handler, for a server."""
        describe = grpc.unary_unary_rpc_method_handler(
            self.Describe, agent_pb2.DescribeRequest.FromString, agent_pb2.AgentStatus.SerializeToString
        )
        drain = grpc.unary_unary_rpc_method_handler(
            self.Drain, agent_pb2.DrainRequest.FromString, agent_pb2.DrainResponse.SerializeToString
        )
        metrics = grpc.unary_unary_rpc_method_handler(
            self.Metrics, agent_pb2.MetricsRequest.FromString, agent_pb2.MetricsResponse.SerializeToString
        )
        read, write = (
            grpc.unary_unary_rpc_method_handler(
                method, agent_pb2.StreamState.FromString, agent_pb2.StreamState.SerializeToString
            )
            for method in (self.ReadState, self.WriteState)
        )
        return agent_service_handler(Describe=describe, Drain=drain, Metrics=metrics, ReadState=read, WriteState=write)

    def deliver_raw(self, call: RpcCall) -> StreamReceiver | None:
        """Serve a Deliver stream without an asyncio task; for `RpcServer.add_raw_stream`."""
        if self._inboxes is None:
            call.end(grpc.StatusCode.UNAVAILABLE, f"{self.worker.name} is loading its models")
            return None
        try:
            key = self._note_gateway(call)
        except AgentError as error:
            call.end(status_of(error), str(error))
            return None
        return self._inboxes.deliver_raw(call, key)

    def _note_gateway(self, call: RpcCall) -> str:
        """Answer the gateway that a stream is of, if that is one of several; returns its key, else an empty text.

        StatusError if it may not ask for that.
        """
        reply, gateways = read_reply_address(call, self._transport), self._peers.get(GATEWAY)
        if reply is not None and isinstance(gateways, GatewayPeers):
            stream_ended = gateways.stream_began(reply)
            call.add_done_callback(lambda _: stream_ended())
        return "" if reply is None else reply.key

    async def Describe(self, _request: agent_pb2.DescribeRequest, _context: Any) -> agent_pb2.AgentStatus:
        status = agent_pb2.AgentStatus(
            worker=self.worker.name,
            plan=self.view.hash,
            state=self.state,
            uptime_s=time.monotonic() - self._began,
            protocol=PROTOCOL_VERSION,
            device=str(self.worker.device),
            machine=self._machine,
            several_gateways=True,
            signatures={name: self._signature(name, executor) for name, executor in self.executors.items()},
        )
        if self.driver is not None:
            status.requests_in_hand = self.driver.requests_in_flight
            status.completed.update(self.driver.counters.completed)
            status.runs.update({name: sizes.total() for name, sizes in self.driver.counters.runs.items()})
            status.busy_s.update(self.driver.busy_s())
            status.late_s.update(self.driver.counters.late_s)
            status.expired = sum(self.driver.counters.expired.values()) + self.driver.unsent_expired
        return status

    def _signature(self, name: str, executor: Executor) -> agent_pb2.Signature:
        operator = self.view.operators[name]
        ports = {port.name: port for port in executor.outputs}
        first = executor.outputs[0].name
        downstreams = [downstream for downstream, _ in operator.wiring.outputs] or [GATEWAY]
        outputs = {name: ports[operator.output_names.get(name, first)] for name in downstreams}
        inputs = dict(zip((up for up, _ in operator.wiring.inputs), executor.inputs, strict=False))  # states come last
        return agent_pb2.Signature(
            inputs={up: tensor_spec(port.dtype, port.shape) for up, port in inputs.items()},
            outputs={down: tensor_spec(port.dtype, port.shape) for down, port in outputs.items()},
        )

    @property
    def requests_in_flight(self) -> int:
        """Requests and direct calls that this worker has not finished."""
        return 0 if self.driver is None else self.driver.requests_in_flight + self.driver.direct_calls_in_flight

    @property
    def requests_handled(self) -> int:
        """Requests and direct calls that this worker has run or is running, counted once per operator."""
        return 0 if self.driver is None else self.driver.counters.handled + self.requests_in_flight

    async def Metrics(self, _request: agent_pb2.MetricsRequest, _context: Any) -> agent_pb2.MetricsResponse:
        return agent_pb2.MetricsResponse(text=self.metrics.text())

    async def ReadState(self, request: agent_pb2.StreamState, context: Any) -> agent_pb2.StreamState:
        """The state of a stream after a request; ABORTED if it is not here."""
        try:
            state = self._states_for(request).read(request.operator, StreamPosition(request.stream, request.after))
        except AgentError as error:
            await context.abort(status_of(error), str(error))
        request.tensors.extend(map(encode_tensor, state))
        return request

    async def WriteState(self, request: agent_pb2.StreamState, context: Any) -> agent_pb2.StreamState:
        """Take over the state of a stream; FAILED_PRECONDITION if it is of another plan."""
        try:
            states, state = self._states_for(request), tuple(map(decode_tensor, request.tensors))
            states.write(request.operator, StreamPosition(request.stream, request.after), state)
        except AgentError as error:
            await context.abort(status_of(error), str(error))
        return agent_pb2.StreamState()

    def _states_for(self, request: agent_pb2.StreamState) -> StreamStates:
        if request.plan != self.view.hash or request.operator not in self.view.stateful:
            raise PlanViewError(f"{request.operator[:60]!r} of plan {request.plan[:12]} keeps no state here")
        if self.driver is None or request.operator not in self.worker.operators:
            raise StateMissingError(f"{self.worker.name} does not run {request.operator} yet")
        return self.driver.states

    async def Drain(self, request: agent_pb2.DrainRequest, _context: Any) -> agent_pb2.DrainResponse:
        return agent_pb2.DrainResponse(left=await self.drain(request.timeout_s))  # 0: do not wait

    async def drain(self, timeout_s: float) -> int:
        """Accept no further requests, and finish those in flight; returns the number unfinished at the timeout.

        The drain is over once all messages have been sent and the gateway has ended its stream, which it does when no
        request in flight can reach this worker any more. Without a gateway's stream there is nothing to wait for.
        """
        self.state = "draining"
        await set_health(self.health, serving=False)
        if self.driver is None or self._inboxes is None:
            return 0
        self._inboxes.announce_draining()
        until_s = loop_s() + timeout_s
        while loop_s() < until_s:
            sent = all(peer.queued == 0 for name, peer in self._peers.items() if name != GATEWAY)
            if GATEWAY not in self._inboxes.senders() and sent and not self.driver.direct_calls_in_flight:
                break
            await asyncio.sleep(0.01)
        return self.driver.requests_in_flight

    async def close(self) -> None:
        """Stop the executor thread and the outgoing streams."""
        if self.driver is not None:
            self.driver.abandon_calls()
        for peer in self._peers.values():
            peer.end()
        if self.driver is not None:
            await asyncio.to_thread(self.driver.stop)
        if self._models.process is not None:
            self._models.process.close()
        for peer in self._peers.values():
            await peer.close()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)
