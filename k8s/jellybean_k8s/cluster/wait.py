"""Waiting until what was applied runs: by what controllers have observed, never by what they have not looked at yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.cluster.compare import Key, by_key
from jellybean_k8s.cluster.reasons import pod_reasons, set_reasons, summary
from jellybean_k8s.errors import DeployError
from jellybean_k8s.names import APP, MANAGER

Object = Mapping[str, Any]
WORKLOADS = ("StatefulSet", "Deployment")
_LOOK_S = 5.0  # at the latest


class NotReadyError(DeployError):
    """What was applied does not run. `missing`: sets that are not ready."""

    def __init__(self, message: str, missing: Sequence[Key]) -> None:
        self.missing = tuple(missing)
        super().__init__(message)


def unready(item: Object) -> str:
    """What a StatefulSet or Deployment lacks; empty when all of it runs as its newest specification says."""
    spec, status = item["spec"], item.get("status") or {}
    wanted = spec.get("replicas", 1)
    if status.get("observedGeneration", 0) < item["metadata"].get("generation", 1):
        return "its controller has not looked at it yet"
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    if item["kind"] == "StatefulSet" and status.get("currentRevision") == status.get("updateRevision"):
        updated = max(updated, status.get("currentReplicas", 0))
    if updated < wanted:
        return f"{updated} of {wanted} pods are of the newest revision"
    if status.get("replicas", 0) > wanted:
        return f"{status['replicas'] - wanted} pods of before are still there"
    if available < wanted:
        return f"{available} of {wanted} pods are available"
    return ""


def selector_of(app: str) -> str:
    """All objects of a deployment."""
    return f"{APP}/instance={app},{APP}/managed-by={MANAGER}"


def await_ready(
    cluster: Cluster,
    app: str,
    wanted: Iterable[Key],
    timeout_s: float,
    *,
    pulse: Callable[[], None] = lambda: None,
    progress: Callable[[float, float, str], None] = lambda done, total, label: None,
) -> None:
    """Return when these sets run. NotReadyError with the reasons of their pods when the time is up.

    `pulse` is called at every look.
    """
    names = [key for key in wanted if key[0] in WORKLOADS]
    until = cluster.clock() + timeout_s
    while True:
        pulse()
        live, since = _workloads(cluster, app)
        missing = {key: unready(live[key]) if key in live else "is not there" for key in names}
        missing = {key: reason for key, reason in missing.items() if reason}
        first = next(iter(missing.items()), None)
        label = "ready" if first is None else f"{first[0][1]}: {first[1]}"
        progress(len(names) - len(missing), len(names), label)
        if first is None:
            return
        left_s = until - cluster.clock()
        if left_s <= 0:
            raise NotReadyError(_told(cluster, app, missing, timeout_s), list(missing))
        kind = first[0][0]
        cluster.await_change(kind, selector_of(app), since[kind], min(_LOOK_S, left_s))


def await_gone(cluster: Cluster, selector: str, timeout_s: float, pulse: Callable[[], None] = lambda: None) -> int:
    """Wait until no pod with these labels is left; how many were when the time was up."""
    until = cluster.clock() + timeout_s
    while True:
        pulse()
        pods, since = cluster.list_at("Pod", selector)
        left_s = until - cluster.clock()
        if not pods or left_s <= 0:
            return len(pods)
        cluster.await_change("Pod", selector, since, min(_LOOK_S, left_s))


def _workloads(cluster: Cluster, app: str) -> tuple[dict[Key, Any], dict[str, str]]:
    live: dict[Key, Any] = {}
    since = {}
    for kind in WORKLOADS:
        items, since[kind] = cluster.list_at(kind, selector_of(app))
        live |= by_key(items, kind)
    return live, since


def _told(cluster: Cluster, app: str, missing: Mapping[Key, str], timeout_s: float) -> str:
    events = cluster.list("Event")
    sets = {name for _, name in missing}
    pods = [pod for pod in cluster.list("Pod", selector_of(app)) if _owner(pod["metadata"]["name"], sets)]
    lines = [f"{kind}/{name}: {reason}" for (kind, name), reason in list(missing.items())[:10]]
    lines += set_reasons(missing, events) + pod_reasons(pods, events)
    return f"not ready after {timeout_s:g} s, {len(missing)} sets are missing pods:{summary(lines)}"


def _owner(pod: str, sets: Iterable[str]) -> bool:
    return any(pod.startswith(f"{name}-") for name in sets)
