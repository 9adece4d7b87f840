"""Rendered objects are sound for random plans: schema of three Kubernetes versions, and rules beyond schemas."""

from __future__ import annotations

import dataclasses
import random

import pytest
import yaml

from jellybean_k8s import DeployError, deployed_plan, render, yaml_documents
from tests.k8s_check import complaints, new_shapes, schema_complaints
from tests.k8s_plans import random_deployment

PLANS, MORE_PLANS, MANY_PLANS = 30, 100, 300


def test_objects_of_random_plans_are_sound() -> None:
    check_plans(range(PLANS))


@pytest.mark.slow
def test_objects_of_more_random_plans_are_sound() -> None:
    assert check_plans(range(MORE_PLANS)) > 30


def check_plans(seeds: range) -> int:
    """Number of shapes that the objects of random plans have."""
    pools = sites = gpus = 0
    seen: set[str] = set()
    for seed in seeds:
        plan, settings = random_deployment(random.Random(seed))
        objects = render(deployed_plan(plan, settings, service_monitor=seed % 2 == 0))
        assert complaints(objects) == [], seed
        assert schema_complaints(new_shapes(objects, seen)) == [], seed
        assert render(deployed_plan(plan, settings, service_monitor=seed % 2 == 0)) == objects
        if seed % 5 == 0:
            assert list(yaml.load_all(yaml_documents(objects), yaml.CSafeLoader)) == list(objects), seed
        sets = [item for item in objects if item["kind"] == "StatefulSet"]
        pools += len({worker.pool for worker in plan.workers}) < len(sets)
        sites += bool(plan.sites)
        gpus += "gpu" in str(sets)
    assert min(pools, sites, gpus) > len(seeds) // 10  # the plans are as varied as they are meant to be
    return len(seen)


@pytest.mark.nightly
def test_objects_of_many_random_plans_are_sound_in_all_versions() -> None:
    for seed in range(MORE_PLANS, MANY_PLANS):
        plan, settings = random_deployment(random.Random(seed))
        objects = render(deployed_plan(plan, settings))
        assert schema_complaints(objects) == [] == complaints(objects), seed


def test_a_plan_without_models_is_refused_by_name() -> None:
    plan, settings = random_deployment(random.Random(0))
    bare = dataclasses.replace(plan, operators=tuple(dataclasses.replace(o, model=None) for o in plan.operators))
    with pytest.raises(DeployError, match=r"no model file for o0/v"):
        render(deployed_plan(bare, settings))
