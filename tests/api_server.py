"""A Kubernetes API server for tests: kmock's, extended by what a deployment depends on.

Added to it, as read from a real server: server-side apply with fields that belong to managers, conflicts and dry runs;
resource versions, preconditions and 409; label selectors and pages; generations; what a StatefulSet may not change;
finalizers; pods of sets, and sets' status by their pods; accounts and quotas that refuse pods. No pod ever runs: tests
patch pods' status.
"""

from __future__ import annotations

import asyncio
import copy
import datetime
import itertools
import json
import threading
import uuid
from collections.abc import Callable, Iterator

import aiohttp.web
import attrs
import kmock

from tests.api_admission import admit_pod, with_usage
from tests.api_objects import (
    Fields,
    Object,
    Refused,
    drop,
    half,
    json_patched,
    laid_over,
    leaves,
    merged,
    normalised,
    owner,
    pruned,
    refuse_changed_fields,
    refuse_conflicts,
    refuse_duplicates,
    selected,
    set_status,
    validate,
    without_version,
)
from tests.api_streams import PORT_FORWARD, PROXY, forward_port, proxied
from tests.support.balancer import Endpoint

Key = tuple[str, str, str]  # plural, namespace, name
_KINDS = {
    "configmaps": "ConfigMap",
    "customresourcedefinitions": "CustomResourceDefinition",
    "deployments": "Deployment",
    "events": "Event",
    "horizontalpodautoscalers": "HorizontalPodAutoscaler",
    "leases": "Lease",
    "networkpolicies": "NetworkPolicy",
    "nodes": "Node",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "pods": "Pod",
    "resourcequotas": "ResourceQuota",
    "secrets": "Secret",
    "serviceaccounts": "ServiceAccount",
    "servicemonitors": "ServiceMonitor",
    "services": "Service",
    "statefulsets": "StatefulSet",
    "workflows": "Workflow",
}
_OPTIONAL = {"servicemonitors"}
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def _known(kind: str, plural: str, *, namespaced: bool = True) -> Object:
    return {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": namespaced, "verbs": _VERBS}


def _group_of(name: str, version: str) -> Object:
    found = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [found], "preferredVersion": found}


def _resources(group_version: str, *resources: Object) -> Object:
    return {"kind": "APIResourceList", "groupVersion": group_version, "resources": list(resources)}


_DEFINITIONS = _known("CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
_DISCOVERY = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": _resources("v1", _known("Namespace", "namespaces", namespaced=False)),
    "/apis": {
        "kind": "APIGroupList",
        "groups": [_group_of("apiextensions.k8s.io", "v1"), _group_of("jellybean.dev", "v1alpha1")],
    },
    "/apis/apiextensions.k8s.io/v1": _resources("apiextensions.k8s.io/v1", _DEFINITIONS),
    "/apis/jellybean.dev/v1alpha1": _resources(
        "jellybean.dev/v1alpha1", _known("Workflow", "workflows"), _known("Workflow", "workflows/status")
    ),
}


