"""The gateway as a process: `python -m jellybean.serving.gateway_main`, started by the launcher."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc

from jellybean.serving.gateway import MAX_IN_HAND, TIMEOUT_S, Gateway
from jellybean.serving.workflow import Workflow
from jellybean_agent.channels import bind, make_server
from jellybean_agent.errors import AgentError
from jellybean_agent.inboxes import Inboxes
from jellybean_agent.inference.service import InferenceService
from jellybean_agent.links import EmulatedLinks
from jellybean_agent.plan_view import read_plan
from jellybean_agent.server import DRAIN_S, read_peers, reflect, stop_event, tell_health
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.gateway.v1 import gateway_pb2_grpc

LOG = logging.getLogger("jellybean.gateway")


class _ForClients:
    """The gateway as any process of this machine may use it; who owns the run alone may drain it."""

    def __init__(self, gateway: Gateway) -> None:
        self.Infer, self.Status = gateway.Infer, gateway.Status

    async def Drain(self, _request: agent_pb2.DrainRequest, context: Any) -> None:
        reason = "drain it with `jellybean down`: only the run's private socket takes this"
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)


async def serve(given: argparse.Namespace) -> None:
    """Serve clients on loopback, workers' answers and the launcher on a unix socket until SIGTERM, then drain."""
    view, addresses = read_plan(given.plan), read_peers(given.peers)
    stop = stop_event()
    with EmulatedLinks(view.links, given.links) as links:
        clients, workers = make_server(), make_server()
        bind(workers, addresses[""])
        port = bind(clients, f"127.0.0.1:{given.port}")
        gateway = Gateway(view, addresses, links, max_in_hand=given.max_in_hand, timeout_s=given.timeout_s)
        inference = InferenceService(Workflow(gateway))
        _add_worker_services(workers, gateway)
        healthy = _add_client_services(clients, gateway, inference)
        async with _http(inference, given.http_port):
            await tell_health(healthy, serving=False)
            following = asyncio.create_task(_follow(gateway, healthy))
            await workers.start()
            await clients.start()
            _announce(given.address_file, f"127.0.0.1:{port}")
            try:
                await stop.wait()
                left = await gateway.drain(given.drain_s)
                LOG.info("drained, %d requests left", left)
            finally:
                following.cancel()
                await gateway.close()
                await clients.stop(1.0)
                await workers.stop(0.1)


def _add_worker_services(server: grpc.aio.Server, gateway: Gateway) -> None:
    inboxes = Inboxes(gateway.receive, lambda: False)
    deliver = grpc.stream_stream_rpc_method_handler(
        inboxes.deliver,
        request_deserializer=agent_pb2.Message.FromString,
        response_serializer=agent_pb2.Credit.SerializeToString,
    )
    handler = grpc.method_handlers_generic_handler("jellybean.agent.v1.Agent", {"Deliver": deliver})
    server.add_generic_rpc_handlers((handler,))
    gateway_pb2_grpc.add_GatewayServicer_to_server(gateway, server)  # type: ignore[no-untyped-call]


def _add_client_services(server: grpc.aio.Server, gateway: Gateway, inference: InferenceService) -> Any:
    """All that clients may use; the health service, to be kept true."""
    gateway_pb2_grpc.add_GatewayServicer_to_server(_ForClients(gateway), server)  # type: ignore[no-untyped-call]
    server.add_generic_rpc_handlers((inference.handler(),))
    healthy = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    reflect(server, "jellybean.gateway.v1.Gateway")
    return healthy


def _http(inference: InferenceService, port: int) -> contextlib.AbstractAsyncContextManager[None]:
    """The HTTP server, where one is asked for: what it needs is only installed with the extra `http`."""
    if port == 0:
        return contextlib.nullcontext()
    from jellybean.serving.inference_http import serve_http

    return serve_http(inference, port)


async def _follow(gateway: Gateway, servicer: Any) -> None:
    """Keep health true: serving while a request would be taken."""
    while True:
        await tell_health(servicer, serving=not gateway.refusing)
        await gateway.changed.wait()
        gateway.changed.clear()


def _announce(path: Path, address: str) -> None:
    """Written whole or not at all: whoever waits for the file reads a complete address."""
    part = path.with_suffix(".part")
    part.write_text(address)
    part.rename(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the gateway. 0 after a drain, 2 when the plan or an address is at fault."""
    parser = argparse.ArgumentParser(prog="jellybean-gateway", description="The gateway of a plan that is up.")
    for name in ("--plan", "--peers", "--links", "--address-file"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0: any free one")
    parser.add_argument("--http-port", type=int, default=0, help="on 127.0.0.1; 0: no HTTP")
    parser.add_argument("--max-in-hand", type=int, default=MAX_IN_HAND)
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S)
    parser.add_argument("--drain-s", type=float, default=DRAIN_S)
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(serve(given))
    except AgentError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
