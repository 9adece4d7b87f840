"""Checks before anything is applied: budget, certificates, claims, nodes, GPUs, admission of pods, quotas."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from jellybean_k8s.cluster.certificates.check import check_certificates
from jellybean_k8s.cluster.certificates.expiry import CA_KEY, mounted_certificates
from jellybean_k8s.cluster.checks.admission import admission
from jellybean_k8s.cluster.checks.new_pods import living, new_pods, replicas
from jellybean_k8s.cluster.checks.quotas import exceeded_quotas
from jellybean_k8s.cluster.checks.references import Reference, check_references, setting_paths
from jellybean_k8s.cluster.cluster import Cluster, ClusterError
from jellybean_k8s.cluster.pod_reasons import indented_lines
from jellybean_k8s.cluster.readiness import WORKLOADS, selector_of
from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.deployed_plan import DeployedPlan
from jellybean_k8s.manifests.quantities import parse_quantity
from jellybean_k8s.objects import KubeObjectView
from jellybean_solver import Plan, distinct_usd

_FORBIDDEN = 403
_TOLERANCE = 1e-9


class PreflightError(DeployError):
    """The cluster cannot run the plan; nothing was applied. `problems`: a line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"nothing was applied:{indented_lines(problems)}")


def check(
    cluster: Cluster,
    deployed: DeployedPlan,
    objects: Sequence[KubeObjectView],
    *,
    leaving: frozenset[str] = frozenset(),
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    with_budget: bool = True,
) -> list[str]:
    """Run all checks. PreflightError with every problem; otherwise returns notes on checks that were not possible.

    `leaving`: StatefulSets and Deployments that are removed before the new ones start. `with_budget`: check the budget,
    which is the same in every cluster of a plan.
    """
    problems, paths = over_budget(deployed.plan) if with_budget else [], setting_paths(deployed.settings)
    return _check_objects(cluster, deployed.app, objects, leaving, now().timestamp(), problems, paths)


def check_manifests(
    cluster: Cluster,
    app: str,
    manifests: Sequence[KubeObjectView],
    *,
    leaving: frozenset[str] = frozenset(),
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
) -> list[str]:
    """As `check`, of a revision that served before: all but the budget, which its plan met then."""
    return _check_objects(cluster, app, manifests, leaving, now().timestamp(), [], {})


def _check_objects(
    cluster: Cluster,
    app: str,
    objects: Sequence[KubeObjectView],
    leaving: frozenset[str],
    now_unix_s: float,
    problems: list[str],
    paths: Mapping[Reference, str],
) -> list[str]:
    problems = [*problems, *missing_secrets(cluster, objects)]
    unusable, notes = check_certificates(cluster, app, objects, now_unix_s)
    problems += unusable
    own = frozenset(item["metadata"]["name"] for item in objects if item["kind"] == "Secret")
    references = check_references(cluster, paths, objects, own | set(mounted_certificates(objects)))
    problems += references.problems
    notes += references.notes
    _check_nodes(cluster, objects, leaving, problems, notes)
    _check_admission(cluster, app, objects, leaving, problems, notes)
    if problems:
        raise PreflightError(problems)
    return notes


def _check_nodes(
    cluster: Cluster,
    objects: Sequence[KubeObjectView],
    leaving: frozenset[str],
    problems: list[str],
    notes: list[str],
) -> None:
    nodes = _listed(cluster, "Node", everywhere=True)
    if nodes is None:
        notes.append("nodes were not checked: this user may not list them")
        return
    pods = _listed(cluster, "Pod", everywhere=True)
    if pods is None:
        notes.append("GPUs in use were not counted: this user may not list pods of all namespaces")
    problems += missing_nodes(objects, nodes, pods or [], leaving)


def _check_admission(
    cluster: Cluster,
    app: str,
    objects: Sequence[KubeObjectView],
    leaving: frozenset[str],
    problems: list[str],
    notes: list[str],
) -> None:
    """Whether the API server admits the new pods, one of each template, and all of them within quotas."""
    running = cluster.list("Pod", selector_of(app))
    new = new_pods(objects, running)
    if not new:
        return
    answers = admission(cluster, app, new)
    notes += answers.notes
    quotas = _listed(cluster, "ResourceQuota")
    if quotas is None:
        notes.append("quotas were not added up: this user may not list resourcequotas")
        quotas = []
    gone = [pod for pod in living(running) if any(pod["metadata"]["name"].startswith(f"{name}-") for name in leaving)]
    pods = [(answers.pods.get(one.template, one.pod), one.count) for one in new]
    problems += exceeded_quotas(quotas, pods, gone)
    problems += answers.problems([quota["metadata"]["name"] for quota in quotas])


def _listed(cluster: Cluster, kind: str, *, everywhere: bool = False) -> Sequence[KubeObjectView] | None:
    """The objects of a kind; None if this user may not list them."""
    try:
        return cluster.list(kind, everywhere=everywhere)
    except ClusterError as error:
        if error.status != _FORBIDDEN:
            raise
        return None


def over_budget(plan: Plan) -> list[str]:
    """A message if the plan's cost exceeds its own budget; else empty."""
    budget, cost = plan.slo.budget_usd_per_h, plan.cost.total_usd_per_h
    if budget is None or cost <= budget * (1 + _TOLERANCE):
        return []
    costs, allowed = distinct_usd(cost, budget)
    return [f"the plan costs {costs} USD/h, the budget is {allowed} USD/h: plan again"]


