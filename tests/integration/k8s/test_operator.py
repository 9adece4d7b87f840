"""The operator on one resource: plan, deploy, re-plan, status, removal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jellybean.operator import certificates, resource_definition
from jellybean.operator.reconcile import Reconciler
from jellybean_k8s import (
    CONDITION_DEPLOYED,
    CONDITION_PLANNED,
    CONDITION_READY,
    CRD_KIND,
    ClusterError,
    DeployError,
    read_inventory,
)
from tests.k8s_real import node
from tests.k8s_resource import resource
from tests.k8s_target import Target, define


def slow(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


class Operated:
    """A resource in a cluster with its reconciler, under a virtual clock."""

    def __init__(self, target: Target, wanted: dict[str, Any]) -> None:
        self.target, self.now_s, self.said = target, 0.0, list[str]()
        define(target, resource_definition())
        target.create(wanted)
        self.reconciler = self.another()

    def another(self) -> Reconciler:
        """A new operator without state."""
        return Reconciler(self.target.cluster, self.target.nodes, clock=lambda: self.now_s, log=self.said.append)

    def look(self, change: Callable[[dict[str, Any]], object] | None = None) -> dict[str, dict[str, Any]]:
        """The conditions after a reconciliation; `change` is applied to the spec first."""
        if change is not None:
            there = self.there()
            change(there["spec"])
            self.target.cluster.replace(there)
        self.reconciler.reconcile(self.there())
        return {item["type"]: item for item in self.there()["status"]["conditions"]}

    def there(self) -> dict[str, Any]:
        found = self.target.cluster.get(CRD_KIND, "digits")
        assert found is not None
        return found | {"apiVersion": "jellybean.dev/v1alpha1", "kind": CRD_KIND}

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.there()["status"])

    def revisions(self) -> list[str]:
        return [found.state for found in read_inventory(self.target.cluster, "digits").revisions]


@pytest.fixture
def operated(target: Target) -> Iterator[Callable[..., Operated]]:
    yield lambda **spec: Operated(target, resource(**spec))


def set_to(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(spec: Any) -> None:
        for key in path[:-1]:
            spec = spec[key]
        spec[path[-1]] = to

    return change


def test_a_resource_is_deployed_once_owned_and_then_left_alone(operated: Callable[..., Operated]) -> None:
    found = operated()
    conditions = found.look()
    assert {kind: item["status"] for kind, item in conditions.items()} == {
        **dict.fromkeys((CONDITION_PLANNED, CONDITION_DEPLOYED, CONDITION_READY), "True"),
        **dict.fromkeys(("Progressing", "Reconciling", "Stalled", "Degraded"), "False"),
    }
    assert all(item["reason"] for item in conditions.values())
    assert "0.1 USD/h, accuracy 85, gap 0.00%" in conditions[CONDITION_PLANNED]["message"]
    status = found.status
    assert (status["costUsdPerHour"], status["accuracy"], status["gap"], status["revision"]) == (0.1, 85, "0.00%", 1)
    assert status["observedGeneration"] == found.there()["metadata"]["generation"] == 1
    assert conditions[CONDITION_READY]["message"].endswith(f"at digits.{found.target.cluster.namespace}.svc:8001")
    uid = found.there()["metadata"]["uid"]
    for kind, name in read_inventory(found.target.cluster, "digits").objects:
        item = found.target.cluster.get(kind, name)
        assert item is not None
        assert [owner["uid"] for owner in item["metadata"]["ownerReferences"]] == [uid], name
    events = [item for item in found.target.cluster.list("Event") if item["involvedObject"].get("uid") == uid]
    assert {item["reason"] for item in events} == {"Planned", "Deploying", "Deployed", "Serving"}
    found.target.writes()
    version = found.there()["metadata"]["resourceVersion"]
    for _ in range(3):
        found.now_s += 60.0
        found.look()
    assert found.there()["metadata"]["resourceVersion"] == version
    assert found.target.writes() == []


def test_another_operator_goes_on_from_what_serves(operated: Callable[..., Operated]) -> None:
    found = operated()
    before = found.look()
    found.reconciler = found.another()
    after = found.look()
    assert after[CONDITION_PLANNED]["reason"] == "Kept"
    assert after[CONDITION_DEPLOYED] == before[CONDITION_DEPLOYED]
    with pytest.raises(DeployError, match="digits is deployed for Workflow digits: change that"):
        found.target.deploy()
    assert found.revisions() == ["deployed"]


def test_a_change_is_planned_anew_where_it_is_worth_it(operated: Callable[..., Operated]) -> None:
    found = operated()
    first = found.look()[CONDITION_DEPLOYED]["message"]
    kept = found.look(set_to("sources", "strip", "rate", to="9/s"))
    assert (kept[CONDITION_PLANNED]["reason"], kept[CONDITION_DEPLOYED]["message"]) == ("Kept", first)
    assert found.revisions() == ["deployed"]
    dearer = found.look(set_to("slo", "accuracy", to=90))
    assert dearer[CONDITION_PLANNED]["reason"] == "Replanned"
    assert dearer[CONDITION_PLANNED]["observedGeneration"] == 3
    assert found.status["accuracy"] == 95
    assert found.revisions() == ["replaced", "deployed"]
    assert all(found.status["served"] in name for name in found.target.names("StatefulSet"))


@pytest.mark.slow
def test_a_soft_p99_latency_is_weighed_after_a_change(operated: Callable[..., Operated]) -> None:
    soft = {"accuracy": 80, "soft_latency_p99": "5 s", "latency_penalty": "0.001 USD/h per 10 ms"}
    found = operated(slo=soft)
    assert found.look()[CONDITION_PLANNED]["reason"] == "Planned"
    assert found.look(set_to("sources", "strip", "rate", to="9/s"))[CONDITION_PLANNED]["reason"] == "Kept"
    assert found.look()[CONDITION_READY]["status"] == "True"


def test_a_budget_that_cannot_be_kept_fails_closed(operated: Callable[..., Operated]) -> None:
    found = operated(slo={"accuracy": 80, "budget": "0.05 USD/h"})
    conditions = found.look()
    assert (conditions[CONDITION_PLANNED]["status"], conditions[CONDITION_PLANNED]["reason"]) == ("False", "Infeasible")
    assert "0.0500 USD/h allowed" in conditions[CONDITION_PLANNED]["message"]
    assert conditions[CONDITION_READY]["reason"] == "NothingServes"
    assert not found.target.names("StatefulSet") | found.target.names("Service") | found.target.names("ConfigMap")
    assert found.look(set_to("slo", "budget", to="2 USD/h"))[CONDITION_READY]["status"] == "True"
    serving = found.status["served"]
    conditions = found.look(set_to("slo", "budget", to="0.05 USD/h"))
    assert conditions[CONDITION_PLANNED]["reason"] == "Infeasible"
    assert (conditions[CONDITION_READY]["status"], conditions[CONDITION_READY]["reason"]) == ("False", "Infeasible")
    assert (conditions["Stalled"]["status"], conditions["Degraded"]["status"]) == ("True", "True")
    assert f"plan {serving} serves" in conditions[CONDITION_READY]["message"]
    assert found.revisions() == ["deployed"]


def test_a_fleet_of_nodes_is_planned_for_anew_when_they_change(operated: Callable[..., Operated]) -> None:
    discover = {
        "tiers": ["edge", "cloud"],
        "prices": {"box": "0.1 USD/h", "big": "0.9 USD/h"},
        "links": [{"from": "edge", "to": "cloud", "price": "0.1 USD/GiB"}],
    }
    found = operated(discover=discover, slo={"accuracy": 80}, infrastructure=None)
    nodes = {
        name: node(name, tier, **{"jellybean.dev/pool": pool})
        for name, tier, pool in (("box-a", "edge", "box"), ("box-b", "edge", "box"), ("big", "cloud", "big"))
    }
    for item in nodes.values():
        found.target.set_node(item)
    found.look()
    assert found.status["fleet"] == "2 box (edge), 1 big (cloud)"
    (name,) = found.target.names("StatefulSet")
    pod = (found.target.cluster.get("StatefulSet", name) or {})["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {"key": "jellybean.dev/pool", "operator": "In", "values": ["box"]} in terms[0]["matchExpressions"]
    for name in ("box-a", "box-b"):
        found.target.set_node(nodes[name] | {"spec": {"unschedulable": True}})
    assert found.look()[CONDITION_PLANNED]["reason"] == "Replanned"
    assert found.status["costUsdPerHour"] > 0.9
    assert found.status["fleet"].startswith("1 big (cloud); 2 nodes left out, first box-a: it is cordoned")
    found.target.set_node(nodes["big"] | {"spec": {"unschedulable": True}})
    conditions = found.look()
    assert conditions[CONDITION_PLANNED]["message"].startswith("no node has a tier: kubectl label node NODE")
    assert (conditions[CONDITION_READY]["status"], conditions[CONDITION_READY]["reason"]) == ("False", "NoPlan")
    assert conditions[CONDITION_READY]["message"].startswith(f"plan {found.status['served']} serves")


def test_profiles_come_from_a_config_map(operated: Callable[..., Operated]) -> None:
    text = json.dumps({"kind": "Profiles", **resource()["spec"]["profiles"]})
    found = operated(profiles_from={"config_map": "digits-measured"}, profiles=None)
    found.target.drop("ConfigMap", "digits-measured")
    message = found.look()[CONDITION_PLANNED]["message"]
    assert message.startswith("there is no ConfigMap digits-measured: kubectl create configmap digits-measured")
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "digits-measured"}}
    found.target.create(item | {"data": {"profiles.yaml": text.replace('"40 ms"', '"40"')}})
    message = found.look()[CONDITION_PLANNED]["message"]
    assert "ConfigMap digits-measured:1:" in message
    assert "operators.read.small.latency.box.1" in message
    found.target.create(item | {"data": {"profiles.yaml": text}})
    assert found.look()[CONDITION_READY]["status"] == "True"


def test_what_is_wrong_is_told_by_its_place_in_the_resource(operated: Callable[..., Operated]) -> None:
    found = operated()
    before = found.there()["spec"]
    for change, place in (
        (set_to("operators", "read", "inputs", to=[{"from": "strap"}]), "spec.operators.read.inputs.0.from"),
        (set_to("operators", "read", "tiers", to=["hub"]), "spec.operators.read.tiers.0"),
        (set_to("infrastructure", "workers", "box", "type", to="bax"), "spec.infrastructure.workers.box"),
    ):
        conditions = found.look(change)
        assert conditions[CONDITION_PLANNED]["reason"] == "InvalidSpec"
        assert place in conditions[CONDITION_PLANNED]["message"]
        found.target.cluster.replace(found.there() | {"spec": before})
    assert not found.target.names("StatefulSet")
    for change in (
        set_to("kubernetes", "gateway", to={"tier": "no tier"}),
        set_to("replan", to={"horizon": "soon"}),
        set_to("slo", to={"budget": 2}),
    ):
        with pytest.raises(ClusterError) as caught:  # the API server knows it by the schema
            found.look(change)
        assert caught.value.status == 422


def test_what_was_deployed_by_hand_or_by_another_is_left_alone(
    operated: Callable[..., Operated], target: Target
) -> None:
    target.deploy()
    before = target.serving()
    found = operated()
    conditions = found.look()
    assert conditions[CONDITION_PLANNED]["status"] == "True"
    assert (conditions[CONDITION_DEPLOYED]["status"], conditions[CONDITION_DEPLOYED]["reason"]) == ("False", "Refused")
    assert "is deployed here already, by hand" in conditions[CONDITION_DEPLOYED]["message"]
    assert (conditions[CONDITION_READY]["status"], conditions[CONDITION_READY]["reason"]) == (
        "False",
        "NothingServes",
    )  # for it
    found.reconciler.remove(found.there())
    assert target.serving() == before


def harder(spec: dict[str, Any]) -> None:
    """A change for which the plan needs another worker."""
    spec["slo"]["accuracy"], spec["timeout"] = 90, "2 s"


def test_a_plan_that_does_not_come_up_is_taken_back_and_not_tried_again(operated: Callable[..., Operated]) -> None:
    """By the same operator or by another one, until something changes: here the annotation that asks for it."""
    found = operated()
    found.look()
    serving = found.status["served"]
    found.target.broken.add("-big-")
    conditions = found.look(harder)
    assert (conditions[CONDITION_DEPLOYED]["status"], conditions[CONDITION_DEPLOYED]["reason"]) == ("False", "NotReady")
    assert "revision 1 serves as before" in conditions[CONDITION_DEPLOYED]["message"]
    assert "annotate it with jellybean.dev/retry=1" in conditions[CONDITION_DEPLOYED]["message"]
    assert (conditions[CONDITION_READY]["status"], conditions[CONDITION_READY]["reason"]) == ("False", "NotReady")
    assert conditions[CONDITION_READY]["message"].startswith(f"plan {serving} serves")
    assert [conditions[kind]["status"] for kind in ("Stalled", "Degraded", "Reconciling")] == ["True", "True", "False"]
    assert found.revisions() == ["deployed", "failed"]
    found.target.broken.clear()
    for hours in (0.0, 0.5, 2.0, 25.0):
        found.now_s += 3600.0 * hours
        assert found.look()[CONDITION_DEPLOYED] == conditions[CONDITION_DEPLOYED]
    found.reconciler = found.another()
    assert found.look()[CONDITION_DEPLOYED] == conditions[CONDITION_DEPLOYED]
    assert found.revisions() == ["deployed", "failed"]

    found.target.cluster.merge(CRD_KIND, "digits", {"metadata": {"annotations": {"jellybean.dev/retry": "1"}}})
    found.look()
    found.now_s += 20.0
    conditions = found.look()
    assert conditions[CONDITION_READY]["status"] == "True", conditions
    assert found.status["accuracy"] == 95
    assert found.status["served"] != serving
    assert "failed" not in found.status


@pytest.mark.slow
def test_the_status_says_that_a_plan_is_being_deployed(operated: Callable[..., Operated]) -> None:
    """Seen by a watcher of the resource while pods start: what serves and what comes, not Ready."""
    found = operated()
    found.look()
    before = found.status
    seen: list[dict[str, Any]] = []
    found.reconciler.clock = lambda: (seen.append(found.status), found.now_s)[1]
    found.target.broken.add("-big-")
    found.look(harder)
    during = [
        {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
        for status in seen
        if status != before
    ]
    assert during
    assert during[0]["Ready"] == ("Unknown", "Deploying")
    assert during[0]["Progressing"] == during[0]["Reconciling"] == ("True", "Deploying")
    assert during[0]["Stalled"] == ("False", "Deploying")


@pytest.mark.parametrize(
    "kind", ["StatefulSet", "Secret", *map(slow, ("Deployment", "Service", "ConfigMap", "NetworkPolicy"))]
)
def test_an_object_that_was_deleted_comes_back(operated: Callable[..., Operated], kind: str) -> None:
    found = operated()
    found.look()
    revisions = found.revisions()
    cluster = found.target.cluster
    inventory = read_inventory(cluster, "digits")
    gone = sorted(name for one, name in inventory.objects if one == kind and not name.endswith("-plan"))
    for name in gone:
        there = cluster.get(kind, name)
        assert there is not None
        assert cluster.delete(kind, name, there["metadata"]["uid"])
    found.look()
    assert [name for name in gone if cluster.get(kind, name) is None] == []
    found.target.well()
    conditions = found.look()
    assert (conditions[CONDITION_READY]["status"], conditions["Degraded"]["status"]) == ("True", "False")
    assert found.revisions()[: len(revisions)] == (revisions if kind != "Secret" else ["replaced"])


def test_what_others_change_is_set_back_and_told(operated: Callable[..., Operated]) -> None:
    found = operated()
    found.look()
    cluster = found.target.cluster
    (name,) = (item["metadata"]["name"] for item in cluster.list("StatefulSet"))
    for number in range(2):
        cluster.merge("StatefulSet", name, {"spec": {"replicas": 0}})
        found.now_s += 30.0
        found.look()
        there = cluster.get("StatefulSet", name)
        assert there is not None
        assert there["spec"]["replicas"] == 1, number
    told = f"applied again: StatefulSet/{name} was changed: spec.replicas is 0, the plan has 1"
    events = [item["message"] for item in cluster.list("Event") if item["reason"] == "Healed"]
    assert events == [told] * 2
    found.target.well()
    assert found.look()[CONDITION_READY]["status"] == "True"
    assert found.revisions() == ["deployed"]


@pytest.mark.slow
def test_who_changes_it_again_and_again_is_answered_ever_more_rarely(operated: Callable[..., Operated]) -> None:
    """Another controller that owns the field: it is told, and the two do not fight for ever."""
    found = operated()
    found.look()
    cluster = found.target.cluster
    (name,) = (item["metadata"]["name"] for item in cluster.list("StatefulSet"))
    healed = 0
    for _ in range(120):  # twenty minutes
        cluster.merge("StatefulSet", name, {"spec": {"replicas": 0}})
        found.now_s += 10.0
        conditions = found.look()
        there = cluster.get("StatefulSet", name)
        assert there is not None
        healed += there["spec"]["replicas"] == 1
    assert 6 <= healed <= 10
    assert (conditions["Degraded"]["status"], conditions[CONDITION_READY]["status"]) == ("True", "False")
    assert "spec.replicas is 0, the plan has 1" in conditions["Degraded"]["message"]


def test_a_resource_that_goes_takes_all_of_its_objects_with_it(operated: Callable[..., Operated]) -> None:
    found = operated()
    found.look()
    notes = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "digits-notes"}, "data": {}}
    found.target.create(notes)
    found.reconciler.remove(found.there())
    kinds = ("StatefulSet", "Deployment", "Service", "ConfigMap", "Secret", "ServiceAccount", "NetworkPolicy", "Lease")
    assert not any(found.target.names(kind) for kind in (*kinds, "PodDisruptionBudget", "Pod"))
    assert found.target.cluster.get("ConfigMap", "digits-notes") is not None
    found.reconciler.remove(found.there())  # again: nothing is left to do


def test_a_namespace_that_goes_is_not_held_up(operated: Callable[..., Operated]) -> None:
    """There a lock cannot be taken, as nothing new may be made."""
    found = operated()
    found.look()
    wire = found.target.wire
    found.target.drop("Lease", "digits-deploy")
    wire.fault = lambda method, path: 403 if (method, path.rpartition("/")[2]) == ("POST", "leases") else None
    with pytest.raises(ClusterError, match="a fault of the test"):
        found.reconciler.remove(found.there())
    wire.words = (
        'leases "x" is forbidden: unable to create new content in namespace shop because it is being terminated'
    )
    found.reconciler.remove(found.there())
    assert "its namespace is being deleted" in found.said[-1]


@pytest.mark.slow
def test_certificates_stay_until_they_are_late(
    operated: Callable[..., Operated], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = operated()
    found.look()

    def secrets() -> dict[str, Any]:
        return {item["metadata"]["name"]: item["data"] for item in found.target.cluster.list("Secret")}

    before = secrets()
    assert {"digits-authority", "digits-client-tls", "digits-gateway-tls", "digits-tls-box"} <= set(before)
    found.look(set_to("kubernetes", "images", "agent", "cpu", to="registry.example/agent:2"))
    assert secrets() == before
    monkeypatch.setattr(certificates, "_RENEW", 1.1)
    monkeypatch.setattr(certificates, "_authority_needs_renewal", lambda bundle: False)
    found.look(set_to("kubernetes", "images", "agent", "cpu", to="registry.example/agent:3"))
    after = secrets()
    assert after["digits-authority"] == before["digits-authority"]
    for name in ("digits-client-tls", "digits-gateway-tls", "digits-tls-box"):
        assert after[name]["ca.crt"] == before[name]["ca.crt"]
        assert all(after[name][key] != before[name][key] for key in before[name] if key != "ca.crt")


def test_a_suspended_resource_is_left_as_it_is(operated: Callable[..., Operated]) -> None:
    found = operated()
    found.look()
    found.look(set_to("suspend", to=True))
    conditions = found.look(set_to("slo", "accuracy", to=90))
    assert (conditions[CONDITION_PLANNED]["status"], conditions[CONDITION_PLANNED]["reason"]) == (
        "Unknown",
        "Suspended",
    )
    assert conditions[CONDITION_READY]["status"] == "True"
    assert found.revisions() == ["deployed"]
    assert found.look(set_to("suspend", to=False))[CONDITION_PLANNED]["reason"] == "Replanned"


@pytest.mark.slow
def test_several_workflows_on_one_fleet_are_one_deployment(operated: Callable[..., Operated]) -> None:
    one = resource()["spec"]
    part = {key: one[key] for key in ("sources", "operators", "profiles")} | {"slo": {"accuracy": 80}}
    without = dict.fromkeys(("sources", "operators", "profiles", "slo"))
    there = operated(**without, workflows={"shop": part, "yard": part})
    conditions = there.look()
    assert conditions[CONDITION_PLANNED]["status"] == "True", conditions
    deployed = [found["metadata"]["name"] for found in there.target.cluster.list("Deployment")]
    assert [name for name in deployed if name.endswith("-gateway")], "one gateway for both"
    assert len(deployed) == 1
    wrong = there.look(set_to("workflows", "yard", "sources", "strip", "tier", to="moon"))
    assert "spec.workflows.yard.sources.strip" in wrong[CONDITION_PLANNED]["message"]
