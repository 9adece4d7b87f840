"""Labels of a plan's objects, and the minimal ones that select its pods."""

from __future__ import annotations

from jellybean_k8s.manifests.deployed_plan import DeployedPlan
from jellybean_k8s.manifests.worker_groups import WorkerGroup
from jellybean_k8s.names import APP_PREFIX, FIELD_MANAGER, OWN_PREFIX, label_value


def labels(deployed: DeployedPlan, component: str, group: WorkerGroup | None = None) -> dict[str, str]:
    """Recommended Kubernetes labels and our own, for an object of this plan."""
    found = {
        f"{APP_PREFIX}/name": "jellybean",
        f"{APP_PREFIX}/instance": deployed.app,
        f"{APP_PREFIX}/component": component,
        f"{APP_PREFIX}/part-of": label_value(deployed.plan.name),
        f"{APP_PREFIX}/managed-by": FIELD_MANAGER,
        f"{APP_PREFIX}/version": label_value(deployed.settings.version),
        f"{OWN_PREFIX}/plan": deployed.id,
    }
    if group is not None:
        found |= {f"{OWN_PREFIX}/set": deployed.set_name(group), f"{OWN_PREFIX}/pool": label_value(group.pool)}
        found |= {f"{OWN_PREFIX}/tier": label_value(group.tier)}
        if group.site is not None:
            found[f"{OWN_PREFIX}/site"] = label_value(group.site)
    return found


def selector(deployed: DeployedPlan, component: str, group: WorkerGroup | None = None) -> dict[str, str]:
    """The minimal, immutable labels that select these pods."""
    found = {
        f"{APP_PREFIX}/instance": deployed.app,
        f"{APP_PREFIX}/component": component,
        f"{OWN_PREFIX}/plan": deployed.id,
    }
    return found | ({f"{OWN_PREFIX}/set": deployed.set_name(group)} if group is not None else {})


def plan_independent_labels(deployed: DeployedPlan, component: str) -> dict[str, str]:
    """Labels of objects that all plans of a deployment share."""
    return {key: value for key, value in labels(deployed, component).items() if key != f"{OWN_PREFIX}/plan"}
