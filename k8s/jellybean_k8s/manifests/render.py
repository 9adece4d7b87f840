"""Plan and settings to Kubernetes objects: a pure function, the same objects in the same order for the same plan.

No object names a namespace: all of them live in one, which whoever applies them chooses. Their order is the one to
apply them in; the last is the Service that clients use, which then leads to this plan's gateway.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.disruption import least_workers
from jellybean_k8s.manifests.pods import agent_template, gateway_template, labels, selector
from jellybean_k8s.manifests.served import AGENT_PORT, CLIENT_PORT, METRICS_PORT, Deployed
from jellybean_k8s.manifests.settings import Settings
from jellybean_k8s.manifests.workers import Group
from jellybean_k8s.names import APP, MANAGER, OWN, label_value
from jellybean_solver import Plan

Object = dict[str, Any]
Objects = tuple[Object, ...]


def render(plan: Plan, settings: Settings, *, service_monitor: bool = False) -> Objects:
    """All objects of a plan. DeployError when it cannot be served or what is asked for is not there.

    `service_monitor`: metrics are found by a ServiceMonitor, else by annotations of the pods.
    """
    deployed = Deployed(plan, settings)
    _check(deployed)
    least = _least(deployed)
    found = [_service_account(deployed), _config(deployed), *_network_policies(deployed)]
    found += [_headless(deployed, "agent"), _headless(deployed, "gateway")]
    for group in deployed.groups:
        found += _of_group(deployed, group, least.get(group.pool), scrape=not service_monitor)
    found.append(_gateway(deployed))
    if service_monitor:
        found.append(_service_monitor(deployed))
    return (*found, _clients(deployed))


def _check(deployed: Deployed) -> None:
    plan, tiers = deployed.plan, deployed.plan.tiers
    for name, tier in [("gateway tier", deployed.gateway_tier), *(("edge tier", tier) for tier in deployed.edge_tiers)]:
        if tier not in tiers:
            raise DeployError(f"{name} {tier}: the tiers of {plan.name} are {', '.join(tiers)}")
    if deployed.spools and deployed.settings.gateway_spool is None:
        raise DeployError(
            f"{plan.name} keeps requests on disk (`deliver: eventually`): name a PersistentVolumeClaim for them in "
            "kubernetes.yaml, gateway: {spool: CLAIM}"
        )
    names = [deployed.set_name(group) for group in deployed.groups]
    if twice := {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set():
        raise DeployError(f"two pools become one name: {', '.join(sorted(twice))}; rename one of them")


def _least(deployed: Deployed) -> dict[str, int]:
    """Pool -> fewest workers, of pools that may shrink. DeployError where that was asked for and cannot be."""
    shrinking: dict[str, Group] = {}
    for group in deployed.groups:
        pool = deployed.settings.of_pool(group.pool)
        if not pool.autoscale:
            continue
        beside = [other for other in deployed.groups if other.pool == group.pool]
        if len(beside) > 1 or group.count == 1:
            raise DeployError(f"autoscale: the plan leaves no room in {group.pool}: its workers are not one row")
        if pool.gpu is not None:
            raise DeployError(f"autoscale: {group.pool} works on GPUs, and an autoscaler sees how busy CPUs are")
        shrinking[group.pool] = group
    least = least_workers(deployed.plan, shrinking)
    if full := [pool for pool, count in least.items() if count == shrinking[pool].count]:
        raise DeployError(
            f"autoscale: the plan leaves no room in {', '.join(full)}: without any of their workers, the routes left "
            "would make others busier than planned"
        )
    return least


def _object(api: str, kind: str, name: str, own: dict[str, str], **rest: Any) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": own}, **rest}


def _lasting(deployed: Deployed, component: str) -> dict[str, str]:
    """Labels of what stays from plan to plan."""
    return {key: value for key, value in labels(deployed, component).items() if key != f"{OWN}/plan"}


def _service_account(deployed: Deployed) -> Object:
    """Pods never talk to the API server: they get no token, and no Role has to allow anything."""
    return _object(
        "v1",
        "ServiceAccount",
        deployed.app,
        _lasting(deployed, "workflow"),
        automountServiceAccountToken=False,
    )


def _config(deployed: Deployed) -> Object:
    own = labels(deployed, "workflow")
    return _object("v1", "ConfigMap", deployed.config, own, immutable=True, data=deployed.files)


def _of_group(deployed: Deployed, group: Group, least: int | None, *, scrape: bool) -> Iterator[Object]:
    """The workers of a group: their pods, how many may be away, and what scales them."""
    name, own = deployed.set_name(group), labels(deployed, "agent", group)
    template = agent_template(deployed, group)
    if scrape:
        template["metadata"]["annotations"] |= _scraped(METRICS_PORT)
    spec: Object = {"serviceName": deployed.agents}
    if least is None:
        spec["replicas"] = group.count
    if group.first:
        spec["ordinals"] = {"start": group.first}
    spec |= {
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(deployed, "agent", group)},
        "template": template,
    }
    yield _object("apps/v1", "StatefulSet", name, own, spec=spec)
    if group.count > 1:
        budget = {"maxUnavailable": 1, "selector": {"matchLabels": selector(deployed, "agent", group)}}
        yield _object("policy/v1", "PodDisruptionBudget", name, own, spec=budget)
    if least is not None:
        yield _object("autoscaling/v2", "HorizontalPodAutoscaler", name, own, spec=_scaling(name, group, least))


def _scaling(name: str, group: Group, least: int) -> Object:
    """Keeps workers as busy as planned: with less to do fewer of them, never more than the plan has."""
    target = {"type": "Utilization", "averageUtilization": max(1, round(100 * group.load))}
    return {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name},
        "minReplicas": least,
        "maxReplicas": group.count,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
    }


def _gateway(deployed: Deployed) -> Object:
    spec = {
        "replicas": 1,  # agents answer to one gateway
        "strategy": {"type": "Recreate"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(deployed, "gateway")},
        "template": gateway_template(deployed),
    }
    return _object("apps/v1", "Deployment", deployed.gateway, labels(deployed, "gateway"), spec=spec)


def _port(name: str, port: int) -> Object:
    return {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}


def _headless(deployed: Deployed, component: str) -> Object:
    """Addresses of pods, also of those that are not ready: a draining worker still sends and gets messages."""
    name = deployed.gateway if component == "gateway" else deployed.agents
    ports = [_port("agent", AGENT_PORT)]
    ports += [_port("metrics", METRICS_PORT)] if component == "agent" else []
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(deployed, component),
        "ports": ports,
    }
    return _object("v1", "Service", name, labels(deployed, component), spec=spec)


def _clients(deployed: Deployed) -> Object:
    spec = {
        "type": "ClusterIP",
        "selector": selector(deployed, "gateway"),
        "ports": [_port("grpc", CLIENT_PORT)],
    }
    return _object("v1", "Service", deployed.app, labels(deployed, "gateway"), spec=spec)


def _network_policies(deployed: Deployed) -> Iterator[Object]:
    """Agents hear agents, gateway and whoever scrapes; the gateway hears clients; both speak to each other and DNS."""
    own = {"podSelector": {"matchLabels": _of_plan(deployed)}}
    dns = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}
    to_own = {"to": [own], "ports": [_allowed(AGENT_PORT)]}
    from_own = {"from": [own], "ports": [_allowed(AGENT_PORT)]}
    to_models = [{"ports": [_allowed(port)]} for port in (443, 80)] if deployed.settings.models.url else []
    anyone = {"ports": [_allowed(CLIENT_PORT)]}
    rules = {
        "agent": ([from_own, {"ports": [_allowed(METRICS_PORT)]}], [to_own, dns, *to_models]),
        "gateway": ([from_own, anyone], [to_own, dns]),
    }
    for component, (ingress, egress) in rules.items():
        spec = {
            "podSelector": {"matchLabels": selector(deployed, component)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        }
        name = deployed.gateway if component == "gateway" else deployed.agents
        yield _object("networking.k8s.io/v1", "NetworkPolicy", name, labels(deployed, component), spec=spec)


def _of_plan(deployed: Deployed) -> dict[str, str]:
    return {f"{APP}/instance": deployed.app, f"{OWN}/plan": deployed.id, f"{APP}/managed-by": MANAGER}


def _allowed(port: int) -> Object:
    return {"protocol": "TCP", "port": port}


def _scraped(port: int) -> dict[str, str]:
    return {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": "/metrics"}


def _service_monitor(deployed: Deployed) -> Object:
    wanted = {f"{APP}/instance": deployed.app, f"{APP}/component": "agent", f"{OWN}/plan": deployed.id}
    spec = {
        "selector": {"matchLabels": wanted},
        "endpoints": [{"port": "metrics", "path": "/metrics"}],
        "targetLabels": [f"{OWN}/plan"],
        "podTargetLabels": [f"{OWN}/pool", f"{OWN}/tier"],
        "jobLabel": f"{APP}/instance",
    }
    own = _lasting(deployed, "agent") | {f"{APP}/part-of": label_value(deployed.plan.name)}
    return _object(
        "monitoring.coreos.com/v1", "ServiceMonitor", deployed.prefix, own | {f"{OWN}/plan": deployed.id}, spec=spec
    )
