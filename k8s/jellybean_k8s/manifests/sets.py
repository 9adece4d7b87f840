"""The sets of pods: a StatefulSet for each group of workers, a Deployment for the gateway.

A set is never changed: another specification gets another name (`identity.deployed_plan`).
"""

from __future__ import annotations

from jellybean_k8s.manifests.deployed_plan import DeployedPlan
from jellybean_k8s.manifests.pods import agent_template, gateway_template, labels, selector
from jellybean_k8s.manifests.worker_groups import WorkerGroup
from jellybean_k8s.objects import KubeObject, kube_object


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


def gateway_deployment(deployed: DeployedPlan) -> KubeObject:
    """The Deployment of the gateway."""
    spec = {
        "replicas": 1,  # agents know a single gateway
        "strategy": {"type": "Recreate"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(deployed, "gateway")},
        "template": gateway_template(deployed),
    }
    return kube_object("apps/v1", "Deployment", deployed.gateway, labels(deployed, "gateway"), spec=spec)
