"""render, deploy, status, rollback, undeploy as a person runs them, against the API server that a kubeconfig names."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml

from jellybean.cli import run
from jellybean.serving import open_authority
from jellybean_agent import Identity, Role
from tests.k8s_check import complaints
from tests.k8s_real import RealCluster, node
from tests.k8s_target import Target, running_target, write_kubeconfig
from tests.support.command_line import jellybean
from tests.support.paths import EXAMPLES

EXAMPLE = EXAMPLES / "digits"
MADE = (
    "StatefulSet",
    "Deployment",
    "Service",
    "ConfigMap",
    "Secret",
    "ServiceAccount",
    "NetworkPolicy",
    "Lease",
    "Pod",
)
SETTINGS = """\
kind: Kubernetes
images: {agent: "registry.example/agent:1", gateway: "registry.example/gateway:1"}
models: {url: https://models.example/digits}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, planned, with certificates."""
    directory = tmp_path_factory.mktemp("projects") / "digits"
    shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns(".jellybean", "plan.json"))
    (directory / "kubernetes.yaml").write_text(SETTINGS, encoding="utf-8")
    assert run(["plan", str(directory)]) == 0
    assert run(["certs", str(directory)]) == 0
    return directory


@pytest.fixture
def target(tmp_path: Path, real_cluster: RealCluster | None) -> Iterator[Target]:
    with running_target(tmp_path / "certificates", real_cluster) as running:
        yield running


@pytest.fixture
def flags(target: Target, tmp_path: Path) -> list[str]:
    return ["--kubeconfig", str(write_kubeconfig(tmp_path / "kubeconfig", {"fleet": target})), "--context", "fleet"]


