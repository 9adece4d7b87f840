"""The operator's Helm chart: rendered by helm if installed, else checked without it."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jellybean.cli import run
from jellybean.serving import alert_rules, dashboard
from jellybean_k8s.resource.rbac import operator_rules
from tests.k8s_check import schema_complaints
from tests.pod_security import violations

CHART = Path(__file__).resolve().parents[3] / "k8s" / "chart"
RULES = CHART / "rules" / "workflows.yaml"
HELM = shutil.which("helm")
with_helm = pytest.mark.skipif(HELM is None, reason="helm is not installed")
VALUES = {
    "defaults": {},
    "two namespaces": {"watch": {"namespaces": ["digits", "shop"]}, "nodes": False, "replicas": 2},
    "all": {
        "watch": {"all": True},
        "image": {"digest": f"sha256:{'0' * 64}", "pullSecrets": ["pull"]},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "serviceAccount": {"name": "own", "annotations": {"a": "b"}},
        "podAnnotations": {"c": "d"},
        "monitoring": {"service": True, "alerts": True, "dashboard": True, "labels": {"release": "prometheus"}},
        "networkPolicy": False,
    },
}


def values() -> dict[str, Any]:
    return dict(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))


def test_the_rules_are_those_that_deploying_takes() -> None:
    text = yaml.safe_dump(operator_rules(), sort_keys=False, default_flow_style=None, width=200)
    if os.environ.get("JELLYBEAN_UPDATE_GOLDEN"):
        RULES.write_text(text, encoding="utf-8")
    assert RULES.read_text(encoding="utf-8") == text, (
        "JELLYBEAN_UPDATE_GOLDEN=1 pytest tests/unit/k8s/test_chart.py writes it anew"
    )
    verbs = {(group, r): set(i["verbs"]) for i in operator_rules() for group in i["apiGroups"] for r in i["resources"]}
    assert not any("*" in {*key, *found} for key, found in verbs.items())
    assert not any("roles" in resource for _, resource in verbs)


def test_alerts_and_dashboard_are_those_of_the_command() -> None:
    files = {"alerts.yaml": alert_rules(), "dashboard.json": json.dumps(dashboard()) + "\n"}
    for name, text in files.items():
        path = CHART / "monitoring" / name
        if os.environ.get("JELLYBEAN_UPDATE_GOLDEN"):
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, "JELLYBEAN_UPDATE_GOLDEN=1 writes it anew"


def test_the_command_prints_the_same_as_objects(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dashboard", "--alerts", "--kubernetes"]) == 0
    rule = yaml.safe_load(capsys.readouterr().out)
    assert (rule["kind"], rule["spec"]) == ("PrometheusRule", yaml.safe_load(alert_rules()))
    assert schema_complaints([rule]) == []
    assert run(["dashboard", "--kubernetes", "--json"]) == 0
    config = json.loads(capsys.readouterr().out)
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config["data"]["jellybean.json"]) == dashboard()
    assert schema_complaints([config]) == []


def test_values_meet_their_schema_which_refuses_what_is_wrong() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    for given in VALUES.values():
        merged = values()
        for key, value in given.items():
            merged[key] = {**merged[key], **value} if isinstance(value, Mapping) else value
        assert list(validator.iter_errors(merged)) == []
    for path, value in ((("image", "digest"), "latest"), (("watch", "namespace"), "a"), (("replicas",), "two")):
        wrong = copy.deepcopy(values())
        at = wrong
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        assert list(validator.iter_errors(wrong)), path


def test_the_chart_is_of_this_version_and_uses_every_value() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    pyproject = (CHART.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'fallback-version = "{chart["appVersion"]}.dev0"' in pyproject
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((CHART / "templates").iterdir()))
    used = set(re.findall(r"\.Values\.([A-Za-z.]+[A-Za-z])", text))
    known = {path for path, _ in _paths(values())}
    assert used <= known
    assert {path for path, leaf in _paths(values()) if leaf} <= used | {f"{u}.{k}" for u in used for k in _inner(u)}
    for name in re.findall(r'include "([\w.]+)"', text):
        assert f'define "{name}"' in text
    for name in re.findall(r'\.Files\.Get "([\w./]+)"', text):
        assert (CHART / name).exists()
    assert len(re.findall(r"{{-? *(?:if|range|with|define)\b", text)) == len(re.findall(r"{{-? *end *-?}}", text))


def _paths(value: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, bool]]:
    for key, item in value.items():
        path = f"{at}{key}"
        inner = isinstance(item, Mapping) and bool(item)
        yield path, not inner
        if inner:
            yield from _paths(item, f"{path}.")


def _inner(path: str) -> list[str]:
    """Everything below a value that is written out whole."""
    at: Any = values()
    for key in path.split("."):
        at = at[key]
    return [name for name, _ in _paths(at)] if isinstance(at, Mapping) else []


@with_helm
def test_helm_finds_nothing_to_say() -> None:
    done = subprocess.run([str(HELM), "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@with_helm
@pytest.mark.parametrize("name", VALUES)
def test_what_helm_makes_of_it_is_sound(name: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(VALUES[name]), encoding="utf-8")
    command = [str(HELM), "template", "release", str(CHART), "--namespace", "digits", "--include-crds"]
    command += ["--kube-version", "v1.36.0"]  # else one that helm was made for, which may be older than ours
    done = subprocess.run(
        [*command, "--values", str(tmp_path / "values.yaml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    objects = [item for item in yaml.safe_load_all(done.stdout) if item]
    assert schema_complaints(objects) == []
    names = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects]
    assert len(set(names)) == len(names)
    assert ("ServiceMonitor" in {item["kind"] for item in objects}) == (name == "all")
    (pod,) = [item["spec"]["template"]["spec"] for item in objects if item["kind"] == "Deployment"]
    assert violations(pod) == []
    granting = "ClusterRole" if name == "all" else "Role"
    assert any(item["kind"] == granting and item["rules"] == operator_rules() for item in objects)
    accounts = {item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"}
    assert accounts == {subject["name"] for item in objects for subject in item.get("subjects", ())}
