"""The gateway as a process: `python -m jellybean.serving.gateway_main`, started by the launcher."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc

from jellybean.serving.gateway.fast_infer import FastWorkflow
from jellybean.serving.gateway.gateway import MAX_IN_HAND, TIMEOUT_S, Gateway
from jellybean.serving.gateway.hedging import Hedge
from jellybean.serving.gateway.metrics import GatewayCollector
from jellybean.serving.gateway.replaced_plan import Replaced
from jellybean.serving.gateway.workflow_model import Workflow
from jellybean.serving.spool.spool import Spool
from jellybean_agent import (
    CONNECTION_LIFETIME_S,
    DEFAULT_DRAIN_S,
    DELIVER_METHOD,
    GATEWAY,
    MODEL_INFER_METHOD,
    AgentError,
    AnyGrpcServer,
    EmulatedLinks,
    Inboxes,
    InferenceService,
    PlanView,
    PlanViewError,
    Policy,
    Role,
    RpcServer,
    Transport,
    add_log_options,
    add_reflection,
    agent_service_handler,
    configure_logging,
    keep_freed_memory,
    make_span_factory,
    make_transport,
    read_peer_addresses,
    read_plan,
    serve_health,
    serve_metrics,
    set_health,
    termination_event,
)
from jellybean_protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc

if TYPE_CHECKING:
    from jellybean_agent import SpanFactory

LOG = logging.getLogger("jellybean.gateway")
_SCRAPE_S = 5.0


async def serve(given: argparse.Namespace) -> None:
    """Serve workers and whoever owns the run at the gateway's own address, clients at a port where one is asked for.

    Until SIGTERM, then drain. Who calls without TLS on the clients' port is a client and no more.
    """
    replaced = _replaced(given)  # first: it may give another plan
    view = read_plan(given.plan)
    me = (Role.GATEWAY, GATEWAY)
    transport = make_transport(view.name, me, given.tls, insecure=given.insecure, renew_s=given.renew_s)
    addresses, stop = read_peer_addresses(given.peers, transport), termination_event()
    with EmulatedLinks(() if given.no_emulation else view.links, given.links) as links:
        known = set(view.workers)
        spans = make_span_factory("jellybean-gateway", "gateway", view.name, os.environ)
        policy = Policy(view.name, known, plain=Role.CLIENT)
        workers = transport.server(Policy(view.name, known), *_takes_traces(spans))
        clients = transport.server(policy, *_takes_traces(spans))
        transport.bind(workers, given.listen or addresses[GATEWAY])
        address = addresses[GATEWAY]
        if given.port is not None:
            address = f"{given.host}:{transport.bind(clients, f'{given.host}:{given.port}')}"
        gateway = _gateway(given, spans, view, addresses, links, transport, known)
        gateway.on_replaced = replaced
        workflow = Workflow(gateway)
        healthy = health.aio.HealthServicer()  # type: ignore[attr-defined]
        _add_deliver(workers, gateway)
        for server in (workers, clients):
            _add_client_services(server, gateway, workflow, healthy)
        http = (given.host, given.http_port), transport, policy
        async with _http(InferenceService(workflow), *http, traced=spans is not None):
            await set_health(healthy, serving=False)
            no_health = await serve_health(given.health_port, healthy)
            following = asyncio.create_task(_follow(gateway, healthy))
            metrics = serve_metrics(
                ("127.0.0.1", given.metrics_port), GatewayCollector(gateway, _workers(given, gateway))
            )
            enrolment = await _enrolment(given, gateway, addresses, transport, workers)
            await workers.start()
            await clients.start()
            if given.address_file is not None:
                _announce(given.address_file, address)
            try:
                await stop.wait()
                left = await gateway.drain(given.drain_s)
                LOG.info("drained, %d requests left", left)
            finally:
                following.cancel()
                if metrics is not None:
                    metrics()
                if enrolment is not None:
                    await enrolment.stop(0.5)
                await gateway.close()
                if spans is not None:
                    await asyncio.to_thread(spans.close)
                await no_health()
                await clients.stop(1.0)
                await workers.stop(0.1)


def _replaced(given: argparse.Namespace) -> Callable[[gateway_pb2.ReplaceRequest], None] | None:
    """Keeps a plan that takes over, where there is a folder for it; one that was kept there is given from now on."""
    if given.replaced is None:
        return None
    found = Replaced(given.replaced, given.plan, given.peers)
    given.plan, given.peers = found.plan, found.peers
    return found.keep


def _workers(given: argparse.Namespace, gateway: Gateway) -> Callable[[], Sequence[bytes]]:
    """What the workers tell, for the thread that answers a scrape; none unless the gateway is to tell it."""
    loop = asyncio.get_running_loop()
    if not given.worker_metrics:
        return tuple
    return lambda: asyncio.run_coroutine_threadsafe(gateway.worker_metrics(), loop).result(_SCRAPE_S)


def _gateway(given: argparse.Namespace, spans: SpanFactory | None, view: PlanView, *more: Any) -> Gateway:
    """`more`: the rest of what a gateway takes by position, and the workers known."""
    options = {"hedge": given.hedge_after, "max_in_hand": given.max_in_hand, "timeout_s": given.timeout_s}
    options |= {"known": more[-1], "spool": _spool(given.spool, view), "emulate": not given.no_emulation}
    if spans is None:
        return Gateway(view, *more[:-1], **options)
    from jellybean.serving.gateway.traced_gateway import TracedGateway  # OpenTelemetry only where traces are asked for

    return TracedGateway(spans, view, *more[:-1], **options)


def _takes_traces(spans: SpanFactory | None) -> list[grpc.aio.ServerInterceptor]:  # type: ignore[type-arg]
    if spans is None:
        return []
    from jellybean_agent import TraceHeadersInterceptor

    return [TraceHeadersInterceptor()]


def _spool(path: Path | None, view: PlanView) -> Spool | None:
    """What requests are kept in until they are answered; a plan that takes over may ask for it too."""
    if view.eventually and path is None:
        raise PlanViewError("a source has `deliver: eventually`: say with --spool FILE where its requests are kept")
    return Spool(path) if path is not None else None


async def _enrolment(
    given: argparse.Namespace,
    gateway: Gateway,
    addresses: dict[str, str],
    transport: Transport,
    workers: AnyGrpcServer,
) -> grpc.aio.Server | None:
    """Let boxes enrol where that is asked for: with a token at a port of its own; the rest is among workers' calls."""
    if given.enrol is None:
        return None
    if given.ca is None or given.tokens is None:
        raise PlanViewError("--enrol needs --ca and --tokens: the authority that signs, and the tokens that it takes")
    from jellybean.serving.enrolment.enrolment import Enrolment, add_enrolment, serve_enrolment

    life_s = given.certificate_hours * 3600.0
    files = (given.ca, given.tokens, given.plan, given.peers, given.root)
    found = Enrolment(lambda: (gateway.view, gateway.replaced), *files, addresses, life_s)
    add_enrolment(workers, found)
    return await serve_enrolment(found, transport, given.enrol)


