"""The operator's face to kopf, which watches resources, holds their finalizer and repeats what could not be done.

Work is done by a `Reconciler` of each resource in a thread of its own. kopf keeps no copy of what it handled last: the
spec may be larger than an annotation.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kopf

from jellybean.operator.reconcile import LOOK_S, Reconciler
from jellybean_k8s import CRD_GROUP, CRD_PLURAL, CRD_VERSION, Cluster, DeployError

FINALIZER = f"{CRD_GROUP}/undeploy"
_AGAIN_S = 10.0
_AT_ONCE = 8  # resources that are worked on at a time; as many more are taken away
_log = logging.getLogger("jellybean.operator")


class _Nothing(kopf.DiffBaseStorage):  # type: ignore[misc]
    """Remembers no former state: every look is from scratch."""

    def fetch(self, *, body: kopf.Body) -> None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return None


class _Nodes:
    """The nodes of the cluster, listed anew when what is known is old."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._until_s = cluster, 0.0
        self._found: Sequence[Mapping[str, Any]] = ()

    def __call__(self) -> Sequence[Mapping[str, Any]]:
        if time.monotonic() > self._until_s:
            self._found = self._cluster.list("Node")
            self._until_s = time.monotonic() + LOOK_S
        return self._found


def registry_for(cluster_of: Callable[[str], Cluster], *, look_s: float = LOOK_S) -> kopf.OperatorRegistry:
    """Handlers of all resources. `cluster_of`: the calls about one namespace."""
    registry = kopf.OperatorRegistry()
    nodes = _Nodes(cluster_of(""))
    working, removing = (ThreadPoolExecutor(_AT_ONCE, name) for name in ("work", "remove"))

    async def in_thread(pool: ThreadPoolExecutor, work: Callable[[Any], None], body: kopf.Body) -> None:
        await asyncio.get_running_loop().run_in_executor(pool, work, _plain(body))

    def _settle(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.persistence.finalizer = FINALIZER
        settings.persistence.diffbase_storage = _Nothing()
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=CRD_GROUP)
        settings.posting.enabled = False  # events in words of our own
        settings.scanning.disabled = True  # needs no rights on all namespaces and definitions
        settings.background.cancellation_polling = 1.0

    def _login(**_: Any) -> kopf.ConnectionInfo:
        return connection(cluster_of("default"))

    async def _serve(stopped: kopf.DaemonStopped, body: kopf.Body, namespace: str, **_: Any) -> None:
        found = Reconciler(cluster_of(namespace), nodes, stopped=lambda: bool(stopped), log=_log.info)
        while not stopped:
            if FINALIZER not in body["metadata"].get("finalizers", ()):  # nothing is made that might stay behind
                await stopped.wait(min(look_s, 1.0))
                continue
            try:
                await in_thread(working, found.look, body)
            except DeployError as error:  # nobody could be told: the API server is away, or refuses
                _log.warning("%s/%s: %s", namespace, body["metadata"]["name"], error)
            await stopped.wait(look_s)

    async def _undeploy(body: kopf.Body, namespace: str, **_: Any) -> None:
        found = Reconciler(cluster_of(namespace), nodes, log=_log.info)
        try:
            await in_thread(removing, found.remove, body)
        except DeployError as error:
            _log.warning("%s/%s: %s", namespace, body["metadata"]["name"], error)
            raise kopf.TemporaryError(str(error), delay=_AGAIN_S) from error

    kopf.on.startup(registry=registry)(_settle)
    kopf.on.login(registry=registry)(_login)
    kopf.daemon(CRD_GROUP, CRD_VERSION, CRD_PLURAL, id="serve", registry=registry)(_serve)
    kopf.on.delete(CRD_GROUP, CRD_VERSION, CRD_PLURAL, id="undeploy", registry=registry)(_undeploy)
    return registry


def connection(cluster: Cluster) -> kopf.ConnectionInfo:
    """How the client of `cluster` talks to its API server, for kopf's own."""
    found = cluster.api.configuration
    header = found.auth_settings().get("BearerToken", {}).get("value") or ""  # renewed where it is about to end
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
    """A copy of plain dicts and lists, which does not change while it is worked on."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
