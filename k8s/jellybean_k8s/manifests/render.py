"""Renders plan and settings as Kubernetes objects: a pure, deterministic function.

No object names a namespace; the caller chooses one for all. The order is the order of application: the last object is
the client Service, which switches clients to this plan's gateway; clusters without the gateway have none.
"""

from __future__ import annotations

from collections.abc import Iterator

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.autoscaling import min_workers
from jellybean_k8s.manifests.deployed_plan import (
    AGENT_PORT,
    CLIENT_PORT,
    METRICS_PORT,
    TUNNEL_METRICS_PORT,
    DeployedPlan,
)
from jellybean_k8s.manifests.devices import gpu_resource
from jellybean_k8s.manifests.labels import labels, plan_independent_labels, selector
from jellybean_k8s.manifests.network_policies import network_policies
from jellybean_k8s.manifests.pods.relay import relay_deployment, relay_services
from jellybean_k8s.manifests.pods.templates import AGENT
from jellybean_k8s.manifests.sets import gateway_objects, stateful_set
from jellybean_k8s.manifests.worker_groups import WorkerGroup
from jellybean_k8s.names import APP_PREFIX, OWN_PREFIX, label_value
from jellybean_k8s.objects import CLIENT_FAMILIES, KubeObject, kube_object, service_port

TUNNEL_METRICS = "tunnel-metrics"  # port of the agents' Service
Objects = tuple[KubeObject, ...]


def render(deployed: DeployedPlan) -> Objects:
    """All objects of a deployed plan, of its view in one cluster if it has several (`DeployedPlan.in_cluster`).

    DeployError if a pool cannot be autoscaled as its settings say.
    """
    if deployed.cluster is None and deployed.clusters:
        raise DeployError(f"clusters: {deployed.app} has objects for each of {', '.join(deployed.clusters)}")
    if not deployed.groups and not deployed.has_gateway:
        return ()
    minimum = _min_workers_of(deployed)
    found = [_service_account(deployed), _config_map(deployed), *network_policies(deployed)]
    found += [_headless_service(deployed, "agent")] if deployed.groups else []
    found += [_headless_service(deployed, "gateway")] if deployed.has_gateway else []
    found += relay_services(deployed) if deployed.has_relay else []
    for group in deployed.groups:
        found += _group_objects(deployed, group, minimum.get(group.pool))
    found += gateway_objects(deployed) if deployed.has_gateway else []
    found += [relay_deployment(deployed)] if deployed.has_relay else []
    if deployed.service_monitor:
        found.append(_service_monitor(deployed))
    return (*found, _client_service(deployed)) if deployed.has_gateway else tuple(found)


def _min_workers_of(deployed: DeployedPlan) -> dict[str, int]:
    """Pool -> fewest workers, for autoscaled pools, of all clusters. DeployError if one cannot be autoscaled."""
    shrinking: dict[str, WorkerGroup] = {}
    for group in deployed.all_groups:
        pool = deployed.settings.of_pool(group.pool)
        if not pool.autoscale:
            continue
        beside = [other for other in deployed.all_groups if other.pool == group.pool]
        if len(beside) > 1 or group.count == 1:
            raise DeployError(f"autoscale: {group.pool} cannot shrink: its workers are not numbered without gaps")
        if gpu_resource(deployed.settings, group) is not None:
            raise DeployError(f"autoscale: {group.pool} uses GPUs, and the autoscaler measures CPU load only")
        shrinking[group.pool] = group
    minimum = min_workers(deployed.plan, shrinking)
    if full := [pool for pool, count in minimum.items() if count == shrinking[pool].count]:
        raise DeployError(
            f"autoscale: {', '.join(full)} cannot shrink: without any of their workers, the routes left would load "
            "others more than planned"
        )
    return minimum


def _service_account(deployed: DeployedPlan) -> KubeObject:
    """ServiceAccount of all pods, without token and Role, as pods never call the API server."""
    return kube_object(
        "v1",
        "ServiceAccount",
        deployed.app,
        plan_independent_labels(deployed, "workflow"),
        automountServiceAccountToken=False,
    )


