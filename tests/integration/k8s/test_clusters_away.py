"""Clusters of a plan that are away for a while, locks that are lost, and what the next run makes of it."""

from __future__ import annotations

import dataclasses
import re

import pytest

from jellybean_k8s import DeployError, DeployLock, LockedError, NotReadyError, UnreachableError, undeploy_parts
from jellybean_k8s.cluster.several.common_rollout import PartlyDeployedError
from tests.k8s_sites import ID, OTHER_ID, UNDO, Sites
from tests.k8s_target import OTHER, PLAN, QUICK


def test_a_cluster_that_is_away_is_emptied_by_the_next_run(sites: Sites) -> None:
    sites.deploy()
    sites.edge.leave()
    with pytest.raises(UnreachableError, match=r"^edge has not answered .*stays; run `jellybean undeploy` again"):
        undeploy_parts(sites.clusters, "digits", QUICK)
    assert sites.cloud.target.names("ConfigMap") == set()
    with pytest.raises(UnreachableError, match="edge has not answered"):
        undeploy_parts(sites.clusters, "digits", QUICK)
    sites.edge.come_back()
    assert set(undeploy_parts(sites.clusters, "digits", QUICK)) == {"edge"}
    assert sites.edge.target.names("ConfigMap") == set()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refused", "503"])
def test_a_cluster_that_is_away_for_a_while_is_waited_for_while_the_other_goes_on(sites: Sites, how: str) -> None:
    sites.deploy()
    ready: list[str] = []

    def watch(label: str) -> None:
        if label.startswith("edge: StatefulSet/") and not sites.told:
            if how == "refused":
                sites.edge.leave()
            else:
                sites.edge.target.wire.fault = lambda _method, path: 503 if "/pods/" not in path else None
        if label == "cloud: ready":
            ready.append(sites.serving())
            sites.edge.come_back()
            sites.edge.target.wire.fault = None

    def tell(text: str) -> None:
        sites.cloud.target.idle = False

    sites.on_say = tell
    sites.cloud.target.idle = True
    sites.on_progress = watch
    assert sites.deploy(OTHER) == {"cloud": 2, "edge": 2}
    assert set(ready) == {ID}
    (gone,) = [text for text in sites.told if "does not answer" in text]
    (back,) = [text for text in sites.told if "answers again" in text]
    assert gone.startswith("edge does not answer (")
    assert back.startswith("edge answers again, after ")
    assert sites.serving() == OTHER_ID
    assert sites.well()


@pytest.mark.slow
def test_a_cluster_that_is_away_until_the_deadline_keeps_clients_on_the_running_plan(sites: Sites) -> None:
    sites.deploy()

    def watch(label: str) -> None:
        if label.startswith("edge: StatefulSet/"):
            sites.edge.leave()

    sites.on_progress = watch
    sites.pass_deadline_when_told(sites.edge, "edge does not answer")
    with pytest.raises(UnreachableError) as caught:
        sites.deploy(OTHER)
    text = str(caught.value)
    assert re.match(r"edge has not answered for 1\d{3} s \(", text)  # the jump of the clock, and what really passed
    assert "clients were not switched: revision 1 serves as before; run `jellybean deploy` again" in text
    assert sites.serving() == ID
    assert sites.cloud.plans() == {ID, OTHER_ID}
    sites.on_progress = lambda label: None
    sites.edge.come_back()
    sites.edge.expire_lock()
    assert sites.deploy(OTHER) == {"cloud": 3, "edge": 3}
    assert sites.serving() == OTHER_ID
    assert sites.well()


