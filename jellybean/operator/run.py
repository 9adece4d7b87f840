"""Run the operator: lead, then handle resources until told to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import kopf

from jellybean.errors import JellyBeanError
from jellybean.operator.handlers import registry_for
from jellybean.operator.leader import Leader
from jellybean.operator.reconcile import LOOK_S
from jellybean_k8s import CRD_API_VERSION, CRD_NAME, Cluster

_log = logging.getLogger("jellybean.operator")


def run_operator(
    cluster: Cluster,
    namespaces: Sequence[str],
    *,
    health_port: int | None = None,
    look_s: float = LOOK_S,
    stop: threading.Event | None = None,
) -> None:
    """Serve the resources of these namespaces, or of all where none is named, until SIGTERM or `stop`.

    The Lease is in the cluster's own namespace. `health_port`: where probes are answered, also while another leads.
    JellyBeanError when it stopped leading, or where the resource is not defined.
    """
    if not cluster.serves(CRD_API_VERSION):
        raise JellyBeanError(
            f"the cluster knows no {CRD_NAME}: jellybean operator crd | kubectl apply --server-side -f -"
        )
    ended, reasons = stop or threading.Event(), list[str]()

    def lost(reason: str) -> None:
        reasons.append(reason)
        ended.set()

    def of(namespace: str) -> Cluster:
        return dataclasses.replace(cluster, namespace=namespace)

    with _answering(health_port), Leader(cluster, lost=lost, say=_log.info):
        _log.info("leads; serves workflows of %s", ", ".join(namespaces) or "all namespaces")
        asyncio.run(_serve(registry_for(of, look_s=look_s), namespaces, ended))
    if reasons:
        raise JellyBeanError(f"leads no more: {reasons[0]}")


async def _serve(registry: kopf.OperatorRegistry, namespaces: Sequence[str], ended: threading.Event) -> None:
    try:
        await kopf.operator(
            registry=registry,
            namespaces=tuple(namespaces),
            clusterwide=not namespaces,
            standalone=True,
            stop_flag=ended,
        )
    finally:
        ended.set()  # kopf waits for it in a thread, which would outlive a SIGTERM


@contextmanager
def _answering(port: int | None) -> Iterator[None]:
    """Probes are answered as long as the process is there."""
    if port is None:
        yield
        return
    with ThreadingHTTPServer(("", port), _Health) as server:
        threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
        yield
        server.shutdown()


class _Health(BaseHTTPRequestHandler):
    """GET /healthz: 200; all else 404. Nothing else is told, and nothing is logged."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return
