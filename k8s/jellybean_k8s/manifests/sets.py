"""The sets of pods: a StatefulSet for each group of workers, a Deployment for the gateway, and for the relay.

A set is never changed: another specification gets another name (`identity.deployed_plan`).
"""

from __future__ import annotations

from collections.abc import Iterator

from jellybean_k8s.manifests.deployed_plan import DeployedPlan
from jellybean_k8s.manifests.labels import labels, selector
from jellybean_k8s.manifests.pods.relay import relay_deployment
from jellybean_k8s.manifests.pods.templates import agent_template, gateway_template
from jellybean_k8s.manifests.worker_groups import WorkerGroup
from jellybean_k8s.objects import KubeObject, kube_object


def sets_of_pods(deployed: DeployedPlan) -> list[KubeObject]:
    """All sets of pods, of a view of one cluster those in it."""
    found = [gateway_deployment(deployed)] if deployed.has_gateway else []
    found += [relay_deployment(deployed)] if deployed.has_relay else []
    return found + [stateful_set(deployed, group) for group in deployed.groups]


def stateful_set(deployed: DeployedPlan, group: WorkerGroup) -> KubeObject:
    """The StatefulSet of a group. Without replicas if an autoscaler chooses them."""
    spec: KubeObject = {"serviceName": deployed.agents}
    if not deployed.settings.of_pool(group.pool).autoscale:
        spec["replicas"] = group.count
    if group.first:
        spec["ordinals"] = {"start": group.first}
    spec |= {
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(deployed, "agent", group)},
        "template": agent_template(deployed, group),
    }
    own = labels(deployed, "agent", group)
    return kube_object("apps/v1", "StatefulSet", deployed.set_name(group), own, spec=spec)


def gateway_objects(deployed: DeployedPlan) -> Iterator[KubeObject]:
    """Objects of the gateways: Deployment, disruption budget."""
    yield gateway_deployment(deployed)
    if deployed.settings.gateway_replicas > 1:
        budget = {"maxUnavailable": 1, "selector": {"matchLabels": selector(deployed, "gateway")}}
        own = labels(deployed, "gateway")
        yield kube_object("policy/v1", "PodDisruptionBudget", deployed.gateway, own, spec=budget)


def gateway_deployment(deployed: DeployedPlan) -> KubeObject:
    """The Deployment of the gateways.

    A single one is known to the agents by the name of its Service, so a pod ends before the next one begins. Of several
    that are restarted, a further one is ready before one leaves.
    """
    replicas = deployed.settings.gateway_replicas
    surge = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    spec = {
        "replicas": replicas,
        "strategy": surge if replicas > 1 else {"type": "Recreate"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(deployed, "gateway")},
        "template": gateway_template(deployed),
    }
    return kube_object("apps/v1", "Deployment", deployed.gateway, labels(deployed, "gateway"), spec=spec)
