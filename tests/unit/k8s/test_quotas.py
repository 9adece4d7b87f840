"""What new pods take of quotas, by Kubernetes' rules for init containers, sidecars, overhead and scopes."""

from __future__ import annotations

from typing import Any

import pytest

from jellybean_k8s.cluster.checks.new_pods import demand, new_pods
from jellybean_k8s.cluster.checks.quotas import applies, exceeded_quotas
from jellybean_k8s.objects import KubeObject


def container(cpu: str, memory: str = "1Gi", limits: dict[str, str] | None = None, **rest: Any) -> KubeObject:
    return {"resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": limits or {}}, **rest}


def pod(*containers: KubeObject, init: tuple[KubeObject, ...] = (), **spec: Any) -> KubeObject:
    return {"spec": {"containers": list(containers), "initContainers": list(init), **spec}}


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> KubeObject:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


@pytest.mark.parametrize(
    ("one", "cpu"),
    [
        (pod(container("1"), container("500m")), 1.5),
        (pod(container("1"), init=(container("100m"),)), 1.0),
        (pod(container("1"), init=(container("2"), container("3"))), 3.0),
        (pod(container("1"), init=(container("1", restartPolicy="Always"), container("3"))), 4.0),
        (pod(container("2"), init=(container("1", restartPolicy="Always"), container("1"))), 3.0),
        (pod(container("1"), overhead={"cpu": "250m"}), 1.25),
    ],
)
def test_a_pod_takes_what_its_containers_take_together_or_an_init_container_alone(one: KubeObject, cpu: float) -> None:
    assert demand(one)["requests.cpu"] == pytest.approx(cpu)
    assert demand(one)["pods"] == 1


def test_what_is_only_limited_is_requested_too() -> None:
    found = demand(pod(container("1", limits={"nvidia.com/gpu": "2", "cpu": "4"})))
    assert found["requests.nvidia.com/gpu"] == found["limits.nvidia.com/gpu"] == 2
    assert (found["requests.cpu"], found["limits.cpu"]) == (1, 4)


@pytest.mark.parametrize(
    ("hard", "used", "text"),
    [
        ({"pods": "3"}, {}, ""),
        ({"pods": "3"}, {"pods": "1"}, "3 new pods take 3 of pods, 2 of 3 are left"),
        ({"count/pods": "2"}, {}, "3 new pods take 3 of count/pods, 2 of 2 are left"),
        ({"cpu": "3"}, {}, ""),
        ({"cpu": "2500m"}, {}, "3 new pods take 3 of cpu, 2.5 of 2.5 are left"),
        ({"requests.cpu": "3"}, {"requests.cpu": "100m"}, "take 3 of requests.cpu, 2.9 of 3 are left"),
        ({"requests.memory": "2Gi"}, {}, "take 3Gi of requests.memory, 2Gi of 2Gi are left"),
        ({"memory": "4Gi"}, {"memory": "5Gi"}, "take 3Gi of memory, 0 of 4Gi are left"),
        ({"limits.cpu": "1"}, {}, ""),  # pods have no such limit: the API server refuses each
        ({"requests.nvidia.com/gpu": "0"}, {}, ""),
        ({"configmaps": "0", "services": "0"}, {}, ""),
    ],
)
def test_the_sum_of_new_pods_is_compared_with_what_a_quota_leaves(
    hard: dict[str, str], used: dict[str, str], text: str
) -> None:
    found = exceeded_quotas([quota(hard, used)], [(pod(container("1")), 3)], [])
    assert len(found) == bool(text)
    assert all(line.startswith("ResourceQuota q: 3 new pods take 3") and text in line for line in found)


def test_pods_that_leave_before_free_their_share() -> None:
    new = [(pod(container("1")), 2)]
    full = quota({"requests.cpu": "2"}, {"requests.cpu": "2"})
    assert exceeded_quotas([full], new, [pod(container("1"))] * 2) == []
    (line,) = exceeded_quotas([full], new, [pod(container("1"))])
    assert "1 of 2 are left" in line


BEST_EFFORT = pod({"resources": {}})
USUAL = pod(container("1"))
HIGH = pod(container("1"), priorityClassName="high")


def priority(operator: str, *values: str) -> dict[str, Any]:
    term = {"scopeName": "PriorityClass", "operator": operator, **({"values": list(values)} if values else {})}
    return {"scopeSelector": {"matchExpressions": [term]}}


@pytest.mark.parametrize(
    ("spec", "one", "counted"),
    [
        ({}, USUAL, True),
        ({"scopes": ["BestEffort"]}, USUAL, False),
        ({"scopes": ["BestEffort"]}, BEST_EFFORT, True),
        ({"scopes": ["NotBestEffort"]}, USUAL, True),
        ({"scopes": ["Terminating"]}, USUAL, False),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, USUAL, True),
        ({"scopes": ["Terminating"]}, pod(container("1"), activeDeadlineSeconds=5), True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, USUAL, False),
        ({"scopes": ["PriorityClass"]}, HIGH, True),
        (priority("In", "high"), HIGH, True),
        (priority("In", "high"), USUAL, False),
        (priority("NotIn", "high"), USUAL, True),
        (priority("Exists"), USUAL, False),
        (priority("DoesNotExist"), USUAL, True),
    ],
)
def test_a_quota_counts_the_pods_in_its_scopes(spec: dict[str, Any], one: KubeObject, counted: bool) -> None:
    assert applies(quota({"pods": "1"}, **spec), one) is counted


def stateful_set(name: str, **spec: Any) -> KubeObject:
    labels = {"jellybean.dev/set": name, "jellybean.dev/pool": "cloud"}
    template = {"metadata": {"labels": labels}, "spec": USUAL["spec"]}
    own = {"selector": {"matchLabels": {"jellybean.dev/set": name}}, "template": template, **spec}
    return {"kind": "StatefulSet", "metadata": {"name": name, "labels": labels}, "spec": own}


def test_only_pods_that_a_set_lacks_are_new() -> None:
    """A set that an autoscaler has shrunk lacks none."""
    scaler = {"kind": "HorizontalPodAutoscaler", "metadata": {"name": "b"}}
    scaler["spec"] = {"maxReplicas": 5, "scaleTargetRef": {"name": "b"}}  # type: ignore[assignment]
    objects = [stateful_set("a", replicas=3), stateful_set("b"), scaler]
    running = [
        {"metadata": {"name": "a-0", "labels": {"jellybean.dev/set": "a"}}, "status": {"phase": "Running"}},
        {"metadata": {"name": "a-1", "labels": {"jellybean.dev/set": "a"}}, "status": {"phase": "Failed"}},
    ]
    assert [(one.name, one.count) for one in new_pods(objects, running)] == [("a", 2), ("b", 5)]
    assert {one.template for one in new_pods(objects, running)} == {"cloud"}
    shrunk = [*running, {"metadata": {"name": "b-0", "labels": {"jellybean.dev/set": "b"}}}]
    assert [one.name for one in new_pods(objects, shrunk)] == ["a"]
    (first, *_) = new_pods(objects, running)
    (owner,) = first.pod["metadata"]["ownerReferences"]
    assert (first.pod["metadata"]["generateName"], owner["kind"], owner["controller"]) == ("a-", "StatefulSet", True)
