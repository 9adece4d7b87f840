"""Deployment against an API server: a mock one, or a real one (tests/k8s_target.py)."""

from __future__ import annotations

import copy
import dataclasses
import threading
import uuid

import pytest

from jellybean_k8s import (
    DeployError,
    DeployOptions,
    NotReadyError,
    PoolSettings,
    deploy,
    deployed_plan,
    dry_run,
    read_status,
    render,
    tls_secret,
)
from jellybean_solver import Deliver
from tests.k8s_plans import wide
from tests.k8s_target import OTHER, PLAN, QUICK, SETTINGS, SOON_S, Target, claim, with_pools

GATEWAY = "Deployment"


def test_a_plan_is_deployed_once_and_then_left_alone(target: Target) -> None:
    outcome = target.deploy()
    assert outcome.number == 1
    assert outcome.applied[-1] == ("Service", "digits")
    assert set(outcome.applied) == {(o["kind"], o["metadata"]["name"]) for o in target.objects()}
    status = target.well()
    assert {(found.wanted, found.available) for found in status.sets} == {(1, 1), (2, 2)}
    assert status.serving == deployed_plan(PLAN, SETTINGS).id
    target.writes()
    assert target.deploy().number is None
    assert target.writes() == []


def test_a_new_plan_comes_up_beside_the_old_which_is_pruned_when_it_serves(target: Target) -> None:
    target.deploy()
    old = deployed_plan(PLAN, SETTINGS)
    before = target.names("StatefulSet")
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{old.prefix}-notes"}, "data": {"a": "b"}}
    labelled = {
        "metadata": {"labels": {"app.kubernetes.io/managed-by": "jellybean", "app.kubernetes.io/instance": "digits"}}
    }
    target.create(foreign | {"metadata": labelled["metadata"] | foreign["metadata"]})
    seen = []

    def watch(_done: float, _total: float, label: str) -> None:
        if "pods are available" in label:
            seen.append((target.serving(), before <= target.names("StatefulSet")))
            target.idle = False

    target.idle = True
    outcome = target.deploy(OTHER, options=dataclasses.replace(QUICK, progress=watch))
    assert seen
    assert set(seen) == {(old.id, True)}  # clients stayed with the old plan, all of which was there
    assert target.serving() == deployed_plan(OTHER, SETTINGS).id
    assert not before & target.names("StatefulSet")
    assert [kind for kind, _ in outcome.pruned][:2] == ["Service", "Service"]
    assert target.cluster.get("ConfigMap", f"{old.prefix}-notes") is not None  # not in the inventory: not ours to prune
    assert target.well()


def test_what_does_not_come_up_is_told_in_words_and_the_old_plan_serves_on(target: Target) -> None:
    target.deploy()
    new = deployed_plan(OTHER, SETTINGS)
    target.broken.add(f"{new.prefix}-cloud")

    told: list[str] = []

    def fail(_done: float, _total: float, label: str) -> None:  # before the time can be up
        if told or ": " not in label:
            return
        told.append(label)
        name = f"{new.prefix}-cloud-1"
        uid = target.eventually(lambda: target.cluster.get("Pod", name))["metadata"]["uid"]
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
        state = {"name": "agent", "state": waiting, "ready": False, "restartCount": 0, "image": "x", "imageID": ""}
        target.cluster.merge("Pod", name, {"status": {"containerStatuses": [state]}}, "status")
        about = {"kind": "Pod", "name": name, "namespace": target.cluster.namespace, "uid": uid}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.{uuid.uuid4().hex[:8]}"},
            "involvedObject": about,
        }
        event |= {"type": "Warning", "reason": "Failed", "message": "manifest unknown", "lastTimestamp": None}
        target.cluster.create(event)

    with pytest.raises(NotReadyError) as caught:
        target.deploy(OTHER, options=DeployOptions(timeout_s=SOON_S, progress=fail))
    text = str(caught.value)
    assert "0 of 1 pods are available" in text
    assert "agent waits: ImagePullBackOff" in text
    assert "check the image's name" in text
    assert "Failed: manifest unknown" in text
    assert target.serving() == deployed_plan(PLAN, SETTINGS).id
    status = read_status(target.cluster, "digits")
    assert [revision.state for revision in status.revisions] == ["deployed", "failed"]
    assert not status.is_well

    with pytest.raises(DeployError, match="revision 1 serves as before: the new objects were deleted"):
        target.deploy(OTHER, options=DeployOptions(timeout_s=0.5, undo_failed=True))
    assert not any(name.startswith(new.prefix) for name in target.names("StatefulSet") | target.names("Deployment"))
    assert target.serving() == deployed_plan(PLAN, SETTINGS).id

    target.broken.clear()
    assert target.deploy(OTHER).number == 4
    assert target.serving() == new.id


