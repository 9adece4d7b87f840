"""Names a deployment by what its sets of pods are, so that none is ever changed in place."""

from __future__ import annotations

import dataclasses

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.clusters import ClustersError, check_clusters
from jellybean_k8s.manifests.deployed_plan import ID_DIGITS, DeployedPlan, json_sha256
from jellybean_k8s.manifests.devices import require_devices
from jellybean_k8s.manifests.sets import sets_of_pods
from jellybean_k8s.manifests.settings import MAX_GATEWAYS, DeploymentSettings
from jellybean_solver import Plan, independent_streams_text, tier_at


def deployed_plan(plan: Plan, settings: DeploymentSettings, *, service_monitor: bool = False) -> DeployedPlan:
    """The plan as deployed with these settings. DeployError if it cannot be served with them.

    Its id is a hash of the plan and of all sets of pods: a change of either, be it an image, gets objects of its own,
    which start beside the running ones and take over when they are ready.
    """
    draft = DeployedPlan(plan, settings, "0" * ID_DIGITS, service_monitor)  # the id is in the sets' names too
    _check(draft)
    views = [draft.in_cluster(name) for name in draft.clusters] or [draft]
    sets = [item for view in views for item in sets_of_pods(view)]
    digest = json_sha256([draft.document["hash"], sets])
    return dataclasses.replace(draft, id=digest[:ID_DIGITS])


def _check(deployed: DeployedPlan) -> None:
    plan, tiers = deployed.plan, deployed.plan.tiers
    if reason := independent_streams_text(plan):
        raise DeployError(f"{plan.name}: {reason}")
    for name, tier in [("gateway tier", deployed.gateway_tier), *(("edge tier", tier) for tier in deployed.edge_tiers)]:
        if tier not in tiers:
            raise DeployError(f"{name} {tier}: the tiers of {plan.name} are {', '.join(tiers)}")
    if deployed.spools and deployed.settings.gateway_spool is None:
        raise DeployError(
            f"{plan.name} keeps requests on disk (`deliver: eventually`): name a PersistentVolumeClaim for them in "
            "kubernetes.yaml, gateway: {spool: CLAIM}"
        )
    _check_clusters(deployed)
    _check_replicas(deployed)
    require_devices(deployed.settings, deployed.groups)
    names = [deployed.set_name(group) for group in deployed.groups]
    if twice := {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set():
        raise DeployError(f"two pools become one name: {', '.join(sorted(twice))}; rename one of them")


def _check_clusters(deployed: DeployedPlan) -> None:
    """ClustersError if the clusters do not have each worker once, or cannot reach each other."""
    settings, plan = deployed.settings, deployed.plan
    if not settings.clusters:
        if settings.relay is not None:
            raise ClustersError("relay: only agents of other clusters need it: name clusters, or remove relay")
        return
    sites = [
        tier_at(plan.sites, tier, site) for tier, count in plan.sites.items() if count > 1 for site in range(count)
    ]
    check_clusters(settings.clusters, plan.tiers, sites)
    views = [deployed.in_cluster(name) for name in deployed.clusters]
    if not views[0].has_relay:
        return
    if settings.relay is None:
        where = ", ".join(view.cluster or "" for view in views[1:] if view.groups)
        raise ClustersError(
            f"relay: agents in {where} have to reach the gateway in {views[0].cluster}: write relay: {{address: "
            "HOST:PORT}, where they reach its cluster"
        )
    if settings.gateway_replicas > 1:
        raise ClustersError(
            f"gateway.replicas: agents in other clusters than {views[0].cluster} know only one gateway: write "
            "replicas: 1"
        )


def _check_replicas(deployed: DeployedPlan) -> None:
    """DeployError if several gateways cannot serve the plan, as only one of them would know of a request's past."""
    replicas = deployed.settings.gateway_replicas
    if not 1 <= replicas <= MAX_GATEWAYS:
        raise DeployError(f"gateway.replicas: {replicas} is not from 1 to {MAX_GATEWAYS}")
    if replicas == 1:
        return
    if deployed.spools:
        raise DeployError(
            f"gateway.replicas: {deployed.plan.name} keeps requests on disk (`deliver: eventually`), on a volume that "
            f"{replicas} gateways cannot share: write replicas: 1"
        )
    if stateful := next((operator.name for operator in deployed.plan.operators if operator.state), None):
        raise DeployError(
            f"gateway.replicas: {stateful} keeps a state by stream, and only the gateway at which a stream began knows "
            f"it, while a client's next connection may go to another one of {replicas}: write replicas: 1"
        )
