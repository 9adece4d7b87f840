"""Commands about a deployment in Kubernetes, by a port that the API server forwards to its gateway."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jellybean_k8s import DeployError, forwarded_gateway
from tests.k8s_target import NEEDS_CONTAINERS, Target, mock_only, real_only
from tests.support.command_line import jellybean
from tests.support.served_scales import ADMIN, IDS, ServedScales, served_scales

pytestmark = pytest.mark.slow

POD = "scales-7d4b-gateway-0"
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "scales", "labels": {}},
    "spec": {"selector": {"role": "gateway"}, "ports": [{"name": "grpc", "port": 8001, "targetPort": 8001}]},
}


def pod(name: str = POD, *, ready: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"role": "gateway"}},
        "spec": {"containers": [{"name": "gateway", "image": "registry.example/gateway:1"}]},
        "status": {"conditions": conditions},
    }


def create_pod(target: Target, item: dict[str, Any]) -> None:
    """A pod with its status, which a real API server takes by itself only."""
    target.cluster.create(item)
    target.cluster.merge("Pod", item["metadata"]["name"], {"status": item["status"]}, "status")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedScales]:
    with served_scales(tmp_path_factory.mktemp("forwarded")) as found:
        yield found


@pytest.fixture
def at(target: Target, kubeconfig: Path, served: ServedScales) -> tuple[str, ...]:
    """Options that name the deployment: its Service, a pod that is not ready and one that is, which answers here."""
    assert target.server is not None
    for item in (SERVICE, pod("scales-7d4b-gateway-1", ready=False), pod()):
        target.cluster.create(item)
    target.server.api.endpoints[POD, 8001] = ("127.0.0.1", served.port)
    return ("--context", "x", "--namespace", target.cluster.namespace, "--kubeconfig", str(kubeconfig))


@mock_only(NEEDS_CONTAINERS)
@pytest.mark.parametrize("command", ["cost", "history", "accuracy", "top", "report", "bench", "infer"])
def test_commands_work_against_a_deployment(served: ServedScales, at: tuple[str, ...], command: str) -> None:
    more = {"bench": ("--duration", "1"), "infer": ("--input", "x=float32:[1, 2, 3, 4]")}.get(command, ())
    status = (0, 4, 5) if command == "bench" else 0  # other tests run beside it
    found = json.loads(jellybean(command, str(served.elsewhere), *at, *more, "--json", status=status).stdout)
    if command == "cost":
        assert found["usd"] > 0
    elif command == "history":
        assert [entry["what"] for entry in found][:2] == ["planned", "up"]
    elif command == "top":
        assert (found["workflow"], found["state"]) == ("scales", "ready")
    elif command == "infer":
        assert found == {"triple": [[6, 12, 18, 24]]}


@mock_only(NEEDS_CONTAINERS)
def test_a_label_goes_through_the_api_server(served: ServedScales, at: tuple[str, ...]) -> None:
    label = ("--id", IDS[1], "--label", "[6, 6, 6, 6]")
    assert "1 labelled: 1 right" in jellybean("label", str(served.elsewhere), *at, *label).stderr


@mock_only(NEEDS_CONTAINERS)
def test_the_admin_of_an_operator_is_in_a_secret(
    served: ServedScales, at: tuple[str, ...], target: Target, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(served.project, copy, ignore=shutil.ignore_patterns(".jellybean"))
    said = jellybean("cost", str(copy), *at, status=2).stderr
    assert "nor the Secret scales-admin-tls of an operator" in said
    files = {item.name: base64.b64encode(item.read_bytes()).decode() for item in (served.project / ADMIN).iterdir()}
    target.cluster.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "scales-admin-tls"}, "data": files}
    )
    assert json.loads(jellybean("cost", str(copy), *at, "--json").stdout)["usd"] > 0


def test_what_is_missing_is_told(served: ServedScales, target: Target, kubeconfig: Path, tmp_path: Path) -> None:
    namespace = target.cluster.namespace
    at = (str(served.elsewhere), "--namespace", namespace, "--kubeconfig", str(kubeconfig))

    def refusal(*more: str, status: int = 1) -> str:
        return jellybean("top", *at, *more, status=status).stderr

    assert f"nothing of scales is deployed in {namespace}: there is no Service scales" in refusal()
    target.cluster.create(SERVICE)
    assert f"scales in {namespace} has no gateway pod that is ready (it has none)" in refusal()
    create_pod(target, pod(ready=False))
    assert f"({POD} is not ready)" in refusal()
    create_pod(target, pod("scales-gateway-2"))
    said = refusal()
    assert "does not forward a port of pod scales-gateway-2" in said
    assert "create pods/portforward" in said
    none = jellybean("top", str(tmp_path), *at[1:], status=2).stderr
    assert "copy the folder .jellybean/certs/admin/admin" in none


@real_only
def test_a_cluster_says_why_no_port_is_forwarded(target: Target) -> None:
    """Pods of the tests run no container: their status alone is patched."""
    target.deploy()
    target.well()
    with (
        pytest.raises(DeployError, match="does not forward a port of pod"),
        forwarded_gateway(target.cluster, "digits"),
    ):
        pass


@real_only
@pytest.mark.skipif(
    "JELLYBEAN_TEST_PROJECT" not in os.environ, reason="JELLYBEAN_TEST_PROJECT names no deployed project"
)
def test_a_deployment_of_a_real_cluster_is_asked(kubeconfig: Path) -> None:
    """JELLYBEAN_TEST_PROJECT is a project that runs in the kubeconfig's namespace, with its certificates."""
    found = json.loads(
        jellybean("top", os.environ["JELLYBEAN_TEST_PROJECT"], "--kubeconfig", str(kubeconfig), "--json").stdout
    )
    assert found["state"] == "ready"