def test_render_prints_sound_objects_and_writes_a_base(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = list(yaml.safe_load_all(jellybean("render", str(project)).stdout))
    assert complaints(objects) == []
    assert run(["render", str(project), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"apiVersion": "v1", "kind": "List", "items": objects}
    assert run(["render", str(project), "--kustomize", str(tmp_path / "base")]) == 0
    assert f"wrote {len(objects)} objects" in capsys.readouterr().out
    assert run(["render", str(project), "--kustomize", str(tmp_path / "json"), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["folder"], written["objects"]) == (str(tmp_path / "json"), len(objects))
    assert sorted(written["files"]) == sorted(one.name for one in (tmp_path / "base").iterdir())
    assert "kustomization.yaml" in written["files"]


def test_a_project_is_printed_as_a_resource_that_its_definition_takes(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["render", str(project), "--resource"]) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    assert run(["render", str(project), "--resource", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == made
    assert run(["operator", "crd"]) == 0
    definition = yaml.safe_load(capsys.readouterr().out)
    assert (made["kind"], made["metadata"]) == ("Workflow", {"name": "digits"})
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert list(jsonschema.Draft4Validator(schema).iter_errors(made)) == []


def test_a_difference_to_a_cluster_is_shown_and_changes_nothing(
    project: Path, flags: list[str], target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diff", str(project), "--cluster", *flags]) == 1
    assert "+ Service/digits: new" in capsys.readouterr().out
    assert not any(target.names(kind) for kind in MADE)
    assert run(["diff", str(project), str(project), "--cluster", *flags]) == 2
    assert "--cluster takes one project" in capsys.readouterr().err


def test_settings_that_are_missing_or_wrong_are_told_with_place(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "digits"
    shutil.copytree(project, copy)
    (copy / "kubernetes.yaml").write_text(
        SETTINGS.replace("gateway:", "gatewy:", 1) + "pools: {cloud: {gpu: matrox}}\n", encoding="utf-8"
    )
    assert run(["render", str(copy)]) == 2
    text = capsys.readouterr().err
    assert "kubernetes.yaml:2:" in text
    assert "did you mean 'gateway'" in text
    assert "kubernetes.yaml:4:" in text
    assert "is not a known GPU vendor" in text
    (copy / "kubernetes.yaml").unlink()
    assert run(["render", str(copy)]) == 2
    assert "models: {url: https://HOST/FOLDER}" in capsys.readouterr().err


def test_a_project_is_deployed_changed_rolled_back_and_taken_away(
    project: Path, flags: list[str], target: Target, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def call(command: str, *more: str) -> tuple[int, str]:
        capsys.readouterr()
        status = run([command, str(directory), *flags, *more])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    directory, space = tmp_path / "digits", target.cluster.namespace
    shutil.copytree(project, directory)
    assert call("deploy", "--dry-run")[0] == 1
    assert target.names("Service") == set()
    status, text = call("deploy")
    assert (status, f"digits in {space}: revision 1" in text, f"digits.{space}.svc:8001" in text) == (0, True, True), (
        text
    )
    assert "nothing was applied" in call("deploy")[1]
    status, text = call("deploy", "--dry-run")
    assert (status, text.startswith("nothing would change\n")) == (0, True), text

    (directory / "kubernetes.yaml").write_text(SETTINGS.replace("gateway:1", "gateway:2"), encoding="utf-8")
    status, text = call("deploy", "--dry-run")
    assert status == 1
    (gateway,) = target.names("Deployment")
    assert f"- Deployment/{gateway}: pruned" in text
    assert re.search(r"\+ Deployment/digits-\w{8}-gateway: new", text)
    assert "Secret" not in text
    assert call("deploy", "--timeout", "20")[0] == 0
    status, text = call("status")
    assert (status, f"digits in {space} is healthy" in text, "revision 1 (replaced)" in text) == (0, True, True)
    found = json.loads(call("status", "--json")[1])
    assert found["well"]
    assert found["revisions"][-1]["number"] == 2

    assert "revision 3" in call("rollback")[1]
    (deployment,) = target.cluster.list("Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example/gateway:1"
    assert call("rollback", "--revision", "9")[0] == 1
    assert call("undeploy")[0] == 0
    assert not any(target.names(kind) for kind in MADE)
    status, text = call("status")
    assert (status, f"nothing of digits is deployed in {space}" in text) == (1, True)


def test_an_expired_certificate_makes_status_fail(
    project: Path, flags: list[str], target: Target, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["deploy", str(project), *flags]) == 0
    capsys.readouterr()
    assert run(["status", str(project), *flags]) == 0
    text = " ".join("".join(capsys.readouterr()).split())
    assert "the certificate of jellybean://digits/" in text
    assert "before all others" in " ".join(text.split())
    assert run(["status", str(project), *flags, "--json"]) == 0
    certificates = json.loads(capsys.readouterr().out)["certificates"]
    assert (certificates["expired"], certificates["late"], certificates["unread"]) == ([], [], [])
    assert certificates["earliest"]["expires"].startswith("20")
    assert 6 * 86400 < certificates["earliest"]["left_s"] <= 7 * 86400
    authority = open_authority(tmp_path / "ca")
    authority.equip(tmp_path / "gateway", Identity("digits", Role.GATEWAY), life_s=-120.0)
    data = {"tls.crt": base64.b64encode((tmp_path / "gateway/tls.crt").read_bytes()).decode()}
    target.cluster.merge("Secret", "digits-gateway-tls", {"data": data})
    capsys.readouterr()
    assert run(["status", str(project), *flags]) == 1
    text = " ".join("".join(capsys.readouterr()).split())
    assert f"digits in {target.cluster.namespace} is not healthy" in text
    assert "the certificate of jellybean://digits/gateway (Secret digits-gateway-tls, tls.crt) expired on" in text
    assert "`jellybean certs DIR --renew` renews it" in text
    assert run(["status", str(project), *flags, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["well"]
    (expired,) = found["certificates"]["expired"]
    assert (expired["secret"], expired["key"]) == ("digits-gateway-tls", "tls.crt")
    assert -200 < expired["left_s"] < -100


def test_pods_that_do_not_come_up_end_with_their_reasons(project: Path, flags: list[str], target: Target) -> None:
    target.broken.add("digits")
    command = [sys.executable, "-m", "jellybean", "deploy", str(project), *flags, "--timeout", "0.5", "--rollback"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=dict(os.environ))
    assert done.returncode == 1
    assert "not ready after 0.5 s" in done.stderr
    assert "of 2 pods are available" in done.stderr
    assert "what was applied was deleted again" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cluster_that_is_not_named_or_not_there_is_told(
    project: Path, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["deploy", str(project), "--kubeconfig", str(tmp_path / "none")]) == 2
    assert "there is no such file" in " ".join(capsys.readouterr().err.replace("│", "").split())
    assert run(["status", str(project), *flags[:2], "--context", "other"]) == 1
    assert "no cluster to talk to" in capsys.readouterr().err


def test_nodes_become_a_document_that_plans(
    project: Path, flags: list[str], target: Target, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    directory = tmp_path / "digits"
    shutil.copytree(project, directory)
    for name in ("box-a", "box-b"):
        target.set_node(node(name, "edge", **{"jellybean.dev/pool": "camera-box"}))
    target.set_node(node("big", "cloud", 1, **{"jellybean.dev/pool": "cloud"}))
    (tmp_path / "prices.yaml").write_text("camera-box: 0.04 USD/h\n", encoding="utf-8")
    command = ["discover", *flags, "--tiers", "edge,cloud", "--prices", str(tmp_path / "prices.yaml")]
    assert run(command) == 1
    assert "no price for cloud" in capsys.readouterr().err
    (tmp_path / "prices.yaml").write_text("camera-box: 0.04 USD/h\ncloud: 0.3 USD/h\n", encoding="utf-8")
    file = directory / "infrastructure.yaml"
    assert run([*command, "--out", str(file)]) == 1  # it is there already
    file.unlink()
    capsys.readouterr()
    assert run([*command, "--out", str(file)]) == 0
    assert "kubernetes.yaml needs: images: {agent: {cpu: IMAGE, cuda: IMAGE}}" in capsys.readouterr().err
    assert "camera-box: {tier: edge, count: 2, price: 0.04 USD/h, memory: 8 GiB}" in file.read_text(encoding="utf-8")
    assert run([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [pool["name"] for pool in found["pools"]] == ["camera-box", "cloud"]
    assert (found["infrastructure"], found["file"]) == (file.read_text(encoding="utf-8"), None)
    assert run(["validate", str(directory)]) == 2  # the profiles are of emulated devices, and these nodes are real ones
    assert "speed of cloud was 0.5, is now 1" in capsys.readouterr().err
    assert run(["validate", str(directory), "--stale"]) == 0
    (tmp_path / "prices.yaml").write_text("cloud: 3 EUR/h\n", encoding="utf-8")
    assert run(command) == 2
    assert "prices.yaml:1:" in capsys.readouterr().err