def test_a_cluster_that_is_away_after_the_switch_is_told_and_pruned_by_the_next_run(sites: Sites) -> None:
    sites.deploy()

    def watch(label: str) -> None:
        if label == "cloud: Service/digits":
            sites.edge.leave()

    sites.on_progress = watch
    sites.pass_deadline_when_told(sites.edge, "edge does not answer")
    with pytest.raises(PartlyDeployedError) as caught:
        sites.deploy(OTHER)
    text = str(caught.value)
    assert "edge has not answered" in text
    assert "clients are served by revision 2; objects of the plan before are still in edge: run" in text
    assert {name: found.number for name, found in caught.value.results.items()} == {"cloud": 2}
    assert sites.serving() == OTHER_ID
    status = sites.status()
    assert status.problems[0].startswith("edge does not answer: ")
    sites.on_progress = lambda label: None
    sites.edge.come_back()
    sites.edge.expire_lock()
    assert sites.edge.plans() == {ID, OTHER_ID}
    assert sites.edge.states() == [(1, "deployed"), (2, "applying")]
    assert sites.status().problems == (
        "edge: revision 1 serves, behind revision 2 of cloud: run `jellybean deploy` again",
    )
    sites.cloud.target.writes()
    assert sites.deploy(OTHER) == {"cloud": None, "edge": 2}
    assert sites.cloud.target.writes() == []
    assert sites.edge.plans() == {OTHER_ID}
    assert sites.well()


@pytest.mark.slow
def test_a_cluster_that_was_left_out_catches_up_under_the_same_number(sites: Sites) -> None:
    sites.deploy()
    sites.edge.leave()
    sites.pass_deadline_when_told(sites.edge, "edge does not answer")
    with pytest.raises(UnreachableError, match="nothing was applied; run `jellybean deploy` again"):
        sites.deploy(OTHER)
    for plan in (OTHER, PLAN, OTHER):
        assert set(sites.deploy(plan, skip_offline=True)) == {"cloud"}
    assert sites.told[-1] == "edge is left out: run `jellybean deploy` again when it is back"
    sites.edge.come_back()
    assert not sites.status().is_well
    sites.cloud.target.writes()
    assert sites.deploy(OTHER) == {"cloud": None, "edge": 4}
    assert sites.cloud.target.writes() == []
    assert sites.edge.states() == [(1, "replaced"), (4, "deployed")]
    assert sites.well()
    assert sites.deploy(PLAN) == {"cloud": 5, "edge": 5}


def test_the_gateways_cluster_is_never_left_out(sites: Sites) -> None:
    sites.cloud.leave()
    sites.pass_deadline_when_told(sites.cloud, "cloud does not answer")
    with pytest.raises(UnreachableError, match="cloud has not answered"):
        sites.deploy(skip_offline=True)
    assert sites.edge.target.writes() == []


def test_the_lock_of_another_in_one_cluster_stops_both(sites: Sites) -> None:
    with DeployLock(sites.edge.cluster, "digits"):
        later = iter(range(10**9))  # the holder renews for ever, and time passes quickly
        sites.edge.cluster.clock = lambda: 10.0 * next(later)
        sites.edge.cluster.sleep = lambda seconds: None
        with pytest.raises(LockedError, match=r"^edge: .* deploys digits in \S+ right now"):
            sites.deploy(options=dataclasses.replace(QUICK, timeout_s=1e6))
    assert sites.writes() == []


def test_a_lock_that_another_took_meanwhile_stops_both(sites: Sites) -> None:
    sites.deploy()
    sites.cloud.target.idle = True

    def watch(label: str) -> None:
        if label.startswith("edge: StatefulSet/"):
            sites.edge.expire_lock()
            DeployLock(sites.edge.target.another_client(), "digits").acquire()
            sites.edge.pass_time(20.0)

    sites.on_progress = watch
    with pytest.raises(LockedError, match=r"^edge: .* took over the deployment of digits: this one stops"):
        sites.deploy(OTHER)
    assert sites.serving() == ID
    assert sites.cloud.states()[-1] == sites.edge.states()[-1] == (2, "applying")


