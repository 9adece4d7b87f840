"""The custom resource: its definition against the API server's rules, and its round trip to a project."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jellybean.documents import build_problem, load_any_project, load_kubernetes, load_project, load_settings
from jellybean.errors import DocumentError
from jellybean.operator import resource_definition, to_resource
from jellybean.operator.fleet import discovered, with_pools
from jellybean.operator.resource import lay_out, operator_spec, stated_profiles
from jellybean.planning import plan_project, require_plan
from jellybean_k8s import ServiceSettings, deployed_plan, render, to_yaml
from jellybean_solver import Problem
from tests.api_objects import pruned
from tests.k8s_check import complaints, schema_complaints
from tests.k8s_resource import resource
from tests.support.skips import NotInstalled
from tests.support.two_scales import make_two_scales

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "k8s" / "chart" / "crds" / "workflows.jellybean.dev.yaml"
SETTINGS = """\
kind: Kubernetes
images: {agent: "registry.example/agent:1", gateway: "registry.example/gateway:1"}
models: {url: https://models.example/digits}
"""
_KNOWN = {
    "description",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "enum",
    "type",
    "properties",
    "required",
    "items",
}
_KNOWN |= {"items", "additionalProperties", "exclusiveMinimum", "maxLength", "minItems", "maxItems", "minProperties"}
_KNOWN |= {"format", "maxProperties", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations"}
_KNOWN |= {"x-kubernetes-list-type", "x-kubernetes-list-map-keys"}
_MOST_COST = 1_000_000  # of one rule; the API server takes ten times as much
_UNKNOWN_SIZE = 1e6


def root() -> dict[str, Any]:
    (version,) = resource_definition()["spec"]["versions"]
    return dict(version["schema"]["openAPIV3Schema"])


def structural_complaints(node: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """What the API server would refuse, written from its rules for structural schemas."""
    if node.get("x-kubernetes-preserve-unknown-fields") is not True and not isinstance(node.get("type"), str):
        yield f"{at}: no type"
    if strange := set(node) - _KNOWN:
        yield f"{at}: {', '.join(sorted(strange))}"
    if "properties" in node and "additionalProperties" in node:
        yield f"{at}: both properties and additionalProperties"
    if strange := set(node.get("required", ())) - set(node.get("properties", ())):
        yield f"{at}: requires {', '.join(sorted(strange))}, which it does not have"
    if node.get("type") == "array" and "items" not in node:
        yield f"{at}: an array without items"
    for name, item in node.get("properties", {}).items():
        yield from structural_complaints(item, f"{at}.{name}")
    for name in ("items", "additionalProperties"):
        if name in node:
            yield from structural_complaints(node[name], f"{at}[{name}]")


def rules(node: Mapping[str, Any], many: float = 1.0, at: str = "") -> Iterator[tuple[str, dict[str, str], Any, float]]:
    """Place, rule, schema and how many values there may be of it."""
    for rule in node.get("x-kubernetes-validations", ()):
        yield at, rule, node, many
    for name, item in node.get("properties", {}).items():
        yield from rules(item, many, f"{at}.{name}")
    if "items" in node:
        yield from rules(node["items"], many * node.get("maxItems", _UNKNOWN_SIZE), f"{at}[]")
    if "additionalProperties" in node:
        yield from rules(node["additionalProperties"], many * node.get("maxProperties", _UNKNOWN_SIZE), f"{at}{{}}")


@pytest.mark.slow
def test_the_definition_is_the_one_that_the_chart_brings() -> None:
    text = to_yaml(resource_definition())
    if os.environ.get("JELLYBEAN_UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(text, encoding="utf-8")
    assert GOLDEN.read_text(encoding="utf-8") == text, (
        "JELLYBEAN_UPDATE_GOLDEN=1 pytest tests/unit/k8s/test_resource.py writes it anew"
    )
    assert yaml.safe_load(text) == resource_definition()


def test_the_definition_is_structural_and_meets_the_schema_of_definitions() -> None:
    assert list(structural_complaints(root())) == []
    assert schema_complaints([resource_definition()]) == []
    (version,) = resource_definition()["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    headers = [column["name"] for column in version["additionalPrinterColumns"]]
    assert headers == [
        "Ready", "Reason", "Plan", "Planned/s", "Measured/s", "p99 target s", "p99 s", "Planned USD/h",
        "Measured USD/h", "Accuracy", "Gap", "Age",
    ]  # fmt: skip


def test_the_structural_check_finds_what_is_broken() -> None:
    broken = {"type": "object", "properties": {"a": {"$ref": "x"}, "b": {"type": "array"}}, "required": ["c"]}
    found = list(structural_complaints(broken))
    assert len(found) == 4
    assert schema_complaints([{**resource_definition(), "specs": {}}])


def test_rules_speak_of_what_is_there_and_cost_little() -> None:
    """Maps and lists around a rule have limits, without which the API server would refuse it as too expensive."""
    found = list(rules(root()))
    assert len(found) > 8
    for at, rule, node, many in found:
        inside = [float(item.get("maxProperties", item.get("maxItems", 1))) for item in node["properties"].values()]
        cost = many * len(re.findall(r"\w+|[^\w\s]", rule["rule"]))
        if ".all(" in rule["rule"]:
            limits = node["properties"]["workers"]["maxProperties"], node["properties"]["tiers"]["maxItems"]
            cost *= limits[0] * limits[1] / 4
        assert cost < _MOST_COST, (at, rule, cost)
        assert inside
        for name in re.findall(r"(?:self|oldSelf)\.(\w+)", rule["rule"]):
            assert name in node["properties"], (at, rule)


HOLDS = {
    "gather and ratio": ({"from": "a", "gather": True, "ratio": {"*": 2.0}}, {"from": "a", "gather": True}),
    "a model is named by": ({"model": "m.onnx"}, {"model": "m.onnx", "sha256": "0"}),
    "model and python": ({"model": "m.onnx", "python": "a:b"}, {"python": "a:b"}),
    "accuracy has one form": ({"end_to_end": [], "independent": {}}, {"independent": {}}),
    "a share has one form": ({"mps": 0.5, "slots": 2}, {"slots": 2}),
    "one of url, image or claim": ({"url": "https://x", "claim": "y"}, {"claim": "y"}),
    "only https:// keeps": ({"url": "http://x", "secret": "s"}, {"url": "https://x", "secret": "s"}),
    "a cache is either": ({"claim": "a", "host_path": "/b"}, {"host_path": "/b"}),
    "only files of a url": ({"claim": "a", "cache": {"claim": "b"}}, {"url": "https://x", "cache": {"claim": "b"}}),
    "a secret is sent": ({"endpoint": "http://x:1", "secret": "s"}, {"endpoint": "https://x:1", "secret": "s"}),
    "a pool's tier": (
        {"tiers": ["edge"], "workers": {"p": {"tier": "cloud"}}},
        {"tiers": ["edge"], "workers": {"p": {"tier": "edge"}}},
    ),
    "links lead": (
        {"tiers": ["edge"], "workers": {}, "links": [{"from": "edge", "to": "hub"}]},
        {"tiers": ["edge", "hub"], "workers": {}, "links": [{"from": "edge", "to": "hub"}]},
    ),
    "the fleet is either": ({"infrastructure": {}, "discover": {}}, {"discover": {}}),
    "either profiles or": ({}, {"profiles": {}}),
    "either sources and operators": ({"workflows": {}, "sources": {}}, {"sources": {}, "operators": {}}),
    "the name of a deployment stays": ({"kubernetes": {"name": "other"}}, {"kubernetes": {"name": "digits"}}),
    "the name of a workflow": ({"metadata": {"name": "x" * 64}}, {"metadata": {"name": "x"}}),
}


def test_rules_hold_for_what_is_right_and_for_nothing_else() -> None:
    celpy = pytest.importorskip("celpy", reason=NotInstalled.CEL)
    from celpy.adapter import json_to_cel

    environment = celpy.Environment()
    old = json_to_cel({"kubernetes": {"name": "digits"}})
    seen = set()
    for _, rule, _, _ in rules(root()):
        wrong, right = next(pair for text, pair in HOLDS.items() if rule["message"].startswith(text))
        seen.add(rule["message"])
        program = environment.program(environment.compile(rule["rule"]))
        for value, wanted in ((wrong, False), (right, True)):
            assert bool(program.evaluate({"self": json_to_cel(value), "oldSelf": old})) is wanted, rule
    assert len(seen) == len(HOLDS)
    for whole in (resource(), yaml.safe_load((ROOT / "k8s" / "examples" / "strips.yaml").read_text(encoding="utf-8"))):
        for rule, value in _met(root(), whole):
            program = environment.program(environment.compile(rule))
            assert program.evaluate({"self": json_to_cel(value), "oldSelf": json_to_cel(value)}), rule


def _met(node: Mapping[str, Any], value: Any) -> Iterator[tuple[str, Any]]:
    """Every rule with each value that it is asked of."""
    for rule in node.get("x-kubernetes-validations", ()):
        yield rule["rule"], value
    for key, item in value.items() if isinstance(value, Mapping) else ():
        inner = node.get("properties", {}).get(key, node.get("additionalProperties"))
        if inner is not None:
            yield from _met(inner, item)
    for item in value if isinstance(value, list) else ():
        yield from _met(node["items"], item)


def schema() -> jsonschema.protocols.Validator:
    """OpenAPI 3.0 takes `exclusiveMinimum` as the fourth draft does."""
    return jsonschema.Draft4Validator(root())


def test_a_definition_is_small_enough_for_kubectl() -> None:
    assert len(json.dumps(resource_definition())) < 200_000, "kubectl apply writes it into an annotation of 256 KiB"


@pytest.mark.slow
def test_several_workflows_are_one_resource(tmp_path: Path) -> None:
    folder = make_two_scales(tmp_path / "two")
    (folder / "kubernetes.yaml").write_text(SETTINGS, encoding="utf-8")
    project = load_any_project(folder)
    made = to_resource(project, load_kubernetes(folder))
    assert made["metadata"]["name"] == "two"
    assert list(schema().iter_errors(made)) == []
    (tmp_path / "laid").mkdir()
    laid = lay_out(made, made["spec"]["infrastructure"], "", tmp_path / "laid")
    before, after = (require_plan(plan_project(one)) for one in (project, laid.project))
    assert (before.name, before.cost, before.routes) == (after.name, after.cost, after.routes)  # sizes of files differ
    del made["spec"]["workflows"]["yard"]["operators"]["first"]["inputs"]
    (tmp_path / "again").mkdir()
    with pytest.raises(DocumentError, match=r"spec\.workflows\.yard\.operators\.first"):
        lay_out(made, made["spec"]["infrastructure"], "", tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize("example", ["digits", "vqa"])
def test_a_project_is_a_resource_and_plans_alike(example: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / example, tmp_path / example)
    (tmp_path / example / "kubernetes.yaml").write_text(SETTINGS, encoding="utf-8")
    project = load_project(tmp_path / example)
    made = json.loads(json.dumps(to_resource(project, load_kubernetes(tmp_path / example))))
    assert list(schema().iter_errors(made)) == []
    assert pruned(root(), {"spec": made["spec"]}) == {"spec": made["spec"]}
    (tmp_path / "laid").mkdir()
    laid = lay_out(made, made["spec"]["infrastructure"], stated_profiles(made["spec"]), tmp_path / "laid")
    assert _without_sizes(build_problem(laid.project)) == _without_sizes(build_problem(project))
    assert laid.settings.agent_images == {"cpu": "registry.example/agent:1"}


def test_settings_of_pods_are_part_of_a_resource(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(ROOT / "examples/digits", folder)
    own = {
        "cpu_limit": 8,
        "priority": "serving",
        "labels": {"team": "vision"},
        "annotations": {"a/b": "c"},
        "tolerations": [{"key": "dedicated", "value": "ml"}, {"operator": "Exists", "effect": "NoExecute"}],
        "env": {"A": "1"},
        "runtime_class": "gvisor",
        "patch": {"spec": {"affinity": None, "dnsPolicy": "Default"}},
    }
    service = ServiceSettings("LoadBalancer", {"a/b": "c"})
    parts = {"pods": own, "pools": {"hub": own}, "gateway": {**own, "service": dataclasses.asdict(service)}}
    written = "".join(f"{key}: {json.dumps(part)}\n" for key, part in parts.items())
    (folder / "kubernetes.yaml").write_text(SETTINGS + written, encoding="utf-8")
    made = json.loads(json.dumps(to_resource(load_project(folder), load_kubernetes(folder))))
    assert list(schema().iter_errors(made)) == []
    assert pruned(root(), {"spec": made["spec"]}) == {"spec": made["spec"]}
    (tmp_path / "laid").mkdir()
    laid = lay_out(made, made["spec"]["infrastructure"], stated_profiles(made["spec"]), tmp_path / "laid").settings
    wanted = load_settings(folder)
    assert (laid.pods, laid.pools, laid.gateway_pods) == (wanted.pods, wanted.pools, wanted.gateway_pods)
    assert laid.gateway_service == wanted.gateway_service == service


def test_stale_profiles_are_refused_unless_accepted(tmp_path: Path) -> None:
    """A new model in a resource with the old profiles is invalid; `render --resource --stale` leaves provenance out."""
    folder = tmp_path / "digits"
    shutil.copytree(ROOT / "examples/digits", folder)
    (folder / "kubernetes.yaml").write_text(SETTINGS, encoding="utf-8")
    settings = load_kubernetes(folder)
    made = json.loads(json.dumps(to_resource(load_project(folder), settings)))
    variant = made["spec"]["operators"]["read"]["variants"]["read"]
    variant["sha256"] = "f" * 64
    (tmp_path / "laid").mkdir()
    with pytest.raises(DocumentError) as error:
        lay_out(made, made["spec"]["infrastructure"], stated_profiles(made["spec"]), tmp_path / "laid")
    (problem,) = error.value.problems
    assert problem.file == "spec.profiles.operators.read.read"
    assert problem.message.startswith(
        "read read (models/read.onnx) was 8d9b28e3228b, is now ffffffffffff; stale: latency"
    )
    assert "jellybean render --resource" in problem.hint
    stale = load_project(folder, ["workers.hub.speed=0.1"], accept_stale=True)
    accepted = json.loads(json.dumps(to_resource(stale, settings)))
    (tmp_path / "accepted").mkdir()
    profiles = stated_profiles(accepted["spec"])
    laid = lay_out(accepted, accepted["spec"]["infrastructure"], profiles, tmp_path / "accepted")
    assert laid.project.stale == ()
    assert laid.project.profiles is not None
    assert not laid.project.profiles.origins


def test_functions_are_named_with_the_module_that_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples" / "vqa", tmp_path / "vqa")
    workflow, old = tmp_path / "vqa" / "workflow.yaml", "variants: [default]"
    assert old in workflow.read_text(encoding="utf-8")
    (tmp_path / "vqa" / "kubernetes.yaml").write_text(
        SETTINGS + "allow_python: [own_steps:swapped]\n", encoding="utf-8"
    )
    with monkeypatch.context() as patch:
        patch.syspath_prepend(ROOT / "tests/unit/agent/execution")
        workflow.write_text(
            workflow.read_text(encoding="utf-8").replace(old, "variants: {default: {python: own_steps:swapped}}"),
            encoding="utf-8",
        )
        project = load_project(tmp_path / "vqa")
        made = json.loads(json.dumps(to_resource(project, load_kubernetes(tmp_path / "vqa"))))
        wanted = build_problem(project)
    assert list(schema().iter_errors(made)) == []
    assert pruned(root(), {"spec": made["spec"]}) == {"spec": made["spec"]}
    (tmp_path / "laid").mkdir()
    laid = lay_out(made, made["spec"]["infrastructure"], stated_profiles(made["spec"]), tmp_path / "laid")
    assert _without_sizes(build_problem(laid.project)) == _without_sizes(wanted)  # where the module is not installed
    assert laid.settings.allow_python == ("own_steps:swapped",)
    assert any(variant.model for operator in wanted.operators for variant in operator.variants)


def _without_sizes(problem: Problem) -> Problem:
    """Model files are not there when a resource is read, so nothing is known of their sizes."""

    def bare(variant: Any) -> Any:
        known = variant.model
        return dataclasses.replace(
            variant, model=None if known is None else dataclasses.replace(known, size_bytes=None)
        )

    operators = [dataclasses.replace(o, variants=tuple(map(bare, o.variants))) for o in problem.operators]
    return dataclasses.replace(problem, operators=tuple(operators))


@pytest.mark.slow
def test_the_example_is_the_one_in_the_documentation_and_plans(tmp_path: Path) -> None:
    text = (ROOT / "k8s" / "examples" / "strips.yaml").read_text(encoding="utf-8")
    shown = "".join(f"    {line}\n" for line in text.splitlines())
    assert shown in (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    example = yaml.safe_load(text)
    assert list(schema().iter_errors(example)) == []
    assert pruned(root(), {"spec": example["spec"]}) == {"spec": example["spec"]}
    nodes = [
        {
            "metadata": {"name": name, "labels": {"jellybean.dev/tier": tier, "jellybean.dev/pool": pool}},
            "spec": {},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi"}},
        }
        for name, tier, pool in (("a", "edge", "box"), ("b", "edge", "box"), ("c", "cloud", "t4"))
    ]
    wanted = operator_spec(example).discover
    assert wanted is not None
    fleet = discovered(nodes, wanted, example["spec"]["discover"], example["spec"]["kubernetes"])
    laid = lay_out(example, fleet.infrastructure, stated_profiles(example["spec"]), tmp_path)
    plan = plan_project(laid.project, compare=False).plan
    assert plan is not None
    assert (plan.cost.total_usd_per_h, plan.accuracy) == (0.1, 85)
    rendered = render(deployed_plan(plan, with_pools(laid.settings, fleet)))
    assert complaints(rendered) == []


def test_the_schema_refuses_short_and_misspelt_forms() -> None:
    assert list(schema().iter_errors(resource())) == []
    for path, value in (
        (("operators", "read", "inputs"), ["strip"]),
        (("sources", "strip", "rate"), "ten per second"),
        (("slo", "accuracy"), "80 %"),
        (("infrastructure", "workers", "box", "count"), -1),
        (("kubernetes", "images"), {"agent": "a"}),
    ):
        wrong = resource()
        at = wrong["spec"]
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        assert list(schema().iter_errors(wrong)), path


def test_what_is_written_beside_the_documents_has_defaults() -> None:
    found = operator_spec(resource(replan={}))
    assert (found.replan.horizon_s, found.replan.debounce_s, found.certificates) == (86400.0, 15.0, "issued")
    with pytest.raises(DocumentError, match=r"replan\.horizon"):
        operator_spec(resource(replan={"horizon": "soon"}))
