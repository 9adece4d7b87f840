"""What status and deploy say of certificates that end, in the Secrets that pods mount."""

from __future__ import annotations

import base64
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from jellybean_k8s import (
    DeployError,
    DeploymentStatus,
    PreflightError,
    certificate_secrets,
    deploy,
    deployed_plan,
    read_deployed_certificates,
    read_status,
    render,
    rollback,
)
from tests.k8s_certificates import equip
from tests.k8s_target import OWN_PREFIX, PLAN, QUICK, SETTINGS, Target

HOUR_S = 3600.0
EXPIRED_S = -120.0


def put(target: Target, folder: Path) -> None:
    """Write a folder's certificates into the Secrets of the cluster, as a person would by kubectl."""
    for secret in certificate_secrets(deployed_plan(PLAN, SETTINGS), folder):
        target.cluster.merge("Secret", secret["metadata"]["name"], {"data": secret["data"]})


def copy(target: Target, folder: Path) -> Path:
    return Path(shutil.copytree(target.certificates, folder))


def told(target: Target, **options: Any) -> list[str]:
    """What a deployment says."""
    said: list[str] = []
    target.deploy(options=dataclasses.replace(QUICK, say=said.append, **options))
    return said


def test_status_tells_which_certificate_ends_first(target: Target, tmp_path: Path) -> None:
    target.deploy()
    status = target.well()
    assert (status.certificates.expired, status.certificates.late, status.certificates.problems) == ((), (), ())
    (note,) = status.certificates.notes
    assert note.startswith("the certificate of jellybean://digits/")
    assert note.endswith(", before all others")
    assert "in 6 d 23 h" in note
    assert [item.key for item in status.certificates.certificates].count("ca.crt") == 3

    folder = equip(copy(target, tmp_path / "late"), ["edge-box-2"], life_s=3 * HOUR_S)
    put(target, folder)
    status = read_status(target.cluster, "digits", now_unix_s=status.certificates.at_unix_s + 2.5 * HOUR_S)
    assert status.is_well
    assert [(item.secret, item.key) for item in status.certificates.late] == [("digits-tls-edge-box", "2.crt")]
    (note,) = status.certificates.notes
    assert note.startswith("the certificate of jellybean://digits/agent/edge-box-2 (Secret digits-tls-edge-box, 2.crt)")
    assert note.endswith(" min, less than a third of its lifetime: `jellybean certs DIR --renew` renews it")


def test_a_deployment_with_an_expired_certificate_is_not_well(target: Target, tmp_path: Path) -> None:
    target.deploy()
    target.well()
    put(target, equip(copy(target, tmp_path / "expired"), ["", "cloud-1"], life_s=EXPIRED_S))
    status = read_status(target.cluster, "digits")
    assert not status.is_well
    assert [(item.secret, item.key) for item in status.certificates.expired] == [
        ("digits-gateway-tls", "tls.crt"),
        ("digits-tls-cloud", "1.crt"),
    ]
    assert "(Secret digits-gateway-tls, tls.crt) expired on " in status.certificates.problems[0]
    assert ", 2 min ago: `jellybean certs DIR --renew` renews it" in status.certificates.problems[0]


def test_pods_whose_certificate_has_expired_say_so(target: Target, tmp_path: Path) -> None:
    target.deploy()
    target.well()
    put(target, equip(copy(target, tmp_path / "expired"), ["cloud-1"], life_s=EXPIRED_S))
    target.idle = True
    for pod in target.cluster.list("Pod", OWN_PREFIX):
        conditions = [{"type": "Ready", "status": "False"}]
        target.kubelet.merge("Pod", pod["metadata"]["name"], {"status": {"conditions": conditions}}, "status")

    def unready() -> DeploymentStatus | None:
        status = read_status(target.cluster, "digits")
        return status if len(status.reasons) > 1 else None

    status = target.eventually(unready)
    own = [line for line in status.reasons if "-cloud-1: " in line]
    assert own and all("the certificate of jellybean://digits/agent/cloud-1" in line for line in own)
    assert all("models are loading" not in line for line in own)


def test_keys_of_workers_that_do_not_serve_do_not_matter(target: Target, tmp_path: Path) -> None:
    target.deploy()
    target.well()
    secret = target.cluster.get("Secret", "digits-tls-cloud") or {}
    assert set(secret["data"]) == {"ca.crt", "1.crt", "1.key"}
    expired = equip(copy(target, tmp_path / "expired"), ["cloud-1"], life_s=EXPIRED_S)
    data = {"4.crt": base64.b64encode((expired / "agent/cloud-1/tls.crt").read_bytes()).decode()}
    target.cluster.merge("Secret", "digits-tls-cloud", {"data": data})
    assert read_status(target.cluster, "digits").is_well


