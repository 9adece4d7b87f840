"""Reasons of unready pods and sets, from their states and events."""

from __future__ import annotations

from typing import Any

from jellybean_k8s.cluster.pod_reasons import pod_reasons, set_reasons


def warning(reason: str, message: str, time: str, *, uid: str = "u-p", name: str = "p") -> dict[str, Any]:
    about = {"kind": "Pod", "name": name, "uid": uid}
    return {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": time, "involvedObject": about}


def pod(name: str, waiting: dict[str, str] | None = None) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": "Pending"}
    if waiting is not None:
        status["containerStatuses"] = [{"name": "agent", "state": {"waiting": waiting}}]
    return {"metadata": {"name": name, "uid": f"u-{name}"}, "status": status}


def workload(name: str, kind: str = "StatefulSet", **status: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "uid": f"u-{name}"}, "status": status}


def test_a_scheduler_that_repeats_itself_hides_no_other_reason() -> None:
    events = [warning("Failed", "manifest unknown", "1")]
    events += [warning("FailedScheduling", f"0/{count} nodes are available", str(count)) for count in range(2, 8)]
    assert pod_reasons([pod("p")], events) == [
        "p: pending",
        "  Failed: manifest unknown",
        "  FailedScheduling: 0/7 nodes are available",
    ]


def test_events_of_an_earlier_pod_of_the_same_name_are_not_told() -> None:
    events = [
        warning("Failed", "manifest of the old image unknown", "1", uid="u-earlier"),
        warning("BackOff", "of nobody", "2", uid=""),
        warning("Failed", "manifest unknown", "3"),
    ]
    assert pod_reasons([pod("p")], events) == ["p: pending", "  Failed: manifest unknown"]


def test_equal_reasons_of_many_pods_are_told_once_with_their_number() -> None:
    """Kubernetes writes names, UIDs and growing pauses into its messages."""
    pods, events = [], []
    for number in range(12):
        name = f"digits-1-{number}"
        message = f"back-off {10 * (number + 1)}s restarting failed container=agent pod={name}_shop(u-{name})"
        pods.append(pod(name, {"reason": "CrashLoopBackOff", "message": message}))
        events.append(
            warning("BackOff", f"Back-off restarting failed container agent in pod {name}_shop(u-{name})", f"{number}",
                    uid=f"u-{name}", name=name)
        )  # fmt: skip
    events.append(warning("Unhealthy", "probe failed", "99", uid="u-digits-1-3", name="digits-1-3"))
    assert pod_reasons(pods, events) == [
        "12 pods (digits-1-0, digits-1-1, digits-1-2, ...): agent waits: CrashLoopBackOff "
        "(back-off restarting failed container=agent pod=POD_shop(UID))",
        "  BackOff: Back-off restarting failed container agent in pod POD_shop(UID)",
        "  Unhealthy: probe failed (1 of 12 pods)",
    ]


def test_pods_with_different_states_have_a_line_each() -> None:
    pods = [pod("a"), pod("b"), pod("c", {"reason": "ErrImagePull"}), {"metadata": {"name": "d"}, "status": {}}]
    assert [line.partition(":")[0] for line in pod_reasons(pods, [])] == ["3 pods (a, b, d)", "c"]


def test_pods_that_a_quota_refuses_are_told_once_for_all_sets() -> None:
    sets = [workload(f"digits-{name}") for name in ("edge", "hub", "cloud")]
    refused = 'pods "{0}-0" is forbidden: exceeded quota: few, requested: cpu=1, used: cpu=4, limited: cpu=4'
    events = [
        warning(
            "FailedCreate",
            f"create Pod {name}-0 in StatefulSet {name} failed error: {refused.format(name)}",
            "1",
            uid=uid,
            name=name,
        )
        for name, uid in [*((item["metadata"]["name"], item["metadata"]["uid"]) for item in sets), ("digits-edge", "u")]
    ]
    assert set_reasons(sets, events) == [
        "3 sets (StatefulSet/digits-edge, StatefulSet/digits-hub, StatefulSet/digits-cloud): FailedCreate: create Pod "
        'POD in StatefulSet SET failed error: pods "POD" is forbidden: exceeded quota: few, requested: cpu=1, '
        "used: cpu=4, limited: cpu=4"
    ]


def test_a_deployment_says_why_its_pods_are_refused() -> None:
    """The event is of its ReplicaSet."""
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: few"}
    well = {"type": "Available", "status": "True", "reason": "x", "message": "y"}
    assert set_reasons([workload("digits-gateway", "Deployment", conditions=[well, condition])], []) == [
        "Deployment/digits-gateway: FailedCreate: exceeded quota: few"
    ]
