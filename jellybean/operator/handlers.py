"""Handlers for kopf, which watches resources, holds their finalizer and retries.

A `Reconciler` per resource works in a thread. kopf stores no copy of the last handled spec, which may be larger than an
annotation.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kopf

from jellybean.operator.metrics import OperatorMetrics
from jellybean.operator.permissions import Permissions
from jellybean.operator.reconcile import POLL_S, Reconciler
from jellybean_k8s import CRD_GROUP, CRD_PLURAL, CRD_VERSION, Cluster, DeployError

FINALIZER = f"{CRD_GROUP}/undeploy"
_RETRY_S = 10.0
_CONCURRENT = 8  # most resources reconciled at once; the same number may be removed at the same time
_log = logging.getLogger("jellybean.operator")


class _NoDiffBase(kopf.DiffBaseStorage):  # type: ignore[misc]
    """Stores no former state: every reconciliation starts from the cluster's state."""

    def fetch(self, *, body: kopf.Body) -> None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return None


class _Nodes:
    """The cluster's nodes, cached for `POLL_S` seconds."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._until_s = cluster, 0.0
        self._found: Sequence[Mapping[str, Any]] = ()

    def __call__(self) -> Sequence[Mapping[str, Any]]:
        if time.monotonic() > self._until_s:
            self._found = self._cluster.list("Node")
            self._until_s = time.monotonic() + POLL_S
        return self._found


def registry_for(
    cluster_of: Callable[[str], Cluster],
    *,
    poll_s: float = POLL_S,
    metrics: OperatorMetrics | None = None,
    permissions: Permissions = Permissions(),
) -> kopf.OperatorRegistry:
    """Handlers of all resources. `cluster_of(namespace)`: the API client for a namespace."""
    counters = metrics or OperatorMetrics()
    registry = kopf.OperatorRegistry()
    nodes = _Nodes(cluster_of(""))
    working, removing = (ThreadPoolExecutor(_CONCURRENT, name) for name in ("work", "remove"))

    async def in_thread(pool: ThreadPoolExecutor, work: Callable[[Any], None], body: kopf.Body) -> None:
        counted = _counting(counters, work)
        await asyncio.get_running_loop().run_in_executor(pool, counted, _plain(body))

    def _configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.persistence.finalizer = FINALIZER
        settings.persistence.diffbase_storage = _NoDiffBase()
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=CRD_GROUP)
        settings.posting.enabled = False  # the reconciler posts events
        settings.scanning.disabled = True  # needs no rights on all namespaces and definitions
        settings.background.cancellation_polling = 1.0

    def _login(**_: Any) -> kopf.ConnectionInfo:
        return connection(cluster_of("default"))

    async def _serve(stopped: kopf.DaemonStopped, body: kopf.Body, namespace: str, **_: Any) -> None:
        found = Reconciler(
            cluster_of(namespace),
            nodes,
            stopped=lambda: bool(stopped),
            log=_log.info,
            metrics=counters,
            permissions=permissions,
        )
        name = str(body["metadata"]["name"])
        try:
            while not stopped:
                if FINALIZER not in body["metadata"].get("finalizers", ()):  # create nothing before deletion is handled
                    await stopped.wait(min(poll_s, 1.0))
                    continue
                try:
                    await in_thread(working, found.reconcile, body)
                except DeployError as error:  # the status cannot be written: the API server is unreachable or refuses
                    _log.warning("%s/%s: %s", namespace, name, error)
                await stopped.wait(poll_s)
        finally:
            counters.forget(namespace, name)

    async def _undeploy(body: kopf.Body, namespace: str, **_: Any) -> None:
        found = Reconciler(cluster_of(namespace), nodes, log=_log.info)
        try:
            await in_thread(removing, found.remove, body)
        except DeployError as error:
            _log.warning("%s/%s: %s", namespace, body["metadata"]["name"], error)
            raise kopf.TemporaryError(str(error), delay=_RETRY_S) from error

    kopf.on.startup(registry=registry)(_configure)
    kopf.on.login(registry=registry)(_login)
    kopf.daemon(CRD_GROUP, CRD_VERSION, CRD_PLURAL, id="serve", registry=registry)(_serve)
    kopf.on.delete(CRD_GROUP, CRD_VERSION, CRD_PLURAL, id="undeploy", registry=registry)(_undeploy)
    return registry


def _counting(metrics: OperatorMetrics, work: Callable[[Any], None]) -> Callable[[Any], None]:
    """The work of a resource, which waits for a thread from now on."""
    begin = metrics.queue()

    def run(resource: Any) -> None:
        begin()
        work(resource)

    return run


def connection(cluster: Cluster) -> kopf.ConnectionInfo:
    """Server address and credentials of `cluster`, in the form that kopf's own client takes."""
    found = cluster.api.configuration
    header = found.auth_settings().get("BearerToken", {}).get("value") or ""  # refreshed by the client
    scheme, _, token = header.rpartition(" ")
    return kopf.ConnectionInfo(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
        scheme=scheme or None,
        token=token or None,
        proxy_url=found.proxy,
    )


def _plain(value: Any) -> Any:
    """A deep copy of plain dicts and lists, which kopf cannot modify during the reconciliation."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
