"""Health for those who cannot show a certificate: the probes of Kubernetes' kubelet speak gRPC without TLS only.

A port of its own that answers grpc.health.v1 and nothing else: whether requests are taken (services "" and inference,
as everywhere), and `live`, which is served for as long as the process answers at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jellybean_agent.errors import PlanViewError

LIVE = "live"
_MOST_CALLS = 64
_MOST_BYTES = 2**12
_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", _MOST_BYTES))


async def serve_health(port: int, servicer: Any) -> Callable[[], Awaitable[None]]:
    """Serve a health servicer on every interface; a function that stops it. Port 0 serves nothing."""
    if port == 0:
        return _nothing
    await servicer.set(LIVE, health_pb2.HealthCheckResponse.SERVING)
    server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_MOST_CALLS)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    try:
        server.add_insecure_port(f"0.0.0.0:{port}")
    except RuntimeError as error:
        raise PlanViewError(f"cannot listen on health port {port}: it is in use or may not be used") from error
    await server.start()

    async def stop() -> None:
        await server.stop(0.1)

    return stop


async def _nothing() -> None:
    pass
