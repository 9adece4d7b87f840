"""A client of one namespace of a cluster, with the few calls that a deployment needs; API paths are built in.

Calls that fail because the API server is unavailable or overloaded are retried for a while; all of them are safe to
repeat. A refusal is a `ClusterError` with the server's message.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3.exceptions
import yaml
from kubernetes import client, config, dynamic
from kubernetes.client.exceptions import ApiException

from jellybean_k8s.errors import DeployError
from jellybean_k8s.names import FIELD_MANAGER
from jellybean_k8s.objects import KubeObject

Objects = list[KubeObject]

PATIENCE_S = 30.0  # seconds for which failing calls are retried
MAX_POD_ANSWER_BYTES = 16 * 2**20  # metrics of some ten thousand workers
_CONNECT_S, _ANSWER_S, _POD_ANSWER_S = 5.0, 30.0, 10.0
_LIST_LIMIT = 500
_TRANSIENT_STATUS = frozenset({429, 502, 503, 504})
_BACKOFF_S, _MAX_BACKOFF_S = 0.2, 5.0
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_CLUSTER_WIDE = frozenset({"CustomResourceDefinition", "Node"})
PATHS = {  # kind -> API path
    "ConfigMap": "/api/v1/configmaps",
    "Event": "/api/v1/events",
    "Node": "/api/v1/nodes",
    "PersistentVolumeClaim": "/api/v1/persistentvolumeclaims",
    "Pod": "/api/v1/pods",
    "ResourceQuota": "/api/v1/resourcequotas",
    "Secret": "/api/v1/secrets",
    "Service": "/api/v1/services",
    "ServiceAccount": "/api/v1/serviceaccounts",
    "Deployment": "/apis/apps/v1/deployments",
    "StatefulSet": "/apis/apps/v1/statefulsets",
    "HorizontalPodAutoscaler": "/apis/autoscaling/v2/horizontalpodautoscalers",
    "Lease": "/apis/coordination.k8s.io/v1/leases",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/networkpolicies",
    "PodDisruptionBudget": "/apis/policy/v1/poddisruptionbudgets",
    "Workflow": "/apis/jellybean.dev/v1alpha1/workflows",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ServiceMonitor": "/apis/monitoring.coreos.com/v1/servicemonitors",
}


class ClusterError(DeployError):
    """The API server refused a call; `status` is the HTTP status. `is_transient`: it may answer later."""

    def __init__(self, status: int, message: str, *, is_transient: bool = False) -> None:
        self.status, self.is_transient = status, is_transient
        super().__init__(message)


class UnreachableError(DeployError):
    """The API server does not answer. `reason`: why, in a few words."""

    def __init__(self, message: str, reason: str = "") -> None:
        self.reason = reason or message
        super().__init__(message)


class FieldConflictError(DeployError):
    """Server-side apply would change fields of other managers. `conflicts`: (manager, field)."""

    def __init__(self, name: str, conflicts: tuple[tuple[str, str], ...]) -> None:
        self.name, self.conflicts = name, conflicts
        told = "; ".join(f"{field} was set by {manager}" for manager, field in conflicts)
        super().__init__(f"{name}: {told}: remove it there, or take it over with --force")


@dataclass
class Cluster:
    """API calls for the objects of one namespace. `clock()`, `sleep()`: in seconds, replaceable in tests."""

    api: client.ApiClient
    namespace: str
    patience_s: float = PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        """Create a dynamic client without discovery requests."""
        self._dynamic = dynamic.DynamicClient(self.api, discoverer=lambda *_: None)

    def get(self, kind: str, name: str) -> KubeObject | None:
        """An object; None if it does not exist."""
        try:
            return self._call("get", self._path(kind, name))
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: str, selector: str | None = None, *, everywhere: bool = False) -> Objects:
        """All objects of a kind that match the selector; `everywhere`: in all namespaces."""
        return self.list_at(kind, selector, everywhere=everywhere)[0]

    def list_at(self, kind: str, selector: str | None = None, *, everywhere: bool = False) -> tuple[Objects, str]:
        """Like `list`, with the resource version from which a watch can continue."""
        path = PATHS[kind] if everywhere else self._path(kind)
        found: Objects = []
        more: str | None = None
        while True:
            try:
                page = self._call("get", path, label_selector=selector, limit=_LIST_LIMIT, _continue=more)
            except ClusterError as error:
                if error.status == 404:  # the cluster does not have this API, so there are no such objects
                    return [], ""
                raise
            found += page["items"]
            more = page["metadata"].get("continue")
            if not more:
                return found, str(page["metadata"].get("resourceVersion", ""))

    def apply(self, wanted: KubeObject, *, force: bool = False, dry_run: bool = False) -> KubeObject:
        """Server-side apply; returns the resulting object. FieldConflictError unless forced."""
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        try:
            return self._call(
                "patch",
                self._path(kind, name),
                body=wanted,
                content_type=_APPLY,
                field_manager=FIELD_MANAGER,
                force_conflicts="true" if force else "false",
                dry_run="All" if dry_run else None,
            )
        except ClusterError as error:
            conflicts = _conflicts(error)
            if conflicts:
                raise FieldConflictError(f"{kind}/{name}", conflicts) from error
            raise ClusterError(error.status, f"{kind}/{name}: {error}", is_transient=error.is_transient) from error

    def create(self, item: KubeObject, *, dry_run: bool = False) -> KubeObject:
        """Create an object; ClusterError 409 if it exists."""
        dry = "All" if dry_run else None
        return self._call("post", self._path(item["kind"]), body=item, field_manager=FIELD_MANAGER, dry_run=dry)

    def replace(self, item: KubeObject) -> KubeObject:
        """Replace an object; ClusterError 409 if its resourceVersion has changed since `item` was read."""
        path = self._path(item["kind"], item["metadata"]["name"])
        return self._call("put", path, body=item, field_manager=FIELD_MANAGER)

    def merge(self, kind: str, name: str, body: KubeObject, subresource: str = "") -> KubeObject:
        """Merge-patch an object or one of its subresources."""
        path = self._path(kind, name) + (f"/{subresource}" if subresource else "")
        return self._call("patch", path, body=body, content_type=_MERGE, field_manager=FIELD_MANAGER)

    def delete(self, kind: str, name: str, uid: str) -> bool:
        """Delete the object with this UID and its dependents; False if it is gone or was replaced by another."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        body["propagationPolicy"] = "Background"
        try:
            self._call("delete", self._path(kind, name), body=body)
        except ClusterError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    def await_change(self, kind: str, selector: str, since: str, timeout_s: float) -> None:
        """Return at the first change after a resource version, after the timeout, or if the watch fails."""
        seconds = max(1, round(timeout_s))
        try:
            answer = self._dynamic.request(
                "get",
                self._path(kind),
                serialize=False,
                watch="true",
                label_selector=selector,
                resource_version=since,
                timeout_seconds=seconds,
                _request_timeout=(_CONNECT_S, seconds + _CONNECT_S),
            )
            for _ in answer.stream(amt=None):
                break
            answer.release_conn()
        except (ApiException, urllib3.exceptions.HTTPError, OSError):
            self.sleep(min(1.0, timeout_s))  # the caller's next list call reports errors

    def pod_http(self, pod: str, port: int, path: str) -> str:
        """What a pod answers to an HTTP request, through the API server; not retried.

        ClusterError for a refusal. DeployError for more than `MAX_POD_ANSWER_BYTES`: a pod's image
        may be anybody's.
        """
        at = f"{self._path('Pod', pod)}:{port}/proxy{path}"
        try:
            answer = self._dynamic.request("get", at, serialize=False, _request_timeout=(_CONNECT_S, _POD_ANSWER_S))
            data: bytes = answer.read(MAX_POD_ANSWER_BYTES + 1, decode_content=False)
            answer.release_conn() if len(data) <= MAX_POD_ANSWER_BYTES else answer.close()
        except ApiException as error:
            raise _refusal(error) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnreachableError(f"{at} has not answered: {_short_reason(error)}") from error
        if len(data) > MAX_POD_ANSWER_BYTES:
            raise DeployError(f"{at} answers with more than {MAX_POD_ANSWER_BYTES} bytes")
        return data.decode("utf-8", "replace")

    def serves(self, group_version: str) -> bool:
        """True if the cluster has this API group, for example monitoring.coreos.com/v1."""
        try:
            self._call("get", f"/apis/{group_version}")
        except ClusterError as error:
            if error.status in (403, 404):
                return False
            raise
        return True

    def _path(self, kind: str, name: str = "") -> str:
        path = PATHS[kind]
        if kind not in _CLUSTER_WIDE:
            head, _, plural = path.rpartition("/")
            path = f"{head}/namespaces/{self.namespace}/{plural}"
        return f"{path}/{name}" if name else path

    def _call(self, method: str, path: str, **more: Any) -> KubeObject:
        until, pause_s = self.clock() + self.patience_s, _BACKOFF_S
        while True:
            try:
                timeout = (_CONNECT_S, min(_ANSWER_S, max(self.patience_s, _POD_ANSWER_S)))
                answer = self._dynamic.request(method, path, serialize=False, _request_timeout=timeout, **more)
                return dict(json.loads(answer.data))
            except ApiException as error:
                if not _is_transient(error) or self.clock() > until:
                    raise _refusal(error) from error
            except (urllib3.exceptions.HTTPError, OSError) as error:
                if self.clock() > until:
                    host, reason = self.api.configuration.host, _short_reason(error)
                    text = f"the API server {host} has not answered for {self.patience_s:g} s: {reason}"
                    raise UnreachableError(f"{text}. Nothing is lost: run it again when it is back", reason) from error
            self.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_BACKOFF_S)


