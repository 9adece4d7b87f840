"""`jellybean certs` for Kubernetes: other TLS clients reach the gateway under the names of its Service."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest

from jellybean.serving import certificate_hosts
from jellybean_agent import CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE
from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project

SETTINGS = """\
kind: Kubernetes
images: {agent: "registry.example/agent:1", gateway: "registry.example/gateway:1"}
models: {url: https://models.example/scales}
"""
TEAM = {"scales", "scales.team", "scales.team.svc", "scales.team.svc.cluster.local"}
OWN = {"localhost", "127.0.0.1", "::1"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = make_scales_project(tmp_path / "project")
    (folder / "kubernetes.yaml").write_text(SETTINGS, encoding="utf-8")
    jellybean("plan", str(folder))
    return folder


def shown(gateway: Path, client: Path, name: str) -> dict[str, object]:
    """The certificate that a server with the gateway's files shows to a standard client that checks this name."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(gateway / CA_FILE))
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(gateway / CERTIFICATE_FILE, gateway / PRIVATE_KEY_FILE)
    standard = ssl.create_default_context(cafile=str(client / CA_FILE))
    standard.load_cert_chain(client / CERTIFICATE_FILE, client / PRIVATE_KEY_FILE)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    server.wrap_socket(connection, server_side=True).close()
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname(), 10) as raw,
                standard.wrap_socket(raw, server_hostname=name) as secured,
            ):
                return dict(secured.getpeercert() or {})
        finally:
            thread.join()


def test_a_standard_client_accepts_the_names_of_the_service(project: Path) -> None:
    jellybean("certs", str(project), "--namespace", "team")
    folder = project / ".jellybean/certs"
    for name in (*TEAM, "localhost"):
        assert shown(folder / "gateway", folder / "client/client", name)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"scales\.other\.svc"):
        shown(folder / "gateway", folder / "client/client", "scales.other.svc")


def test_names_of_the_service_stay_until_others_are_given(project: Path) -> None:
    def made(*more: str) -> set[str]:
        jellybean("certs", str(project), *more)
        return set(certificate_hosts(project / ".jellybean/certs/gateway"))

    done = jellybean("certs", str(project))
    assert "clients in other namespaces" in done.stderr.replace("\n", " ")
    assert set(certificate_hosts(project / ".jellybean/certs/gateway")) == OWN | {"scales"}
    assert made("-n", "team") == OWN | TEAM
    assert made() == OWN | TEAM
    assert made("--host", "gateway.example") == OWN | TEAM | {"gateway.example"}
    assert made("-n", "shop") >= OWN | TEAM | {"gateway.example", "scales.shop.svc"}
    assert made("-n", "shop", "--host", "new.example").isdisjoint({"scales.team.svc", "gateway.example"})


def test_the_namespace_may_be_that_of_a_context(project: Path, tmp_path: Path) -> None:
    context = "{name: fleet, context: {cluster: c, user: u, namespace: team}}"
    (tmp_path / "kubeconfig").write_text(
        "{apiVersion: v1, kind: Config, current-context: fleet, clusters: [{name: c, cluster: {server: 'http://x'}}], "
        f"users: [{{name: u, user: {{}}}}], contexts: [{context}]}}",
        encoding="utf-8",
    )
    jellybean("certs", str(project), "--kubeconfig", str(tmp_path / "kubeconfig"), "--context", "fleet")
    assert set(certificate_hosts(project / ".jellybean/certs/gateway")) == OWN | TEAM


def test_a_namespace_without_settings_of_kubernetes_is_an_error(project: Path) -> None:
    (project / "kubernetes.yaml").unlink()
    done = jellybean("certs", str(project), "--namespace", "team", status=2)
    assert "three lines are enough" in done.stderr.replace("\n", " ")
    jellybean("certs", str(project))
    assert set(certificate_hosts(project / ".jellybean/certs/gateway")) == OWN