def _add_deliver(server: AnyGrpcServer, gateway: Gateway) -> None:
    inboxes = Inboxes(gateway.receive, lambda: False)
    server.add_generic_rpc_handlers((agent_service_handler(inboxes.deliver),))
    if isinstance(server, RpcServer):
        server.add_raw_stream(DELIVER_METHOD, inboxes.raw)


def _add_client_services(server: AnyGrpcServer, gateway: Gateway, workflow: Workflow, healthy: Any) -> None:
    """All that clients may use, and Drain, which the policy keeps for others."""
    gateway_pb2_grpc.add_GatewayServicer_to_server(gateway, server)  # type: ignore[no-untyped-call]
    server.add_generic_rpc_handlers((InferenceService(workflow).handler(),))
    if isinstance(server, RpcServer):
        server.add_raw(MODEL_INFER_METHOD, FastWorkflow(gateway, workflow))
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    add_reflection(server, "jellybean.gateway.v1.Gateway")


def _http(
    inference: InferenceService, at: tuple[str, int], transport: Transport, policy: Policy, *, traced: bool
) -> contextlib.AbstractAsyncContextManager[None]:
    """The HTTP server, where one is asked for: what it needs is only installed with the extra `http`."""
    if at[1] == 0:
        return contextlib.nullcontext()
    from jellybean.serving.http.inference_http import serve_http

    return serve_http(inference, at, transport, policy, traced=traced)


