"""Waits until applied objects are ready, as observed by their controllers for the newest specification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.cluster.compare import ObjectKey, by_key
from jellybean_k8s.cluster.pod_reasons import counted_lines, indented_lines, is_stuck, pod_reasons, set_reasons
from jellybean_k8s.errors import DeployError
from jellybean_k8s.names import APP_PREFIX, FIELD_MANAGER
from jellybean_k8s.objects import KubeObjectView

WORKLOADS = ("StatefulSet", "Deployment")
_MOST_LINES = 10
_POLL_S = 5.0  # longest seconds between two reads
STUCK_S = 30.0  # a pod that has been stuck for so long stays so; a Secret that is being made has appeared by then


class NotReadyError(DeployError):
    """Applied objects did not become ready. `missing`: the sets that are not."""

    def __init__(self, message: str, missing: Sequence[ObjectKey]) -> None:
        self.missing = tuple(missing)
        super().__init__(message)


def unready(item: KubeObjectView) -> str:
    """Why a StatefulSet or Deployment is not ready; empty if all its pods run the newest specification."""
    spec, status = item["spec"], item.get("status") or {}
    wanted = spec.get("replicas", 1)
    if status.get("observedGeneration", 0) < item["metadata"].get("generation", 1):
        return "its controller has not processed it yet"
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    if item["kind"] == "StatefulSet" and status.get("currentRevision") == status.get("updateRevision"):
        updated = max(updated, status.get("currentReplicas", 0))
    if updated < wanted:
        return f"{updated} of {wanted} pods are of the newest revision"
    if status.get("replicas", 0) > wanted:
        return f"{status['replicas'] - wanted} old pods still exist"
    if available < wanted:
        return f"{available} of {wanted} pods are available"
    return ""


def selector_of(app: str) -> str:
    """Label selector of all objects of a deployment."""
    return f"{APP_PREFIX}/instance={app},{APP_PREFIX}/managed-by={FIELD_MANAGER}"


def await_ready(
    cluster: Cluster,
    app: str,
    wanted: Iterable[ObjectKey],
    timeout_s: float,
    *,
    whole_s: float | None = None,
    stuck_s: float = STUCK_S,
    pulse: Callable[[], None] = lambda: None,
    progress: Callable[[float, float, str], None] = lambda done, total, label: None,
) -> None:
    """Wait until the sets among `wanted` are ready. NotReadyError, with the pods' reasons, after the timeout.

    Or once a pod has been stuck for `stuck_s`: its image has no valid name, say. `pulse` is called before every read.
    `whole_s`: the timeout that the user gave, where a part of it is over already.
    """
    stuck = _StuckPods(cluster, app, stuck_s)
    names = [key for key in wanted if key[0] in WORKLOADS]
    until = cluster.clock() + timeout_s
    while True:
        pulse()
        live, since = _workloads(cluster, app)
        missing = {key: unready(live[key]) if key in live else "does not exist" for key in names}
        missing = {key: reason for key, reason in missing.items() if reason}
        first = next(iter(missing.items()), None)
        label = "ready" if first is None else f"{first[0][1]}: {first[1]}"
        progress(len(names) - len(missing), len(names), label)
        if first is None:
            return
        left_s = until - cluster.clock()
        if left_s <= 0:
            head = f"not ready after {timeout_s if whole_s is None else whole_s:g} s"
            raise NotReadyError(_not_ready_message(cluster, app, missing, live, head), list(missing))
        if count := stuck.count({name for _, name in missing}):
            head = f"not ready ({count} pod{'s' if count > 1 else ''} stuck for {stuck_s:g} s)"
            raise NotReadyError(_not_ready_message(cluster, app, missing, live, head), list(missing))
        kind = first[0][0]
        cluster.await_change(kind, selector_of(app), since[kind], min(_POLL_S, left_s, stuck.pause_s))


class _StuckPods:
    """Pods that wait for something only a person can change, and since when."""

    def __init__(self, cluster: Cluster, app: str, stuck_s: float) -> None:
        self._cluster, self._app, self._stuck_s = cluster, app, stuck_s
        self._since: dict[str, float] = {}  # uid -> when it was first seen stuck, without a break
        self._next_s = cluster.clock()

    @property
    def pause_s(self) -> float:
        """Seconds until the pods are to be read again."""
        return max(0.1, self._next_s - self._cluster.clock())

    def count(self, sets: Iterable[str]) -> int:
        """The number of pods of these sets that have been stuck for long enough; reads pods every few seconds."""
        now_s = self._cluster.clock()
        if now_s < self._next_s:
            return 0
        self._next_s = now_s + min(_POLL_S, self._stuck_s / 2)
        names = set(sets)
        pods = (pod for pod in self._cluster.list("Pod", selector_of(self._app)) if is_stuck(pod))
        uids = [pod["metadata"]["uid"] for pod in pods if _owner(pod["metadata"]["name"], names)]
        self._since = {uid: self._since.get(uid, now_s) for uid in uids}
        return sum(now_s - since >= self._stuck_s for since in self._since.values())


def await_gone(cluster: Cluster, selector: str, timeout_s: float, pulse: Callable[[], None] = lambda: None) -> int:
    """Wait until no pod matches the label selector; returns the number left at the timeout (0: all gone)."""
    until = cluster.clock() + timeout_s
    while True:
        pulse()
        pods, since = cluster.list_at("Pod", selector)
        left_s = until - cluster.clock()
        if not pods or left_s <= 0:
            return len(pods)
        cluster.await_change("Pod", selector, since, min(_POLL_S, left_s))


def _workloads(cluster: Cluster, app: str) -> tuple[dict[ObjectKey, Any], dict[str, str]]:
    live: dict[ObjectKey, Any] = {}
    since = {}
    for kind in WORKLOADS:
        items, since[kind] = cluster.list_at(kind, selector_of(app))
        live |= by_key(items, kind)
    return live, since


def _not_ready_message(
    cluster: Cluster, app: str, missing: Mapping[ObjectKey, str], live: Mapping[ObjectKey, Any], head: str
) -> str:
    events = cluster.list("Event")
    sets = {name for _, name in missing}
    pods = [pod for pod in cluster.list("Pod", selector_of(app)) if _owner(pod["metadata"]["name"], sets)]
    names_by_reason: dict[str, list[str]] = {}
    for key, reason in missing.items():
        names_by_reason.setdefault(reason, []).append("/".join(key))
    lines = counted_lines(names_by_reason, "sets")[:_MOST_LINES]
    lines += set_reasons([live[key] for key in missing if key in live], events) + pod_reasons(pods, events)
    return f"{head}, {len(missing)} sets are missing pods:{indented_lines(lines)}"


def _owner(pod: str, sets: Iterable[str]) -> bool:
    return any(pod.startswith(f"{name}-") for name in sets)
