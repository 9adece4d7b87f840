"""The gateway as a process: `python -m jellybean.serving.gateway_main`, started by the launcher."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import math
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpc_health.v1 import health, health_pb2_grpc

from jellybean.ledger.errors import LedgerError
from jellybean.serving.enrolment.rollout import PlanOffer, PlanRollout
from jellybean.serving.gateway.accounting.ledger_service import LedgerService
from jellybean.serving.gateway.fast_infer import FastWorkflow
from jellybean.serving.gateway.gateway import Gateway, GatewaySettings
from jellybean.serving.gateway.gateways import Gateways
from jellybean.serving.gateway.metrics import GatewaysCollector, worker_metrics
from jellybean.serving.gateway.plans.current_plan import WorkerNetwork
from jellybean.serving.gateway.plans.replaced_plan import ReplacedPlan
from jellybean.serving.gateway.project_service import ProjectService
from jellybean.serving.gateway.served_workflow import ServedWorkflow
from jellybean.serving.gateway.service import GatewayService
from jellybean.serving.gateway.workflow_model import WorkflowModels
from jellybean.serving.gateway_arguments import gateway_parser
from jellybean.serving.outcomes import Outcome
from jellybean.serving.run_state import mark_drained, state_path
from jellybean.serving.spool.spool import Spool
from jellybean_agent import (
    DELIVER_METHOD,
    GATEWAY,
    MODEL_INFER_METHOD,
    AgentError,
    EmulatedLinks,
    Inboxes,
    InferenceService,
    ListeningPort,
    PlanView,
    PlanViewError,
    Policy,
    ReplyAddress,
    Role,
    RpcServer,
    Transport,
    add_reflection,
    agent_service_handler,
    configure_logging,
    current_caller,
    describe_error,
    is_loopback,
    keep_freed_memory,
    make_span_factory,
    make_transport,
    printable,
    raise_open_file_limit,
    read_peer_addresses,
    read_plan,
    remember_caller,
    running_task,
    serve_health,
    serve_metrics,
    set_health,
    status_of,
    termination_event,
    watch_expiry,
    workflow_views,
)
from jellybean_protos.addresses import join_address
from jellybean_protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc, ledger_pb2_grpc, project_pb2_grpc
from jellybean_protos.standard_streams import open_standard_streams

if TYPE_CHECKING:
    from jellybean.serving.gateway.accounting.recorder import Recorder
    from jellybean_agent import SpanFactory

LOG = logging.getLogger("jellybean.gateway")
_SCRAPE_S = 5.0
_MOVE_S = 1.0  # in which clients of a gateway that leaves connect to another one


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGTERM, or a Stop by the owner, then drain.

    Workers and the owner of the run call the gateway at its own address, clients at a port where one is asked for, the
    owner's commands at a private socket too. A caller without TLS on the clients' port has the rights of a client only.
    """
    on_replaced = _use_replaced_plan(options)
    view = read_plan(options.plan)
    views = workflow_views(json.loads(options.plan.read_bytes()))
    me = (Role.GATEWAY, GATEWAY)
    transport = make_transport(view.name, me, options.tls, insecure=options.insecure, renew_s=options.renew_s)
    addresses, stop = read_peer_addresses(options.peers, transport), termination_event()
    known = set(view.workers)
    spans = make_span_factory("jellybean-gateway", "gateway", view.name, os.environ)
    policy = Policy(view.name, known, plain=Role.CLIENT, checks_workflows=True)
    workers = transport.server(Policy(view.name, known, checks_workflows=True), _on_call(spans))
    clients = transport.server(policy, _on_call(spans))
    transport.bind(workers, options.listen or addresses[GATEWAY], ListeningPort.WORKERS)
    address = _bind_clients(options, transport, clients) or addresses[GATEWAY]
    reply = None if options.reply_address is None else ReplyAddress.of(options.reply_address, transport)
    network = WorkerNetwork(transport, known, emulate=not options.no_emulation, reply=reply)
    gateways = Gateways(view, network, partial(_workflow, options, spans, network))
    await gateways.add(views, addresses, options.links)
    rollout = PlanRollout(PlanOffer(view, options.plan.read_bytes(), addresses))
    end = end_of_run(options.run, stop)
    service, models = GatewayService(gateways, transport, rollout, on_replaced, end), WorkflowModels(gateways)
    ledger = _ledger_service(options, gateways)
    healthy = health.aio.HealthServicer()  # type: ignore[attr-defined]
    _add_deliver(workers, gateways)
    for server in (workers, clients):
        _add_client_services(server, gateways, service, models, healthy, traced=spans is not None)
        _add_owner_services(server, ledger, ProjectService(dict(options.project_file), options.report_store))
    http_at, served = (options.host, options.http_port), (_inference(gateways, models), ledger)
    async with _http(served, http_at, transport, policy, traced=spans is not None), AsyncExitStack() as started:
        started.callback(ledger.close)
        started.push_async_callback(workers.stop, 0.1)
        started.push_async_callback(clients.stop, 1.0)
        await set_health(healthy, serving=False)
        started.push_async_callback(await serve_health(options.health_port, healthy, transport.admission))
        started.push_async_callback(_close_spans, spans)
        started.push_async_callback(gateways.close)
        gateways.start()
        health_task = asyncio.create_task(_update_health(gateways, healthy))
        started.callback(health_task.cancel)
        enrolment = await _enrolment(options, rollout, transport, workers, gateways)
        if enrolment is not None:
            started.push_async_callback(enrolment.stop, 0.5)
        started.callback(_serve_metrics(options, gateways, transport))
        await workers.start()
        await clients.start()
        _announce(options.address_file, address)
        gc.collect()
        gc.freeze()  # what is there by now stays: a collection that looked at it would hold requests up for 40 ms
        async with running_task(watch_expiry(transport.certificate)):
            await stop.wait()
        await leave(options, clients, gateways)