def _wait(target: Target, name: str, reason: str, message: str) -> None:
    """A kubelet says that the pod's container waits for this reason."""
    waiting = {"waiting": {"reason": reason, "message": message}}
    state = {"name": "agent", "state": waiting, "ready": False, "restartCount": 0, "image": "x", "imageID": ""}
    target.eventually(lambda: target.cluster.get("Pod", name))
    target.cluster.merge("Pod", name, {"status": {"containerStatuses": [state]}}, "status")


@pytest.mark.parametrize(
    ("reason", "message", "hint"),
    [
        ("InvalidImageName", 'Failed to apply default image tag "a b"', "correct the image's name"),
        ("ErrImageNeverPull", "Container image is not present with pull policy of Never", "load the image onto"),
        (
            "CreateContainerConfigError",
            "couldn't find key authorization in Secret shop/token",
            "correct its name or key",
        ),
    ],
)
def test_pods_that_never_will_be_ready_end_a_deployment_early(
    target: Target, reason: str, message: str, hint: str
) -> None:
    target.broken.add("digits")
    name = f"{deployed_plan(PLAN, SETTINGS).prefix}-cloud-1"
    told: list[str] = []

    def fail(_done: float, _total: float, label: str) -> None:
        if not told and ": " in label:
            told.append(label)
            _wait(target, name, reason, message)

    with pytest.raises(NotReadyError) as caught:
        target.deploy(options=DeployOptions(timeout_s=120.0, stuck_s=0.6, progress=fail))
    first, *lines = str(caught.value).splitlines()
    assert first == "not ready (1 pod stuck for 0.6 s), 3 sets are missing pods:"
    (line,) = [line for line in lines if f"agent waits: {reason} ({message}); " in line]
    assert hint in line


def test_an_image_that_cannot_be_pulled_and_a_key_that_comes_are_waited_for(target: Target) -> None:
    """Registries come back, and so do Secrets that are made meanwhile."""
    prefix = deployed_plan(PLAN, SETTINGS).prefix
    target.broken.add("digits")
    told: list[str] = []

    def fail(_done: float, _total: float, label: str) -> None:
        if not told and ": " in label:
            told.append(label)
            _wait(target, f"{prefix}-cloud-1", "ImagePullBackOff", "Back-off pulling image")
            _wait(target, f"{prefix}-edge-box-1", "CreateContainerConfigError", "secret not found")
            threading.Timer(0.4, _wait, (target, f"{prefix}-edge-box-1", "ContainerCreating", "")).start()
            threading.Timer(1.5, target.broken.clear).start()

    outcome = target.deploy(options=DeployOptions(timeout_s=60.0, stuck_s=1.0, progress=fail))
    assert outcome.number == 1


def test_a_first_deployment_that_fails_is_taken_away_whole(target: Target) -> None:
    target.broken.add("digits")
    with pytest.raises(DeployError, match="nothing served before"):
        target.deploy(options=DeployOptions(timeout_s=0.3, undo_failed=True))
    assert not target.names("StatefulSet") | target.names("Service") | target.names("NetworkPolicy")


