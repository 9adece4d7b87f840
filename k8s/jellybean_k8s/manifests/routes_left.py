"""Whether a plan serves anything without the workers of some clusters. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from jellybean_k8s.manifests.deployed_plan import DeployedPlan


def has_route_in(views: Iterable[DeployedPlan]) -> bool:
    """True if some route has all of its workers in these clusters of a plan, of a tier with sites in some site.

    A gateway is ready only with such a route. Whether one site has all of them is not asked.
    """
    views = tuple(views)
    workers = (worker for view in views for group in view.groups for worker in group.workers)
    there = {worker.rpartition("/")[2] for worker in workers}  # without the site's name
    return any(there.issuperset(route.workers.values()) for view in views[:1] for route in view.plan.routes)
