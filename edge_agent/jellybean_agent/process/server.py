"""The agent process: its settings, and its life from start to drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from jellybean_agent.admission.limits import ListeningPort
from jellybean_agent.brain.plan_reading import read_plan
from jellybean_agent.brain.plan_view import PlanView
from jellybean_agent.errors import PlanViewError, TransientError
from jellybean_agent.execution.model_process import RUN_LIMIT_S, ModelProcess
from jellybean_agent.execution.process_pool import POOL_DIED, ModelProcessPool
from jellybean_agent.inference.fast_operators import FastOperators
from jellybean_agent.inference.operators import Operators
from jellybean_agent.inference.service import INFERENCE_SERVICE_NAME, MODEL_INFER_METHOD, InferenceService
from jellybean_agent.process.agent_service import AgentService
from jellybean_agent.process.health import serve_health
from jellybean_agent.process.measurement import Measurements, measurement_limits
from jellybean_agent.process.metrics import serve_metrics
from jellybean_agent.process.model_loading import ModelSettings
from jellybean_agent.process.peer_addresses import read_peer_addresses
from jellybean_agent.rpc.server import RpcServer
from jellybean_agent.security.expiry import watch_expiry
from jellybean_agent.security.identity import Policy, Role, remember_caller
from jellybean_agent.system.malloc import keep_freed_memory
from jellybean_agent.system.open_files import raise_open_file_limit
from jellybean_agent.telemetry.tracing import make_span_factory
from jellybean_agent.transport.channels import CONNECTION_LIFETIME_S, Transport, make_transport
from jellybean_agent.transport.streams import DELIVER_METHOD
from jellybean_agent.worker.counters import kept_if_possible
from jellybean_agent.worker.emulated_links import EmulatedLinks

LOG = logging.getLogger("jellybean.agent")
DEFAULT_DRAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of an agent process."""

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
    emulate: bool = True  # emulate links and slower devices
    in_process: bool = False
    max_run_s: float = RUN_LIMIT_S
    model_memory_mib: int | None = None
    counters: Path | None = None  # file of counters, which outlive the process
    allow_python: frozenset[str] = frozenset()  # functions that may run besides the built-in steps


async def serve(options: Options, pool: ModelProcessPool | None = None, stop: asyncio.Event | None = None) -> None:
    """Run one agent until SIGTERM or SIGINT, then drain it. Models run in a process of the pool, or in this one.

    `stop`: the event of these signals (`termination_event`), if the caller waits for it too. TransientError when the
    pool has died, as no model process could be restarted.
    """
    raise_open_file_limit()
    keep_freed_memory()  # after the pool was forked, so that it applies to this process only
    view = read_plan(options.plan).seen_by(options.worker)
    worker = view.workers.get(options.worker)
    if worker is None or not worker.operators:
        serving = ", ".join(w.name for w in view.serving)
        raise PlanViewError(f"the plan gives worker {options.worker!r} nothing to do; its workers: {serving}")
    me = (Role.AGENT, worker.name)
    transport = make_transport(view.name, me, options.tls, insecure=options.insecure, renew_s=options.renew_s)
    addresses = read_peer_addresses(options.peers, transport)
    links_path = options.links or options.peers.with_name("links")
    stop = stop or termination_event()
    pool_died = _watch_pool(pool, stop)
    if not options.emulate:
        worker = replace(worker, device_s=None)
    with EmulatedLinks(view.links if options.emulate else (), links_path) as links:
        model_process = None if pool is None else ModelProcess(pool, run_limit_s=options.max_run_s)
        models = ModelSettings(options.root, model_process, options.allow_python)
        spans = make_span_factory("jellybean-agent", worker.name, view.name, os.environ)
        counters = kept_if_possible(worker.operators, options.counters, view.hash)
        service = AgentService(view, worker, addresses, links, transport, models, spans, counters)
        measurements = Measurements(
            service,
            options.root,
            options.allow_python,
            measurement_limits(options.max_run_s, options.model_memory_mib),
        )
        server = _make_server(transport, view, service, measurements)
        transport.bind(server, options.listen, ListeningPort.AGENT)
        await server.start()
        stop_health = await serve_health(options.health_port, service.health, transport.admission)
        stop_metrics = None
        try:
            await service.load()
            gc.freeze()  # exclude current objects from garbage collection
            at = (options.metrics_host, options.metrics_port)
            stop_metrics = serve_metrics(at, service.metrics, transport.admission.refused)
            LOG.info("%s ready: %s", worker.name, ", ".join(worker.operators))
            async with running_task(watch_expiry(transport.certificate)), running_task(counters.keep_synced()):
                await stop.wait()
            left = await service.drain(options.drain_s)
            LOG.info("%s drained, %d requests left", worker.name, left)
        finally:
            if stop_metrics is not None:
                stop_metrics()
            await service.close()
            await stop_health()
            await server.stop(0.5)
            measurements.close()
            counters.close()
    if pool_died():
        raise TransientError(POOL_DIED)


def _make_server(transport: Transport, view: PlanView, service: AgentService, measurements: Measurements) -> RpcServer:
    """A gRPC server with the services Agent, inference, health and reflection."""
    server = transport.server(Policy(view.name, view.workers), remember_caller)
    server.add_generic_rpc_handlers((service.handler(), measurements.handler()))
    operators = Operators(service)
    server.add_generic_rpc_handlers((InferenceService(operators).handler(),))
    server.add_raw(MODEL_INFER_METHOD, FastOperators(operators))
    server.add_raw_stream(DELIVER_METHOD, service.deliver_raw)
    health_pb2_grpc.add_HealthServicer_to_server(service.health, server)
    add_reflection(server, "jellybean.agent.v1.Agent")
    return server


def _watch_pool(pool: ModelProcessPool | None, stop: asyncio.Event) -> Callable[[], bool]:
    """Set `stop` when the pool dies; returns a function that is true if the pool has died."""
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


def add_reflection(server: RpcServer, own: str) -> None:
    """Add gRPC reflection, which lists the server's services: `own` (a service name), inference and health."""
    names = (own, INFERENCE_SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
    servicer = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)


@contextlib.asynccontextmanager
async def running_task(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a task in this context; it is cancelled at the end."""
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def termination_event() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets."""
    event = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event
