"""Rendering plans of fleets: time by number of objects, and how little an unchanged plan asks of a cluster."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from benchmarks.registry import benchmark, print_table
from jellybean.documents import load_project
from jellybean.planning import plan_project
from jellybean_k8s import Models, Settings, render
from jellybean_k8s.compare import changes, key_of, stamped
from jellybean_k8s.yaml_text import documents
from jellybean_solver.plan import Plan

SITES = (1, 100, 1000, 2500)
SETTINGS = Settings("agent:1", "gateway:1", Models(url="https://models.example/digits"))
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@benchmark
def kubernetes_render(smoke: bool) -> None:
    """Seconds of CPU from a plan to objects, to YAML, and to the verdict that nothing has changed."""
    plan = _digits()
    rows = []
    for sites in SITES[:2] if smoke else SITES:
        many = dataclasses.replace(plan, sites={plan.tiers[0]: sites} if sites > 1 else {})
        began = time.process_time()
        objects = render(many, SETTINGS)
        rendered_s = time.process_time()
        text = documents(objects)
        written_s = time.process_time()
        wanted = [stamped(item) for item in objects]
        found = changes(wanted, {key_of(item): item for item in wanted}, "digits")
        compared_s = time.process_time()
        if found.to_apply:
            raise RuntimeError(f"{len(found.to_apply)} objects would be applied again")
        figures = (rendered_s - began, written_s - rendered_s, compared_s - written_s)
        rows.append([f"{len(objects):,}", *(f"{figure:.2f}" for figure in figures), f"{len(text) / 1e6:.1f}"])
    print_table(
        "digits in ever more sites, as Kubernetes objects (CPU time)",
        ["objects", "objects s", "YAML s", "nothing changed s", "YAML MB"],
        rows,
    )


def _digits() -> Plan:
    plan = plan_project(load_project(EXAMPLES / "digits"), compare=False).plan
    if plan is None:
        raise RuntimeError("examples/digits has no plan")
    return plan
