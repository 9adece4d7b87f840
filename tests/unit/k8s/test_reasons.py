"""Reasons of unready pods, from their events."""

from __future__ import annotations

from typing import Any

from jellybean_k8s.cluster.pod_reasons import pod_reasons


def warning(reason: str, message: str, time: str) -> dict[str, Any]:
    about = {"kind": "Pod", "name": "p"}
    return {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": time, "involvedObject": about}


def test_a_scheduler_that_repeats_itself_hides_no_other_reason() -> None:
    pods = [{"metadata": {"name": "p"}, "status": {"phase": "Pending"}}]
    events = [warning("Failed", "manifest unknown", "1")]
    events += [warning("FailedScheduling", f"0/{count} nodes are available", str(count)) for count in range(2, 8)]
    assert pod_reasons(pods, events) == [
        "p: pending",
        "  Failed: manifest unknown",
        "  FailedScheduling: 0/7 nodes are available",
    ]
