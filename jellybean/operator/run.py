"""Runs the operator: leader election, then handling of resources until SIGTERM."""

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
from jellybean.operator.reconcile import POLL_S
from jellybean_k8s import CRD_API_VERSION, CRD_NAME, Cluster

_log = logging.getLogger("jellybean.operator")


def run_operator(
    cluster: Cluster,
    namespaces: Sequence[str],
    *,
    health_port: int | None = None,
    poll_s: float = POLL_S,
    stop: threading.Event | None = None,
) -> None:
    """Handle the resources of these namespaces (empty: all) until SIGTERM or `stop`.

    The Lease is in the namespace of `cluster`. `health_port`: port for probes, also served while not the leader.
    JellyBeanError when leadership is lost, or the custom resource is not defined.
    """
    if not cluster.serves(CRD_API_VERSION):
        raise JellyBeanError(
            f"the cluster knows no {CRD_NAME}: jellybean operator crd | kubectl apply --server-side -f -"
        )
    ended, reasons = stop or threading.Event(), list[str]()

    def lost(reason: str) -> None:
        reasons.append(reason)
        ended.set()

    def in_namespace(namespace: str) -> Cluster:
        return dataclasses.replace(cluster, namespace=namespace)

    with _health_server(health_port), Leader(cluster, lost=lost, say=_log.info):
        _log.info("leads; handles workflows of %s", ", ".join(namespaces) or "all namespaces")
        asyncio.run(_serve(registry_for(in_namespace, poll_s=poll_s), namespaces, ended))
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
        ended.set()  # else kopf's thread that waits for it outlives a SIGTERM


@contextmanager
def _health_server(port: int | None) -> Iterator[None]:
    """Answer probes on `port` within this context; None: no server."""
    if port is None:
        yield
        return
    with ThreadingHTTPServer(("", port), _Health) as server:
        threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
        yield
        server.shutdown()


class _Health(BaseHTTPRequestHandler):
    """Answers GET /healthz with 200, other requests with 404; requests are not logged."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return
