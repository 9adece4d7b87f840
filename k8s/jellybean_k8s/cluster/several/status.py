"""Reads the status of a deployment over several clusters."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from jellybean_k8s.cluster.cluster import Cluster, UnreachableError, is_unavailable
from jellybean_k8s.cluster.named_clusters import forgotten_clusters, forgotten_lines
from jellybean_k8s.cluster.revisions import DEPLOYED, REPLACED
from jellybean_k8s.cluster.several.members import AWAY_S
from jellybean_k8s.cluster.status import DeploymentStatus, read_status
from jellybean_k8s.errors import DeployError, NotDeployedError


@dataclass(frozen=True)
class PartsStatus:
    """Status of a deployment by cluster, the gateway's first; or the error why it cannot be read."""

    parts: Mapping[str, DeploymentStatus | DeployError]

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each cluster that cannot be read, whose plan is not the gateway's, or that is not among these."""
        lines = []
        gateway = next(iter(self.parts))
        for name, status in self.parts.items():
            if isinstance(status, DeployError) and is_unavailable(status):
                reason = status.reason if isinstance(status, UnreachableError) else status
                lines.append(f"{name} does not answer: {reason}")
            elif isinstance(status, DeployError):
                lines.append(f"{name}: {status}")
            elif behind := _behind(status, gateway, self.parts[gateway]):
                lines.append(f"{name}: {behind}")
        records = (one.revisions for one in self.parts.values() if isinstance(one, DeploymentStatus))
        return (*lines, *forgotten_lines(forgotten_clusters(records, self.parts)))

    @property
    def is_well(self) -> bool:
        """True if every cluster is well, and all serve the same plan."""
        return not self.problems and all(
            isinstance(status, DeploymentStatus) and status.is_well for status in self.parts.values()
        )


def read_statuses(clusters: Mapping[str, Cluster], app: str, *, now_unix_s: float | None = None) -> PartsStatus:
    """The status in each cluster; the first is the gateway's. NotDeployedError if nothing is deployed in any."""

    def read(cluster: Cluster) -> DeploymentStatus | DeployError:
        try:
            impatient = replace(cluster, patience_s=min(cluster.patience_s, AWAY_S))
            return read_status(impatient, app, now_unix_s=now_unix_s, is_only=False)
        except DeployError as error:
            return error

    with ThreadPoolExecutor(len(clusters), thread_name_prefix="cluster") as pool:
        parts = dict(zip(clusters, pool.map(read, clusters.values()), strict=True))
    if all(isinstance(status, NotDeployedError) for status in parts.values()):
        raise NotDeployedError(f"nothing of {app} is deployed in {', '.join(clusters)}")
    return PartsStatus(parts)


def _behind(status: DeploymentStatus, gateway: str, of_gateway: DeploymentStatus | DeployError) -> str:
    """What keeps a cluster from serving the plan of the gateway's; empty if nothing does, or that is not known."""
    current = of_gateway.current if isinstance(of_gateway, DeploymentStatus) else None
    if current is None or status.serving == current.served or status is of_gateway:
        return ""
    served = any(
        one.served == current.served and one.number < current.number and one.state in (DEPLOYED, REPLACED)
        for one in status.revisions
    )  # so this is where clients were rolled back to while it was away, and deploying may bring another plan
    again = f"run `jellybean rollback --revision {current.number}`" if served else "run `jellybean deploy` again"
    if status.current is None:
        return f"no revision serves, revision {current.number} of {gateway} does: {again}"
    return f"revision {status.current.number} serves, behind revision {current.number} of {gateway}: {again}"
