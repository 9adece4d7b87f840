"""The operator's pure parts: when a resource is due, what its status says, and the fleet of its nodes."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from jellybean.errors import JellyBeanError
from jellybean.operator.conditions import condition, differs, plan_figures, with_conditions
from jellybean.operator.fleet import discovered, with_pools
from jellybean.operator.pace import MAX_RETRY_S, RESYNC_S, Pace
from jellybean.operator.resource import operator_spec
from jellybean_k8s import DeploymentSettings, ModelSource, PoolSettings
from tests import report_plans
from tests.k8s_resource import resource

NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)


def test_work_begins_at_once_then_waits_until_a_change_has_lasted() -> None:
    pace = Pace(debounce_s=10.0)
    assert pace.due("a", 0.0)
    pace.done(1.0)
    assert not pace.due("a", 2.0)
    assert not pace.due("b", 3.0)
    assert not pace.due("c", 9.0)  # it goes on changing
    assert not pace.due("c", 18.9)
    assert pace.due("c", 19.0)
    pace.done(20.0)
    assert not pace.due("c", 20.0 + RESYNC_S - 1.0)
    assert pace.due("c", 20.0 + RESYNC_S)


def test_failures_wait_ever_longer_and_a_change_ends_the_wait() -> None:
    pace = Pace(debounce_s=1.0)
    now_s, pauses = 0.0, []
    for _ in range(12):
        assert pace.due("a", now_s)
        pauses.append(pace.failed(now_s))
        assert not pace.due("a", now_s + pauses[-1] - 0.1)
        now_s += pauses[-1]
    assert pauses[:3] == [5.0, 10.0, 20.0]
    assert pauses[-1] == MAX_RETRY_S
    assert not pace.due("b", now_s - 1.0)
    assert pace.due("b", now_s + 0.1)
    assert pace.failed(now_s) == 5.0
    pace.reset()
    assert pace.due("b", now_s)


def test_conditions_keep_the_time_of_their_last_change() -> None:
    first = with_conditions(
        {}, [condition("Ready", False, "NotReady", "no pods"), condition("Planned", True, "P", "")], 1, NOON
    )
    assert [item["type"] for item in first] == ["Planned", "Ready"]
    later = NOON + datetime.timedelta(hours=1)
    second = with_conditions({"conditions": first}, [condition("Ready", False, "NotReady", "one pod")], 2, later)
    ready = second[1]
    assert (ready["message"], ready["observedGeneration"]) == ("one pod", 2)
    assert ready["lastTransitionTime"] == "2026-11-21T12:00:00Z"
    assert second[0] == first[0]
    third = with_conditions({"conditions": second}, [condition("Ready", True, "Serving", "")], 2, later)
    assert third[1]["lastTransitionTime"] == "2026-11-21T13:00:00Z"
    assert len(condition("Ready", None, "x", "y" * 100_000)["message"]) == 32_768


def test_a_status_differs_by_what_is_known() -> None:
    measured = {"requestsPerSecond": 1.0, "latencyP99Seconds": None}
    assert not differs({"plan": "p", "measured": {"requestsPerSecond": 1.0}}, {"plan": "p", "measured": measured})
    assert not differs({}, {"measured": None})
    assert differs({"measured": {"requestsPerSecond": 1.0}}, {"measured": None})
    assert differs({"measured": {"requestsPerSecond": 2.0}}, {"measured": measured})


def test_figures_of_a_plan_are_short() -> None:
    plan = report_plans.digits()
    found = plan_figures(plan)
    assert found["costUsdPerHour"] == round(plan.cost.total_usd_per_h, 4)
    assert found["requestsPerSecond"] == pytest.approx(plan.sources[0].rate_per_s)
    assert found["latencyP99TargetSeconds"] == plan.slo.latency_p99_s
    assert len(found["plan"]) == 12
    assert found["gap"].endswith("%")


def node(name: str, **labels: str) -> dict[str, Any]:
    own = {"jellybean.dev/tier": "edge", "node.kubernetes.io/instance-type": "nano", **labels}
    allocatable = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}
    return {"metadata": {"name": name, "labels": own}, "spec": {}, "status": {"allocatable": allocatable}}


def test_nodes_are_a_fleet_whose_pods_go_to_them() -> None:
    written = {"tiers": ["edge"], "prices": {"nvidia-nano": "0.2 USD/h"}, "limits": {"utilisation": 0.5}}
    spec = operator_spec(resource(discover=written))
    assert spec.discover is not None
    found = discovered([node("a"), node("b")], spec.discover, written, {})
    pool = {"tier": "edge", "count": 2, "price": "0.2 USD/h", "memory": "8 GiB", "device": {"provider": "cuda"}}
    assert found.infrastructure == {"tiers": ["edge"], "workers": {"nvidia-nano": pool}, "limits": {"utilisation": 0.5}}
    settings = DeploymentSettings(
        {"cuda": "a"}, "g", ModelSource(claim="m"), pools={"nvidia-nano": PoolSettings(cpu=2.0)}
    )
    merged = with_pools(settings, found).pools["nvidia-nano"]
    assert (merged.cpu, merged.gpu) == (2.0, None)  # the GPU follows from the device
    assert merged.node_labels == {"node.kubernetes.io/instance-type": "nano"}
    with pytest.raises(JellyBeanError, match=r"no node has a tier: kubectl label node NODE own\.example/tier=edge"):
        discovered([node("a")], spec.discover, written, {"tier_label": "own.example/tier"})
    free = operator_spec(resource(discover={"tiers": ["edge"]})).discover
    assert free is not None
    with pytest.raises(JellyBeanError, match="there is no price for nvidia-nano"):
        discovered([node("a")], free, {"tiers": ["edge"]}, {})
