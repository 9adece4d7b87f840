"""Rolling back without the clusters that are away, and what is told when one is lost in mid-step."""

from __future__ import annotations

import dataclasses

import pytest

from jellybean_k8s import DeployError, LockedError, UnreachableError, undeploy_parts
from jellybean_k8s.cluster.several import members as members_module
from jellybean_k8s.cluster.several.members import Members
from tests.k8s_sites import ID, OTHER_ID, Sites
from tests.k8s_target import OTHER, QUICK


def test_a_rollback_leaves_out_what_is_away_and_is_caught_up(sites: Sites) -> None:
    sites.deploy()
    sites.deploy(OTHER)
    sites.edge.leave()
    assert sites.rollback(skip_offline=True) == {"cloud": 3}
    assert sites.told[1:] == [
        "edge is left out",
        "run `jellybean rollback --revision 3` when edge is back: it brings it up to date",
    ]
    assert sites.serving() == ID
    sites.edge.come_back()
    assert sites.status().problems == (
        "edge: revision 2 serves, behind revision 3 of cloud: run `jellybean rollback --revision 3`",
    )
    sites.cloud.target.writes()
    assert sites.rollback(3) == {"cloud": None, "edge": 3}
    assert sites.cloud.target.writes() == []
    assert sites.edge.plans() == {ID}
    assert sites.well()


def test_a_rollback_never_leaves_out_the_gateways_cluster(sites: Sites) -> None:
    sites.deploy()
    sites.deploy(OTHER)
    sites.cloud.leave()
    sites.pass_deadline_when_told(sites.cloud, "cloud does not answer")
    with pytest.raises(UnreachableError, match="cloud has not answered"):
        sites.rollback(skip_offline=True)
    assert sites.edge.plans() == {OTHER_ID}


@pytest.mark.slow
def test_a_rollback_is_continued_by_a_revision_that_exists(sites: Sites) -> None:
    """Though the gateway's cluster is lost while the new revision is recorded."""
    sites.deploy()
    sites.deploy(OTHER)

    def lost(method: str, path: str) -> int | None:
        return 503 if method == "PATCH" and path.endswith("/digits-inventory") else None

    sites.cloud.target.wire.fault = lost
    sites.pass_deadline_when_told(sites.cloud, "cloud does not answer")
    with pytest.raises(UnreachableError, match=r"run `jellybean rollback --revision 1` again"):
        sites.rollback()
    assert sites.cloud.states() == [(1, "replaced"), (2, "deployed")]
    sites.cloud.target.wire.fault = None
    for site in (sites.cloud, sites.edge):
        site.expire_lock()
    assert set(sites.rollback(1).values()) == {4}


def test_a_lost_answer_to_deleting_the_lock_is_no_lost_lock(sites: Sites) -> None:
    sites.deploy()
    other = sites.edge.target.another_client()

    def lose(method: str, path: str) -> int | None:
        if method != "DELETE" or not path.endswith("/leases/digits-deploy"):
            return None
        for item in other.list("Lease"):
            other.delete("Lease", item["metadata"]["name"], item["metadata"]["uid"])
        return 503

    def tell(text: str) -> None:
        if text.startswith("edge does not answer"):
            sites.edge.target.wire.fault = None
            sites.edge.pass_time(20.0)

    sites.on_say, sites.edge.target.wire.fault = tell, lose
    assert set(undeploy_parts(sites.clusters, "digits", sites.options(QUICK))) == {"cloud", "edge"}
    assert any(text.startswith("edge answers again") for text in sites.told)
    assert not sites.edge.target.names("ConfigMap") | sites.edge.target.names("Lease")


def test_the_timeout_that_was_given_is_told_when_pods_stay(sites: Sites) -> None:
    sites.deploy()
    pod = next(iter(sites.edge.cluster.list("Pod")))
    own = {"apiVersion": "v1", "kind": "Pod", "spec": pod["spec"]}
    sites.edge.cluster.create(own | {"metadata": {"name": "stays", "labels": pod["metadata"]["labels"]}})
    with pytest.raises(DeployError, match=r"edge: 1 pods of digits are still there after 1 s; run it again"):
        undeploy_parts(sites.clusters, "digits", dataclasses.replace(QUICK, timeout_s=1.0))


def test_a_lock_that_is_lost_as_a_step_begins_ends_it(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    with Members(sites.clusters, "digits", QUICK) as members:
        real = members_module.threading.Event

        def begin() -> object:  # the step's event is made after the look at the locks, or before it
            members["edge"].lost_lock = LockedError("another process took over")
            return real()

        monkeypatch.setattr(members_module.threading, "Event", begin)
        taken: list[str] = []
        outcome = members.run(lambda member: taken.append(member.name), [members["cloud"]], together=True)
        monkeypatch.undo()
    assert taken == []
    assert set(outcome.errors) == {"edge"}