def is_unavailable(error: BaseException) -> bool:
    """True if a call failed because the API server did not answer, or could not; the same call may succeed later."""
    return isinstance(error, UnreachableError) or (isinstance(error, ClusterError) and error.is_transient)


def connect(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Cluster:
    """The cluster of a kubeconfig and context, else the one this process runs in. DeployError if there is none."""
    path = None if kubeconfig is None else str(kubeconfig)
    configuration = client.Configuration()
    configuration.retries = False  # `Cluster` retries by itself, and knows for how long
    try:
        config.load_kube_config(path, context, client_configuration=configuration)
        return Cluster(client.ApiClient(configuration), namespace or _namespace(path, context))
    except config.ConfigException as error:
        if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=configuration)
            return Cluster(client.ApiClient(configuration), namespace or "default")
        raise DeployError(f"no cluster to talk to: {_config_reason(error, path, context)}") from error
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, AttributeError) as error:  # the client expects a map
        raise DeployError(
            f"no cluster to talk to: {path or 'the kubeconfig'} is no kubeconfig: name another with --kubeconfig"
        ) from error


def _config_reason(error: Exception, path: str | None, context: str | None) -> str:
    """Why a kubeconfig names no cluster, and what to do."""
    with contextlib.suppress(config.ConfigException):
        known = [str(item["name"]) for item in config.list_kube_config_contexts(path)[0]]
        if context is not None and context not in known:
            return f"the kubeconfig has no context {context}; it has {', '.join(known) or 'none'}"
    return f"{str(error).rstrip('.')}; give --context, or set KUBECONFIG"