@attrs.define(kw_only=True, eq=False)
class ApiServer(kmock.KubernetesScaffold):
    """`store`: all objects. `fault`: may answer a request, by method and path; None lets it through."""

    store: dict[Key, Object] = attrs.field(factory=dict)
    owners: dict[Key, dict[str, Fields]] = attrs.field(factory=dict)
    log: list[tuple[str, str, dict[str, str]]] = attrs.field(factory=list)
    fault: Callable[[str, str], int | None] | None = None
    words: str = "a fault of the test"
    monitoring: bool = False
    schemas: dict[str, Object] = attrs.field(factory=dict)  # of custom resources, OpenAPI 3.0, by plural
    endpoints: dict[tuple[str, int], Endpoint] = attrs.field(factory=dict)  # (pod, its port) -> what answers for it
    _version: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))
    _history: list[tuple[int, str, Key, Object]] = attrs.field(factory=list)

    async def _handle(self, request: kmock.Request) -> aiohttp.web.StreamResponse:
        path, params = request.url.path, dict(request.params)
        method = str(request.method.value)
        self.log.append((method, path, params))
        code = self.fault(method, path) if self.fault is not None else None
        if code is not None:
            return aiohttp.web.json_response({"message": self.words}, status=code)
        if (stream := await self._to_pod(request, path, params)) is not None:
            return stream
        try:
            if request.resource is None or request.resource.plural is None:
                return self._group(path)
            plural = request.resource.plural
            if plural not in _KINDS or (plural in _OPTIONAL and not self.monitoring):
                raise Refused(404, "NotFound", "the server could not find the requested resource")
            if params.get("watch") == "true":
                return await self._watch(request, plural, params)
            answer = self._answer(request, method, plural, params)
            return aiohttp.web.json_response(answer)
        except Refused as refused:
            return aiohttp.web.json_response(refused.status, status=refused.code)

    async def _to_pod(
        self, request: kmock.Request, path: str, params: dict[str, str]
    ) -> aiohttp.web.StreamResponse | None:
        """A forwarded port, or a pod's HTTP; None for other paths."""
        forwarded, http = PORT_FORWARD.fullmatch(path), PROXY.fullmatch(path)
        found = forwarded or http
        if found is None:
            return None
        port = int(params["ports"] if forwarded else found["port"])
        endpoint = self.endpoints.get((found["pod"], port))
        if endpoint is None:
            message = {"message": f"error trying to reach service: pod {found['pod']} has no port {port}"}
            return aiohttp.web.json_response(message, status=502)
        if forwarded:
            return await forward_port(request._raw_request, port, endpoint)
        return await proxied(endpoint, found["path"])

    def _group(self, path: str) -> aiohttp.web.StreamResponse:
        if path in _DISCOVERY:
            return aiohttp.web.json_response(_DISCOVERY[path])
        if path == "/apis/monitoring.coreos.com/v1" and self.monitoring:
            return aiohttp.web.json_response({"kind": "APIResourceList", "resources": []})
        raise Refused(404, "NotFound", "the server could not find the requested resource")

    def _answer(  # noqa: C901, PLR0911  (a case a verb)
        self, request: kmock.Request, method: str, plural: str, params: dict[str, str]
    ) -> Object:
        if method == "GET" and request.name is None:
            return self._list(plural, request.namespace, params)
        body = copy.deepcopy(request.data) if isinstance(request.data, dict | list) else {}
        if method in ("POST", "PUT", "PATCH") and not body:
            body = json.loads(request.body)
        namespace = request.namespace or ""
        if method == "POST" and "generateName" in body["metadata"]:
            body["metadata"]["name"] = f"{body['metadata'].pop('generateName')}{uuid.uuid4().hex[:5]}"
        key = (plural, namespace, request.name or body["metadata"]["name"])
        there = self.store.get(key)
        if method == "POST":
            if there is not None:
                raise Refused(409, "AlreadyExists", f'{plural} "{key[2]}" already exists')
            if plural == "pods":
                admit_pod(self.store, namespace, body)
            return self._save(key, body, None, dry=params.get("dryRun") == "All")
        content = request.headers.get("Content-Type", "")
        if method == "PATCH" and "apply-patch" in content:
            return self._apply(key, body, params)
        if there is None:
            raise Refused(404, "NotFound", f'{plural} "{key[2]}" not found')
        if method == "GET":
            return there
        if method == "DELETE":
            wanted = (body or json.loads(request.body or b"{}")).get("preconditions", {}).get("uid")
            if wanted and wanted != there["metadata"]["uid"]:
                raise Refused(409, "Conflict", "the UID in the precondition does not match")
            if there["metadata"].get("finalizers"):
                when = there["metadata"].get("deletionTimestamp") or datetime.datetime.now(datetime.UTC).isoformat()
                return self._save(key, merged(there, {"metadata": {"deletionTimestamp": when}}), there)
            self.remove(key)
            self._replace_pod(there)
            return {"kind": "Status", "status": "Success"}
        if method == "PUT":
            if body["metadata"].get("resourceVersion") != there["metadata"]["resourceVersion"]:
                raise Refused(409, "Conflict", "the object has been modified")
            return self._save(key, body, there)
        if isinstance(body, list):
            return self._save(key, json_patched(there, body), there)
        if plural == "workflows":  # whose status is changed by its subresource alone
            body = half(body, status=request.subresource == "status")
        manager = params.get("fieldManager", "kubectl")  # an update by the manager of applies is kept apart from those
        manager = f"{manager}-update" if manager == "jellybean" else manager
        return self._save(key, merged(there, body), there, manager, body)

    def _list(self, plural: str, namespace: str | None, params: dict[str, str]) -> Object:
        chosen = [
            item
            for (kind, space, _), item in sorted(self.store.items())
            if kind == plural and namespace in (None, space) and selected(item, params.get("labelSelector", ""))
        ]
        start, limit = int(params.get("continue", 0)), int(params.get("limit", 500))
        more = {"continue": str(start + limit)} if start + limit < len(chosen) else {}
        if plural == "resourcequotas":
            chosen = [with_usage(self.store, item) for item in chosen]
        items = [{k: v for k, v in item.items() if k not in ("kind", "apiVersion")} for item in chosen]
        version = str(self._history[-1][0] if self._history else 0)
        return {
            "kind": f"{_KINDS[plural]}List",
            "metadata": {"resourceVersion": version, **more},
            "items": items[start : start + limit],
        }

    async def _watch(self, request: kmock.Request, plural: str, params: dict[str, str]) -> aiohttp.web.StreamResponse:
        since = int(params.get("resourceVersion") or 0)
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request._raw_request)
        end = asyncio.get_running_loop().time() + float(params.get("timeoutSeconds", 5))
        while asyncio.get_running_loop().time() < end:
            for version, kind, (where, space, _), item in self._history:
                wanted = version > since and where == plural and request.namespace in (None, space)
                if wanted and selected(item, params.get("labelSelector", "")):
                    since = version
                    await response.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")
            await asyncio.sleep(0.01)
        return response

    def _apply(self, key: Key, body: Object, params: dict[str, str]) -> Object:
        manager, dry = params["fieldManager"], params.get("dryRun") == "All"
        refuse_duplicates(body)
        body = normalised(body)
        there = self.store.get(key)
        owners = copy.deepcopy(self.owners.get(key, {}))
        wanted, now = leaves(body), leaves(there or {})
        others = {other: fields for other, fields in owners.items() if other != manager}
        changed = [path for path, value in wanted.items() if now.get(path) != value]
        if params.get("force") != "true":
            refuse_conflicts(others, changed, body["apiVersion"])
        for fields in others.values():
            fields.difference_update(changed)
        dropped = owners.get(manager, set()) - set(wanted)
        result = laid_over(there or {}, body)
        for path in dropped:
            if not any(path in fields for other, fields in owners.items() if other != manager):
                drop(result, path)
        owners[manager] = set(wanted)
        if not dry:
            self.owners[key] = owners
        return self._save(key, result, there, dry=dry)

    def _save(  # noqa: C901  (what a server does before it stores)
        self,
        key: Key,
        item: Object,
        there: Object | None,
        manager: str | None = None,
        patch: Object | None = None,
        *,
        dry: bool = False,
    ) -> Object:
        plural, namespace, name = key
        item = copy.deepcopy(item)
        item["kind"] = _KINDS[plural]
        meta = item.setdefault("metadata", {})
        if plural in self.schemas:
            item = pruned(self.schemas[plural], item)
            validate(self.schemas[plural], item, name)
        if plural == "statefulsets" and there is not None:
            refuse_changed_fields(there, item, name)
        old = there["metadata"] if there is not None else {"uid": str(uuid.uuid4()), "generation": 0}
        if namespace:
            meta["namespace"] = namespace
        meta |= {"name": name, "uid": old["uid"], "generation": old["generation"]}
        meta.setdefault(
            "creationTimestamp", old.get("creationTimestamp") or datetime.datetime.now(datetime.UTC).isoformat()
        )
        if plural in ("statefulsets", "deployments"):
            item["spec"].setdefault("replicas", 1)
        if there is not None and without_version(item) == without_version(there):
            return there
        if there is None or item.get("spec") != there.get("spec"):
            meta["generation"] = old["generation"] + 1
        if dry:
            return item
        meta["resourceVersion"] = str(next(self._version))
        self.store[key] = item
        if manager is not None and patch is not None:
            for fields in self.owners.setdefault(key, {}).values():
                fields -= set(leaves(patch))
            self.owners[key].setdefault(manager, set()).update(leaves(patch))
        self._note("MODIFIED" if there is not None else "ADDED", key)
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            self.remove(key)
            return item
        self._control(key)
        return item

    def _note(self, kind: str, key: Key) -> None:
        version = int(self.store[key]["metadata"]["resourceVersion"])
        self._history.append((version, kind, key, copy.deepcopy(self.store[key])))

    def remove(self, key: Key) -> None:
        """Delete an object, and the pods of a StatefulSet."""
        item = self.store.pop(key)
        self.owners.pop(key, None)
        self._history.append((next(self._version), "DELETED", key, item))
        for other in [k for k, pod in self.store.items() if k[0] == "pods" and owner(pod) == item["metadata"]["uid"]]:
            self.remove(other)

    # -- what controllers do ----------------------------------------------------------------------------------------

    def _control(self, key: Key) -> None:
        plural, namespace, _ = key
        if plural in ("statefulsets", "deployments"):
            self._make_pods(key)
        elif plural == "pods":
            for other, item in list(self.store.items()):
                if item["metadata"]["uid"] == owner(self.store[key]) and other[1] == namespace:
                    self._count_pods(other)

    def _replace_pod(self, gone: Object) -> None:
        """A set makes another pod in the place of one that was deleted."""
        for key, item in list(self.store.items()):
            if key[0] in ("statefulsets", "deployments") and item["metadata"]["uid"] == owner(gone):
                self._make_pods(key)

    def _make_pods(self, key: Key) -> None:
        item = self.store[key]
        spec, uid = item["spec"], item["metadata"]["uid"]
        start = spec.get("ordinals", {}).get("start", 0)
        template = json.dumps(spec["template"], sort_keys=True)
        wanted = {f"{key[2]}-{number}" for number in range(start, start + spec["replicas"])}
        for other, pod in list(self.store.items()):
            stale = other[2] not in wanted or pod["metadata"].get("annotations", {}).get("template") != template
            if other[0] == "pods" and owner(pod) == uid and stale:
                self.remove(other)
        for name in sorted(wanted):
            if ("pods", key[1], name) not in self.store:
                meta = {"labels": spec["template"]["metadata"]["labels"], "annotations": {"template": template}}
                meta["ownerReferences"] = [{"uid": uid, "kind": item["kind"], "name": key[2]}]
                pod = {"apiVersion": "v1", "metadata": meta, "spec": spec["template"]["spec"]}
                self._save(("pods", key[1], name), pod | {"status": {"phase": "Pending"}}, None)
        self._count_pods(key)

    def _count_pods(self, key: Key) -> None:
        item = copy.deepcopy(self.store[key])
        pods = [
            pod for other, pod in self.store.items() if other[0] == "pods" and owner(pod) == item["metadata"]["uid"]
        ]
        ready = sum(
            any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
            for pod in pods
        )
        item["status"] = set_status(item["metadata"]["generation"], len(pods), ready)
        if item["status"] != self.store[key].get("status"):
            item["metadata"]["resourceVersion"] = str(next(self._version))
            self.store[key] = item
            self._note("MODIFIED", key)

    # -- for tests --------------------------------------------------------------------------------------------------

    def of(self, plural: str) -> dict[str, Object]:
        """Objects of a kind by name."""
        return {name: item for (kind, _, name), item in self.store.items() if kind == plural}

    def writes(self) -> list[tuple[str, str]]:
        """Requests that changed, or could have changed, something; dry runs and the lock left out."""
        return [
            (method, path)
            for method, path, params in self.log
            if method != "GET" and params.get("dryRun") != "All" and "/leases" not in path
        ]


class RunningServer:
    """An `ApiServer` on a local port, in a thread with its own event loop."""

    def __init__(self) -> None:
        self.api = ApiServer()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.url = ""

    def __enter__(self) -> RunningServer:
        self._thread.start()
        assert self._up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        async with self.api, kmock.Server(self.api) as server:
            self.url = str(server.url).rstrip("/")
            self._up.set()
            await self._stop.wait()
