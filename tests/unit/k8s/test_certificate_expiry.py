"""Which certificates pods mount, and when one is late."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path

from jellybean_k8s import PoolSettings, SecretCertificate, certificate_secrets, deployed_plan, render
from jellybean_k8s.cluster.certificates.expiry import certificates_in, mounted_certificates
from jellybean_k8s.cluster.certificates.report import CertificateReport
from tests.k8s_certificates import equip
from tests.k8s_plans import SETTINGS, wide, with_models
from tests.report_plans import digits

DAY_S = 86400.0
PLAN = with_models(digits())


def made(key: str = "1.crt", *, expires_unix_s: float = 7 * DAY_S) -> SecretCertificate:
    return SecretCertificate("digits-tls-cloud", key, "jellybean://digits/agent/cloud-1", 0.0, expires_unix_s)


def test_pods_mount_the_certificates_that_deploying_brings(tmp_path: Path) -> None:
    folder = equip(tmp_path)
    settings = dataclasses.replace(SETTINGS, pools={**SETTINGS.pools, "cloud": PoolSettings(autoscale=True)})
    for plan, of in ((PLAN, SETTINGS), (wide(PLAN, "cloud", 4), settings)):
        deployed = deployed_plan(plan, of)
        brought = {
            secret["metadata"]["name"]: {key for key in secret["data"] if key.endswith(".crt")}
            for secret in certificate_secrets(deployed, folder)
        }
        assert mounted_certificates(render(deployed)) == brought


def test_a_certificate_is_late_in_its_last_third() -> None:
    week = made()
    assert not week.is_late(4.6 * DAY_S)
    assert week.is_late(4.7 * DAY_S)
    assert not week.has_expired(6.9 * DAY_S)
    assert week.has_expired(7 * DAY_S)
    assert week.words(5 * DAY_S).endswith("(Secret digits-tls-cloud, 1.crt) ends on 1970-01-08 00:00 UTC, in 2 d 0 h")
    assert week.words(7 * DAY_S + 7500).endswith(" expired on 1970-01-08 00:00 UTC, 2 h 5 min ago")
    assert made("ca.crt").renewal == "jellybean certs DIR --renew --new-ca"


def test_many_expired_certificates_take_few_lines() -> None:
    found = CertificateReport(8 * DAY_S, tuple(made(f"{number}.crt") for number in range(1, 1001)))
    assert len(found.problems) == 4
    assert found.problems[-1] == "997 more certificates have expired"
    assert found.notes == ()


def test_authorities_end_with_the_last_of_them(tmp_path: Path) -> None:
    from jellybean.serving import open_authority

    equip(tmp_path, [""])
    open_authority(tmp_path / "ca", renew=True)
    equip(tmp_path, [""])
    data = {
        name: base64.b64encode((tmp_path / "gateway" / name).read_bytes()).decode()
        for name in ("ca.crt", "tls.crt", "tls.key")
    }
    (authority, own), damaged = certificates_in({"metadata": {"name": "s"}, "data": {**data, "other": "x"}})
    assert (authority.key, authority.identity, damaged) == ("ca.crt", "the authority", [])
    assert own.identity == "jellybean://digits/gateway"
    assert authority.expires_unix_s - authority.began_unix_s > 300 * DAY_S
    assert certificates_in({"metadata": {"name": "s"}, "data": {"tls.crt": "%%"}})[1] == [
        "Secret s: tls.crt is no certificate (PEM)"
    ]
