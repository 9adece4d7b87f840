"""Names of objects: what makes a deployment another one, and names that Kubernetes accepts."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from jellybean_k8s import PoolSettings, deployed_plan, dns_name, render
from jellybean_k8s.cluster.readiness import WORKLOADS
from jellybean_k8s.names import label_value
from jellybean_solver import Plan
from tests.k8s_plans import SETTINGS, wide


@pytest.mark.parametrize(
    "change",
    [
        {"agent_images": {"cpu": "other:2"}}, {"gateway_image": "other:2"}, {"version": "9.9.9"}, {"drain_s": 31.0},
        {"pools": {"cloud": PoolSettings(cpu=2.0)}}, {"gateway_memory_bytes": 2.0**30}, {"tier_label": "here/tier"},
    ],
)  # fmt: skip
def test_a_change_of_any_pod_gives_all_sets_other_names(plan: Plan, change: dict[str, Any]) -> None:
    """So that it starts beside the running ones; a set whose template changed would restart its pods in place."""
    before, after = (deployed_plan(plan, settings) for settings in (SETTINGS, dataclasses.replace(SETTINGS, **change)))
    assert before.id != after.id
    sets = [{o["metadata"]["name"] for o in render(one) if o["kind"] in WORKLOADS} for one in (before, after)]
    assert len(sets[0]) == len(sets[1]) > 2
    assert not sets[0] & sets[1]


def test_an_autoscaled_pool_is_another_deployment(plan: Plan) -> None:
    """Its set has no replicas of ours: without a name of its own the API server would give it one."""
    scaled = dataclasses.replace(SETTINGS, pools={"cloud": PoolSettings(autoscale=True)})
    many = wide(plan, "cloud", 4)
    assert deployed_plan(many, SETTINGS).id != deployed_plan(many, scaled).id == deployed_plan(many, scaled).id


def test_another_way_to_find_metrics_is_another_deployment(plan: Plan) -> None:
    """Annotations of pods are in their templates."""
    assert deployed_plan(plan, SETTINGS).id != deployed_plan(plan, SETTINGS, service_monitor=True).id


def test_names_are_kept_where_they_fit_and_never_become_one() -> None:
    assert dns_name("camera-box") == "camera-box"
    assert len({dns_name(text, 20) for text in ("a_b", "a-b", "A-B", "a.b", "a" * 30, "a" * 31, "9", "w9")}) == 8
    for text in ("_", "...", "Ä", "9lives", "x" * 80, "-a-"):
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", dns_name(text))
    assert label_value("T4.large_1") == "T4.large_1"
    assert label_value("_pool") != "_pool"
