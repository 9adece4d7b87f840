"""`certs --renew`: new certificates in the Secrets of a deployment, and nothing else."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from jellybean.cli import run
from jellybean.serving import open_authority
from jellybean_agent import Identity, Role, read_credentials
from jellybean_k8s import service_names
from tests.api_server import RunningServer
from tests.support.command_line import jellybean
from tests.support.ready_pods import add_nodes, ready_pods
from tests.support.scales_project import make_scales_project

SETTINGS = """\
kind: Kubernetes
images: {agent: "registry.example/agent:1", gateway: "registry.example/gateway:1"}
models: {url: https://models.example/scales}
"""
Data = dict[str, dict[str, str]]


class Deployed:
    """A project with certificates, served in a mock cluster."""

    def __init__(self, server: RunningServer, project: Path, flags: list[str]) -> None:
        self.server, self.project, self.flags = server, project, flags

    def call(self, *command: str, status: int = 0) -> str:
        done = jellybean(command[0], str(self.project), *self.flags, *command[1:], status=status)
        return " ".join((done.stdout + done.stderr).split())

    def secrets(self) -> Data:
        return {name: dict(item["data"]) for name, item in self.server.api.of("secrets").items()}

    def revisions(self) -> list[Any]:
        return list(json.loads(self.call("status", "--json"))["revisions"])

    @property
    def certificates(self) -> Path:
        return self.project / ".jellybean/certs"


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Deployed]:
    project = make_scales_project(tmp_path / "project")
    (project / "kubernetes.yaml").write_text(SETTINGS, encoding="utf-8")
    assert run(["plan", str(project)]) == 0
    with RunningServer() as server, ready_pods(server):
        add_nodes(server, a="edge", b="edge", c="cloud")
        context = {"name": "fleet", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}
        config = {"apiVersion": "v1", "kind": "Config", "contexts": [context], "current-context": "fleet"}
        config |= {"clusters": [{"name": "c", "cluster": {"server": server.url}}], "users": [{"name": "u", "user": {}}]}
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config), encoding="utf-8")
        found = Deployed(server, project, ["--kubeconfig", str(tmp_path / "kubeconfig"), "--context", "fleet"])
        found.call("certs")
        found.call("deploy")
        yield found


def certificate(data: Data, secret: str, key: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(data[secret][key]))


def is_of_newest(data: Data) -> bool:
    """True if the newest authority that a worker trusts has signed its certificate."""
    newest = x509.load_pem_x509_certificates(base64.b64decode(data["scales-tls-box"]["ca.crt"]))[0]
    try:
        certificate(data, "scales-tls-box", "1.crt").verify_directly_issued_by(newest)
    except (InvalidSignature, ValueError):  # ValueError: by its name
        return False
    return True


def test_the_secrets_are_renewed_without_a_revision(deployed: Deployed) -> None:
    before, revisions = deployed.secrets(), deployed.revisions()
    assert set(before) == {"scales-gateway-tls", "scales-tls-box", "scales-tls-server"}
    others = {key: item for key, item in deployed.server.api.store.items() if key[0] not in ("secrets", "leases")}
    text = deployed.call("certs", "--renew", "--hours", "24")
    assert "3 Secrets of scales in shop have new certificates: their pods reload them within two minutes" in text
    after = deployed.secrets()
    for name, data in before.items():
        assert set(after[name]) == set(data)
        assert all(after[name][key] != data[key] for key in data if key != "ca.crt")
        assert after[name]["ca.crt"] == data["ca.crt"]
    hosts = certificate(after, "scales-gateway-tls", "tls.crt").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert set(service_names("scales", "shop")) <= set(hosts.value.get_values_for_type(x509.DNSName))
    assert {
        key: item for key, item in deployed.server.api.store.items() if key[0] not in ("secrets", "leases")
    } == others
    assert deployed.revisions() == revisions
    assert "already serves this plan: nothing was applied" in deployed.call("deploy")
    own = read_credentials(deployed.certificates / "gateway").chain
    assert base64.b64decode(after["scales-gateway-tls"]["tls.crt"]) == own


def test_certificates_of_workers_that_the_plan_here_lacks_are_renewed_too(deployed: Deployed) -> None:
    """A plan before had them, and a rollback needs them."""
    more = deployed.certificates / "agent/box-2"
    open_authority(deployed.certificates / "ca").equip(more, Identity("scales", Role.AGENT, "box-2"), life_s=-60.0)
    secret = deployed.server.api.of("secrets")["scales-tls-box"]["data"]
    secret |= {f"2.{part}": base64.b64encode((more / f"tls.{part}").read_bytes()).decode() for part in ("crt", "key")}
    old = certificate(deployed.secrets(), "scales-tls-box", "2.crt")
    shutil.rmtree(more)
    deployed.call("certs", "--renew")
    new = certificate(deployed.secrets(), "scales-tls-box", "2.crt")
    assert new.not_valid_after_utc > old.not_valid_after_utc
    assert read_credentials(more).identity.name == "box-2"


def test_an_authority_that_pods_do_not_know_writes_nothing(deployed: Deployed) -> None:
    before = deployed.secrets()
    shutil.rmtree(deployed.certificates)
    text = deployed.call("certs", "--renew", status=2)
    assert "has no authority: give --renew where the deployment's certificates were made" in text
    assert not (deployed.certificates / "ca").exists()
    jellybean("certs", str(deployed.project))
    text = deployed.call("certs", "--renew", status=1)
    assert "Secret scales-gateway-tls trusts CN=JellyBean development CA" in text
    assert "renew where the certificates were made" in text
    assert deployed.secrets() == before


def test_a_new_authority_is_learnt_before_it_signs(deployed: Deployed) -> None:
    before = deployed.secrets()
    deployed.call("certs", "--renew", "--new-ca")
    trusted = deployed.secrets()
    assert trusted["scales-tls-box"]["ca.crt"] != before["scales-tls-box"]["ca.crt"]
    assert not is_of_newest(trusted)
    deployed.call("certs", "--renew")
    assert is_of_newest(deployed.secrets())


def test_an_authority_that_signs_already_is_learnt_first(deployed: Deployed) -> None:
    before = deployed.secrets()
    jellybean("certs", str(deployed.project), "--new-ca")  # without the Secrets
    text = deployed.call("certs", "--renew")
    assert "3 Secrets of scales in shop trust the new authority from now on, and keep their certificates" in text
    learnt = deployed.secrets()
    for name, data in before.items():
        assert {key for key in data if learnt[name][key] != data[key]} == {"ca.crt"}
    assert "have new certificates" in deployed.call("certs", "--renew")
    assert (is_of_newest(learnt), is_of_newest(deployed.secrets())) == (False, True)


def test_secrets_of_others_are_left_alone(deployed: Deployed) -> None:
    own = deployed.server.api.of("secrets")["scales-gateway-tls"]["metadata"]["labels"]
    own["app.kubernetes.io/managed-by"] = "cert-manager"
    before = deployed.secrets()
    text = deployed.call("certs", "--renew", status=1)
    assert "Secrets scales-gateway-tls were not made by `jellybean deploy`: renew them there" in text
    deployed.call("undeploy")
    assert "nothing of scales is deployed in shop" in deployed.call("certs", "--renew", status=1)
    assert deployed.secrets() == {"scales-gateway-tls": before["scales-gateway-tls"]}