async def leave(options: argparse.Namespace, clients: RpcServer, gateways: Gateways) -> None:
    """Answer what is in hand. Clients of a gateway in a pod reach another one by their Service: they are told first."""
    if options.health_port:
        clients.retire()
        await asyncio.sleep(_MOVE_S)
    left = await gateways.drain(options.drain_s)
    LOG.info("drained, %d requests left", left)


def _bind_clients(options: argparse.Namespace, transport: Transport, clients: RpcServer) -> str:
    """Listen for clients on TCP if a port is given; returns the address for clients, empty without a port.

    Listen at the owner's private socket too, whose callers may do everything.
    """
    if options.owner_socket:
        transport.bind(clients, options.owner_socket, ListeningPort.OWNER)
    if options.port is None:
        return ""
    return join_address(options.host, transport.bind(clients, join_address(options.host, options.port)))


def _use_replaced_plan(options: argparse.Namespace) -> Callable[[gateway_pb2.ReplaceRequest], None]:
    """Set `--plan` and `--peers` to the stored replacement, if any; returns the function that stores a later one."""
    if options.replaced is None:
        return lambda request: None
    kept = ReplacedPlan.read(options.replaced, options.plan, options.peers)
    options.plan, options.peers = kept.plan, kept.peers
    return kept.keep


def end_of_run(run: Path | None, stop: asyncio.Event) -> Callable[[], Awaitable[None]]:
    """A function that ends this process, and the run of the project `run` that it belongs to, if any."""

    async def end() -> None:
        try:
            if run is not None:
                await asyncio.to_thread(mark_drained, run, os.getpid())  # it waits for the lock of the state file
        except OSError as error:
            text = "%s: %s; only the gateway ends, and is started again: `jellybean down %s` ends the run"
            LOG.error(text, state_path(run or Path()), describe_error(error), run)
        finally:
            stop.set()

    return end


def _serve_metrics(options: argparse.Namespace, gateways: Gateways, transport: Transport) -> Callable[[], None]:
    """Serve metrics at `--metrics-port`, if it is given; returns a function that stops it."""
    at, workers = (options.metrics_host, options.metrics_port), _worker_metrics(options, gateways)
    names_clients = is_loopback(at[0])
    collector = GatewaysCollector(
        gateways,
        workers,
        transport.certificate,
        transport.admission,
        names_clients=names_clients,
        plan=lambda: gateways.view,
        replicas=options.gateways,
    )
    return serve_metrics(at, collector, transport.admission.refused) or (lambda: None)


