"""Renews the certificates of a deployment in its Secrets alone: running pods reload them, and no revision is made."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from jellybean_k8s.cluster.certificates.expiry import CA_KEY, certificates_in, mounted_certificates
from jellybean_k8s.cluster.cluster import Cluster
from jellybean_k8s.cluster.compare import is_ours, with_hash
from jellybean_k8s.cluster.lock import DeployLock
from jellybean_k8s.cluster.revisions import Inventory, read_inventory, read_revision
from jellybean_k8s.cluster.secrets import read_secrets
from jellybean_k8s.errors import DeployError, NoCertificatesError, NotDeployedError
from jellybean_k8s.objects import KubeObject


@dataclass(frozen=True, slots=True)
class DeployedCertificates:
    """The Secrets with certificates of a deployment, of all revisions that are kept."""

    app: str
    secrets: tuple[KubeObject, ...]

    @property
    def identities(self) -> frozenset[str]:
        """The URIs of all certificates in them. DeployError if a key is no certificate."""
        return frozenset(identity for secret in self.secrets for identity in _identities(secret).values())

    def trusts(self, signer: Any, bundle: bytes, at: Any) -> bool:
        """True if pods accept what `signer` (an X.509 certificate) signs; False: they must learn of it first.

        They may learn it only from a `bundle` with every authority that they trust, or they would refuse each other
        until all have read it. DeployError for a bundle that lacks one. An authority that has expired at `at` does not
        count.
        """
        known, accepted = {_fingerprint(item) for item in x509.load_pem_x509_certificates(bundle)}, True
        for secret in self.secrets:
            authorities = [item for item in _authorities(secret) if item.not_valid_after_utc > at]
            trusted = {_fingerprint(item) for item in authorities}
            if not trusted - known:
                accepted &= not trusted or _fingerprint(signer) in trusted
                continue
            theirs = ", ".join(item.subject.rfc4514_string() for item in authorities)
            raise DeployError(
                f"Secret {secret['metadata']['name']} trusts {theirs}, not {signer.subject.rfc4514_string()}, the "
                "authority in this folder: renew where the certificates were made, or copy .jellybean/certs/ca from "
                "there"
            )
        return accepted

    def is_settled(self, at: Any) -> bool:
        """True if all pods trust the same single authority: none is being replaced. One that has expired is none."""
        valid = (item for secret in self.secrets for item in _authorities(secret) if item.not_valid_after_utc > at)
        return len({_fingerprint(item) for item in valid}) == 1


def read_deployed_certificates(cluster: Cluster, app: str) -> DeployedCertificates:
    """The certificates that `deploy` brought. DeployError if there are none, or others make them."""
    inventory = read_inventory(cluster, app)
    if not inventory.revisions:
        raise NotDeployedError(f"nothing of {app} is deployed in {cluster.namespace}")
    if inventory.owner is not None:
        raise DeployError(
            f"{app} is deployed for {inventory.owner['kind']} {inventory.owner['name']}, whose operator renews its "
            "certificates (`certificates: issued`), or whose Secrets you provide (`given`): nothing was renewed"
        )
    names = {name for kind, name in inventory.objects if kind == "Secret"} | _mounted(cluster, inventory)
    secrets, unread = read_secrets(cluster, names)
    if unread:
        raise DeployError(f"this user may not get the Secrets {', '.join(unread)}: `jellybean render DIR --role`")
    foreign = sorted(name for name, secret in secrets.items() if not is_ours(secret, app))
    if foreign:
        raise DeployError(f"Secrets {', '.join(foreign)} were not made by `jellybean deploy`: renew them there")
    if not secrets:
        where = f"in {cluster.namespace}"
        raise NoCertificatesError(f"{app} has no Secrets with certificates {where}: `jellybean deploy` makes them")
    return DeployedCertificates(app, tuple(secrets[name] for name in sorted(secrets)))


def renew_certificates(
    cluster: Cluster, found: DeployedCertificates, bundle: bytes, pairs: Mapping[str, tuple[bytes, bytes]]
) -> tuple[str, ...]:
    """Write trusted authorities, and certificate and key by identity, into the Secrets; returns their names.

    An identity that has no pair keeps its certificate. LockedError while a deployment runs.
    """
    with DeployLock(cluster, found.app) as lock:
        for secret in found.secrets:
            data = {**secret["data"], CA_KEY: _text(bundle)}
            for key, identity in _identities(secret).items():
                if identity in pairs:
                    certificate, private = pairs[identity]
                    data |= {key: _text(certificate), f"{key.removesuffix('.crt')}.key": _text(private)}
            lock.renew()
            cluster.apply(with_hash(_applied(secret, data)), force=True)  # also what somebody has changed by hand
    return tuple(secret["metadata"]["name"] for secret in found.secrets)


def _mounted(cluster: Cluster, inventory: Inventory) -> set[str]:
    if inventory.current is None:
        return set()
    return set(mounted_certificates(read_revision(cluster, inventory.app, inventory.current.number)))


def _identities(secret: KubeObject) -> dict[str, str]:
    """Key -> identity of the certificates in a Secret. DeployError if one is damaged."""
    found, damaged = certificates_in(secret)
    if damaged:
        raise DeployError(f"{damaged[0]}: make it again by `jellybean certs` and `jellybean deploy`")
    return {item.key: item.identity for item in found if item.key != CA_KEY}


def _authorities(secret: KubeObject) -> Iterable[Any]:
    try:
        return list(x509.load_pem_x509_certificates(base64.b64decode((secret.get("data") or {})[CA_KEY])))
    except (KeyError, ValueError) as error:
        name = secret["metadata"]["name"]
        raise DeployError(f"Secret {name}: {CA_KEY} has no certificates (PEM): `jellybean deploy` writes it") from error


def _applied(secret: KubeObject, data: Mapping[str, str]) -> KubeObject:
    """The Secret as a deployment with these certificates would apply it, so that the next one finds nothing to do."""
    meta = secret["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": meta["name"], "labels": meta["labels"]},
        "type": "Opaque",
        "data": dict(sorted(data.items())),
    }


def _fingerprint(certificate: Any) -> bytes:
    return bytes(certificate.fingerprint(hashes.SHA256()))


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
