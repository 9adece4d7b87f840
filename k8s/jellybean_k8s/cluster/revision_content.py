"""What a revision brings to a cluster: of a plan to deploy, or of an earlier revision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jellybean_k8s.cluster.revisions import Revision
from jellybean_k8s.cluster.secrets import secret_names
from jellybean_k8s.manifests.deployed_plan import DeployedPlan
from jellybean_k8s.objects import KubeObject
from jellybean_solver import to_document


@dataclass(frozen=True, slots=True)
class RevisionContent:
    """Objects and record of a revision in a cluster. `plan`, `served`, `secrets` and `clusters` as of `Revision`."""

    objects: tuple[KubeObject, ...]
    plan: str
    served: str
    cost_usd_per_h: float
    accuracy: float | None
    secrets: tuple[str, ...] | None
    clusters: tuple[str, ...] = ()

    @classmethod
    def of_plan(
        cls, deployed: DeployedPlan, objects: Sequence[KubeObject], clusters: tuple[str, ...] = ()
    ) -> RevisionContent:
        """A plan with its objects in this cluster."""
        plan = deployed.plan
        digest, cost = str(to_document(plan)["hash"]), plan.cost.total_usd_per_h
        return cls(tuple(objects), digest, deployed.id, cost, plan.accuracy, secret_names(objects), clusters)

    @classmethod
    def of_revision(
        cls, revision: Revision, manifests: Sequence[KubeObject], clusters: tuple[str, ...] = ()
    ) -> RevisionContent:
        """An earlier revision."""
        cost, accuracy = revision.cost_usd_per_h, revision.accuracy
        return cls(tuple(manifests), revision.plan, revision.served, cost, accuracy, revision.secrets, clusters)

    @classmethod
    def nothing_of(cls, revision: Revision, clusters: tuple[str, ...]) -> RevisionContent:
        """An earlier revision in a cluster where it has no objects."""
        return replace(cls.of_revision(revision, (), clusters), secrets=())
