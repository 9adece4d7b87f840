"""Issues certificates: an authority per deployment, kept in a Secret, signs for gateway, workers, a client, an admin.

A certificate is renewed after two thirds of its lifetime; pods read the new one without a restart.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from jellybean.serving.enrolment.authority import LIFE_S, certificate_hosts, open_authority
from jellybean_agent import CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE, Identity, Role, write_private_file
from jellybean_k8s import (
    APP_PREFIX,
    FIELD_MANAGER,
    Cluster,
    DeployedPlan,
    admin_secret,
    certificate_secrets,
    service_names,
    tls_secret,
)

Object = dict[str, Any]
CLIENT, ADMIN = "client", "admin"
_RENEW = 1 / 3  # fraction of the lifetime left at which a certificate is renewed


def issued_names(deployed: DeployedPlan) -> tuple[str, ...]:
    """Names of the Secrets of `issued`: one that is there and not the deployment's is another's."""
    mounted = (tls_secret(deployed, group) for group in (None, *deployed.groups))
    return (_authority_secret(deployed), _client_secret(deployed), admin_secret(deployed.app), *mounted)


def issued(cluster: Cluster, deployed: DeployedPlan, folder: Path) -> tuple[Object, ...]:
    """The Secrets to apply: authority, gateway, workers, one client and one admin."""
    ca = folder / "ca"
    name = _authority_secret(deployed)
    there = cluster.get("Secret", name)
    if there is not None:
        _restore(there, {item: ca / item for item in there.get("data") or {}})
    bundle = (ca / CA_FILE).read_bytes() if (ca / CA_FILE).exists() else b""
    authority = open_authority(ca, renew=bool(bundle) and _authority_needs_renewal(bundle))
    hosts = (*service_names(deployed.app, cluster.namespace), "localhost")
    _keep_or_issue(cluster, deployed, folder, authority, hosts)
    return (
        _secret(deployed, name, _files(ca)),
        *certificate_secrets(deployed, folder),
        _secret(deployed, _client_secret(deployed), _files(folder / CLIENT)),
        _secret(deployed, admin_secret(deployed.app), _files(folder / ADMIN)),
    )


def _files(folder: Path) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in sorted(folder.iterdir())}


def _authority_secret(deployed: DeployedPlan) -> str:
    return f"{deployed.app}-authority"


def _client_secret(deployed: DeployedPlan) -> str:
    return f"{deployed.app}-client-tls"


def _keep_or_issue(
    cluster: Cluster, deployed: DeployedPlan, folder: Path, authority: Any, hosts: Sequence[str]
) -> None:
    """Write a folder per certificate: the existing one if it needs no renewal, else a new one."""
    name = deployed.plan.name
    wanted: list[tuple[str, Path, Identity, str]] = [
        (tls_secret(deployed, None), folder / "gateway", Identity(name, Role.GATEWAY), "tls."),
        (_client_secret(deployed), folder / CLIENT, Identity(name, Role.CLIENT, CLIENT), "tls."),
        (admin_secret(deployed.app), folder / ADMIN, Identity(name, Role.ADMIN, ADMIN), "tls."),
    ]
    for group in deployed.groups:
        for number, worker in enumerate(group.workers, group.first or 0):
            at = folder / "agent" / worker
            wanted.append((tls_secret(deployed, group), at, Identity(name, Role.AGENT, worker), f"{number}."))
    secrets = {secret: cluster.get("Secret", secret) for secret in {item[0] for item in wanted}}
    for secret, at, identity, key in wanted:
        there = secrets[secret]
        if there is not None:
            _restore(
                there, {"ca.crt": at / CA_FILE, f"{key}crt": at / CERTIFICATE_FILE, f"{key}key": at / PRIVATE_KEY_FILE}
            )
        own = hosts if identity.role is Role.GATEWAY else ()
        if not _is_current(at, authority, own):
            authority.equip(at, identity, hosts=own, life_s=LIFE_S)


def _restore(secret: Mapping[str, Any], files: Mapping[str, Path]) -> None:
    for key, path in files.items():
        text = (secret.get("data") or {}).get(key)
        if text is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private_file(path, base64.b64decode(text))


def _is_current(at: Path, authority: Any, hosts: Sequence[str]) -> bool:
    """True if the folder has the authority's bundle and a certificate for the hosts, signed by it and not late."""
    if (
        not set(hosts) <= set(certificate_hosts(at))
        or not all((at / item).exists() for item in (CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE))
        or (at / CA_FILE).read_bytes() != authority.bundle
    ):
        return False
    try:
        found = x509.load_pem_x509_certificate((at / CERTIFICATE_FILE).read_bytes())
        found.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return not _needs_renewal(found)


def _needs_renewal(certificate: x509.Certificate) -> bool:
    whole = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return bool(certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC) < whole * _RENEW)


def _authority_needs_renewal(bundle: bytes) -> bool:
    """True if the newest authority of a bundle must be renewed."""
    return _needs_renewal(x509.load_pem_x509_certificates(bundle)[0])


def _secret(deployed: DeployedPlan, name: str, files: Mapping[str, bytes]) -> Object:
    own = {
        f"{APP_PREFIX}/name": "jellybean",
        f"{APP_PREFIX}/instance": deployed.app,
        f"{APP_PREFIX}/component": "certificates",
        f"{APP_PREFIX}/managed-by": FIELD_MANAGER,
    }
    data = {key: base64.b64encode(content).decode() for key, content in files.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": own},
        "type": "Opaque",
        "data": data,
    }
