"""The tests' own checks of manifests fail for objects that are broken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from jellybean_k8s import deployed_plan, render
from jellybean_solver import Plan
from tests.k8s_check import complaints, schema_complaints
from tests.k8s_plans import SETTINGS
from tests.unit.k8s.rendered_objects import find


def _set(*path: str | int, to: Any) -> Callable[[Any], None]:
    def change(item: Any) -> None:
        for key in path[:-1]:
            item = item[key]
        item[path[-1]] = to

    return change


BROKEN = {
    "does not select its own pods": ("StatefulSet", _set("spec", "selector", "matchLabels", "x", to="y")),
    "is no quantity": (
        "StatefulSet",
        _set("spec", "template", "spec", "containers", 0, "resources", "requests", "cpu", to="1 core"),
    ),
    "is no DNS label": ("PodDisruptionBudget", _set("metadata", "name", to="Digits_1")),
    "no label instance": ("ServiceAccount", _set("metadata", "labels", to={})),
    "pod security context": (
        "Deployment",
        _set("spec", "template", "spec", "securityContext", "runAsNonRoot", to=False),
    ),
    "gets a token": ("Deployment", _set("spec", "template", "spec", "automountServiceAccountToken", to=True)),
    "which nobody opens": (
        "StatefulSet",
        _set("spec", "template", "spec", "containers", 0, "readinessProbe", "grpc", "port", to=1),
    ),
    "of grace cut short": ("StatefulSet", _set("spec", "template", "spec", "terminationGracePeriodSeconds", to=30)),
    "selects nothing": ("PodDisruptionBudget", _set("spec", "selector", "matchLabels", "x", to="y")),
    "no DNS": ("NetworkPolicy", _set("spec", "egress", to=[])),
    "refers to": ("StatefulSet", _set("spec", "template", "spec", "serviceAccountName", to="other")),
    "pods [": ("StatefulSet", _set("spec", "replicas", to=1)),
}


@pytest.mark.parametrize("complaint", BROKEN)
def test_the_checks_find_what_is_broken(plan: Plan, complaint: str) -> None:
    objects = copy.deepcopy(render(deployed_plan(plan, SETTINGS)))
    kind, change = BROKEN[complaint]
    change(find(objects, kind))
    assert any(complaint in text for text in complaints(objects))


def test_the_schema_finds_a_stray_and_a_missing_field(plan: Plan) -> None:
    objects = copy.deepcopy(render(deployed_plan(plan, SETTINGS)))
    find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["imagge"] = "x"
    del find(objects, "StatefulSet")["spec"]["selector"]
    assert len(schema_complaints(objects, ("1.37.0",))) == 2