def missing_secrets(cluster: Cluster, objects: Sequence[KubeObjectView]) -> list[str]:
    """Messages about Secrets with certificates that pods mount and that do not exist, or lack one."""
    brought = {item["metadata"]["name"] for item in objects if item["kind"] == "Secret"}
    wanted = {
        name: keys | {f"{key.removesuffix('.crt')}.key" for key in keys if key != CA_KEY}
        for name, keys in mounted_certificates(objects).items()
    }
    found = []
    hint = "make certificates with `jellybean certs` and deploy again"
    there = {item["metadata"]["name"]: item for item in _secrets(cluster, set(wanted) - brought)}
    for name in sorted(set(wanted) - brought):
        if name not in there:
            found.append(f"there is no Secret {name}: {hint}")
        elif lacking := sorted(wanted[name] - set(there[name].get("data") or {})):
            found.append(f"Secret {name} lacks {', '.join(lacking[:4])}: {hint}")
    return found


def _secrets(cluster: Cluster, names: set[str]) -> Iterable[KubeObjectView]:
    return [found for name in sorted(names) if (found := cluster.get("Secret", name)) is not None]


def missing_nodes(
    objects: Sequence[KubeObjectView],
    nodes: Sequence[KubeObjectView],
    pods: Sequence[KubeObjectView],
    leaving: frozenset[str] = frozenset(),
) -> list[str]:
    """Messages about tiers and sites without nodes, and pools with more workers than nodes or GPUs."""
    found: list[str] = []
    asked: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    ready = [node for node in nodes if not node["spec"].get("unschedulable")]
    used = _gpus_in_use(pods, leaving)
    running = {pod["metadata"]["name"] for pod in pods}
    for item in objects:
        if item["kind"] not in WORKLOADS:
            continue
        spec = item["spec"]["template"]["spec"]
        labels = _labels(spec)
        fit = [node for node in ready if labels.items() <= (node["metadata"].get("labels") or {}).items()]
        count = replicas(item, objects)
        text = ", ".join(f"{key}={value}" for key, value in labels.items())
        name = item["metadata"]["name"]
        if not fit:
            found.append(
                f"{name}: no node that takes pods has {text}: kubectl label node NODE {text.replace(', ', ' ')}"
            )
            continue
        if "podAntiAffinity" in (spec.get("affinity") or {}) and len(fit) < count:
            found.append(f"{name}: {count} workers want a node each, {len(fit)} nodes have {text}")
        for resource, each in _gpus(spec).items():
            first = item["spec"].get("ordinals", {}).get("start", 0)
            new = sum(f"{name}-{number}" not in running for number in range(first, first + count))
            key = (resource, tuple(sorted(labels.items())))
            asked[key] = asked.get(key, 0) + each * new
    return found + [
        text
        for (resource, labels), many in asked.items()
        if (text := _gpu_shortage(resource, dict(labels), many, ready, used))
    ]


def _gpu_shortage(
    resource: str,
    labels: Mapping[str, str],
    many: int,
    nodes: Sequence[KubeObjectView],
    used: Mapping[tuple[str, str], int],
) -> str:
    """Message about missing GPUs on the nodes with these labels; empty if there are `many` free ones."""
    fit = [node for node in nodes if labels.items() <= (node["metadata"].get("labels") or {}).items()]
    there = sum(
        int(parse_quantity((node.get("status", {}).get("allocatable") or {}).get(resource, "0"))) for node in fit
    )
    busy = sum(used.get((node["metadata"]["name"], resource), 0) for node in fit)
    if many <= there - busy:
        return ""
    text = ", ".join(f"{key}={value}" for key, value in labels.items())
    return (
        f"{many} {resource} are requested on nodes with {text}; {there} are allocatable there, {busy} in use. "
        "If the running plan uses them: --in-place removes it first"
    )


def _labels(pod: KubeObjectView) -> dict[str, str]:
    """Labels that a pod's nodes must have; a patch may have removed or replaced ours."""
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {"nodeSelectorTerms": [{}]}
    terms = required["nodeSelectorTerms"][0].get("matchExpressions") or ()
    one = {term["key"]: term["values"][0] for term in terms if term["operator"] == "In" and len(term["values"]) == 1}
    return {**one, **(pod.get("nodeSelector") or {})}


def _gpus(pod: KubeObjectView) -> dict[str, int]:
    found: dict[str, int] = {}
    for container in pod["containers"]:
        for resource, count in (container.get("resources", {}).get("limits") or {}).items():
            if "/" in resource:
                found[resource] = found.get(resource, 0) + math.ceil(parse_quantity(count))
    return found


def _gpus_in_use(pods: Sequence[KubeObjectView], leaving: frozenset[str]) -> dict[tuple[str, str], int]:
    """(node, GPU resource) -> number of GPUs requested by pods on it, except pods of the sets in `leaving`."""
    found: dict[tuple[str, str], int] = {}
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        own = (pod["metadata"].get("labels") or {}).get("jellybean.dev/set")
        if node is None or own in leaving or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        for resource, count in _gpus(pod["spec"]).items():
            found[node, resource] = found.get((node, resource), 0) + count
    return found
