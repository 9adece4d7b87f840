"""Conflicts with others: fields, names and concurrent deployments."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import threading
from collections.abc import Callable
from typing import Any

import pytest

from jellybean_k8s import Cluster, ClusterError, DeployError, DeployLock, LockedError, deploy, deployed_plan
from jellybean_k8s.cluster.lock import HOLD_S
from jellybean_solver import Plan
from tests.k8s_target import OTHER, PLAN, QUICK, SETTINGS, Target


def test_fields_of_others_are_shown_and_taken_only_by_force(target: Target) -> None:
    target.deploy()
    name = deployed_plan(PLAN, SETTINGS).gateway
    by_hand = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 7}}}}
    _merge_as(target.cluster, "kubectl-edit", name, by_hand)
    target.writes()
    with pytest.raises(DeployError, match=r"terminationGracePeriodSeconds was set by kubectl-edit"):
        target.deploy()
    assert target.writes() == []
    pod = target.cluster.get("Deployment", name)
    assert pod is not None
    assert pod["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 7
    target.deploy(options=dataclasses.replace(QUICK, force=True))
    pod = target.cluster.get("Deployment", name)
    assert pod is not None
    assert pod["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 45


def _merge_as(cluster: Cluster, manager: str, name: str, body: Any) -> None:
    path = f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments/{name}"
    cluster._call("patch", path, body=body, content_type="application/merge-patch+json", field_manager=manager)


def test_a_field_that_is_no_longer_wanted_goes(target: Target) -> None:
    deployed, objects = deployed_plan(PLAN, SETTINGS), target.objects()
    more = copy.deepcopy(objects)
    more[-1]["spec"]["sessionAffinity"] = "ClientIP"
    deploy(target.cluster, deployed, more, QUICK)

    def affinity() -> str:
        found = target.cluster.get("Service", "digits")
        assert found is not None
        return str(found["spec"].get("sessionAffinity", "None"))

    assert affinity() == "ClientIP"
    assert deploy(target.cluster, deployed, objects, QUICK).applied == (("Service", "digits"),)
    assert affinity() == "None"


def test_a_name_that_is_taken_is_not_taken_over(target: Target) -> None:
    port = {"name": "http", "port": 80}
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "digits"}, "spec": {"ports": [port]}}
    uid = target.create(theirs)["metadata"]["uid"]
    with pytest.raises(DeployError, match="Service/digits: exists already, and not of this deployment"):
        target.deploy()
    assert target.names("StatefulSet") == set()
    assert target.cluster.delete("Service", "digits", uid)


def test_two_deployments_at_once_follow_each_other(target: Target) -> None:
    said: list[str] = []
    errors: list[BaseException] = []

    def one(plan: Plan) -> None:
        try:
            target.deploy(plan, options=dataclasses.replace(QUICK, say=said.append))
        except BaseException as error:  # noqa: BLE001  (told below)
            errors.append(error)

    threads = [threading.Thread(target=one, args=(plan,)) for plan in (PLAN, OTHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert any("which deploys digits right now" in text for text in said)
    status = target.well()
    assert [revision.state for revision in status.revisions] == ["replaced", "deployed"]
    assert len({found.plan for found in status.sets}) == 1


def test_a_lock_is_refused_renewed_lost_and_inherited(target: Target) -> None:
    cluster = target.cluster
    with DeployLock(cluster, "digits") as first:
        with (
            pytest.raises(LockedError, match=f"{first.holder} deploys digits"),
            DeployLock(cluster, "digits", wait_s=0.0),
        ):
            pass
        with DeployLock(_faster(cluster, HOLD_S / 4), "digits"):
            first._renewed_s = -1e9
            with pytest.raises(LockedError, match="took over the deployment"):
                first.renew()
    with DeployLock(cluster, "digits", wait_s=0.0) as third:  # given back by those before
        third.renew()


@pytest.mark.parametrize("wrong_s", [3600.0, -3600.0])
def test_a_wrong_clock_takes_no_lock_that_is_renewed(target: Target, wrong_s: float) -> None:
    """Of the holder, or of whoever wants the lock: its age is not in what they write."""
    cluster = target.cluster
    with DeployLock(cluster, "digits", now=_shifted(wrong_s)) as first:

        def renew(_: float) -> None:
            first._renewed_s = -1e9
            first.renew()

        renewed = _faster(cluster, HOLD_S / 4, renew)
        with (
            pytest.raises(LockedError, match=f"{first.holder} deploys digits"),
            DeployLock(renewed, "digits", wait_s=3 * HOLD_S, now=_shifted(-wrong_s)),
        ):
            pass


def test_a_lock_that_is_not_waited_for_is_inherited_once_it_was_seen_unrenewed(target: Target) -> None:
    cluster = target.cluster
    DeployLock(cluster, "digits").acquire()
    for _ in range(2):
        with pytest.raises(LockedError), DeployLock(cluster, "digits", wait_s=0.0):
            pass
    later = dataclasses.replace(cluster, clock=lambda: cluster.clock() + HOLD_S + 1.0)
    with DeployLock(later, "digits", wait_s=0.0):
        pass


def test_a_renewal_whose_answer_was_lost_is_not_a_lost_lock(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client repeats the write, which is then a conflict with itself."""
    replace, answers = target.cluster.replace, iter((409,))

    def lose(item: Any) -> Any:
        written = replace(item)
        if (status := next(answers, None)) is not None:
            raise ClusterError(status, "the object has been modified")
        return written

    with DeployLock(target.cluster, "digits", wait_s=0.0) as lock:
        monkeypatch.setattr(target.cluster, "replace", lose)
        lock._renewed_s = -1e9
        lock.renew()
    assert next(answers, None) is None


def _faster(cluster: Cluster, pause_s: float, pause: Callable[[float], None] = lambda _: None) -> Cluster:
    """The cluster with a clock that goes on by so much in each pause, which takes no time."""
    now_s = [cluster.clock()]

    def sleep(seconds: float) -> None:
        now_s[0] += pause_s
        pause(seconds)

    return dataclasses.replace(cluster, clock=lambda: now_s[0], sleep=sleep)


def _shifted(seconds: float) -> Callable[[], Any]:
    return lambda: datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
