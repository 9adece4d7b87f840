"""Clusters that kubernetes.yaml names, or does not name any more, beside those that revisions ran in."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from jellybean_k8s import (
    ClusterPart,
    DeployError,
    NotReadyError,
    deploy_parts,
    deployed_plan,
    read_inventory,
    read_status,
    read_statuses,
    rollback,
    rollback_parts,
    undeploy,
    undeploy_parts,
)
from jellybean_solver import Plan
from tests.k8s_sites import ID, OTHER_ID, Sites
from tests.k8s_target import OTHER, PLAN, QUICK, SETTINGS

IN_PLACE = dataclasses.replace(QUICK, in_place=True)


def only_cloud(sites: Sites, plan: Plan = PLAN) -> list[ClusterPart]:
    """All of a plan in the cluster `cloud`, which is the only one that kubernetes.yaml names."""
    objects = sites.cloud.target.objects(plan)
    return [ClusterPart("cloud", sites.cloud.cluster, deployed_plan(plan, SETTINGS), objects)]


def emptied(sites: Sites, plan: Plan = OTHER) -> list[ClusterPart]:
    """The edge has no tiers any more."""
    return [*only_cloud(sites, plan), dataclasses.replace(sites.parts(plan)[1], objects=())]


def recorded(cluster: Any) -> list[tuple[str, ...]]:
    return [one.clusters for one in read_inventory(cluster, "digits").revisions]


@pytest.mark.slow
def test_a_revision_has_the_names_of_its_clusters(sites: Sites) -> None:
    sites.deploy()
    deploy_parts(emptied(sites), QUICK)
    sites.rollback()
    expected = [("cloud", "edge"), ("cloud",), ("cloud", "edge")]
    assert recorded(sites.cloud.cluster) == recorded(sites.edge.cluster) == expected
    sites.edge.leave()
    sites.deploy(OTHER, skip_offline=True)
    assert recorded(sites.cloud.cluster)[-1] == ("cloud", "edge")


def test_the_only_cluster_has_no_name(sites: Sites) -> None:
    sites.cloud.target.deploy()
    assert recorded(sites.cloud.cluster) == [()]


def test_revisions_of_earlier_versions_name_no_clusters(sites: Sites) -> None:
    sites.deploy()
    found = sites.cloud.cluster.get("ConfigMap", "digits-inventory")
    state = json.loads(found["data"]["inventory.json"])
    for one in state["revisions"]:
        del one["clusters"]
    sites.cloud.cluster.merge("ConfigMap", "digits-inventory", {"data": {"inventory.json": json.dumps(state)}})
    assert recorded(sites.cloud.cluster) == [()]


def test_a_revision_that_also_ran_elsewhere_is_not_returned_to(sites: Sites) -> None:
    sites.deploy()
    deploy_parts(emptied(sites), QUICK)
    sites.writes()
    words = r"revision 1 also ran in edge: write it into kubernetes.yaml \(clusters\), as it was then"
    with pytest.raises(DeployError, match=words):
        rollback_parts({"cloud": sites.cloud.cluster}, "digits", options=QUICK)
    with pytest.raises(DeployError, match=words):
        rollback(sites.cloud.cluster, "digits", options=QUICK)
    assert sites.writes() == []
    assert sites.serving() == OTHER_ID


@pytest.mark.slow
@pytest.mark.parametrize("is_named", [True, False])
def test_a_cluster_that_a_revision_did_not_have_is_emptied(sites: Sites, is_named: bool) -> None:
    """Named alone before, or without a name."""
    if is_named:
        deploy_parts(only_cloud(sites), QUICK)
    else:
        sites.cloud.target.deploy()
    sites.deploy(OTHER)
    assert sites.edge.plans() == {OTHER_ID}
    assert sites.rollback() == {"cloud": 3, "edge": 3}
    assert sites.serving() == ID
    assert sites.edge.target.names("StatefulSet") == set()
    assert recorded(sites.cloud.cluster)[-1] == recorded(sites.edge.cluster)[-1] == ("cloud",)
    assert sites.well()
    assert sites.rollback(2) == {"cloud": 4, "edge": 4}
    assert sites.edge.plans() == {OTHER_ID}


UNNAMED: dict[str, Callable[[Sites], object]] = {
    "deploy of several": lambda sites: deploy_parts(only_cloud(sites, OTHER), QUICK),
    "rollback of several": lambda sites: rollback_parts({"cloud": sites.cloud.cluster}, "digits", 1, QUICK),
    "undeploy of several": lambda sites: undeploy_parts({"cloud": sites.cloud.cluster}, "digits", QUICK),
    "deploy of one": lambda sites: sites.cloud.target.deploy(OTHER),
    "rollback of one": lambda sites: rollback(sites.cloud.cluster, "digits", 1, QUICK),
    "undeploy of one": lambda sites: undeploy(sites.cloud.cluster, "digits", QUICK),
    "undeploy of the other": lambda sites: undeploy(sites.edge.cluster, "digits", QUICK),
}


EACH_CHANGE = {"deploy of one", "rollback of several", "undeploy of the other"}  # those of `make test`


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=() if what in EACH_CHANGE else pytest.mark.slow) for what in UNNAMED]
)
def test_a_cluster_with_objects_that_is_not_named_is_told(sites: Sites, what: str) -> None:
    sites.deploy()
    sites.writes()
    with pytest.raises(DeployError) as caught:
        UNNAMED[what](sites)
    text = str(caught.value)
    assert "edge has objects of revision 1, and kubernetes.yaml does not name it: write it " in text
    assert "`edge: {context: ...}` in clusters" in text
    assert sites.writes() == []
    assert not sites.cloud.target.cluster.get("Lease", "digits-deploy")["spec"].get("holderIdentity")


def test_status_tells_of_a_cluster_that_is_not_named(sites: Sites) -> None:
    sites.deploy()
    assert sites.well()
    statuses = read_statuses({"cloud": sites.cloud.cluster}, "digits")
    (line,) = statuses.problems
    assert line.startswith("edge has objects of revision 1, and kubernetes.yaml does not name it: write it with no ")
    assert not statuses.is_well
    status = read_status(sites.cloud.cluster, "digits")
    assert status.problems == (line,)
    assert not status.is_well


@pytest.mark.slow
def test_a_cluster_that_was_emptied_need_not_be_named(sites: Sites) -> None:
    sites.deploy()
    deploy_parts(emptied(sites), QUICK)
    assert read_status(sites.cloud.cluster, "digits").problems == ()
    assert deploy_parts(only_cloud(sites, OTHER), QUICK)["cloud"].number is None
    assert sites.cloud.target.deploy(PLAN).number == 3
    assert recorded(sites.cloud.cluster) == [("cloud", "edge"), ("cloud",), ()]
    undeploy(sites.cloud.cluster, "digits", QUICK)


@pytest.mark.slow
def test_a_cluster_of_a_revision_that_did_not_become_ready_is_told_too(sites: Sites) -> None:
    deploy_parts(only_cloud(sites), QUICK)
    sites.edge.target.broken.add(OTHER_ID)

    def watch(label: str) -> None:
        if label == "cloud: ready":
            sites.edge.pass_time(1000.0)

    sites.on_progress = watch
    with pytest.raises(NotReadyError):
        sites.deploy(OTHER)
    with pytest.raises(DeployError, match="edge has objects of revision 2"):
        deploy_parts(only_cloud(sites), QUICK)


def moved(sites: Sites) -> list[ClusterPart]:
    """The gateway is in the edge's cluster now."""
    cloud, edge = sites.parts(OTHER)
    objects = sites.edge.target.objects(OTHER)
    kept = [item for item in cloud.objects if item["kind"] not in ("Deployment", "Service", "Secret")]
    return [dataclasses.replace(edge, objects=objects), dataclasses.replace(cloud, objects=kept)]


def test_the_gateway_moves_only_in_place(sites: Sites) -> None:
    sites.deploy()
    sites.writes()
    with pytest.raises(DeployError, match=r"the gateway would move from cloud to edge.*Service digits in cloud"):
        deploy_parts(moved(sites), QUICK)
    assert sites.writes() == []
    deploy_parts(moved(sites), IN_PLACE)
    assert sites.cloud.cluster.get("Service", "digits") is None
    assert sites.edge.cluster.get("Service", "digits") is not None
    clusters = {"edge": sites.edge.cluster, "cloud": sites.cloud.cluster}
    with pytest.raises(DeployError, match=r"edge: the gateway of revision 1 was in cloud: write its gateway\.tier"):
        rollback_parts(clusters, "digits", 1, IN_PLACE)
    with pytest.raises(DeployError, match=r"the gateway would move from edge to cloud"):
        sites.rollback(1)
    assert sites.rollback(1, IN_PLACE) == {"cloud": 3, "edge": 3}
    assert sites.well()
