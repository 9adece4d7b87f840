"""Compares a plan over several clusters with what is deployed there, by server-side dry runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from jellybean_k8s.cluster.cluster import is_unavailable
from jellybean_k8s.cluster.deploy import dry_run
from jellybean_k8s.cluster.several.checks import supported_objects
from jellybean_k8s.cluster.several.member import reason_of
from jellybean_k8s.cluster.several.members import AWAY_S
from jellybean_k8s.cluster.several.parts import ClusterPart
from jellybean_k8s.errors import DeployError
from jellybean_k8s.objects import KubeObject

ChangedPairs = list[tuple[KubeObject | None, KubeObject | None]]  # before, after; as of `dry_run`


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A cluster that does not answer now (`is_away`), or that refused the dry run."""

    reason: str
    is_away: bool


def dry_run_parts(parts: Sequence[ClusterPart], *, force: bool = False) -> Mapping[str, ChangedPairs | NotCompared]:
    """What deploying would change in each cluster, as `dry_run`, or why that is not known."""

    def compare(part: ClusterPart) -> ChangedPairs | NotCompared:
        cluster = replace(part.cluster, patience_s=min(part.cluster.patience_s, AWAY_S))
        try:
            return dry_run(cluster, part.deployed, supported_objects(cluster, part.objects), force=force)
        except DeployError as error:
            return NotCompared(reason_of(error), is_unavailable(error))

    with ThreadPoolExecutor(len(parts), thread_name_prefix="cluster") as pool:
        return dict(zip((part.name for part in parts), pool.map(compare, parts), strict=True))
