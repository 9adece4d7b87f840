"""Deploying, by the requests that reach an API server: a mock one here, a real one where
JELLYBEAN_TEST_KUBECONFIG names it (with rights on the namespace JELLYBEAN_TEST_NAMESPACE, and nodes labelled by tier).

No container runs: pods' status is patched, as a kubelet would report it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from jellybean_k8s import DeployError, PoolSettings, render
from jellybean_k8s.certificates import certificate_secrets
from jellybean_k8s.cluster import Cluster, ClusterError, UnreachableError, connect
from jellybean_k8s.commands import tls_secret
from jellybean_k8s.deploy import Options, Outcome, deploy, dry_run, rollback, undeploy
from jellybean_k8s.lock import HOLD_S, Lock, LockedError
from jellybean_k8s.preflight import PreflightError
from jellybean_k8s.records import read_inventory
from jellybean_k8s.served import Deployed
from jellybean_k8s.settings import Settings
from jellybean_k8s.status import read_status
from jellybean_k8s.wait import NotReadyError
from jellybean_solver.plan import Plan
from jellybean_solver.problem import Deliver
from tests import report_plans
from tests.api_server import RunningServer
from tests.k8s_plans import SETTINGS, wide, with_models

OWN = "app.kubernetes.io/managed-by=jellybean"
PLAN = with_models(report_plans.digits())
OTHER = dataclasses.replace(PLAN, hop_s=PLAN.hop_s + 0.001)
QUICK = Options(timeout_s=20.0)
REAL = os.environ.get("JELLYBEAN_TEST_KUBECONFIG")
only_mock = pytest.mark.skipif(bool(REAL), reason="needs an API server that can be told to fail")


@dataclass
class Target:
    """A namespace, and a kubelet of sorts."""

    cluster: Cluster
    certificates: Path
    server: RunningServer | None
    broken: set[str] = field(default_factory=set)  # pods whose names have one of these parts never get ready
    idle: bool = False

    def deploy(self, plan: Plan = PLAN, settings: Settings = SETTINGS, options: Options = QUICK) -> Outcome:
        return deploy(self.cluster, Deployed(plan, settings), self.objects(plan, settings), options)

    def objects(self, plan: Plan = PLAN, settings: Settings = SETTINGS) -> Sequence[Any]:
        return (*certificate_secrets(Deployed(plan, settings), self.certificates), *render(plan, settings))

    def names(self, kind: str) -> set[str]:
        return {item["metadata"]["name"] for item in self.cluster.list(kind, OWN)}

    def serving(self) -> str:
        return str(read_status(self.cluster, "digits").serving)

    def writes(self) -> list[tuple[str, str]]:
        assert self.server is not None
        found = self.server.api.writes()
        self.server.api.log.clear()
        return [item for item in found if "/pods/" not in item[1]]

    def report_pods(self) -> None:
        """What kubelets would: all pods of ours that can run are ready."""
        for pod in self.cluster.list("Pod", OWN):
            name = pod["metadata"]["name"]
            ready = any(c["type"] == "Ready" for c in pod.get("status", {}).get("conditions", ()))
            if not ready and not any(part in name for part in self.broken):
                conditions = [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]
                with contextlib.suppress(ClusterError):
                    self.cluster.merge(
                        "Pod", name, {"status": {"phase": "Running", "conditions": conditions}}, "status"
                    )


def mock_cluster(server: RunningServer, patience_s: float = 5.0) -> Cluster:
    configuration = client.Configuration()
    configuration.host = server.url
    return Cluster(client.ApiClient(configuration), "shop", patience_s)


def node(name: str, tier: str, gpus: int = 0) -> dict[str, Any]:
    meta = {"name": name, "uid": name, "labels": {"jellybean.dev/tier": tier}}
    resources = {"cpu": "8", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": {"allocatable": resources}}


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    for folder in ("gateway", "agent/edge-box-1", "agent/edge-box-2", *(f"agent/cloud-{i}" for i in range(1, 5))):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (tmp_path / folder / name).write_text(f"{folder} {name}")
    with contextlib.ExitStack() as stack:
        server = None if REAL else stack.enter_context(RunningServer())
        if server is not None:
            cluster = mock_cluster(server)
            for item in (node("box-a", "edge"), node("box-b", "edge"), node("big", "cloud", 2)):
                server.api.store["nodes", "", item["metadata"]["name"]] = item
        else:
            cluster = connect(Path(str(REAL)), None, os.environ["JELLYBEAN_TEST_NAMESPACE"])
            with contextlib.suppress(DeployError):
                undeploy(cluster, "digits", Options(wait=False))
        found = Target(cluster, tmp_path, server)
        stop = threading.Event()
        thread = threading.Thread(target=_report, args=(found, stop), daemon=True)
        thread.start()
        yield found
        stop.set()
        thread.join()
        if REAL:
            with contextlib.suppress(DeployError):
                undeploy(cluster, "digits", Options(wait=False))


def _report(found: Target, stop: threading.Event) -> None:
    while not stop.wait(0.02 if found.server is not None else 0.5):
        if not found.idle:
            with contextlib.suppress(DeployError):
                found.report_pods()


def test_a_plan_is_deployed_once_and_then_left_alone(target: Target) -> None:
    outcome = target.deploy()
    assert outcome.number == 1
    assert outcome.applied[-1] == ("Service", "digits")
    assert set(outcome.applied) == {(o["kind"], o["metadata"]["name"]) for o in target.objects()}
    status = read_status(target.cluster, "digits")
    assert status.is_well
    assert {(found.wanted, found.available) for found in status.sets} == {(1, 1), (2, 2)}
    assert status.serving == Deployed(PLAN, SETTINGS).id
    if target.server is not None:
        target.writes()
    assert target.deploy().number is None
    if target.server is not None:
        assert target.writes() == []


def test_a_new_plan_comes_up_beside_the_old_which_is_pruned_when_it_serves(target: Target) -> None:
    target.deploy()
    old = Deployed(PLAN, SETTINGS)
    before = target.names("StatefulSet")
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{old.prefix}-notes"}, "data": {"a": "b"}}
    labelled = {
        "metadata": {"labels": {"app.kubernetes.io/managed-by": "jellybean", "app.kubernetes.io/instance": "digits"}}
    }
    target.cluster.create(foreign | {"metadata": labelled["metadata"] | foreign["metadata"]})
    seen = []

    def watch(_done: float, _total: float, label: str) -> None:
        if "pods are available" in label:
            seen.append((target.serving(), before <= target.names("StatefulSet")))

    target.idle = True
    threading.Timer(0.5, lambda: setattr(target, "idle", False)).start()
    outcome = target.deploy(OTHER, options=dataclasses.replace(QUICK, progress=watch))
    assert seen
    assert set(seen) == {(old.id, True)}  # clients stayed with the old plan, all of which was there
    assert target.serving() == Deployed(OTHER, SETTINGS).id
    assert not before & target.names("StatefulSet")
    assert [kind for kind, _ in outcome.pruned][:2] == ["Service", "Service"]
    assert target.cluster.get("ConfigMap", f"{old.prefix}-notes") is not None  # not in the inventory: not ours to prune
    assert read_status(target.cluster, "digits").is_well
    target.cluster.delete(
        "ConfigMap", f"{old.prefix}-notes", target.cluster.get("ConfigMap", f"{old.prefix}-notes")["metadata"]["uid"]
    )  # type: ignore[index]


def test_what_does_not_come_up_is_told_in_words_and_the_old_plan_serves_on(target: Target) -> None:
    target.deploy()
    new = Deployed(OTHER, SETTINGS)
    target.broken.add(f"{new.prefix}-cloud")

    def fail() -> None:
        name = f"{new.prefix}-cloud-1"
        until = time.monotonic() + 10
        while target.cluster.get("Pod", name) is None and time.monotonic() < until:
            time.sleep(0.02)
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
        state = {"name": "agent", "state": waiting, "ready": False, "restartCount": 0, "image": "x", "imageID": ""}
        target.cluster.merge("Pod", name, {"status": {"containerStatuses": [state]}}, "status")
        about = {"kind": "Pod", "name": name, "namespace": target.cluster.namespace}
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{name}.1"}, "involvedObject": about}
        event |= {"type": "Warning", "reason": "Failed", "message": "manifest unknown", "lastTimestamp": None}
        target.cluster.create(event)

    thread = threading.Thread(target=fail)
    thread.start()
    with pytest.raises(NotReadyError) as caught:
        target.deploy(OTHER, options=Options(timeout_s=1.5))
    thread.join()
    text = str(caught.value)
    assert "0 of 1 pods are available" in text
    assert "agent waits: ImagePullBackOff" in text
    assert "check the image's name" in text
    assert "Failed: manifest unknown" in text
    assert target.serving() == Deployed(PLAN, SETTINGS).id
    status = read_status(target.cluster, "digits")
    assert [revision.state for revision in status.revisions] == ["deployed", "failed"]
    assert not status.is_well

    with pytest.raises(DeployError, match="revision 1 serves as before: what was applied is taken back"):
        target.deploy(OTHER, options=Options(timeout_s=0.5, back=True))
    assert not any(name.startswith(new.prefix) for name in target.names("StatefulSet") | target.names("Deployment"))
    assert target.serving() == Deployed(PLAN, SETTINGS).id

    target.broken.clear()
    assert target.deploy(OTHER).number == 4
    assert target.serving() == new.id


def test_a_first_deployment_that_fails_is_taken_away_whole(target: Target) -> None:
    target.broken.add("digits")
    with pytest.raises(DeployError, match="nothing was served before"):
        target.deploy(options=Options(timeout_s=0.3, back=True))
    assert not target.names("StatefulSet") | target.names("Service") | target.names("NetworkPolicy")


def test_fields_of_others_are_shown_and_taken_only_by_force(target: Target) -> None:
    target.deploy()
    name = Deployed(PLAN, SETTINGS).gateway
    by_hand = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 7}}}}
    _merge_as(target.cluster, "kubectl-edit", name, by_hand)
    if target.server is not None:
        target.writes()
    with pytest.raises(DeployError, match=r"terminationGracePeriodSeconds was set by kubectl-edit"):
        target.deploy()
    if target.server is not None:
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
    gpu = dataclasses.replace(SETTINGS, pools={"cloud": PoolSettings(gpu="nvidia")})
    if target.server is None:
        pytest.skip("needs a node with a GPU")
    target.deploy(settings=gpu)
    name = f"{Deployed(PLAN, SETTINGS).prefix}-cloud"

    def limits() -> Any:
        found = target.cluster.get("StatefulSet", name)
        assert found is not None
        return found["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]

    assert limits()["nvidia.com/gpu"] == "1"
    assert set(target.deploy().applied) == {("StatefulSet", name)}
    assert set(limits()) == {"memory"}


def test_an_autoscaled_pool_starts_whole_and_keeps_what_it_was_scaled_to(target: Target) -> None:
    plan = wide(PLAN, "cloud", 4)
    settings = dataclasses.replace(SETTINGS, pools={"cloud": PoolSettings(autoscale=True)})
    target.deploy(plan, settings)
    name = f"{Deployed(plan, settings).prefix}-cloud"

    def replicas() -> int:
        found = target.cluster.get("StatefulSet", name)
        assert found is not None
        return int(found["spec"]["replicas"])

    assert replicas() == 4
    target.cluster.merge("StatefulSet", name, {"spec": {"replicas": 2}}, "scale")
    target.deploy(plan, dataclasses.replace(settings, agent_image="other:2"))
    assert replicas() == 2


class _Interrupt(BaseException):
    pass


@pytest.mark.parametrize("at", [1, 6, 11])
def test_an_interrupted_deployment_is_run_again_or_replaced_by_another(target: Target, at: int) -> None:
    calls = 0

    def stop(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise _Interrupt

    with pytest.raises(_Interrupt):
        target.deploy(options=dataclasses.replace(QUICK, progress=stop))
    assert [revision.state for revision in read_inventory(target.cluster, "digits").revisions] == ["applying"]
    target.deploy(OTHER)
    assert all(Deployed(OTHER, SETTINGS).prefix in name for name in target.names("StatefulSet"))
    status = read_status(target.cluster, "digits")
    assert status.is_well
    assert [revision.state for revision in status.revisions] == ["failed", "deployed"]
    target.deploy()
    assert target.serving() == Deployed(PLAN, SETTINGS).id


@only_mock
def test_an_api_server_that_comes_back_is_waited_for(target: Target) -> None:
    assert target.server is not None
    ends = {"at": 0.0}

    def away(_method: str, path: str) -> int | None:
        if "/statefulsets" in path and ends["at"] == 0.0:
            ends["at"] = time.monotonic() + 1.0
        return 503 if time.monotonic() < ends["at"] else None

    target.server.api.fault = away
    assert target.deploy().number == 1
    assert ends["at"]


@only_mock
def test_an_api_server_that_vanishes_is_told_and_the_next_run_goes_on(target: Target) -> None:
    assert target.server is not None
    cluster = dataclasses.replace(target.cluster, patience_s=0.5)
    writes = 0

    def die(method: str, path: str) -> int | None:
        nonlocal writes
        writes += method == "PATCH" and "/pods/" not in path
        return 503 if writes > 6 else None

    target.server.api.fault = die
    with pytest.raises(DeployError, match=r"a fault of the test|has not answered"):
        deploy(cluster, Deployed(PLAN, SETTINGS), target.objects(), QUICK)
    target.server.api.fault = None
    target.server.api.store["leases", "shop", "digits-deploy"]["spec"]["renewTime"] = "2000-01-01T00:00:00.000000Z"
    assert target.deploy().number == 2
    assert read_status(target.cluster, "digits").is_well


@only_mock
def test_a_server_that_is_not_there_is_named(target: Target) -> None:
    configuration = client.Configuration()
    configuration.host = "http://127.0.0.1:9"
    cluster = Cluster(client.ApiClient(configuration), "shop", patience_s=0.2)
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:9 has not answered for 0\.2 s.* run it again"):
        deploy(cluster, Deployed(PLAN, SETTINGS), target.objects(), QUICK)


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
    assert any("who deploys digits right now" in text for text in said)
    status = read_status(target.cluster, "digits")
    assert status.is_well
    assert [revision.state for revision in status.revisions] == ["replaced", "deployed"]
    assert len({found.plan for found in status.sets}) == 1


def test_a_lock_is_refused_renewed_lost_and_inherited(target: Target) -> None:
    cluster = target.cluster
    with Lock(cluster, "digits") as first:
        with pytest.raises(LockedError, match=f"{first.holder} deploys digits"), Lock(cluster, "digits", wait_s=0.0):
            pass
        later = _shifted(HOLD_S + 5)
        with Lock(cluster, "digits", now=later):
            first._renewed_s = -1e9
            with pytest.raises(LockedError, match="took over the deployment"):
                first.renew()
    with Lock(cluster, "digits", wait_s=0.0) as third:  # given back by those before
        third.renew()


def _shifted(seconds: float) -> Callable[[], Any]:
    import datetime

    return lambda: datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)


def test_rollback_serves_the_revision_before_again(target: Target) -> None:
    target.deploy()
    with pytest.raises(DeployError, match="has no revision before the one that serves"):
        rollback(target.cluster, "digits", options=QUICK)
    target.deploy(OTHER)
    assert rollback(target.cluster, "digits", options=QUICK).number == 3
    assert target.serving() == Deployed(PLAN, SETTINGS).id
    assert read_status(target.cluster, "digits").is_well
    assert rollback(target.cluster, "digits", 2, QUICK).number == 4
    assert target.serving() == Deployed(OTHER, SETTINGS).id
    with pytest.raises(DeployError, match="no revision 9; there are: 1, 2, 3, 4"):
        rollback(target.cluster, "digits", 9, QUICK)
    assert target.deploy(OTHER).number is None  # what rolled back is what would be deployed


def test_only_the_last_revisions_are_kept(target: Target) -> None:
    for number in range(7):
        target.deploy(settings=dataclasses.replace(SETTINGS, agent_image=f"agent:{number}"))
    numbers = [revision.number for revision in read_inventory(target.cluster, "digits").revisions]
    assert numbers == [3, 4, 5, 6, 7]
    kept = {name for name in target.names("ConfigMap") if "-revision-" in name}
    assert kept == {f"digits-revision-{number}" for number in numbers}


def test_undeploy_takes_all_of_it_and_nothing_else(target: Target) -> None:
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}, "data": {}}
    target.cluster.create(foreign)
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
    target.cluster.delete("ConfigMap", "theirs", found["metadata"]["uid"])


def test_a_name_that_is_taken_is_not_taken_over(target: Target) -> None:
    port = {"name": "http", "port": 80}
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "digits"}, "spec": {"ports": [port]}}
    uid = target.cluster.create(theirs)["metadata"]["uid"]
    with pytest.raises(DeployError, match="Service/digits: there already, and not of this deployment"):
        target.deploy()
    assert target.names("StatefulSet") == set()
    assert target.cluster.delete("Service", "digits", uid)


def test_a_dry_run_shows_what_the_server_would_make_and_changes_nothing(target: Target) -> None:
    deployed = Deployed(PLAN, SETTINGS)
    first = dry_run(target.cluster, deployed, target.objects())
    assert [before for before, _ in first] == [None] * len(target.objects())
    assert target.names("Service") == set()
    target.deploy()
    assert dry_run(target.cluster, deployed, target.objects()) == []
    settings = dataclasses.replace(SETTINGS, gateway_image="gateway:2")
    ((before, after),) = dry_run(target.cluster, Deployed(PLAN, settings), target.objects(PLAN, settings))
    assert before is not None
    assert after is not None
    assert before["spec"]["template"]["spec"]["containers"][0]["image"] == SETTINGS.gateway_image
    assert after["spec"]["template"]["spec"]["containers"][0]["image"] == "gateway:2"
    other = dry_run(target.cluster, Deployed(OTHER, SETTINGS), target.objects(OTHER))
    assert {before["kind"] for before, after in other if before is not None and after is None} >= {"StatefulSet"}


def test_in_place_lets_the_running_plan_go_first(target: Target) -> None:
    target.deploy()
    old, seen = Deployed(PLAN, SETTINGS), []

    def watch(_done: float, _total: float, label: str) -> None:
        if label.startswith("StatefulSet/"):
            seen.append(any(old.prefix in name for name in target.names("StatefulSet")))

    target.deploy(OTHER, options=dataclasses.replace(QUICK, in_place=True, progress=watch))
    assert seen
    assert not any(seen)
    assert read_status(target.cluster, "digits").is_well


def test_kept_requests_are_handed_from_one_gateway_to_the_next(target: Target) -> None:
    sources = tuple(dataclasses.replace(source, deliver=Deliver.EVENTUALLY) for source in PLAN.sources)
    settings = dataclasses.replace(SETTINGS, gateway_spool="kept")
    target.deploy(dataclasses.replace(PLAN, sources=sources), settings)
    other = dataclasses.replace(OTHER, sources=sources)
    with pytest.raises(DeployError, match="two gateways cannot share the volume"):
        target.deploy(other, settings)
    assert target.deploy(other, settings, dataclasses.replace(QUICK, in_place=True)).number == 2


@only_mock
def test_what_a_cluster_lacks_is_told_before_anything_is_applied(target: Target) -> None:
    assert target.server is not None
    costly = dataclasses.replace(PLAN, slo=dataclasses.replace(PLAN.slo, budget_usd_per_h=0.1))
    gpus = dataclasses.replace(SETTINGS, pools={"cloud": PoolSettings(gpu="nvidia", gpus=3)})
    del target.server.api.store["nodes", "", "box-a"]
    with pytest.raises(PreflightError) as caught:
        deploy(target.cluster, Deployed(costly, gpus), render(costly, gpus), QUICK)
    text = str(caught.value)
    assert "the plan costs 0.7" in text
    assert "the budget is 0.1000 USD/h" in text
    assert "there is no Secret digits-gateway-tls: make certificates" in text
    assert "2 workers want a node each, 1 nodes have jellybean.dev/tier=edge" in text
    assert "3 nvidia.com/gpu are asked for on nodes with jellybean.dev/tier=cloud; 2 are allocatable there" in text
    assert target.writes() == []
    del target.server.api.store["nodes", "", "big"]
    with pytest.raises(PreflightError, match=r"kubectl label node NODE jellybean.dev/tier=cloud"):
        target.deploy()


@only_mock
def test_gpus_that_others_hold_are_counted(target: Target) -> None:
    assert target.server is not None
    gpus = dataclasses.replace(SETTINGS, pools={"cloud": PoolSettings(gpu="nvidia", gpus=2)})
    target.deploy(settings=gpus)
    for name, pod in target.server.api.of("pods").items():
        if "-cloud-" in name:
            pod["spec"]["nodeName"] = "big"
    target.deploy(settings=dataclasses.replace(gpus, agent_image="agent:2"))  # the same pods again
    for name, pod in target.server.api.of("pods").items():
        if "-cloud-" in name:
            pod["spec"]["nodeName"] = "big"
    with pytest.raises(PreflightError, match=r"2 in use. If the running plan has them: --in-place"):
        target.deploy(OTHER, gpus)
    target.deploy(OTHER, gpus, dataclasses.replace(QUICK, in_place=True))


@only_mock
def test_rights_that_are_missing_are_told_and_do_not_stop_it(target: Target) -> None:
    assert target.server is not None
    target.server.api.fault = lambda _method, path: 403 if path == "/api/v1/nodes" else None
    said: list[str] = []
    assert target.deploy(options=dataclasses.replace(QUICK, say=said.append)).number == 1
    assert said == ["nodes were not checked: this user may not list them"]


def test_certificates_that_were_brought_once_stay(target: Target) -> None:
    target.deploy()
    deploy(target.cluster, Deployed(OTHER, SETTINGS), render(OTHER, SETTINGS), QUICK)
    names = {tls_secret(Deployed(PLAN, SETTINGS), group) for group in (None, *Deployed(PLAN, SETTINGS).groups)}
    assert names == {"digits-gateway-tls", "digits-tls-edge-box", "digits-tls-cloud"}
    assert all(target.cluster.get("Secret", name) is not None for name in names)
