"""One plan over two clusters: workers at the edge in one, the rest with the gateway in the other."""

from __future__ import annotations

import dataclasses

import pytest

from jellybean_k8s import (
    DeployError,
    DeploymentStatus,
    NotDeployedError,
    NotReadyError,
    PreflightError,
    deploy_parts,
    rollback_parts,
    undeploy_parts,
)
from tests.k8s_sites import ID, OTHER_ID, UNDO, Sites
from tests.k8s_target import OTHER, PLAN, QUICK


def test_a_plan_is_deployed_over_both_clusters_and_then_left_alone(sites: Sites) -> None:
    assert sites.deploy() == {"cloud": 1, "edge": 1}
    assert sites.serving() == ID
    assert sites.edge.target.names("Deployment") == set()
    assert {name for name in sites.edge.target.names("StatefulSet") if "edge-box" not in name} == set()
    assert not any("edge-box" in name for name in sites.cloud.target.names("StatefulSet"))
    status = sites.well()
    assert [found.serving for found in status.parts.values() if isinstance(found, DeploymentStatus)] == [ID, ID]
    sites.writes()
    assert sites.deploy() == {"cloud": None, "edge": None}
    assert sites.writes() == []


def test_clients_are_switched_when_all_clusters_are_ready_and_then_the_old_plan_is_pruned(sites: Sites) -> None:
    sites.deploy()
    seen: list[tuple[str, set[str], set[str]]] = []

    def watch(label: str) -> None:
        if label == "cloud: ready":  # while the edge's pods are not
            seen.append((sites.serving(), sites.cloud.plans(), sites.edge.plans()))
            sites.edge.target.idle = False

    sites.on_progress = watch
    sites.edge.target.idle = True
    assert sites.deploy(OTHER) == {"cloud": 2, "edge": 2}
    assert seen
    assert all(serving == ID and ID in cloud and ID in edge for serving, cloud, edge in seen)
    assert sites.serving() == OTHER_ID
    assert sites.cloud.plans() == sites.edge.plans() == {OTHER_ID}
    assert sites.cloud.states() == sites.edge.states() == [(1, "replaced"), (2, "deployed")]


def test_both_clusters_are_rolled_back(sites: Sites) -> None:
    with pytest.raises(NotDeployedError, match="cloud, the gateway's cluster"):
        rollback_parts(sites.clusters, "digits", options=QUICK)
    sites.deploy()
    sites.deploy(OTHER)
    back = rollback_parts(sites.clusters, "digits", options=QUICK)
    assert {name: found.number for name, found in back.items()} == {"cloud": 3, "edge": 3}
    assert sites.serving() == ID
    assert sites.edge.plans() == {ID}
    assert sites.well()
    assert sites.deploy() == {"cloud": None, "edge": None}


def test_a_revision_that_one_cluster_lacks_is_told_before_anything_is_changed(sites: Sites) -> None:
    sites.edge.leave()
    sites.deploy(skip_offline=True)
    sites.edge.come_back()
    sites.deploy(OTHER)
    sites.writes()
    with pytest.raises(DeployError, match="edge has no revision of the plan of revision 1 of cloud"):
        rollback_parts(sites.clusters, "digits", 1, QUICK)
    assert sites.writes() == []


def test_both_clusters_are_emptied_the_gateway_first(sites: Sites) -> None:
    with pytest.raises(NotDeployedError, match="nothing of digits is deployed in cloud, edge"):
        undeploy_parts(sites.clusters, "digits", QUICK)
    with pytest.raises(NotDeployedError, match="nothing of digits is deployed in cloud, edge"):
        sites.status()
    sites.deploy()
    gone = undeploy_parts(sites.clusters, "digits", QUICK)
    assert gone["cloud"][0][0] == "Service"
    kinds = ("StatefulSet", "Deployment", "Service", "ConfigMap", "Secret", "ServiceAccount", "NetworkPolicy", "Lease")
    for site in (sites.cloud, sites.edge):
        assert not any(site.target.names(kind) for kind in (*kinds, "Pod"))