def test_the_lock_of_a_cluster_that_waits_for_another_is_renewed(sites: Sites) -> None:
    ready: list[str] = []

    def watch(label: str) -> None:
        if label.startswith("edge: StatefulSet/") and not ready:
            sites.edge.leave()
        if label == "cloud: ready":
            ready.append(label)
            sites.cloud.pass_time(20.0)

    def renewed(method: str, path: str) -> None:
        if ready and method == "PUT" and "/leases/" in path:  # the cloud has nothing else to do
            sites.edge.come_back()

    sites.on_progress = watch
    sites.cloud.target.wire.fault = renewed
    assert sites.deploy() == {"cloud": 1, "edge": 1}


def test_a_lock_that_expired_and_that_nobody_took_is_kept(sites: Sites) -> None:
    def watch(label: str) -> None:
        if label.startswith("edge: StatefulSet/"):
            sites.edge.expire_lock()
            sites.edge.pass_time(20.0)

    sites.on_progress = watch
    assert sites.deploy() == {"cloud": 1, "edge": 1}


@pytest.mark.slow
def test_a_cluster_that_cannot_be_undone_is_told(sites: Sites) -> None:
    sites.deploy()
    sites.cloud.target.broken.add(OTHER_ID)

    def watch(label: str) -> None:
        if label == "edge: ready":
            sites.edge.leave()
            sites.cloud.pass_time(1000.0)

    sites.on_progress = watch
    with pytest.raises(DeployError) as caught:
        sites.deploy(OTHER, UNDO)
    text = str(caught.value)
    assert text.startswith("cloud: not ready after ")
    assert "\ncloud: revision 1 serves as before" in text
    assert "edge has not answered" in text
    assert "it was not undone, the next deployment prunes it" in text
    sites.on_progress = lambda label: None
    sites.edge.come_back()
    sites.edge.expire_lock()
    sites.cloud.target.broken.clear()
    assert sites.deploy() == {"cloud": 3, "edge": 3}
    assert sites.edge.plans() == {ID}


@pytest.mark.slow
def test_a_cluster_that_cannot_catch_up_keeps_what_clients_use(sites: Sites) -> None:
    """Even where a failure is to be undone, as clients are on the new plan."""
    sites.deploy()
    sites.edge.leave()
    sites.deploy(OTHER, skip_offline=True)
    sites.edge.come_back()
    sites.edge.target.broken.add(OTHER_ID)

    def watch(label: str) -> None:
        if label.startswith("edge: StatefulSet/"):
            sites.edge.pass_time(1000.0)

    sites.on_progress = watch
    with pytest.raises(NotReadyError):
        sites.deploy(OTHER, UNDO)
    assert sites.edge.plans() == {ID, OTHER_ID}
    assert sites.edge.states() == [(1, "deployed"), (2, "failed")]
    sites.edge.target.broken.clear()
    sites.on_progress = lambda label: None
    assert sites.deploy(OTHER, UNDO) == {"cloud": None, "edge": 2}
    assert sites.well()


def test_the_rest_is_emptied_though_the_gateways_cluster_is_away(sites: Sites) -> None:
    sites.deploy()
    sites.cloud.leave()
    with pytest.raises(UnreachableError, match=r"^cloud has not answered"):
        undeploy_parts(sites.clusters, "digits", QUICK)
    assert sites.edge.target.names("ConfigMap") == set()
    sites.cloud.come_back()
    assert set(undeploy_parts(sites.clusters, "digits", QUICK)) == {"cloud"}


def test_an_interrupted_deployment_ends_in_both_clusters(sites: Sites) -> None:
    class Interrupt(BaseException):
        pass

    def watch(label: str) -> None:
        if label.startswith("edge: StatefulSet/"):
            raise Interrupt

    sites.on_progress = watch
    sites.cloud.target.idle = True
    with pytest.raises(Interrupt):
        sites.deploy()
    sites.cloud.target.idle = False
    sites.on_progress = lambda label: None
    assert sites.deploy() == {"cloud": 2, "edge": 2}  # the locks were released
