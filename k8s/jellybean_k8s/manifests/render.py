"""Renders plan and settings as Kubernetes objects: a pure, deterministic function.

No object names a namespace; the caller chooses one for all. The order is the order of application: the last object is
the client Service, which switches clients to this plan's gateway.
"""

from __future__ import annotations

from collections.abc import Iterator

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.autoscaling import min_workers
from jellybean_k8s.manifests.deployed_plan import AGENT_PORT, CLIENT_PORT, METRICS_PORT, DeployedPlan
from jellybean_k8s.manifests.devices import gpu_resource
from jellybean_k8s.manifests.pods import labels, selector
from jellybean_k8s.manifests.sets import gateway_objects, stateful_set
from jellybean_k8s.manifests.worker_groups import WorkerGroup
from jellybean_k8s.names import APP_PREFIX, FIELD_MANAGER, OWN_PREFIX, label_value
from jellybean_k8s.objects import KubeObject, kube_object

Objects = tuple[KubeObject, ...]


def render(deployed: DeployedPlan) -> Objects:
    """All objects of a deployed plan. DeployError if a pool cannot be autoscaled as its settings say."""
    minimum = _min_workers_of(deployed)
    found = [_service_account(deployed), _config_map(deployed), *_network_policies(deployed)]
    found += [_headless_service(deployed, "agent"), _headless_service(deployed, "gateway")]
    for group in deployed.groups:
        found += _group_objects(deployed, group, minimum.get(group.pool))
    found += gateway_objects(deployed)
    if deployed.service_monitor:
        found.append(_service_monitor(deployed))
    return (*found, _client_service(deployed))


def _min_workers_of(deployed: DeployedPlan) -> dict[str, int]:
    """Pool -> fewest workers, for autoscaled pools. DeployError if a pool cannot be autoscaled."""
    shrinking: dict[str, WorkerGroup] = {}
    for group in deployed.groups:
        pool = deployed.settings.of_pool(group.pool)
        if not pool.autoscale:
            continue
        beside = [other for other in deployed.groups if other.pool == group.pool]
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


def _plan_independent_labels(deployed: DeployedPlan, component: str) -> dict[str, str]:
    """Labels of objects that all plans of a deployment share."""
    return {key: value for key, value in labels(deployed, component).items() if key != f"{OWN_PREFIX}/plan"}


def _service_account(deployed: DeployedPlan) -> KubeObject:
    """ServiceAccount of all pods, without token and Role, as pods never call the API server."""
    return kube_object(
        "v1",
        "ServiceAccount",
        deployed.app,
        _plan_independent_labels(deployed, "workflow"),
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
        budget = {"maxUnavailable": 1, "selector": {"matchLabels": selector(deployed, "agent", group)}}
        yield kube_object("policy/v1", "PodDisruptionBudget", name, own, spec=budget)
    if minimum is not None:
        yield kube_object("autoscaling/v2", "HorizontalPodAutoscaler", name, own, spec=_scaling(name, group, minimum))


def _scaling(name: str, group: WorkerGroup, minimum: int) -> KubeObject:
    """Autoscaler that keeps workers at their planned load, with at most the plan's number of workers."""
    target = {"type": "Utilization", "averageUtilization": max(1, round(100 * group.load))}
    return {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name},
        "minReplicas": minimum,
        "maxReplicas": group.count,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
    }


def _port(name: str, port: int) -> KubeObject:
    return {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}


def _headless_service(deployed: DeployedPlan, component: str) -> KubeObject:
    """Headless Service: DNS names of all pods, also unready ones, as a draining worker still exchanges messages."""
    name = deployed.gateway if component == "gateway" else deployed.agents
    ports = [_port("agent", AGENT_PORT), _port("metrics", METRICS_PORT)]
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
        "selector": selector(deployed, "gateway"),
        "ports": [_port("grpc", CLIENT_PORT)],
    }
    service = kube_object("v1", "Service", deployed.app, labels(deployed, "gateway"), spec=spec)
    if wanted.annotations:
        service["metadata"]["annotations"] = dict(wanted.annotations)
    return service


def _network_policies(deployed: DeployedPlan) -> Iterator[KubeObject]:
    """Agents accept agents and gateway, the gateway clients, both scrapers; both call each other and DNS."""
    own = {"podSelector": {"matchLabels": _plan_selector(deployed)}}
    dns = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}
    to_own = {"to": [own], "ports": [_tcp_port(AGENT_PORT)]}
    from_own = {"from": [own], "ports": [_tcp_port(AGENT_PORT)]}
    to_models = [{"ports": [_tcp_port(port)]} for port in deployed.settings.models.ports]
    database = deployed.settings.gateway_ledger
    traces = deployed.settings.traces
    to_collector = [] if traces is None else [{"ports": [_tcp_port(traces.port)]}]
    to_database = [] if database is None else [{"ports": [_tcp_port(database.port)]}]
    anyone, scrapers = ({"ports": [_tcp_port(port)]} for port in (CLIENT_PORT, METRICS_PORT))
    rules = {
        "agent": ([from_own, scrapers], [to_own, dns, *to_models, *to_collector]),
        "gateway": ([from_own, anyone, scrapers], [to_own, dns, *to_database, *to_collector]),
    }
    for component, (ingress, egress) in rules.items():
        spec = {
            "podSelector": {"matchLabels": selector(deployed, component)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        }
        name = deployed.gateway if component == "gateway" else deployed.agents
        yield kube_object("networking.k8s.io/v1", "NetworkPolicy", name, labels(deployed, component), spec=spec)


def _plan_selector(deployed: DeployedPlan) -> dict[str, str]:
    return {
        f"{APP_PREFIX}/instance": deployed.app,
        f"{OWN_PREFIX}/plan": deployed.id,
        f"{APP_PREFIX}/managed-by": FIELD_MANAGER,
    }


def _tcp_port(port: int) -> KubeObject:
    return {"protocol": "TCP", "port": port}


def _service_monitor(deployed: DeployedPlan) -> KubeObject:
    wanted = {
        f"{APP_PREFIX}/instance": deployed.app,
        f"{OWN_PREFIX}/plan": deployed.id,
    }
    components = {"key": f"{APP_PREFIX}/component", "operator": "In", "values": ["agent", "gateway"]}
    spec = {
        "selector": {"matchLabels": wanted, "matchExpressions": [components]},
        "endpoints": [{"port": "metrics", "path": "/metrics"}],
        "targetLabels": [f"{OWN_PREFIX}/plan"],
        "podTargetLabels": [f"{OWN_PREFIX}/pool", f"{OWN_PREFIX}/tier"],
        "jobLabel": f"{APP_PREFIX}/instance",
    }
    own = _plan_independent_labels(deployed, "agent") | {f"{APP_PREFIX}/part-of": label_value(deployed.plan.name)}
    return kube_object(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        deployed.prefix,
        own | {f"{OWN_PREFIX}/plan": deployed.id},
        spec=spec,
    )