async def _follow(gateway: Gateway, servicer: Any) -> None:
    """Keep health true: serving while a request would be taken."""
    while True:
        await set_health(servicer, serving=not gateway.refusing)
        await gateway.changed.wait()
        gateway.changed.clear()


def _announce(path: Path, address: str) -> None:
    """Written whole or not at all: whoever waits for the file reads a complete address."""
    part = path.with_suffix(".part")
    part.write_text(address)
    part.rename(path)


def _hedge(text: str) -> Hedge:
    try:
        return Hedge(text)
    except PlanViewError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the gateway. 0 after a drain, 2 when the plan or an address is at fault."""
    parser = argparse.ArgumentParser(prog="jellybean-gateway", description="The gateway of a plan that is up.")
    for name in ("--plan", "--peers", "--links"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--replaced", type=Path, help="folder for a plan that takes over, served at the next start")
    parser.add_argument("--address-file", type=Path, help="where to write the address that clients use")
    parser.add_argument("--listen", help="instead of the gateway's address in the peers file, e.g. 0.0.0.0:7000")
    parser.add_argument("--tls", type=Path, help="for TCP: folder with tls.crt, tls.key, ca.crt; read again on change")
    parser.add_argument("--insecure", action="store_true", help="TCP without TLS, on 127.0.0.1 only")
    parser.add_argument(
        "--renew-s", type=float, default=CONNECTION_LIFETIME_S, help="seconds after which connections are made anew"
    )
    parser.add_argument("--host", default="127.0.0.1", help="of --port and --http-port")
    parser.add_argument("--port", type=int, help="for clients, besides the gateway's own address; 0: any free one")
    parser.add_argument("--http-port", type=int, default=0, help="the inference protocol over HTTP; 0: none")
    parser.add_argument("--health-port", type=int, default=0, help="grpc.health.v1 without TLS, for probes; 0: off")
    parser.add_argument("--metrics-port", type=int, default=0, help="Prometheus metrics on 127.0.0.1; 0: off")
    parser.add_argument("--worker-metrics", action="store_true", help="its workers' metrics there too")
    parser.add_argument("--spool", type=Path, help="file for requests of sources with `deliver: eventually`")
    parser.add_argument("--enrol", help="HOST:PORT where boxes with a token join; needs --tls, --ca and --tokens")
    parser.add_argument("--ca", type=Path, help="folder of the authority that signs their certificates")
    parser.add_argument("--tokens", type=Path, help="folder of their tokens (`jellybean token`)")
    parser.add_argument("--root", type=Path, default=Path(), help="where model paths start, for boxes that enrol")
    parser.add_argument("--certificate-hours", type=float, default=168.0, help="life of their certificates")
    parser.add_argument("--no-emulation", action="store_true", help="links are real: do not emulate the plan's")
    parser.add_argument(
        "--hedge-after",
        metavar="TIME",
        type=_hedge,
        help="seconds (0.3) or share of answers (95%%): slow requests go a second way",
    )
    parser.add_argument("--max-in-hand", type=int, default=MAX_IN_HAND)
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S)
    parser.add_argument("--drain-s", type=float, default=DEFAULT_DRAIN_S)
    add_log_options(parser)
    given = parser.parse_args(argv)
    configure_logging("gateway", given.log_format, given.log_level)
    keep_freed_memory()
    try:
        asyncio.run(serve(given))
    except AgentError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