def _worker_metrics(options: argparse.Namespace, gateways: Gateways) -> Callable[[], Sequence[bytes]]:
    """A function that fetches all workers' metrics, for the scrape thread; returns none without `--worker-metrics`."""
    loop = asyncio.get_running_loop()
    if not options.worker_metrics:
        return tuple
    return lambda: asyncio.run_coroutine_threadsafe(worker_metrics(tuple(gateways)), loop).result(_SCRAPE_S)


async def _workflow(
    options: argparse.Namespace,
    spans: SpanFactory | None,
    network: WorkerNetwork,
    view: PlanView,
    addresses: Mapping[str, str],
    links_file: Path | None,
) -> ServedWorkflow:
    """The gateway of a workflow, with the ledger's files and the spool of its own."""
    max_in_flight = math.ceil(options.max_in_hand / options.gateways)
    settings = GatewaySettings(max_in_flight, options.timeout_s, options.hedge_after)
    spool = open_spool(_own_file(options.spool, view), view)
    links = EmulatedLinks(view.links if network.emulate else (), links_file).open()
    tracer = None
    if spans is not None:
        from jellybean.serving.gateway.spans import SpanTracer  # OpenTelemetry only where traces are configured

        tracer = SpanTracer(spans)
    gateway = Gateway(view, addresses, links, network, settings, spool=spool, tracer=tracer)
    try:
        return ServedWorkflow(gateway, await _recorder(options, gateway))
    except BaseException:
        await gateway.close()
        raise


def _own_file(path: Path | None, view: PlanView) -> Path | None:
    """The file of a workflow, of several, beside those of the others."""
    return path if path is None or not view.workflow else path.with_stem(f"{path.stem}-{view.workflow}")


async def _recorder(options: argparse.Namespace, gateway: Gateway) -> Recorder | None:
    """Counts what the gateway serves and writes it to the ledger; None without `--ledger`."""
    if not options.ledger:
        return None
    from jellybean.ledger.value_figures import Port  # needs SQLAlchemy
    from jellybean.serving.gateway.accounting.recorder import open_recorder

    if (live := _own_file(options.live, gateway.view)) is None:
        raise PlanViewError("--ledger needs --live: the file of the counters since its last interval")
    waiting = Counter(await gateway.kept_callers())
    recorder = open_recorder(options.ledger, live, options.ledger_run, gateway.plans, options.ledger_deployment)
    recorder.lose(waiting)
    gateway.counters.log = recorder.log
    gateway.on_answer = recorder.answers.keep
    gateway.ledger_metrics = recorder.metrics.collect
    gateway.audits.on_audit = recorder.audits.count
    gateway.on_inputs = lambda view, inputs: recorder.values.see(view, Port.SOURCE, inputs)
    gateway.on_outputs = lambda view, outputs: recorder.values.see(view, Port.ANSWER, outputs)
    return recorder


def _ledger_service(options: argparse.Namespace, gateways: Gateways) -> LedgerService:
    """Answers questions about the ledger of all workflows; without `--ledger` it says that there is none."""
    if not options.ledger:
        return LedgerService(None, gateways.served)
    from jellybean.ledger.labels import EXACT_MATCH, LabelRule  # needs SQLAlchemy
    from jellybean.serving.gateway.accounting.ledger_answers import LedgerAnswers

    metrics, labelled = dict(options.metric), dict(options.labelled)
    names = metrics.keys() | labelled.keys()
    rules = {name: LabelRule(metrics.get(name, EXACT_MATCH.metric), labelled.get(name) or None) for name in names}
    return LedgerService(LedgerAnswers(options.ledger, rules), gateways.served)


async def _close_spans(spans: SpanFactory | None) -> None:
    if spans is not None:
        await asyncio.to_thread(spans.close)


def _on_call(spans: SpanFactory | None) -> Callable[[Any], None]:
    """What to do with each accepted call: remember who called, and its trace headers if traces are configured."""
    if spans is None:
        return remember_caller
    from jellybean_agent import store_trace_headers

    def remember(context: Any) -> None:
        remember_caller(context)
        store_trace_headers(context)

    return remember


def open_spool(path: Path | None, view: PlanView) -> Spool | None:
    """Open the spool; None without `path`. PlanViewError if the plan needs a spool and there is no `path`."""
    if view.eventually and path is None:
        raise PlanViewError("a source has `deliver: eventually`: say with --spool FILE where its requests are kept")
    return Spool.open(path) if path is not None else None


