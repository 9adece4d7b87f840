"""The custom resource through kubectl: apply, get, describe, delete."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from jellybean.operator import resource_definition
from jellybean.operator.reconcile import Reconciler
from jellybean_k8s import CRD_KIND
from tests.k8s_resource import resource
from tests.k8s_target import Target, define

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


def test_a_resource_is_applied_looked_at_and_deleted(target: Target, kubeconfig: Path, tmp_path: Path) -> None:
    definition = resource_definition()
    define(target, definition)
    target.drop(CRD_KIND, "digits")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        options = ("--kubeconfig", str(kubeconfig), "--cache-dir", str(tmp_path / "cache"))
        namespaced = (*options, "--namespace", target.cluster.namespace)
        return subprocess.run(["kubectl", *namespaced, *command], capture_output=True, text=True, check=False)

    def kubectl(*command: str) -> str:
        done = run(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def create_strictly(item: Any) -> tuple[str, ...]:
        """A dry run in which the API server, not kubectl, refuses fields that the definition lacks."""
        (tmp_path / "strict.json").write_text(json.dumps(item), encoding="utf-8")
        path = f"/apis/jellybean.dev/v1alpha1/namespaces/{target.cluster.namespace}/workflows"
        return ("create", "--raw", f"{path}?fieldValidation=Strict&dryRun=All", "-f", str(tmp_path / "strict.json"))

    kubectl(*create_strictly(resource()))
    if target.server is None:  # the mock server drops unknown fields without a word
        assert 'unknown field "spec.sorces"' in run(*create_strictly(resource(sorces={}))).stderr
    (tmp_path / "workflow.yaml").write_text(yaml.safe_dump(resource()), encoding="utf-8")
    kubectl("apply", "--validate=false", "-f", str(tmp_path / "workflow.yaml"))
    Reconciler(target.cluster, lambda: ()).reconcile(target.cluster.get(CRD_KIND, "digits") or {})
    (version,) = definition["spec"]["versions"]
    columns = {item["name"].upper(): item["jsonPath"] for item in version["additionalPrinterColumns"]}
    if target.server is not None:  # which makes no tables: the same paths, read by kubectl
        paths = ",".join(f"{name.replace(' ', '_')}:{path}" for name, path in columns.items())
        text = kubectl("get", "workflows.jellybean.dev", "digits", "-o", f"custom-columns=NAME:.metadata.name,{paths}")
    else:
        text = kubectl("get", "workflows.jellybean.dev", "digits")
        assert all(name in text for name in columns)
    status = (target.cluster.get(CRD_KIND, "digits") or {})["status"]
    assert status["plan"] in text
    if target.server is not None:  # a real one leaves cells empty
        found = dict(zip(("NAME", *columns), text.splitlines()[1].split(), strict=True))
        wanted = {"READY": "True", "PLANNED/S": "10", "MEASURED/S": "<none>", "PLANNED USD/H": "0.1", "ACCURACY": "85"}
        assert {name: found[name] for name in wanted} == wanted
    told = kubectl("describe", "workflows.jellybean.dev", "digits")
    assert f"plan {status['served']} serves at digits.{target.cluster.namespace}.svc:8001" in told
    kubectl("delete", "workflows.jellybean.dev", "digits")
    assert target.cluster.get(CRD_KIND, "digits") is None
