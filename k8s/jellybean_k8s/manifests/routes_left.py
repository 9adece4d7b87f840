"""Whether a plan serves anything without the workers of some clusters. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from jellybean_k8s.manifests.deployed_plan import DeployedPlan


def has_route_in(deployed: DeployedPlan, clusters: Iterable[str]) -> bool:
    """True if some route has all of its workers in these clusters, of a tier with sites in some site.

    A gateway is ready only with such a route. Whether one site has all of them is not asked.
    """
    there: set[str] = set()
    for cluster in clusters:
        for group in deployed.in_cluster(cluster).groups:
            there.update(worker.rpartition("/")[2] for worker in group.workers)  # without the site's name
    return any(there.issuperset(route.workers.values()) for route in deployed.plan.routes)