def _config_map(deployed: DeployedPlan) -> KubeObject:
    own = labels(deployed, "workflow")
    return kube_object("v1", "ConfigMap", deployed.config, own, immutable=True, data=deployed.files)


def _group_objects(deployed: DeployedPlan, group: WorkerGroup, minimum: int | None) -> Iterator[KubeObject]:
    """Objects of a worker group: StatefulSet, disruption budget, autoscaler."""
    name, own = deployed.set_name(group), labels(deployed, "agent", group)
    yield stateful_set(deployed, group)
    if group.count > 1:
        budget: KubeObject = {"maxUnavailable": 1, "selector": {"matchLabels": selector(deployed, "agent", group)}}
        if deployed.has_tunnels:  # all are unready while the relay cannot be reached, and nodes are drained even so
            budget["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
        yield kube_object("policy/v1", "PodDisruptionBudget", name, own, spec=budget)
    if minimum is not None:
        spec = _scaling(name, group, minimum, is_alone=not deployed.has_tunnels)
        yield kube_object("autoscaling/v2", "HorizontalPodAutoscaler", name, own, spec=spec)


def _scaling(name: str, group: WorkerGroup, minimum: int, *, is_alone: bool) -> KubeObject:
    """Autoscaler that keeps workers at their planned load, with at most the plan's number of workers.

    `is_alone`: the agent is the pod's only container; otherwise only its load counts.
    """
    target = {"type": "Utilization", "averageUtilization": max(1, round(100 * group.load))}
    metric: KubeObject = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    if not is_alone:
        own = {"name": "cpu", "container": AGENT, "target": target}
        metric = {"type": "ContainerResource", "containerResource": own}
    return {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name},
        "minReplicas": minimum,
        "maxReplicas": group.count,
        "metrics": [metric],
    }


def _headless_service(deployed: DeployedPlan, component: str) -> KubeObject:
    """Headless Service: DNS names of all pods, also unready ones, as a draining worker still exchanges messages."""
    name = deployed.gateway if component == "gateway" else deployed.agents
    ports = [service_port("agent", AGENT_PORT), service_port("metrics", METRICS_PORT)]
    if component == "agent" and deployed.has_tunnels:
        ports.append(service_port(TUNNEL_METRICS, TUNNEL_METRICS_PORT))
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(deployed, component),
        "ports": ports,
    }
    return kube_object("v1", "Service", name, labels(deployed, component), spec=spec)


def _client_service(deployed: DeployedPlan) -> KubeObject:
    wanted = deployed.settings.gateway_service
    spec = {
        "type": wanted.type,
        "ipFamilyPolicy": CLIENT_FAMILIES,
        "selector": selector(deployed, "gateway"),
        "ports": [service_port("grpc", CLIENT_PORT)],
    }
    service = kube_object("v1", "Service", deployed.app, labels(deployed, "gateway"), spec=spec)
    if wanted.annotations:
        service["metadata"]["annotations"] = dict(wanted.annotations)
    return service


def _service_monitor(deployed: DeployedPlan) -> KubeObject:
    wanted = {
        f"{APP_PREFIX}/instance": deployed.app,
        f"{OWN_PREFIX}/plan": deployed.id,
    }
    ports = ("metrics", TUNNEL_METRICS) if deployed.has_tunnels else ("metrics",)
    components = {
        "key": f"{APP_PREFIX}/component",
        "operator": "In",
        "values": ["agent", "gateway", *(["relay"] if deployed.has_relay else [])],
    }
    spec = {
        "selector": {"matchLabels": wanted, "matchExpressions": [components]},
        "endpoints": [{"port": port, "path": "/metrics"} for port in ports],
        "targetLabels": [f"{OWN_PREFIX}/plan"],
        "podTargetLabels": [f"{OWN_PREFIX}/pool", f"{OWN_PREFIX}/tier"],
        "jobLabel": f"{APP_PREFIX}/instance",
    }
    own = plan_independent_labels(deployed, "agent") | {f"{APP_PREFIX}/part-of": label_value(deployed.plan.name)}
    return kube_object(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        deployed.prefix,
        own | {f"{OWN_PREFIX}/plan": deployed.id},
        spec=spec,
    )