async def _enrolment(
    options: argparse.Namespace, rollout: PlanRollout, transport: Transport, workers: RpcServer, gateways: Gateways
) -> RpcServer | None:
    """Serve enrolment at `--enrol`: tokens at a port of its own, everything else on the workers' server."""
    if options.enrol is None:
        return None
    if options.ca is None or options.tokens is None:
        raise PlanViewError("--enrol needs --ca and --tokens: the authority that signs, and the tokens that it takes")
    from jellybean.serving.enrolment.enrolment import Enrolment, EnrolmentFiles, add_enrolment, serve_enrolment

    files = EnrolmentFiles(options.ca, options.tokens, options.root)
    life_s = options.certificate_hours * 3600.0
    enrolment = Enrolment(rollout, files, life_s, gateways.block)
    add_enrolment(workers, enrolment)
    return await serve_enrolment(enrolment, transport, options.enrol)


def _add_deliver(server: RpcServer, gateways: Gateways) -> None:
    """Add the stream on which workers send answers."""
    inboxes = Inboxes(gateways.receive, lambda _: False)
    server.add_generic_rpc_handlers((agent_service_handler(),))
    server.add_raw_stream(DELIVER_METHOD, inboxes.deliver_raw)


def _add_client_services(
    server: RpcServer,
    gateways: Gateways,
    service: GatewayService,
    models: WorkflowModels,
    healthy: Any,
    *,
    traced: bool,
) -> None:
    """Everything that clients may call; the policy restricts the owner's calls, such as Drain."""
    gateway_pb2_grpc.add_GatewayServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    server.add_generic_rpc_handlers((_inference(gateways, models).handler(),))
    if not traced:  # the fast path does not store trace headers
        server.add_raw(MODEL_INFER_METHOD, FastWorkflow(gateways, models))
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    add_reflection(server, "jellybean.gateway.v1.Gateway")


def _add_owner_services(server: RpcServer, ledger: LedgerService, project: ProjectService) -> None:
    """Questions of the owner elsewhere; the policy lets clients label only."""
    ledger_pb2_grpc.add_LedgerServicer_to_server(ledger, server)  # type: ignore[no-untyped-call]
    project_pb2_grpc.add_ProjectServicer_to_server(project, server)  # type: ignore[no-untyped-call]


def _inference(gateways: Gateways, models: WorkflowModels) -> InferenceService:
    """The Open Inference Protocol over the workflows; requests that it refuses itself are counted too.

    With several workflows they are not: which one was meant is part of what was wrong.
    """

    def count(error: AgentError) -> None:
        if len(gateways.names) == 1:
            gateways.first.counters.count_refused(Outcome(status_of(error), str(error)), current_caller())

    return InferenceService(models, count)


def _http(
    served: tuple[InferenceService, LedgerService],
    at: tuple[str, int],
    transport: Transport,
    policy: Policy,
    *,
    traced: bool,
) -> contextlib.AbstractAsyncContextManager[None]:
    """The HTTP server where a port is given; aiohttp is only installed with the extra `http`."""
    if at[1] == 0:
        return contextlib.nullcontext()
    from jellybean.serving.http.inference_http import serve_http

    return serve_http(served[0], at, transport, policy, served[1].label, traced=traced)


async def _update_health(gateways: Gateways, servicer: Any) -> None:
    """Update the health service for ever: serving while a new request would reach a worker."""
    while True:
        await set_health(servicer, serving=gateways.is_available)
        await gateways.changed.wait()
        gateways.changed.clear()


def _announce(path: Path | None, address: str) -> None:
    """Write the address to a file atomically, so that a process that waits for it reads all of it."""
    if path is None:
        return
    part = path.with_suffix(".part")
    part.write_text(address, encoding="utf-8")
    part.rename(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the gateway. 0 after a drain, 2 when the plan or an address is invalid."""
    open_standard_streams()
    options = gateway_parser().parse_args(argv)
    configure_logging("gateway", options.log_format, options.log_level)
    keep_freed_memory()
    raise_open_file_limit()
    try:
        asyncio.run(serve(options))
    except (AgentError, LedgerError) as error:
        print(f"gateway: {printable(str(error))}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
