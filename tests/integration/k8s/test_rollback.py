"""Back to an earlier revision, and away."""

from __future__ import annotations

import dataclasses

import pytest

from jellybean_k8s import DeployError, PreflightError, deployed_plan, read_inventory, rollback, undeploy
from jellybean_k8s.cluster.revisions import KEPT_REVISIONS
from tests.k8s_plans import wide, without_pool
from tests.k8s_target import OTHER, PLAN, QUICK, SETTINGS, Target


def test_rollback_serves_the_revision_before_again(target: Target) -> None:
    target.deploy()
    with pytest.raises(DeployError, match="has no revision that served before the current one"):
        rollback(target.cluster, "digits", options=QUICK)
    target.deploy(OTHER)
    assert rollback(target.cluster, "digits", options=QUICK).number == 3
    assert target.serving() == deployed_plan(PLAN, SETTINGS).id
    assert target.well()
    assert rollback(target.cluster, "digits", 2, QUICK).number == 4
    assert target.serving() == deployed_plan(OTHER, SETTINGS).id
    with pytest.raises(DeployError, match="no revision 9; there are: 1, 2, 3, 4"):
        rollback(target.cluster, "digits", 9, QUICK)
    assert target.deploy(OTHER).number is None  # what rolled back is what would be deployed


@pytest.mark.slow
def test_rollback_after_a_plan_without_a_pool_finds_its_certificates(target: Target) -> None:
    """Secrets of every kept revision stay, with the keys of workers that the plan between has not."""
    two = wide(PLAN, "cloud", 2)
    target.deploy(two)
    target.deploy(without_pool(PLAN, "cloud", "edge-box"))
    assert "digits-tls-cloud" in target.names("Secret")
    rollback(target.cluster, "digits", options=QUICK)
    assert target.serving() == deployed_plan(two, SETTINGS).id
    target.deploy(PLAN)  # with one worker in the cloud
    rollback(target.cluster, "digits", options=QUICK)
    assert target.serving() == deployed_plan(two, SETTINGS).id


def test_rollback_checks_first_and_applies_nothing_if_something_is_missing(target: Target) -> None:
    """Here the nodes and a key of the tier that the revision needs, which have gone since."""
    target.deploy()
    target.deploy(without_pool(PLAN, "cloud", "edge-box"), dataclasses.replace(SETTINGS, gateway_tier="edge"))
    target.cluster.merge("Secret", "digits-tls-cloud", {"data": {"1.key": None}})
    target.remove_node("big")
    serving = target.serving()
    target.writes()
    with pytest.raises(PreflightError) as caught:
        rollback(target.cluster, "digits", options=QUICK)
    assert "nothing was applied" in str(caught.value)
    assert "Secret digits-tls-cloud lacks 1.key" in str(caught.value)
    assert "no node that takes pods has jellybean.dev/tier=cloud" in str(caught.value)
    assert target.writes() == []
    assert target.serving() == serving


def test_a_secret_goes_with_the_last_revision_that_mounts_it(target: Target) -> None:
    target.deploy()
    alone = without_pool(PLAN, "cloud", "edge-box")
    for number in range(KEPT_REVISIONS):
        assert "digits-tls-cloud" in target.names("Secret")
        target.deploy(alone, dataclasses.replace(SETTINGS, agent_images={"cpu": f"agent:{number}"}))
    assert "digits-tls-cloud" not in target.names("Secret")
    assert ("Secret", "digits-tls-cloud") not in read_inventory(target.cluster, "digits").objects


@pytest.mark.slow
def test_only_the_last_revisions_are_kept(target: Target) -> None:
    for number in range(7):
        target.deploy(settings=dataclasses.replace(SETTINGS, agent_images={"cpu": f"agent:{number}"}))
    numbers = [revision.number for revision in read_inventory(target.cluster, "digits").revisions]
    assert numbers == [3, 4, 5, 6, 7]
    kept = {name for name in target.names("ConfigMap") if "-revision-" in name}
    assert kept == {f"digits-revision-{number}" for number in numbers}


@pytest.mark.slow
def test_however_often_a_deployment_fails_the_revision_before_it_is_kept(target: Target) -> None:
    target.deploy()
    other = dataclasses.replace(SETTINGS, agent_images={"cpu": "agent:2"})
    impatient = dataclasses.replace(QUICK, timeout_s=0.05)
    target.broken.add("digits")
    for _ in range(KEPT_REVISIONS + 1):
        with pytest.raises(DeployError, match="not ready"):
            target.deploy(settings=other, options=impatient)
    target.broken.clear()
    target.deploy(settings=other)
    rollback(target.cluster, "digits", None, QUICK)
    states = [(one.number, one.state) for one in read_inventory(target.cluster, "digits").revisions]
    assert states[0] == (1, "replaced")
    assert states[-1] == (KEPT_REVISIONS + 4, "deployed")


def test_undeploy_takes_all_of_it_and_nothing_else(target: Target) -> None:
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}, "data": {}}
    target.create(foreign)
    target.deploy()
    gone = undeploy(target.cluster, "digits", QUICK)
    assert gone[0][0] == "Service"
    kinds = ("StatefulSet", "Deployment", "Service", "ConfigMap", "Secret", "ServiceAccount", "NetworkPolicy", "Lease")
    assert not any(target.names(kind) for kind in (*kinds, "PodDisruptionBudget", "Pod"))
    found = target.cluster.get("ConfigMap", "theirs")
    assert found is not None
    for command in (undeploy, lambda *more: rollback(*more[:2])):
        with pytest.raises(DeployError, match="nothing of digits is deployed"):
            command(target.cluster, "digits", QUICK)
    assert target.names("Lease") == set()