def test_problems_of_all_clusters_are_told_together_before_anything_is_applied(sites: Sites) -> None:
    for site, name in ((sites.cloud, "big"), (sites.edge, "box-a"), (sites.edge, "box-b")):
        site.target.remove_node(name)
    with pytest.raises(PreflightError) as caught:
        sites.deploy()
    text = str(caught.value)
    assert text.startswith("nothing was applied:\n")
    for name in ("cloud", "edge"):
        assert f"\n  {name}: " in text
        assert f"no node that takes pods has jellybean.dev/tier={name}" in text
    assert sites.writes() == []
    assert not sites.cloud.target.names("Lease") | sites.edge.target.names("Lease")


def test_the_budget_is_told_once(sites: Sites) -> None:
    plan = dataclasses.replace(PLAN, slo=dataclasses.replace(PLAN.slo, budget_usd_per_h=1e-6))
    with pytest.raises(PreflightError) as caught:
        sites.deploy(plan)
    assert str(caught.value).count("plan again") == 1


def test_what_changed_in_one_cluster_is_repaired_under_a_new_number_for_both(sites: Sites) -> None:
    sites.deploy()
    (name,) = sites.edge.target.names("Service")
    sites.edge.target.drop("Service", name)
    assert sites.deploy() == {"cloud": 2, "edge": 2}
    assert sites.well()


@pytest.mark.slow
def test_pods_that_do_not_come_up_are_undone_in_both_clusters(sites: Sites) -> None:
    sites.deploy()
    sites.edge.target.broken.add(OTHER_ID)

    def watch(label: str) -> None:
        if label == "cloud: ready":
            sites.edge.pass_time(1000.0)

    sites.on_progress = watch
    with pytest.raises(NotReadyError) as caught:
        sites.deploy(OTHER)
    assert str(caught.value).startswith(f"edge: not ready after {QUICK.timeout_s:g} s, ")
    assert {kind for kind, _ in caught.value.missing} == {"StatefulSet"}
    assert sites.cloud.states() == sites.edge.states() == [(1, "deployed"), (2, "failed")]
    assert sites.serving() == ID
    with pytest.raises(DeployError) as undone:
        sites.deploy(OTHER, UNDO)
    for name in ("cloud", "edge"):
        assert f"\n{name}: revision 1 serves as before: the new objects were deleted" in str(undone.value)
    assert sites.cloud.plans() == sites.edge.plans() == {ID}
    sites.edge.target.broken.clear()
    assert sites.deploy(OTHER) == {"cloud": 4, "edge": 4}
    assert sites.well()


def test_what_all_clusters_lack_at_the_deadline_is_told(sites: Sites) -> None:
    for site in (sites.cloud, sites.edge):
        site.target.broken.add(ID)

    def watch(label: str) -> None:
        if "pods are available" in label or "newest revision" in label:
            sites.cloud.pass_time(1000.0)
            sites.edge.pass_time(1000.0)

    sites.on_progress = watch
    with pytest.raises(NotReadyError) as caught:
        sites.deploy()
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines if "not ready after" in line] == ["cloud", "edge"]


@pytest.mark.slow
def test_in_place_the_running_plan_leaves_both_clusters_first(sites: Sites) -> None:
    sites.deploy()
    sites.told.clear()
    seen: list[set[str]] = []

    def watch(label: str) -> None:
        if label.startswith("edge: StatefulSet/"):
            seen.append(sites.edge.plans())

    sites.on_progress = watch
    assert sites.deploy(OTHER, dataclasses.replace(QUICK, in_place=True)) == {"cloud": 2, "edge": 2}
    assert all(plans == {OTHER_ID} for plans in seen)
    assert sorted(text.split(":")[0] for text in sites.told) == ["cloud", "edge"]
    assert sites.well()


@pytest.mark.slow
def test_a_cluster_without_workers_of_the_new_plan_is_emptied_and_goes_on(sites: Sites) -> None:
    sites.deploy()
    cloud, edge = sites.parts(OTHER)
    found = deploy_parts([cloud, dataclasses.replace(edge, objects=())], QUICK)
    assert {name: one.number for name, one in found.items()} == {"cloud": 2, "edge": 2}
    assert sites.edge.target.names("StatefulSet") == set()
    assert sites.well()
    assert sites.deploy(OTHER) == {"cloud": 3, "edge": 3}


def test_two_parts_in_one_namespace_are_refused(sites: Sites) -> None:
    cloud, edge = sites.parts()
    with pytest.raises(DeployError, match="cloud and edge are the same namespace of one cluster"):
        deploy_parts([cloud, dataclasses.replace(edge, cluster=cloud.cluster)], QUICK)
