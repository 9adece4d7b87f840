"""Rendering plans as Kubernetes objects: time by number of objects, and time to detect that nothing changed."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from jellybean.documents import load_project
from jellybean.planning.project_plan import plan_project
from jellybean_k8s import DeploymentSettings, ModelSource, render, yaml_documents
from jellybean_k8s.cluster.compare import compare_objects, object_key, with_hash
from jellybean_k8s.manifests.identity import deployed_plan
from jellybean_solver import Plan

SITES = (1, 100, 1000, 2500)
SETTINGS = DeploymentSettings({"cpu": "agent:1"}, "gateway:1", ModelSource(url="https://models.example/digits"))
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@benchmark
def kubernetes_render(smoke: bool) -> Result:
    """CPU seconds to render objects, to write YAML, and to compare with an unchanged cluster."""
    plan = _digits()
    rows = []
    for sites in SITES[:2] if smoke else SITES:
        many = dataclasses.replace(plan, sites={plan.tiers[0]: sites} if sites > 1 else {})
        began = time.process_time()
        objects = render(deployed_plan(many, SETTINGS))
        rendered_s = time.process_time()
        text = yaml_documents(objects)
        written_s = time.process_time()
        wanted = [with_hash(item) for item in objects]
        found = compare_objects(wanted, {object_key(item): item for item in wanted}, "digits")
        compared_s = time.process_time()
        if found.to_apply:
            raise RuntimeError(f"{len(found.to_apply)} objects would be applied again")
        figures = (rendered_s - began, written_s - rendered_s, compared_s - written_s)
        rows.append([f"{len(objects):,}", *(f"{figure:.2f}" for figure in figures), f"{len(text) / 1e6:.1f}"])
    return Result(
        title="Rendering Kubernetes objects",
        topic=Topic.KUBERNETES,
        method=f"CPU time of one core for `examples/digits` in {SITES[0]} to {SITES[-1]:,} sites, one run each.",
        reference="nothing; the last time is that of comparing with a cluster where all is deployed already, which "
        "applies nothing.",
        tables=(Table.of(["objects", "render s", "YAML s", "compare s", "YAML MB"], rows),),
    )


def _digits() -> Plan:
    plan = plan_project(load_project(EXAMPLES / "digits"), compare=False).plan
    if plan is None:
        raise RuntimeError("examples/digits has no plan")
    return plan
