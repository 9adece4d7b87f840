"""Runs the operator: leader election, then handling of resources until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import kopf

from jellybean.errors import JellyBeanError
from jellybean.operator.handlers import registry_for
from jellybean.operator.leader import Leader
from jellybean.operator.metrics import OperatorMetrics
from jellybean.operator.permissions import Permissions
from jellybean.operator.reconcile import POLL_S
from jellybean_agent import EVERY_ADDRESS, ListeningPort, serve_pages
from jellybean_k8s import CRD_API_VERSION, CRD_NAME, Cluster

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

Pages = Mapping[str, Callable[[], bytes]]  # path -> its text
_log = logging.getLogger("jellybean.operator")
# aiohttp ends TLS connections after it has closed their session, while the event loop runs on. Its documentation
# ("Graceful shutdown") asks for this time.
_TLS_CLOSE_S = 0.25
_POLL_S = 0.1  # between looks at whether to end


def run_operator(
    cluster: Cluster,
    namespaces: Sequence[str],
    *,
    health_port: int | None = None,
    metrics_port: int | None = None,
    poll_s: float = POLL_S,
    stop: threading.Event | None = None,
    permissions: Permissions = Permissions(),
) -> None:
    """Handle the resources of these namespaces (empty: all) until Ctrl-C, SIGTERM or `stop`.

    The Lease is in the namespace of `cluster`. `health_port`: port for probes, `metrics_port`: for
    Prometheus; both are also served while not the leader. `permissions`: what resources may ask
    for. JellyBeanError when leadership is lost, or the custom resource is not defined.
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

    metrics = OperatorMetrics()
    pages: dict[int | None, Pages] = {health_port: {"/healthz": bytes}}
    pages[metrics_port] = {**pages.get(metrics_port, {}), "/metrics": metrics.text}
    with contextlib.ExitStack() as stack:
        for port, texts in pages.items():
            stack.enter_context(_http_server(port, texts))
        stack.enter_context(Leader(cluster, lost=lost, say=_log.info))
        stack.enter_context(metrics.leading())
        _log.info("leads; handles workflows of %s", ", ".join(namespaces) or "all namespaces")
        registry = registry_for(in_namespace, poll_s=poll_s, metrics=metrics, permissions=permissions)
        _serve_until_signalled(registry, namespaces, ended)
    if reasons:
        raise JellyBeanError(f"leads no more: {reasons[0]}")


def _serve_until_signalled(registry: kopf.OperatorRegistry, namespaces: Sequence[str], ended: threading.Event) -> None:
    """Run kopf in a thread, where it handles no signals: its handler fails at the second one."""
    with ThreadPoolExecutor(1, thread_name_prefix="kopf") as threads:
        serving = threads.submit(lambda: asyncio.run(_serve(registry, namespaces, ended)))
        try:
            serving.result()
        except KeyboardInterrupt:
            ended.set()
            _log.info("ends: resources are left as they are, and another operator goes on with them")
            serving.result()


async def _serve(registry: kopf.OperatorRegistry, namespaces: Sequence[str], ended: threading.Event) -> None:
    stop = asyncio.Event()  # for a threading.Event kopf waits in a thread, and for that thread when it ends
    watching = asyncio.create_task(_set_with(stop, ended))
    try:
        await kopf.operator(
            registry=registry,
            namespaces=tuple(namespaces),
            clusterwide=not namespaces,
            standalone=True,
            identity=socket.gethostname(),  # kopf would ask a name server for a longer one
            stop_flag=stop,
        )
    finally:
        watching.cancel()
        await asyncio.sleep(_TLS_CLOSE_S)


async def _set_with(stop: asyncio.Event, ended: threading.Event) -> None:
    while not ended.is_set():
        await asyncio.sleep(_POLL_S)
    stop.set()


@contextlib.contextmanager
def _http_server(port: int | None, pages: Pages) -> Iterator[None]:
    """Serve these pages on `port`, on all addresses, within this context; None: no server."""
    if port is None:
        yield
        return
    stop = serve_pages((EVERY_ADDRESS, port), _application(pages), ListeningPort.OPERATOR)
    try:
        yield
    finally:
        stop()


def _application(pages: Pages) -> WSGIApplication:
    """Answers a known page with 200, other paths with 404."""

    def answer(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        page = pages.get(environ["PATH_INFO"])
        headers = [("Content-Type", "text/plain; version=0.0.4; charset=utf-8")]
        start_response("404 Not Found" if page is None else "200 OK", headers)
        return [b"" if page is None else page()]

    return answer
