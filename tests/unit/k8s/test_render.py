"""Rendering of fixed cases: golden files, pods of tiers, metrics, functions, YAML, and what is refused."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from jellybean.documents import load_project
from jellybean.planning import plan_project
from jellybean_agent import BUILTIN_STEPS_MODULE
from jellybean_k8s import (
    DeployError,
    DeploymentSettings,
    ModelSource,
    deployed_plan,
    kustomize_base,
    render,
    to_yaml,
    yaml_documents,
)
from jellybean_k8s.manifests.settings import OWN_STEPS
from jellybean_solver import ModelRef, Plan, PythonRef, from_document
from tests.k8s_check import complaints, schema_complaints
from tests.k8s_golden import assert_golden
from tests.k8s_plans import SETTINGS, with_models
from tests.unit.k8s.rendered_objects import find, pod

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_the_objects_of_a_plan_are_the_golden_ones(plan: Plan) -> None:
    deployed = deployed_plan(plan, SETTINGS)
    objects = render(deployed)
    assert_golden("digits.yaml", objects, deployed)
    assert complaints(objects) == schema_complaints(objects) == []


@pytest.mark.slow
@pytest.mark.parametrize("example", ["digits", "vqa"])
def test_plans_of_the_examples_are_sound(example: str) -> None:
    found = plan_project(load_project(EXAMPLES / example), compare=False).plan
    assert found is not None
    objects = render(deployed_plan(with_models(found), SETTINGS))
    assert complaints(objects) == schema_complaints(objects) == []


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_takes_the_base_and_lays_a_namespace_over_it(plan: Plan, tmp_path: Path) -> None:
    objects = render(deployed_plan(plan, SETTINGS))
    (tmp_path / "base").mkdir()
    for name, text in kustomize_base(objects).items():
        (tmp_path / "base" / name).write_text(text, encoding="utf-8")
    (tmp_path / "kustomization.yaml").write_text("namespace: shop\nresources: [base]\n", encoding="utf-8")
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert {item["metadata"].pop("namespace") for item in built} == {"shop"}
    key = lambda item: (item["kind"], item["metadata"]["name"])  # noqa: E731
    front = next(item for item in built if (item["kind"], item["metadata"]["name"]) == ("Service", "digits"))
    assert front["metadata"].pop("annotations") == {"argocd.argoproj.io/sync-wave": "1"}
    assert sorted(built, key=key) == sorted(yaml.safe_load_all(yaml_documents(objects)), key=key)


def test_what_is_served_here_for_real_is_not_emulated(plan: Plan) -> None:
    slow = dataclasses.replace(plan, workers=tuple(dataclasses.replace(w, speed=0.1) for w in plan.workers))
    data = yaml.safe_load(find(render(deployed_plan(slow, SETTINGS)), "ConfigMap")["data"]["plan.json"])
    assert {worker["speed"] for worker in data["workers"]} == {1.0}
    assert {(link["bandwidth_bytes_per_s"], link["latency_s"]) for link in data["links"]} == {(None, 0.0)}


def test_edge_pods_wait_for_their_node_and_stand_alone_on_it(plan: Plan) -> None:
    objects = render(deployed_plan(plan, SETTINGS))
    edge, cloud = pod(objects, "edge-box"), pod(objects, "cloud")
    waits = {t["key"]: t["tolerationSeconds"] for t in edge["tolerations"] if "tolerationSeconds" in t}
    assert waits == {"node.kubernetes.io/unreachable": 604800, "node.kubernetes.io/not-ready": 604800}
    assert "podAntiAffinity" in edge["affinity"]
    assert "podAntiAffinity" not in cloud["affinity"]
    assert not any("tolerationSeconds" in t for t in cloud["tolerations"])


def test_a_plan_too_large_for_a_config_map_is_refused_with_its_size(plan: Plan) -> None:
    many = dataclasses.replace(plan, sites={plan.tiers[0]: 20_000})
    with pytest.raises(DeployError, match=r"40,001 workers take [0-9,]+ bytes, a ConfigMap holds 1,000,000"):
        render(deployed_plan(many, SETTINGS))


def test_metrics_of_gateway_and_agents_are_found_by_annotations_or_by_a_service_monitor(plan: Plan) -> None:
    def annotated(objects: Any) -> list[str]:
        templates = [(item["kind"], item["spec"]["template"]) for item in objects if "template" in item.get("spec", {})]
        return [kind for kind, one in templates if one["metadata"]["annotations"].get("prometheus.io/port") == "9090"]

    assert set(annotated(render(deployed_plan(plan, SETTINGS)))) == {"StatefulSet", "Deployment"}
    monitored = render(deployed_plan(plan, SETTINGS, service_monitor=True))
    assert annotated(monitored) == []
    chosen = find(monitored, "ServiceMonitor")["spec"]["selector"]
    (components,) = chosen["matchExpressions"]
    assert components["values"] == ["agent", "gateway"]
    served = [
        item["metadata"]["labels"]["app.kubernetes.io/component"]
        for item in monitored
        if item["kind"] == "Service" and "metrics" in [port["name"] for port in item["spec"]["ports"]]
    ]
    assert sorted(served) == ["agent", "gateway"]


def test_unknown_tiers_are_refused(plan: Plan) -> None:
    with pytest.raises(DeployError, match="gateway tier hub: the tiers of digits are edge, cloud"):
        render(deployed_plan(plan, dataclasses.replace(SETTINGS, gateway_tier="hub")))


def test_yaml_reads_back_as_it_was() -> None:
    odd = ["no", "1", "1.5", "", " x", "x ", "a: b", "# c", "- d", "é", "\x7f\u2028", "a\nb\n", "a\n\nb\n", "\n", "~"]
    odd += ["null", "0x1f", "1e3", "2026-01-01", "=", "<<", "a\n  b\n", "%", "@x", "`", "'\"\\", "😀", "a\n", "k:"]
    value: dict[str, Any] = {text: [text, {text: text, "n": [1, 1.5, None, True]}] for text in odd if text}
    value |= {"empty": {}, "none": [], "deep": {"a": {"b": [{"c": [{"d": "x\ny\n"}]}]}}}
    assert yaml.safe_load(to_yaml(value)) == value


def test_settings_have_defaults_that_render(plan: Plan) -> None:
    objects = render(deployed_plan(plan, DeploymentSettings({"cpu": "a"}, "b", ModelSource(claim="models"))))
    assert pod(objects, "cloud")["volumes"][-1] == {
        "name": "models",
        "persistentVolumeClaim": {"claimName": "models", "readOnly": True},
    }


def test_functions_run_in_pods_that_are_told_to(plan: Plan) -> None:
    assert OWN_STEPS == BUILTIN_STEPS_MODULE
    (first, *others) = plan.operators
    for function, known in (("team_steps:crop", False), (f"{BUILTIN_STEPS_MODULE}:softmax", True)):
        python = ModelRef("", "ef" * 32, 0.0, PythonRef(function, "{}", "cd" * 32))
        changed = dataclasses.replace(plan, operators=(dataclasses.replace(first, model=python), *others))
        if not known:
            with pytest.raises(DeployError, match=rf"allow_python: \[{function}\] into kubernetes.yaml"):
                render(deployed_plan(changed, SETTINGS))
        allowed = dataclasses.replace(SETTINGS, allow_python=() if known else (function,))
        containers = [
            container
            for found in render(deployed_plan(changed, allowed))
            if found["kind"] == "StatefulSet"
            for container in found["spec"]["template"]["spec"]["containers"]
        ]
        assert containers
        for container in containers:
            assert (f"--allow-python={function}" in container["args"]) is not known
        text = yaml_documents(render(deployed_plan(changed, allowed)))
        assert "ef" * 32 + ":" not in text  # nothing to bring: the agents' image has it
        assert from_document(deployed_plan(changed, allowed).document).operators[0].model == python
