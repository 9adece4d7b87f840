"""Which clusters have objects of a deployment, by its records, though kubernetes.yaml does not name them."""

from __future__ import annotations

from jellybean_k8s.cluster.named_clusters import forgotten_clusters
from jellybean_k8s.cluster.revisions import APPLYING, DEPLOYED, FAILED, REPLACED, Revision


def revision(number: int, state: str, *clusters: str) -> Revision:
    return Revision(number, "hash", "id", state, "2026-01-01T00:00:00+00:00", 1.0, None, (), clusters)


def test_revisions_before_the_one_that_serves_do_not_count() -> None:
    """Neither in a cluster that was away, and has recorded nothing since."""
    cloud = [revision(1, REPLACED, "cloud", "edge", "fog"), revision(2, DEPLOYED, "cloud", "edge")]
    edge = [revision(1, DEPLOYED, "cloud", "edge", "fog")]
    assert forgotten_clusters([cloud, edge], {"cloud", "edge"}) == {}
    assert forgotten_clusters([cloud, edge], {"cloud"}) == {"edge": 2}


def test_revisions_that_never_served_count_with_the_newest() -> None:
    cloud = [revision(1, DEPLOYED, "cloud"), revision(2, FAILED, "cloud", "fog"), revision(3, APPLYING, "cloud", "fog")]
    assert forgotten_clusters([cloud], {"cloud"}) == {"fog": 3}
    assert forgotten_clusters([cloud[1:]], {"cloud"}) == {"fog": 3}
