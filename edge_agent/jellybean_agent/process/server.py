"""The agent process: loads the worker's models, serves its gRPC face, leaves without losing a request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from jellybean_agent.brain.messages import GATEWAY
from jellybean_agent.brain.plan_view import OperatorView, PlanView, WorkerView, read_plan
from jellybean_agent.errors import ModelError, PlanViewError, TransientError, describe_error
from jellybean_agent.execution.emulation import EmulatedDevice
from jellybean_agent.execution.executor import Executor
from jellybean_agent.execution.model_process import RUN_LIMIT_S, ModelProcess
from jellybean_agent.execution.process_pool import POOL_DIED, ModelProcessPool
from jellybean_agent.execution.python_code import PythonStep
from jellybean_agent.execution.session import OpenSession, OperatorCode, open_in_process
from jellybean_agent.inference.fast_operators import FastOperators
from jellybean_agent.inference.operators import Operators
from jellybean_agent.inference.service import INFERENCE_SERVICE_NAME, MODEL_INFER_METHOD, InferenceService
from jellybean_agent.process.health_port import serve_health
from jellybean_agent.process.metrics import AgentCollector, serve_metrics
from jellybean_agent.rpc.calls import RpcCall, StreamReceiver
from jellybean_agent.rpc.server import RpcServer
from jellybean_agent.security.identity import Policy, Role
from jellybean_agent.system.malloc import keep_freed_memory
from jellybean_agent.system.private_files import stays_inside_folder
from jellybean_agent.system.protocol_version import PROTOCOL_VERSION
from jellybean_agent.telemetry.tracing import make_span_factory
from jellybean_agent.tensors.tensors import tensor_spec
from jellybean_agent.transport.channels import CONNECTION_LIFETIME_S, AnyGrpcServer, Transport, make_transport
from jellybean_agent.transport.inboxes import Inboxes, agent_service_handler
from jellybean_agent.transport.peers import Peer, PeerSettings
from jellybean_agent.transport.streams import DELIVER_METHOD
from jellybean_agent.worker.driver import Driver
from jellybean_agent.worker.emulated_links import EmulatedLinks
from jellybean_agent.worker.request_tracer import RequestTracer
from jellybean_protos.agent.v1 import agent_pb2

if TYPE_CHECKING:
    from jellybean_agent.telemetry.spans import SpanFactory

LOG = logging.getLogger("jellybean.agent")
DEFAULT_DRAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Options:
    """What an agent is started with."""

    plan: Path
    worker: str
    root: Path
    listen: str
    peers: Path
    links: Path | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    health_port: int = 0
    drain_s: float = DEFAULT_DRAIN_S
    tls: Path | None = None
    insecure: bool = False
    renew_s: float = CONNECTION_LIFETIME_S
    emulate: bool = True  # links, and devices slower than this one
    in_process: bool = False
    max_run_s: float = RUN_LIMIT_S
    model_memory_mib: int | None = None
    allow_python: frozenset[str] = frozenset()  # functions that may run here besides the agent's own steps


def read_peer_addresses(path: Path, transport: Transport) -> dict[str, str]:
    """Worker name -> address, each one that may be dialled; the gateway's is under the empty name."""
    try:
        peers = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise PlanViewError(f"{path}: {describe_error(error)}") from error
    if not isinstance(peers, dict) or not all(isinstance(address, str) for address in peers.values()):
        raise PlanViewError(f"{path}: not a map of worker names to addresses")
    return {str(name): transport.check(address) for name, address in peers.items()}


def load_executors(
    view: PlanView,
    worker: WorkerView,
    root: Path,
    open_session: OpenSession = open_in_process,
    allow_python: frozenset[str] = frozenset(),
) -> dict[str, Executor]:
    """The worker's models, each verified before it is loaded. ModelError names the operator."""
    found: dict[str, Executor] = {}
    for operator in (view.operators[name] for name in worker.operators):
        try:
            code, sha256 = _code(operator, root, allow_python)
            upstreams = [upstream for upstream, _ in operator.wiring.inputs]
            batch = worker.batches[operator.name]
            device = None if worker.device_s is None else EmulatedDevice(worker.device_s[operator.name])
            found[operator.name] = Executor(
                code, sha256, upstreams, batch=batch, device=device, open_session=open_session
            )
            _check_outputs(operator, found[operator.name])
        except ModelError as error:
            raise ModelError(f"{operator.name}/{operator.variant}: {error}") from error
    return found


def _code(operator: OperatorView, root: Path, allow_python: frozenset[str]) -> tuple[OperatorCode, str]:
    """What the operator runs, and the sha256 of its content."""
    if (python := operator.python) is not None:
        return PythonStep(python.function, python.arguments, allow_python), python.sha256
    if not operator.model_path or not operator.model_sha256:
        raise ModelError("the plan names no model file: it can be planned and simulated, but not served")
    if not stays_inside_folder(operator.model_path):
        raise ModelError(f"model {operator.model_path} is not inside the project's folder")
    return root / operator.model_path, operator.model_sha256


