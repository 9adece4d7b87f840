"""Compares the sum of new pods with what quotas leave. Pure.

The API server refuses each pod by itself, so that a set of twelve may start with five and wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jellybean_k8s.cluster.checks.new_pods import demand
from jellybean_k8s.manifests.quantities import mebibytes, parse_quantity
from jellybean_k8s.objects import KubeObjectView

_SAME = {  # short name of a quota's resource -> the long one
    "cpu": "requests.cpu",
    "memory": "requests.memory",
    "ephemeral-storage": "requests.ephemeral-storage",
    "count/pods": "pods",
}
_TOLERANCE = 1e-6


def exceeded_quotas(
    quotas: Iterable[KubeObjectView],
    pods: Sequence[tuple[KubeObjectView, int]],
    leaving: Sequence[KubeObjectView],
) -> list[str]:
    """Messages about quotas that the new pods do not fit into. `pods`: each with its number; `leaving`: go before."""
    return [text for quota in quotas for text in _exceeded(quota, pods, leaving)]


def _exceeded(
    quota: KubeObjectView, pods: Sequence[tuple[KubeObjectView, int]], leaving: Sequence[KubeObjectView]
) -> Iterator[str]:
    counted = [(demand(pod), count) for pod, count in pods if applies(quota, pod)]
    freed = [demand(pod) for pod in leaving if applies(quota, pod)]
    status = quota.get("status") or {}
    for name, hard in (status.get("hard") or quota["spec"].get("hard") or {}).items():
        resource = _SAME.get(name, name)
        wanted = sum(one.get(resource, 0.0) * count for one, count in counted)
        limit = parse_quantity(hard)
        used = parse_quantity((status.get("used") or {}).get(name, "0")) - sum(one.get(resource, 0.0) for one in freed)
        if wanted > 0 and wanted > limit - used + _TOLERANCE:
            number = sum(count for one, count in counted if one.get(resource))
            left, most = (_shown(resource, value) for value in (max(0.0, limit - used), limit))
            yield (
                f"ResourceQuota {quota['metadata']['name']}: {number} new pods take {_shown(resource, wanted)} of "
                f"{name}, {left} of {most} are left: raise the quota, or lower what pods or the plan take. If the "
                "running plan uses them: --in-place removes it first"
            )


def applies(quota: KubeObjectView, pod: KubeObjectView) -> bool:
    """True if a quota counts this pod, by its scopes."""
    spec = quota["spec"]
    terms = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or ()]
    terms += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(_in_scope(term, pod) for term in terms)


def _in_scope(term: Mapping[str, Any], pod: KubeObjectView) -> bool:
    scope, spec = term["scopeName"], pod["spec"]
    if scope == "PriorityClass":
        return _in_priority(term, spec.get("priorityClassName"))
    known = {
        "Terminating": spec.get("activeDeadlineSeconds") is not None,
        "NotTerminating": spec.get("activeDeadlineSeconds") is None,
        "BestEffort": _is_best_effort(spec),
        "NotBestEffort": not _is_best_effort(spec),
    }
    return known.get(scope, False)


def _in_priority(term: Mapping[str, Any], name: str | None) -> bool:
    values = term.get("values") or ()
    return {
        "In": name in values,
        "NotIn": name not in values,
        "Exists": name is not None,
        "DoesNotExist": name is None,
    }[term["operator"]]


def _is_best_effort(spec: Mapping[str, Any]) -> bool:
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    return not any((one.get("resources") or {}).get(kind) for one in containers for kind in ("requests", "limits"))


def _shown(resource: str, value: float) -> str:
    if resource.endswith(("memory", "storage")):
        return mebibytes(value) if value else "0"
    return f"{round(value, 3):g}"