def test_secrets_that_may_not_be_read_are_told(target: Target) -> None:
    target.deploy()
    target.well()
    target.wire.fault = lambda method, path: 403 if method == "GET" and "/secrets/" in path else None
    status = read_status(target.cluster, "digits")
    assert status.is_well
    assert status.certificates.unread == ("digits-gateway-tls", "digits-tls-cloud", "digits-tls-edge-box")
    assert status.certificates.notes == (
        "certificates were not checked: this user may not get the Secrets digits-gateway-tls, digits-tls-cloud, "
        "digits-tls-edge-box",
    )


def test_expired_certificates_are_not_deployed(target: Target) -> None:
    equip(target.certificates, ["edge-box-1", "cloud-1"], life_s=EXPIRED_S)
    with pytest.raises(PreflightError) as caught:
        target.deploy()
    text = str(caught.value)
    assert "the certificate of jellybean://digits/agent/cloud-1 (Secret digits-tls-cloud, 1.crt) expired on " in text
    assert "digits-tls-edge-box, 1.crt" in text
    assert "renew it by `jellybean certs DIR` and deploy again" in text
    assert target.writes() == []


def test_what_is_no_certificate_is_not_deployed(target: Target) -> None:
    (target.certificates / "gateway/tls.crt").write_text("no certificate", encoding="utf-8")
    with pytest.raises(PreflightError, match=r"Secret digits-gateway-tls: tls.crt is no certificate \(PEM\)"):
        target.deploy()


def test_late_certificates_are_deployed_with_a_warning(target: Target) -> None:
    assert told(target) == []
    equip(target.certificates, ["cloud-1"], life_s=60.0)  # begins 300 s before: less than a third is left
    (text,) = told(target)
    assert "the certificate of jellybean://digits/agent/cloud-1 (Secret digits-tls-cloud, 1.crt) ends on " in text
    assert "in 0 min" in text
    assert "less than a third of its lifetime" in text


def test_secrets_that_are_there_already_are_checked_too(target: Target, tmp_path: Path) -> None:
    target.deploy()
    put(target, equip(copy(target, tmp_path / "expired"), ["cloud-1"], life_s=EXPIRED_S))
    deployed = deployed_plan(PLAN, SETTINGS)
    with pytest.raises(PreflightError, match=r"Secret digits-tls-cloud, 1\.crt\) expired on"):
        deploy(target.cluster, deployed, render(deployed), QUICK)


def test_a_gateway_without_the_names_of_its_service_is_told(target: Target) -> None:
    equip(target.certificates, [""], hosts=["digits", "digits.elsewhere.svc"])
    namespace = target.cluster.namespace
    (text,) = told(target)
    assert text.startswith(f"the gateway's certificate lacks the name digits.{namespace}.svc of its Service: ")
    assert f"`jellybean certs DIR --namespace {namespace}`" in text
    equip(target.certificates, [""], hosts=[f"*.{namespace}.svc"])
    assert told(target) == []


def test_a_rollback_to_pods_whose_certificates_have_expired_is_refused(target: Target, tmp_path: Path) -> None:
    """They would not become ready; what serves may have certificates of its own that are valid."""
    target.deploy()
    target.deploy(settings=dataclasses.replace(SETTINGS, agent_images={"cpu": "agent:2"}))
    put(target, equip(copy(target, tmp_path / "expired"), ["cloud-1"], life_s=EXPIRED_S))
    expired = r"Secret digits-tls-cloud, 1.crt\) expired on .*: renew it by `jellybean certs"
    with pytest.raises(PreflightError, match=expired):
        rollback(target.cluster, "digits", 1, QUICK)
    assert len(read_status(target.cluster, "digits").revisions) == 2


def test_certificates_of_a_resource_are_its_operators(target: Target, tmp_path: Path) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "owner-uid"}
    if target.server is None:
        made = target.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}})
        owner["uid"] = made["metadata"]["uid"]
    target.deploy(options=dataclasses.replace(QUICK, owner=owner))
    with pytest.raises(DeployError, match="deployed for ConfigMap owner, whose operator renews its certificates"):
        read_deployed_certificates(target.cluster, "digits")
    put(target, equip(copy(target, tmp_path / "expired"), ["cloud-1"], life_s=EXPIRED_S))
    (problem,) = read_status(target.cluster, "digits").certificates.problems
    assert problem.endswith(
        " ago: the operator renews what it has issued (its log says why not), you what you have given"
    )