def _check_outputs(operator: OperatorView, executor: Executor) -> None:
    known = {port.name for port in executor.outputs}
    unknown = sorted(set(operator.output_names.values()) - known)
    if unknown:
        raise ModelError(f"no output {', '.join(unknown)}; the model has {', '.join(sorted(known))}")


class AgentService:
    """The Agent service of one worker. `load` first, then it is ready."""

    def __init__(
        self,
        view: PlanView,
        worker: WorkerView,
        addresses: Mapping[str, str],
        links: EmulatedLinks,
        transport: Transport,
        model_process: ModelProcess | None = None,
        spans: SpanFactory | None = None,
        allow_python: frozenset[str] = frozenset(),
    ) -> None:
        self._model_process, self._spans, self._allow_python = model_process, spans, allow_python
        self.view, self.worker, self._addresses, self._links = view, worker, addresses, links
        self._transport = transport
        self.state = "loading"
        self.driver: Driver | None = None
        self.executors: Mapping[str, Executor] = {}
        self._peers: dict[str, Peer] = {}
        self._inboxes: Inboxes | None = None
        self._began = time.monotonic()
        self.metrics = AgentCollector(view, worker, lambda: self.driver)
        self.health: Any = health.aio.HealthServicer()  # type: ignore[attr-defined]

    async def load(self, root: Path) -> None:
        """Load and warm up the models off the event loop, so that Describe answers meanwhile."""
        await set_health(self.health, serving=False)
        open_session: OpenSession = open_in_process if self._model_process is None else self._model_process.open
        self.executors = await asyncio.to_thread(
            load_executors, self.view, self.worker, root, open_session, self._allow_python
        )
        own = self.worker.name
        for name, address in self._addresses.items():
            if name != own:
                settings = PeerSettings(own, self._transport, resends=name == GATEWAY)
                self._peers[name] = Peer(name, address, settings, on_lost=self._lost).start()
        worker, tracer = self.worker.name, self._tracer()
        self.driver = Driver(self.view, worker, self.executors, self._peers, self._links, tracer)
        self.driver.start()
        self._inboxes = Inboxes(
            self.driver.receive, lambda: self.driver is not None and self.driver.is_full, splits_tensors=True
        )
        self.driver.on_capacity = self._inboxes.has_capacity
        self.state = "ready"
        await set_health(self.health, serving=True)

    def _tracer(self) -> RequestTracer | None:
        """The tracer where traces are configured; OpenTelemetry is imported only then."""
        if self._spans is None:
            return None
        from jellybean_agent.worker.span_tracer import SpanTracer

        return SpanTracer(self._spans, self.view, self.worker.name)

    def _lost(self, peer: str, reason: str, undelivered: Any) -> None:
        LOG.warning("lost %s: %s (%d messages)", peer or "the gateway", reason, len(undelivered))
        if self.driver is not None:
            self.driver.peer_lost(peer, reason, undelivered)

    def handler(self) -> Any:
        """The service, for a server."""
        describe = grpc.unary_unary_rpc_method_handler(
            self.Describe, agent_pb2.DescribeRequest.FromString, agent_pb2.AgentStatus.SerializeToString
        )
        drain = grpc.unary_unary_rpc_method_handler(
            self.Drain, agent_pb2.DrainRequest.FromString, agent_pb2.DrainResponse.SerializeToString
        )
        metrics = grpc.unary_unary_rpc_method_handler(
            self.Metrics, agent_pb2.MetricsRequest.FromString, agent_pb2.MetricsResponse.SerializeToString
        )
        return agent_service_handler(self.Deliver, Describe=describe, Drain=drain, Metrics=metrics)

    async def Deliver(self, requests: Any, context: Any) -> None:
        if self._inboxes is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self._not_loaded)
        else:
            await self._inboxes.deliver(requests, context)

    def deliver_raw(self, call: RpcCall) -> StreamReceiver | None:
        """As `Deliver`, without a task."""
        if self._inboxes is not None:
            return self._inboxes.deliver_raw(call)
        call.end(grpc.StatusCode.UNAVAILABLE, self._not_loaded)
        return None

    @property
    def _not_loaded(self) -> str:
        return f"{self.worker.name} is loading its models"

    async def Describe(self, _request: agent_pb2.DescribeRequest, _context: Any) -> agent_pb2.AgentStatus:
        status = agent_pb2.AgentStatus(
            worker=self.worker.name,
            plan=self.view.hash,
            state=self.state,
            uptime_s=time.monotonic() - self._began,
            protocol=PROTOCOL_VERSION,
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
        inputs = dict(zip((up for up, _ in operator.wiring.inputs), executor.inputs, strict=True))
        return agent_pb2.Signature(
            inputs={up: tensor_spec(port.dtype, port.shape) for up, port in inputs.items()},
            outputs={down: tensor_spec(port.dtype, port.shape) for down, port in outputs.items()},
        )

    async def Metrics(self, _request: agent_pb2.MetricsRequest, _context: Any) -> agent_pb2.MetricsResponse:
        return agent_pb2.MetricsResponse(text=self.metrics.text())

    async def Drain(self, request: agent_pb2.DrainRequest, _context: Any) -> agent_pb2.DrainResponse:
        return agent_pb2.DrainResponse(left=await self.drain(request.timeout_s))  # 0: do not wait

    async def drain(self, timeout_s: float) -> int:
        """Ask for no new requests, finish those in hand; the number that was left when the time was up.

        It is over when the gateway has ended its stream, as it does once no request in hand can come here any more, and
        everything has been handed on. Without a gateway there is nobody to answer, so nothing is waited for.
        """
        self.state = "draining"
        await set_health(self.health, serving=False)
        if self.driver is None or self._inboxes is None:
            return 0
        self._inboxes.announce_draining()
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
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
        if self._model_process is not None:
            self._model_process.close()
        for peer in self._peers.values():
            await peer.close()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)