def _namespace(path: str | None, context: str | None) -> str:
    contexts, active = config.list_kube_config_contexts(path)
    chosen = next((item for item in contexts if item["name"] == context), active)
    return str(chosen["context"].get("namespace") or "default")


def _is_transient(error: ApiException) -> bool:
    """True if a retry may succeed; also while etcd elects a leader, which API servers report as status 500."""
    return error.status in _TRANSIENT_STATUS or (
        error.status == 500 and "etcdserver: " in str(_status(error).get("message"))
    )


def _refusal(error: ApiException) -> ClusterError:
    body = _status(error)
    message = str(body.get("message") or error.reason or f"status {error.status}")
    found = ClusterError(int(error.status or 0), message, is_transient=_is_transient(error))
    found.__cause__ = error
    return found


def _status(error: ApiException) -> Mapping[str, Any]:
    try:
        body = json.loads(error.body or "")
    except (ValueError, TypeError):
        return {}
    return body if isinstance(body, dict) else {}


def _conflicts(error: ClusterError) -> tuple[tuple[str, str], ...]:
    """(manager, field) of a server-side apply conflict, as listed by the API server."""
    if error.status != 409 or not isinstance(error.__cause__, ApiException):
        return ()
    causes = (_status(error.__cause__).get("details") or {}).get("causes") or ()
    found = []
    for cause in causes:
        if cause.get("reason") == "FieldManagerConflict":
            manager = str(cause.get("message", "")).partition('"')[2].partition('"')[0] or "another manager"
            found.append((manager, str(cause.get("field", ""))))
    return tuple(found)


def _short_reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    text = str(reason)
    return text.rpartition(": ")[2] if "object at 0x" in text else text
