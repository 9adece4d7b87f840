"""Health by grpc.health.v1, and a port for probes without TLS: Kubernetes' kubelet cannot use certificates.

That port serves grpc.health.v1 only: whether requests are accepted (services "" and inference), and `live`, which is
healthy as long as the process answers at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from jellybean_agent.admission.limits import ListeningPort
from jellybean_agent.admission.process import Admission
from jellybean_agent.errors import PlanViewError
from jellybean_agent.inference.service import INFERENCE_SERVICE_NAME
from jellybean_agent.security.identity import OpenPolicy
from jellybean_agent.system.addresses import EVERY_ADDRESS
from jellybean_agent.transport.channels import make_server

LIVE = "live"


async def set_health(servicer: Any, *, serving: bool) -> None:
    """Set one health status for both the process (service "") and its inference service."""
    state = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
    for name in ("", INFERENCE_SERVICE_NAME):
        await servicer.set(name, state)


async def serve_health(port: int, servicer: Any, admission: Admission | None = None) -> Callable[[], Awaitable[None]]:
    """Serve a health servicer on all interfaces; returns a function that stops it. Port 0: serve nothing.

    `admission`: of the process.
    """
    if port == 0:
        return _nothing
    await servicer.set(LIVE, health_pb2.HealthCheckResponse.SERVING)
    server = make_server(OpenPolicy(), admission=admission)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    try:
        server.add_insecure_port(f"{EVERY_ADDRESS}:{port}", ListeningPort.HEALTH)
    except RuntimeError as error:
        raise PlanViewError(
            f"cannot listen on health port {port}: it is in use or may not be used; choose another"
        ) from error
    await server.start()

    async def stop() -> None:
        await server.stop(0.1)

    return stop


async def _nothing() -> None:
    pass