def test_an_autoscaled_pool_starts_whole_and_keeps_what_it_was_scaled_to(target: Target) -> None:
    plan = wide(PLAN, "cloud", 4)
    settings = with_pools(cloud=PoolSettings(autoscale=True))
    target.deploy(plan, settings)
    name = f"{deployed_plan(plan, settings).prefix}-cloud"

    def replicas() -> int:
        found = target.cluster.get("StatefulSet", name)
        assert found is not None
        return int(found["spec"]["replicas"])

    assert replicas() == 4
    target.cluster.merge("StatefulSet", name, {"spec": {"replicas": 2}}, "scale")
    objects = copy.deepcopy(target.objects(plan, settings))
    objects[-1]["spec"]["sessionAffinity"] = "ClientIP"
    assert deploy(target.cluster, deployed_plan(plan, settings), objects, QUICK).applied == (("Service", "digits"),)
    assert replicas() == 2


def test_a_dry_run_shows_what_the_server_would_make_and_changes_nothing(target: Target) -> None:
    deployed = deployed_plan(PLAN, SETTINGS)
    first = dry_run(target.cluster, deployed, target.objects())
    assert [before for before, _ in first] == [None] * len(target.objects())
    assert target.names("Service") == set()
    target.deploy()
    assert dry_run(target.cluster, deployed, target.objects()) == []
    settings = dataclasses.replace(SETTINGS, gateway_image="gateway:2")
    pairs = dry_run(target.cluster, deployed_plan(PLAN, settings), target.objects(PLAN, settings))
    (made,) = [after for before, after in pairs if before is None and after is not None and after["kind"] == GATEWAY]
    (gone,) = [before for before, after in pairs if after is None and before is not None and before["kind"] == GATEWAY]
    assert made["spec"]["template"]["spec"]["containers"][0]["image"] == "gateway:2"
    assert gone["spec"]["template"]["spec"]["containers"][0]["image"] == SETTINGS.gateway_image
    ((_, front),) = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
    assert front is not None
    assert (front["kind"], front["metadata"]["name"]) == ("Service", "digits")
    other = dry_run(target.cluster, deployed_plan(OTHER, SETTINGS), target.objects(OTHER))
    assert {before["kind"] for before, after in other if before is not None and after is None} >= {"StatefulSet"}


def test_in_place_lets_the_running_plan_go_first(target: Target) -> None:
    target.deploy()
    old, seen = deployed_plan(PLAN, SETTINGS), []

    def watch(_done: float, _total: float, label: str) -> None:
        if label.startswith("StatefulSet/"):
            seen.append(any(old.prefix in name for name in target.names("StatefulSet")))

    target.deploy(OTHER, options=dataclasses.replace(QUICK, in_place=True, progress=watch))
    assert seen
    assert not any(seen)
    assert target.well()


def test_kept_requests_are_handed_from_one_gateway_to_the_next(target: Target) -> None:
    sources = tuple(dataclasses.replace(source, deliver=Deliver.EVENTUALLY) for source in PLAN.sources)
    settings = dataclasses.replace(SETTINGS, gateway_spool="kept")
    target.create(claim("kept"))
    target.deploy(dataclasses.replace(PLAN, sources=sources), settings)
    other = dataclasses.replace(OTHER, sources=sources)
    with pytest.raises(DeployError, match="two gateways cannot share the volume"):
        target.deploy(other, settings)
    assert target.deploy(other, settings, dataclasses.replace(QUICK, in_place=True)).number == 2


def test_certificates_that_were_brought_once_stay(target: Target) -> None:
    target.deploy()
    deploy(target.cluster, deployed_plan(OTHER, SETTINGS), render(deployed_plan(OTHER, SETTINGS)), QUICK)
    names = {
        tls_secret(deployed_plan(PLAN, SETTINGS), group) for group in (None, *deployed_plan(PLAN, SETTINGS).groups)
    }
    assert names == {"digits-gateway-tls", "digits-tls-edge-box", "digits-tls-cloud"}
    assert all(target.cluster.get("Secret", name) is not None for name in names)
