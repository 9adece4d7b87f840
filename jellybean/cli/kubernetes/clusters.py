"""The clusters that a project's kubernetes.yaml names, and what of its plan is deployed to each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jellybean.cli.kubernetes.deployed_project import deployed_project
from jellybean.cli.kubernetes.options import connect_to
from jellybean.errors import InputError
from jellybean.folders import state_folder

if TYPE_CHECKING:
    from jellybean.documents import AnyProject
    from jellybean.documents.kubernetes_clusters import ClusterSpec
    from jellybean_k8s import Cluster, ClusterPart, DeployedPlan

_MONITORING = "monitoring.coreos.com/v1"


def clusters_of(directory: Path) -> dict[str, ClusterSpec]:
    """The clusters that DIR/kubernetes.yaml names, the gateway's first; none without the file, or if it names none."""
    from jellybean.documents.kubernetes import KUBERNETES_FILE, load_kubernetes

    return load_kubernetes(directory).clusters_by_name if (directory / KUBERNETES_FILE).exists() else {}


def connect_to_deployment(
    specs: Mapping[str, ClusterSpec], kubeconfig: Path | None, context: str | None, namespace: str | None
) -> dict[str, Cluster]:
    """Connect to the clusters of a deployment, by their contexts; without any to the one that the options name.

    That one has no name. InputError if options name another context or namespace for several.
    """
    if not specs:
        return {"": connect_to(kubeconfig, context, namespace)}
    refuse_options_of_one(specs, context, namespace)
    return {name: connect_to(kubeconfig, spec.context or name, spec.namespace) for name, spec in specs.items()}


def refuse_options_of_one(specs: Mapping[str, ClusterSpec], context: str | None, namespace: str | None) -> None:
    """InputError if options name a context or namespace, and kubernetes.yaml names those of several clusters."""
    if not specs:
        return
    for option, value in (("--context", context), ("--namespace", namespace)):
        if value is not None:
            raise InputError(
                f"{option} {value}: kubernetes.yaml names the clusters {', '.join(specs)}, with a context and a "
                f"namespace each: leave {option} out"
            )


def require_clusters(specs: Mapping[str, ClusterSpec], *, skip_offline: bool) -> None:
    """InputError if an option is about several clusters, and there is one."""
    if skip_offline and not specs:
        raise InputError("--skip-offline is for several clusters; kubernetes.yaml names none")


def cluster_parts(
    project: AnyProject, clusters: Mapping[str, Cluster], certs: Path | None, *, what_if: bool
) -> list[ClusterPart]:
    """What of the project's plan is deployed to each cluster, with the Secrets of its certificates if there are any."""
    from jellybean_k8s import ClusterPart, render

    is_monitored = "" in clusters and clusters[""].serves(_MONITORING)
    whole = deployed_project(project, service_monitor=is_monitored, what_if=what_if)
    parts = []
    for name, cluster in clusters.items():
        view = whole.in_cluster(name, service_monitor=True) if name else whole  # left out where a cluster has none
        objects = (*_certificates(view, project.directory, certs), *render(view))
        parts.append(ClusterPart(name, cluster, view, objects))
    return parts


def _certificates(deployed: DeployedPlan, directory: Path, certs: Path | None) -> tuple[Any, ...]:
    """The Secrets of the plan's processes here, if certificates were made in `certs`, or in the project."""
    from jellybean_k8s import certificate_secrets

    folder = certs or state_folder(directory) / "certs"
    return certificate_secrets(deployed, folder) if certs is not None or (folder / "gateway").exists() else ()