async def serve(options: Options, pool: ModelProcessPool | None = None) -> None:
    """Run one agent until SIGTERM or SIGINT, then drain it. Models run in a process of the pool, or in this one.

    TransientError when the pool has died: an agent without one would fail every model that has to start again.
    """
    keep_freed_memory()  # after the pool began: models have processes of their own
    view = read_plan(options.plan)
    worker = view.workers.get(options.worker)
    if worker is None or not worker.operators:
        serving = ", ".join(w.name for w in view.serving)
        raise PlanViewError(f"the plan gives worker {options.worker!r} nothing to do; its workers: {serving}")
    me = (Role.AGENT, worker.name)
    transport = make_transport(view.name, me, options.tls, insecure=options.insecure, renew_s=options.renew_s)
    addresses = read_peer_addresses(options.peers, transport)
    links_path = options.links or options.peers.with_name("links")
    stop = termination_event()
    orphaned = _end_of(pool, stop)
    if not options.emulate:
        worker = replace(worker, device_s=None)
    with EmulatedLinks(view.links if options.emulate else (), links_path) as links:
        model_process = None if pool is None else ModelProcess(pool, run_limit_s=options.max_run_s)
        spans = make_span_factory("jellybean-agent", worker.name, view.name, os.environ)
        service = AgentService(view, worker, addresses, links, transport, model_process, spans, options.allow_python)
        server = transport.server(Policy(view.name, view.workers))
        server.add_generic_rpc_handlers((service.handler(),))
        operators = Operators(service)
        server.add_generic_rpc_handlers((InferenceService(operators).handler(),))
        if isinstance(server, RpcServer):
            server.add_raw(MODEL_INFER_METHOD, FastOperators(operators))
            server.add_raw_stream(DELIVER_METHOD, service.deliver_raw)
        health_pb2_grpc.add_HealthServicer_to_server(service.health, server)
        add_reflection(server, "jellybean.agent.v1.Agent")
        transport.bind(server, options.listen)
        await server.start()
        no_health = await serve_health(options.health_port, service.health)
        metrics = None
        try:
            await service.load(options.root)
            gc.freeze()  # what is here now stays: no request pays for looking through it
            at = (options.metrics_host, options.metrics_port)
            metrics = serve_metrics(at, service.metrics)
            LOG.info("%s ready: %s", worker.name, ", ".join(worker.operators))
            await stop.wait()
            left = await service.drain(options.drain_s)
            LOG.info("%s drained, %d requests left", worker.name, left)
        finally:
            if metrics is not None:
                metrics()
            await service.close()
            await no_health()
            await server.stop(0.5)
    if orphaned():
        raise TransientError(POOL_DIED)


def _end_of(pool: ModelProcessPool | None, stop: asyncio.Event) -> Callable[[], bool]:
    """Set `stop` when the pool ends; says whether it has."""
    if pool is None:
        return lambda: False
    loop, descriptor, ended = asyncio.get_running_loop(), os.pidfd_open(pool.pid), asyncio.Event()

    def end() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        LOG.error("%s", POOL_DIED)
        ended.set()
        stop.set()

    loop.add_reader(descriptor, end)
    return ended.is_set


async def set_health(servicer: Any, *, serving: bool) -> None:
    """Set what grpc.health.v1 says of the process and of its inference service, which are one."""
    state = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
    for name in ("", INFERENCE_SERVICE_NAME):
        await servicer.set(name, state)


def add_reflection(server: AnyGrpcServer, own: str) -> None:
    """Let clients list the services of a server: `own`, inference and health."""
    names = (own, INFERENCE_SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
    servicer = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)


def termination_event() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT."""
    event = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event
