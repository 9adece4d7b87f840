"""Cascades in Workflow resources: what flows in them is stated, as the operator has no models to read it from."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from jellybean.documents import load_any_project, load_kubernetes
from jellybean.errors import DocumentError
from jellybean.operator import resource_definition, to_resource
from jellybean.operator.resource import lay_out
from jellybean.planning import plan_project, planned_cascades, require_plan
from tests.support.two_cascades import make_two_cascades

SETTINGS = """\
kind: Kubernetes
images: {agent: "registry.example/agent:1", gateway: "registry.example/gateway:1"}
models: {url: https://models.example/two}
"""
OPTIONS = [f"{name}.slo.{option}" for name in ("shop", "yard") for option in ("accuracy=90", "latency_p99=null")]


def test_a_project_with_cascades_is_a_resource_and_plans_alike(tmp_path: Path) -> None:
    folder = make_two_cascades(tmp_path / "two")
    (folder / "kubernetes.yaml").write_text(SETTINGS, encoding="utf-8")
    project = load_any_project(folder, OPTIONS)
    made = json.loads(json.dumps(to_resource(project, load_kubernetes(folder))))
    (version,) = resource_definition()["spec"]["versions"]
    jsonschema.Draft4Validator(version["schema"]["openAPIV3Schema"]).validate(made)
    cascade = made["spec"]["workflows"]["shop"]["operators"]["first"]["variants"]["both"]["cascade"]
    assert cascade["flows"]["data"] == {"dtype": "float32", "shape": [4]}
    (tmp_path / "laid").mkdir()
    laid = lay_out(made, made["spec"]["infrastructure"], "", tmp_path / "laid")
    before, after = (require_plan(plan_project(one, compare=False)) for one in (project, laid.project))
    assert [one.operator for one in planned_cascades(after)] == ["shop/first", "yard/first"]
    assert (before.cost, before.routes, before.selection) == (after.cost, after.routes, after.selection)
    for one, other in zip(before.operators, after.operators, strict=True):
        assert one.inputs == other.inputs
        assert (one.model and one.model.python) == (other.model and other.model.python)
        assert (one.model and one.model.sha256) == (other.model and other.model.sha256)
    del cascade["flows"]
    (tmp_path / "again").mkdir()
    with pytest.raises(DocumentError, match="what flows in it is read from them"):
        lay_out(made, made["spec"]["infrastructure"], "", tmp_path / "again")
